"""The server by HTTP: streamable HTTP at one path, and the SSE transport of old clients at two others.

Whoever mounts these applications has authenticated the request before. Host and Origin are checked here, too, against
what the operator has named: a page in the user's browser must not reach a server of the user's machine (DNS rebinding).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp.server.sse import SseServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from casemate.surfaces.mcp.callers import Callers

MOST_BODY = 8 * 2**20  # bytes of one request, such as a file that write_file is given
_IDLE = 1800.0  # seconds after which an MCP session without requests is forgotten
_MOST_SESSIONS = 10_000


@dataclass(frozen=True, slots=True)
class Mounted:
    """``routes`` of an application whose lifespan enters ``living``."""

    routes: Sequence[BaseRoute]
    living: contextlib.AbstractAsyncContextManager[None]


def streamable(
    server: Server[Callers], hosts: Sequence[str] | None, origins: Sequence[str] = (), path: str = "/mcp",
    most_sessions: int = _MOST_SESSIONS,
) -> Mounted:  # fmt: skip
    """Streamable HTTP at ``path``. ``hosts``, ``origins``: what requests may name, with ``:*`` for any port;
    None where that has been checked."""
    manager = StreamableHTTPSessionManager(
        server, security_settings=_security(hosts, origins), session_idle_timeout=_IDLE, max_sessions=most_sessions,
        max_request_body_size=MOST_BODY,
    )  # fmt: skip
    return Mounted((Route(path, endpoint=_Leaving(StreamableHTTPASGIApp(manager), server)),), manager.run())


def sse(
    server: Server[Callers], hosts: Sequence[str] | None, origins: Sequence[str] = (), path: str = "/sse",
    messages: str = "/messages/",
) -> Mounted:  # fmt: skip
    """The SSE transport of revision 2024-11-05: events at ``path``, requests to ``messages``."""
    transport = SseServerTransport(messages, _security(hosts, origins), MOST_BODY)

    async def events(scope: Scope, receive: Receive, send: Send) -> None:
        async with transport.connect_sse(scope, receive, send) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
        await Response()(scope, receive, send)

    @contextlib.asynccontextmanager
    async def living() -> AsyncGenerator[None]:
        async with server.lifespan(server):
            yield

    return Mounted((Route(path, endpoint=_Asgi(events)), Mount(messages, app=transport.handle_post_message)), living())


class _Leaving:
    """The same application, after which what the client of an MCP session has left behind ends with that: by DELETE, to
    which the SDK says 200 (MCP 2025-11-25, transports, session management)."""

    def __init__(self, app: ASGIApp, server: Server[Callers]) -> None:
        self._app = app
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        said: list[int] = []

        async def hear(message: Message) -> None:
            if message["type"] == "http.response.start":
                said.append(message["status"])
            await send(message)

        await self._app(scope, receive, hear)
        if scope["method"] == "DELETE" and said == [200]:
            async with self._server.lifespan(self._server) as callers:
                callers.left(Request(scope))


class _Asgi:
    """An ASGI application as an object: a route takes a function for one of requests and responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _security(hosts: Sequence[str] | None, origins: Sequence[str]) -> TransportSecuritySettings:
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=hosts is not None,
        allowed_hosts=list(hosts or ()),
        allowed_origins=list(origins),
    )
