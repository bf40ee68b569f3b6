"""Requests that the egress proxy reads can be changed on their way, and their bodies watched: in clear, in TLS that
ends there, in HTTP/2."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.network.test_clients import needs
from tests.network.visits import World

from casemate import sync
from casemate.egress.injection import Injection
from casemate.egress.terms import BodyRedaction, Fields, RewrittenRequest

PLACEHOLDER, VALUE = b"placeholder-1234", b"the-value-itself"


class Putting:
    """Puts the value into a header field for good.test over TLS, and says where else the placeholder is."""

    hosts = frozenset({"good.test"})
    places = frozenset({("good.test", 443)})

    def request(
        self, host: str, port: int, is_tls: bool, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]]
    ) -> RewrittenRequest:
        may = host in self.hosts and is_tls
        notes = () if may or all(PLACEHOLDER not in value for _, value in headers) else ("a placeholder elsewhere",)
        if PLACEHOLDER in target:
            notes = (*notes, "a placeholder in a path")
        put = [(name, value.replace(PLACEHOLDER, VALUE)) for name, value in headers]
        return RewrittenRequest(put if may else headers, notes)

    def watch(self, host: str) -> Callable[[bytes], tuple[str, ...]]:
        seen = bytearray()

        def look(part: bytes) -> tuple[str, ...]:
            seen.extend(part)
            return (f"a placeholder in a body for {host}",) if PLACEHOLDER in seen else ()

        return look

    def answer(self, host: str, headers: Fields) -> Fields:
        return headers

    def hide(self, host: str) -> BodyRedaction:
        return Injection([]).hide(host)


@pytest.fixture
def sandbox(world: World, audit: Path) -> Iterator[sync.Sandbox]:
    hosts = ["good.test", "good.test:8443", "other.test"]
    with sync.Sandbox(
        audit=audit, allowed_domains=hosts, intercept=["good.test:8443"], trust=world.folder / "ca.pem"
    ) as made:
        network = made._sandbox._parts.context.sandbox_network
        network.rewrite = lambda admitted: Putting()  # type: ignore[method-assign]
        yield made


def reasons(sandbox: sync.Sandbox, program: str) -> list[str]:
    execution = sandbox.run(program, language="shell")
    assert execution.ok, execution.stderr
    return [crossing.reason for crossing in execution.crossings if crossing.decision == "denied"]


@needs("curl")
@pytest.mark.parametrize(
    ("url", "options", "key", "notes"),
    [
        ("https://good.test/x", "--http1.1", VALUE, []),  # not named by intercept: the hosts of the rewriting are, too
        ("https://good.test:8443/x", "--http1.1", VALUE, []),
        ("https://good.test:8443/x", "--http2", VALUE, []),
        ("http://good.test/x", "", PLACEHOLDER, ["a placeholder elsewhere"]),
        ("http://other.test/x", "", PLACEHOLDER, ["a placeholder elsewhere"]),
        (f"https://good.test/{PLACEHOLDER.decode()}", "", VALUE, ["a placeholder in a path"]),
    ],
)
def test_va_15_a_header_field_is_changed_for_exactly_that_host_and_scheme(
    world: World, sandbox: sync.Sandbox, url: str, options: str, key: bytes, notes: list[str]
) -> None:
    visits = world.visits()
    said = reasons(sandbox, f"curl -sS -m 20 {options} -H 'X-Key: {PLACEHOLDER.decode()}' {url}")
    (visit,) = world.visits()[len(visits) :]
    assert f" x={key.decode()}'" in visit
    assert said == notes


@needs("curl")
@pytest.mark.parametrize("options", ["--http1.1 https://good.test/digest", "--http2 https://good.test:8443/digest",
                                     "http://good.test/digest"])  # fmt: skip
def test_a_body_is_watched_and_arrives_as_it_is(world: World, sandbox: sync.Sandbox, options: str) -> None:
    visits = world.visits()
    said = reasons(sandbox, f"curl -sS -m 20 -d 'a={PLACEHOLDER.decode()}' {options}")
    assert said == ["a placeholder in a body for good.test"]
    assert len(world.visits()) == len(visits) + 1


@needs("curl")
def test_a_field_that_cannot_be_written_ends_the_connection_and_is_not_sent(
    world: World, sandbox: sync.Sandbox
) -> None:
    class Broken(Putting):
        def request(self, *_: object) -> RewrittenRequest:
            return RewrittenRequest([(b"x-key", b"a\r\nb: c")])

    network = sandbox._sandbox._parts.context.sandbox_network
    network.rewrite = lambda admitted: Broken()  # type: ignore[method-assign]
    visits = world.visits()
    for url in ("--http1.1 https://good.test/x", "--http2 https://good.test:8443/x", "http://good.test/x"):
        execution = sandbox.run(f"curl -sS -m 20 {url}", language="shell")
        assert "a fault of casemate" in execution.crossings[-1].reason
    assert world.visits() == visits
