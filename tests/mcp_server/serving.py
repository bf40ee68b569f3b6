"""casemate's MCP server by HTTP on the loopback, in a thread of its own, as long as a test needs it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial

import uvicorn
from mcp.server.lowlevel import Server
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from casemate.surfaces.mcp.callers import PRINCIPAL, Callers
from casemate.surfaces.mcp.web import Mounted, sse, streamable

SECONDS = 60.0
CALLER = "x-caller"


@contextlib.contextmanager
def by_http(make: Callable[[], contextlib.AbstractAsyncContextManager[Server[Callers]]]) -> Iterator[str]:
    """The address of a server that ``make`` makes in the thread's event loop; ``/mcp`` and ``/sse`` are there."""
    told: list[str] = []
    started = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(make, told, started)), daemon=True)
    ending: list[Callable[[], None]] = []

    async def _serve(
        making: Callable[[], contextlib.AbstractAsyncContextManager[Server[Callers]]],
        address: list[str],
        ready: threading.Event,
    ) -> None:
        async with making() as server:
            web = uvicorn.Server(uvicorn.Config(Named(application(server)), port=0, log_config=None, access_log=False))
            loop = asyncio.get_running_loop()
            ending.append(partial(_end, loop, web))
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(web.serve())
                while not web.started and not serving.done():
                    await asyncio.sleep(0.01)
                port = web.servers[0].sockets[0].getsockname()[1]
                address.append(f"http://127.0.0.1:{port}")
                ready.set()

    thread.start()
    try:
        assert started.wait(SECONDS), "the server listens"
        yield told[0]
    finally:
        for end in ending:
            end()
        thread.join(SECONDS)


class Named:
    """A stand-in for authentication, which accepts any name."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers") or ())
        if CALLER.encode() in headers:
            scope = {**scope, PRINCIPAL: headers[CALLER.encode()].decode()}
        await self._app(scope, receive, send)


def _end(loop: asyncio.AbstractEventLoop, web: uvicorn.Server) -> None:
    loop.call_soon_threadsafe(setattr, web, "should_exit", True)


def application(server: Server[Callers]) -> Starlette:
    """Both transports in one application."""
    mounted: list[Mounted] = [streamable(server, most_sessions=10_000), sse(server)]

    @contextlib.asynccontextmanager
    async def living(_app: Starlette) -> AsyncGenerator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for one in mounted:
                await stack.enter_async_context(one.lifespan)
            yield

    return Starlette(routes=[route for one in mounted for route in one.routes], lifespan=living)
