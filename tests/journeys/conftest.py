"""What every journey has: a record of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.journeys.folders import folder

from casemate import sync

__all__ = ["folder"]


@pytest.fixture
def sandbox(audit: Path) -> Iterator[sync.Sandbox]:
    """A sandbox that is closed at the end."""
    with sync.Sandbox(audit=audit) as one:
        yield one
