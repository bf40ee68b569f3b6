"""What every test of warm cells has: a record of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casemate import sync


@pytest.fixture
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this test's record lies; not in ``tmp_path``, which some tests give to cells."""
    return tmp_path_factory.mktemp("audit") / "audit.db"


@pytest.fixture
def sandbox(audit: Path) -> Iterator[sync.Sandbox]:
    """A sandbox with one zygote, which is ready soon; it is closed at the end."""
    with sync.Sandbox(audit=audit, preload=()) as one:
        yield one
