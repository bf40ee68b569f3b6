"""What every journey has: a record of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.coroutines import pytest_pyfunc_call

from casemate import sync

__all__ = ["pytest_pyfunc_call"]


@pytest.fixture
def sandbox(audit: Path) -> Iterator[sync.Sandbox]:
    """A sandbox that is closed at the end."""
    with sync.Sandbox(audit=audit) as one:
        yield one
