"""An event loop and a sandbox for each file."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

from casemate import Limits, Sandbox

_SECONDS = 100  # for a test that waits for ever


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
def sandbox(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One sandbox for all tests of a file."""
    one = Sandbox(audit=tmp_path_factory.mktemp("audit") / "audit.db", limits=Limits(wall=120))
    try:
        yield one
    finally:
        runner.run(one.close())
