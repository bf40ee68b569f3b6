"""A header field that cannot be written leaves the egress proxy on no way: in clear, or in TLS that ends there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.network.test_clients import needs
from tests.network.visits import World

from casemate import sync
from casemate.egress.injection import Injection, RewrittenRequest


class Broken(Injection):
    """Puts a second field into a value."""

    def __init__(self) -> None:
        super().__init__([])
        self.hosts = frozenset({"good.test"})
        self.places = frozenset({("good.test", 443)})

    def request(self, *_: object) -> RewrittenRequest:
        return RewrittenRequest([(b"x-key", b"a\r\nb: c")])


@needs("curl")
@pytest.mark.parametrize("url", ["https://good.test/x", "https://good.test:8443/x", "http://good.test/x"])
def test_a_field_that_cannot_be_written_ends_the_connection_and_is_not_sent(
    world: World, audit: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    visits = world.visits()
    with sync.Sandbox(
        audit=audit,
        allowed_domains=["good.test", "good.test:8443"],
        intercept=["good.test:8443"],
        trust=world.folder / "ca.pem",
    ) as sandbox:
        network = sandbox.asynchronous._context.sandbox_network
        monkeypatch.setattr(network, "rewrite", lambda _: Broken())
        execution = sandbox.run(f"curl -sS -m 20 {url}", language="shell")
    assert "a fault of casemate" in execution.crossings[-1].reason
    assert world.visits() == visits
