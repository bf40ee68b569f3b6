"""What every journey has: a record of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import containers

from casemate import sync


@pytest.fixture(autouse=True)
def _without_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journeys are behind the native wall. A busy engine may still be removing the containers of tests before."""
    monkeypatch.setattr(containers, "supervisors", list)


@pytest.fixture
def sandbox(audit: Path) -> Iterator[sync.Sandbox]:
    """A sandbox that is closed at the end."""
    with sync.Sandbox(audit=audit) as one:
        yield one
