"""Every wall and every language, each test once for all of them: add a name here and the suite judges it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.languages import LANGUAGES
from tests.warmth import start

from casemate import sync

__all__ = ["start"]

WALLS = ("native",)


@pytest.fixture(scope="session", params=WALLS)
def wall(request: pytest.FixtureRequest) -> str:
    """The name of the wall that is judged."""
    return str(request.param)


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """The name of the language that is judged."""
    return str(request.param)


@pytest.fixture(scope="module")
def sandbox(wall: str, start: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sync.Sandbox]:
    """One sandbox for all tests of a file: that they do not disturb each other is part of the contract."""
    with sync.Sandbox(isolation=wall, audit=_audit(tmp_path_factory)) as one:
        yield one


def _audit(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("audit") / "audit.db"
