"""Sessions of Python, shared by a file's tests or a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.guest.python_session import start
from tests.unit.guest.session_driver import Session


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session that many tests use one after the other, as steps of one user."""
    session = start(tmp_path_factory.mktemp("session"))
    yield session
    session.close()


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Session]:
    """A session of the test's own."""
    session = start(tmp_path)
    yield session
    session.close()
