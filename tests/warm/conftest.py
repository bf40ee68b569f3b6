"""What every test of warm cells has: a record of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casemate import sync


@pytest.fixture
def sandbox(audit: Path) -> Iterator[sync.Sandbox]:
    """A sandbox with one zygote, which is ready soon; it is closed at the end."""
    with sync.Sandbox(audit=audit, preload=()) as one:
        yield one
