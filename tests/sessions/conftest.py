"""What every test of a session has: an event loop and a sandbox per file, and sessions that are closed at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.coroutines import runner
from tests.journeys.folders import folder
from tests.sessions.driver import PROMPT, Open, starting

from casemate import Limits, Sandbox
from casemate.sessions.session import Session

__all__ = ["folder", "runner"]


@pytest.fixture(scope="module")
def start() -> str:
    """How cells start, where a file does not say that it wants both."""
    return "warm"


@pytest.fixture(scope="module")
def sandbox(runner: asyncio.Runner, start: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One sandbox for all tests of a file: that they do not disturb each other is part of what is tested."""
    audit = tmp_path_factory.mktemp("audit") / "audit.db"
    with starting(start):
        one = Sandbox(audit=audit, limits=Limits(wall=1000, memory="1GiB", processes=80))
        try:
            yield one
        finally:
            runner.run(one.close())


@pytest.fixture
def opened(runner: asyncio.Runner, sandbox: Sandbox) -> Iterator[Open]:
    """Opens sessions, which are closed at the end of the test."""
    sessions: list[Session] = []

    def open_session(language: str = "python", **arguments: Any) -> Session:
        sessions.append(sandbox.session(language, **arguments))
        return sessions[-1]

    async def close_all() -> None:
        async with asyncio.timeout(PROMPT):
            for session in sessions:
                await session.close()

    yield open_session
    runner.run(close_all())


@pytest.fixture
def session(opened: Open) -> Session:
    """A session of Python."""
    return opened("python")
