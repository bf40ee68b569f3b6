"""Tests that are coroutines: a folder's conftest takes from here what it needs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest

_SECONDS = 100  # for a test that waits for ever; tests/conftest.py ends one that does not even hear of this


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine: in the loop of its file, or in one of its own."""
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
    """The event loop of a file."""
    with asyncio.Runner() as one:
        yield one
