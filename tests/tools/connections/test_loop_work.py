"""Work that one event loop does for another ends when its waiter is cancelled, and no waiter waits for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

import pytest
from tests.tools.connections.conftest import Secrets

from casemate.errors import Fault, SandboxClosed
from casemate.tools.connections.context import Surroundings
from casemate.tools.connections.loop_work import LoopWork, result_of
from casemate.tools.connections.servers import Servers

MAX_WAIT = 60.0
THREAD = "casemate-tools"


@asynccontextmanager
async def opened() -> AsyncIterator[Servers]:
    """Servers of nobody, closed in another thread as a sandbox does."""
    servers = Servers(Surroundings({}, Secrets()))
    try:
        async with asyncio.timeout(MAX_WAIT):
            yield servers
    finally:
        await asyncio.to_thread(servers.close)


async def test_it_is_done_in_the_thread_of_the_connections_and_what_it_raises_is_told() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append(threading.current_thread().name)
        raise OSError("gone")

    async with opened() as servers:
        with pytest.raises(OSError, match="gone"):
            await servers.beside(work)
        assert seen == [THREAD]
        await servers.beside(lambda: asyncio.sleep(0))  # and nobody else's end


async def test_cancelling_who_waits_ends_it_before_that_goes_on() -> None:
    begun, order = threading.Event(), list[str]()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            order.append("ended")

    async def waits(servers: Servers) -> None:
        try:
            await servers.beside(work)
        finally:
            order.append("goes on")

    async with opened() as servers:
        waiting = asyncio.ensure_future(waits(servers))
        await asyncio.to_thread(begun.wait, MAX_WAIT)
        for _ in range(3):  # however often
            waiting.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert order == ["ended", "goes on"]


async def test_one_that_is_cancelled_before_it_begins_is_waited_for_no_longer() -> None:
    held, go = threading.Event(), threading.Event()

    async def hold() -> None:
        held.set()
        go.wait(MAX_WAIT)

    async with opened() as servers:
        holding = asyncio.ensure_future(servers.beside(hold))
        await asyncio.to_thread(held.wait, MAX_WAIT)
        waiting = asyncio.ensure_future(servers.beside(asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        waiting.cancel()
        go.set()
        await holding
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_closing_ends_all_that_is_there_and_takes_no_more() -> None:
    begun = threading.Semaphore(0)

    async def work() -> None:
        begun.release()
        await asyncio.Event().wait()

    async with opened() as servers:
        waiting = [asyncio.ensure_future(servers.beside(work)) for _ in range(20)]
        for _ in waiting:
            await asyncio.to_thread(begun.acquire, timeout=MAX_WAIT)
        await asyncio.to_thread(servers.close)
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(one is None or isinstance(one, Fault) for one in done)
        with pytest.raises(SandboxClosed):
            await servers.beside(work)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_where_the_loop_dies_nobody_waits_for_ever() -> None:
    async with opened() as servers:
        begun = threading.Event()

        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        waiting = asyncio.ensure_future(servers.beside(work))
        await asyncio.to_thread(begun.wait, MAX_WAIT)
        loop = servers._loop
        assert loop is not None
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.wait([waiting], timeout=MAX_WAIT)
        assert waiting.done()
        with pytest.raises(Fault):
            await servers.beside(work)


async def test_what_never_began_in_a_loop_that_is_gone_is_not_waited_for() -> None:
    loop_work, gone = LoopWork(), asyncio.new_event_loop()
    async with asyncio.TaskGroup() as group:
        item = loop_work.enter(gone, group, lambda: asyncio.sleep(0))
        staying = asyncio.ensure_future(item.stay())
        await asyncio.sleep(0)
        assert not staying.done()
        loop_work.abandon()
        with pytest.raises(Fault):
            await staying
    gone.close()
    with pytest.raises(Fault):
        loop_work.enter(gone, group, lambda: asyncio.sleep(0))


@pytest.mark.parametrize("comes", ["before", "here", "elsewhere"])
async def test_what_arrives_is_had_wherever_it_comes_from(comes: str) -> None:
    future: Future[int] = Future()
    if comes == "before":
        future.set_result(7)
    elif comes == "here":
        asyncio.get_running_loop().call_soon(future.set_result, 7)
    else:
        threading.Timer(0.01, future.set_result, (7,)).start()
    async with asyncio.timeout(MAX_WAIT):
        assert await result_of(future) == 7


async def test_who_waits_for_it_no_longer_takes_it_back() -> None:
    future: Future[int] = Future()
    waiting = asyncio.ensure_future(result_of(future))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert future.cancelled()


async def test_what_was_taken_back_is_told_as_a_cancellation() -> None:
    future: Future[int] = Future()
    asyncio.get_running_loop().call_soon(future.cancel)
    with pytest.raises(asyncio.CancelledError):
        await result_of(future)
