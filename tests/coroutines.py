"""Runs tests that are coroutines. The conftest files import from here."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

_SECONDS = 100  # the limit for a waiting test; tests/conftest.py also ends a test that blocks the event loop


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine, in the event loop of its file or in a new one."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def run() -> None:
        async with asyncio.timeout(_SECONDS):
            await test(**arguments)

    shared = pyfuncitem.funcargs.get("runner")
    if isinstance(shared, asyncio.Runner):
        shared.run(run())
    else:
        asyncio.run(run())
    return True


@pytest.fixture(scope="module", autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """The event loop shared by the tests of a file."""
    with asyncio.Runner() as one:
        yield one
