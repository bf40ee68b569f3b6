"""TLS that ends at the door: requests are seen, and clients notice nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doors.visits import World

from casemate import sync

URLLIB = "import urllib.request as u; print(u.urlopen('{}', timeout=20).read().decode())"


@pytest.fixture
def seeing(world: World, audit: Path) -> Iterator[sync.Sandbox]:
    """One that sees what is asked of good.test and api.good.test, and allows GET below /x."""
    policy = {
        "allowed_domains": ["good.test", "*.good.test"],
        "requests": [{"host": "good.test", "path": "/x"}, {"host": "api.good.test", "methods": []}],
    }
    with sync.Sandbox(
        audit=audit, policy=policy, intercept=["good.test", "api.good.test"], trust=world.folder / "ca.pem"
    ) as made:
        yield made


def test_a_request_that_a_rule_allows_is_made(seeing: sync.Sandbox) -> None:
    execution = seeing.run(URLLIB.format("https://good.test/x"))
    assert execution.stdout == "hello from GET /x\n", (execution.stderr, execution.crossings)
