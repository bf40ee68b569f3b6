"""What every test of a session has: an event loop and a sandbox per file, and sessions that are closed at the end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sessions.driver import PROMPT, Open, starting

from casemate import Limits, Sandbox
from casemate.sessions.session import Session

_SECONDS = 90  # for a test that waits for ever; tests/conftest.py ends one that does not even hear of this


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in the loop of its file."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def run() -> None:
        async with asyncio.timeout(_SECONDS):
            await test(**arguments)

    runner = pyfuncitem.funcargs["runner"]
    assert isinstance(runner, asyncio.Runner)
    runner.run(run())
    return True


@pytest.fixture(scope="module", autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of a file."""
    with asyncio.Runner() as one:
        yield one


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
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the record of a test's own sandbox lies."""
    return tmp_path_factory.mktemp("audit") / "audit.db"


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
