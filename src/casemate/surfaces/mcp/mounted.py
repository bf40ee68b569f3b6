"""The MCP server within casemate's service, at ``/mcp``, and at ``/sse`` for old clients. Loaded when first asked for.

Whoever mounts it has authenticated the request, and checked its Host and Origin.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate.errors import Unavailable
from casemate.model.operation import Audience, Principal

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from casemate.surfaces.mcp.callers import Invoke

PATHS = ("mcp", "sse", "messages")
"""The first parts of the paths that it serves."""
_MOST_SESSIONS = 200  # MCP sessions of one principal
_MOST_APPS = 1000  # principals; the one that was not heard of for longest goes for a new one
_MOST_OF_ONE = 100  # of one account, which goes first for another of its own


class _MountedServer(NamedTuple):
    ready: asyncio.Future[ASGIApp]
    task: asyncio.Task[None]


class Mount:
    """An ASGI application. Its scopes hold ``casemate.principal``, and ``casemate.operations``, which gives these.

    Each principal has a server of its own: nobody uses another's MCP sessions, nor takes all that there can be."""

    def __init__(self, toolset: str = "default") -> None:
        self._toolset = toolset
        self._apps: OrderedDict[tuple[str, str, str], _MountedServer] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. What goes wrong in loading is raised to each that waits for it."""
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
            app, living = await asyncio.to_thread(_make, self._toolset)
            async with contextlib.AsyncExitStack() as stack:
                for one in living:
                    await stack.enter_async_context(one)
                ready.set_result(app)
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not ready.done():
                ready.set_exception(Unavailable("too many others use the MCP server of this service"))
            raise
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


def mounts() -> Mapping[str, Mount]:
    """The applications of a service, by the first parts of their paths."""
    one = Mount()
    return dict.fromkeys(PATHS, one)


def _make(toolset: str) -> tuple[ASGIApp, list[Any]]:
    from starlette.routing import Router

    from casemate.surfaces.mcp.server import make_server
    from casemate.surfaces.mcp.web import sse, streamable

    server = make_server(_ServiceBackend(), toolset=toolset)
    mounted = [streamable(server, None, most_sessions=_MOST_SESSIONS), sse(server, None)]
    return Router([route for one in mounted for route in one.routes]), [one.lifespan for one in mounted]


class _ServiceBackend:
    """The operations of the service, each in the namespace of whoever asks."""

    def who(self, request: Request | None) -> str:
        """A name that no two principals share."""
        principal = _principal(request)
        return f"{principal.namespace}/{principal.name}"

    def agent(self, name: str, request: Request | None) -> Invoke:
        """As an agent, also for the user: what a model calls is never an operator's."""
        return _invoke(name, request, may_approve=False)

    def person(self, name: str, request: Request | None) -> Invoke | None:
        """Of those who may approve."""
        return _invoke(name, request, may_approve=True) if _principal(request).may_approve else None


def _principal(request: Request | None) -> Principal:
    assert request is not None
    principal = request.scope["casemate.principal"]
    assert isinstance(principal, Principal)
    return principal


def _invoke(name: str, request: Request | None, *, may_approve: bool) -> Invoke:
    asking = _principal(request)
    assert request is not None
    operations: Callable[[], Any] = request.scope["casemate.operations"]
    principal = Principal(
        name, Audience.AGENT, asking.namespace, may_approve, asking.payer, asking.secrets,
        may_approve and asking.may_run_commands,
    )  # fmt: skip

    async def invoke(operation: str, arguments: Mapping[str, Any] = {}) -> Any:
        from casemate.operations.invoke import local

        return await local(await operations(), principal)(operation, arguments)

    return invoke
