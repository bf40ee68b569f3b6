"""The MCP server within casemate's service, at ``/mcp``, and at ``/sse`` for old clients. Loaded at the first request.

The service has authenticated each request, and checked its Host and Origin.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate.errors import Unavailable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PATHS = ("mcp", "sse", "messages")
"""The first parts of the paths that it serves."""
_MOST_SESSIONS = 200  # MCP sessions of one principal
_MOST_APPS = 1000  # principals; the least recently used makes way for a new one
_MOST_OF_ONE = 100  # of one account, whose least recently used makes way first


class _MountedServer(NamedTuple):
    ready: asyncio.Future[ASGIApp]
    task: asyncio.Task[None]


class Mount:
    """An ASGI application whose scopes hold ``casemate.principal`` and ``casemate.operations``, which returns them.

    Each principal has its own server, so that none can use another's MCP sessions or take all that are allowed."""

    def __init__(self) -> None:
        self._apps: OrderedDict[tuple[str, str, str], _MountedServer] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. A failure to load is raised to each request that waits for it."""
        principal = scope["casemate.principal"]
        own = (principal.namespace, principal.payer, principal.name)
        if own not in self._apps:
            self._make_room(own[:2])
            loop = asyncio.get_running_loop()
            ready: asyncio.Future[ASGIApp] = loop.create_future()
            self._apps[own] = _MountedServer(ready, loop.create_task(self._serve(ready)))  # ends with the loop
        self._apps.move_to_end(own)
        app = await asyncio.shield(self._apps[own].ready)
        await app(scope, receive, send)

    def _make_room(self, account: tuple[str, str]) -> None:
        of_account = [one for one in self._apps if one[:2] == account]
        if len(of_account) >= _MOST_OF_ONE:
            self._apps.pop(of_account[0]).task.cancel()
        elif len(self._apps) >= _MOST_APPS:
            self._apps.popitem(last=False)[1].task.cancel()

    async def _serve(self, ready: asyncio.Future[ASGIApp]) -> None:
        try:
            app, living = await asyncio.to_thread(_make)
            async with contextlib.AsyncExitStack() as stack:
                for one in living:
                    await stack.enter_async_context(one)
                ready.set_result(app)
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not ready.done():
                ready.set_exception(Unavailable("too many clients use the MCP server of this service"))
            raise
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


def mounts() -> Mapping[str, Mount]:
    """The mounted applications of a service, by the first parts of their paths."""
    return dict.fromkeys(PATHS, Mount())


def _make() -> tuple[ASGIApp, list[Any]]:
    from starlette.routing import Router

    from casemate.surfaces.mcp.callers import ServiceBackend
    from casemate.surfaces.mcp.server import make_server
    from casemate.surfaces.mcp.web import sse, streamable

    server = make_server(ServiceBackend())
    mounted = [streamable(server, most_sessions=_MOST_SESSIONS), sse(server)]
    return Router([route for one in mounted for route in one.routes]), [one.lifespan for one in mounted]
