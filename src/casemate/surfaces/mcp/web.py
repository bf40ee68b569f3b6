"""The server over HTTP: streamable HTTP at ``/mcp``, and the SSE transport of old clients at ``/sse``.

The mounted applications do not authenticate: :class:`Guarded` or the service does, and checks Host and Origin, because
a page in the user's browser must not reach a server on the user's machine (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp.server.sse import SseServerTransport
from mcp.server.streamable_http import LAST_EVENT_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router

from casemate.errors import Unavailable
from casemate.model.operation import Audience, Principal
from casemate.surfaces.http.app import MOST_MOUNTED, answer_request, hand_over
from casemate.surfaces.http.exchange import Exchange, Shares
from casemate.surfaces.http.identity import Listener, check_principal, hosts_of, token_of
from casemate.surfaces.http.server import Server as Place
from casemate.surfaces.http.server import listen, take_descriptors
from casemate.surfaces.mcp.callers import PRINCIPAL
from casemate.surfaces.mcp.resuming import RETRY, ResumingSessions

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from casemate.surfaces.mcp.callers import Callers

_IDLE = 1800.0  # seconds without requests after which an MCP session is forgotten
_MESSAGES = "/messages/"


@dataclass(frozen=True, slots=True)
class Mounted:
    """``routes`` of an application, to be served while ``lifespan`` is entered."""

    routes: Sequence[BaseRoute]
    lifespan: contextlib.AbstractAsyncContextManager[None]


def streamable(server: Server[Callers], *, most_sessions: int) -> Mounted:
    """Streamable HTTP at ``/mcp``."""
    manager = ResumingSessions(
        server, session_idle_timeout=_IDLE, max_sessions=most_sessions, max_request_body_size=MOST_MOUNTED,
        retry_interval=RETRY,
    )  # fmt: skip
    return Mounted((Route("/mcp", endpoint=_Leaving(manager, server)),), manager.run())


def sse(server: Server[Callers]) -> Mounted:
    """The SSE transport of revision 2024-11-05: events at ``/sse``, requests to ``/messages/``."""
    transport = SseServerTransport(_MESSAGES, max_request_body_size=MOST_MOUNTED)

    async def events(scope: Scope, receive: Receive, send: Send) -> None:
        async with transport.connect_sse(scope, receive, send) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
        await Response()(scope, receive, send)

    @contextlib.asynccontextmanager
    async def run_server() -> AsyncGenerator[None]:
        async with server.lifespan(server):
            yield

    return Mounted(
        (Route("/sse", endpoint=_Asgi(events)), Mount(_MESSAGES, app=transport.handle_post_message)), run_server()
    )


class _Leaving:
    """The SDK's application, with two changes. A DELETE that it answers with 200 also ends the runs and sessions of the
    MCP session's client (MCP 2025-11-25, transports, session management). A client that resumes a stream which is not
    kept gets an error; the SDK would send a stream that breaks at once."""

    def __init__(self, manager: ResumingSessions, server: Server[Callers]) -> None:
        self._app = StreamableHTTPASGIApp(manager)
        self._streams = manager
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        last = Request(scope).headers.get(LAST_EVENT_ID_HEADER)
        if scope["method"] == "GET" and last and self._streams.find(last)[0] is None:
            await Response("this stream is no longer kept", 400, media_type="text/plain")(scope, receive, send)
            return
        said: list[int] = []

        async def hear(message: Message) -> None:
            if message["type"] == "http.response.start":
                said.append(message["status"])
            await send(message)

        await self._app(scope, receive, hear)
        if scope["method"] == "DELETE" and said == [200]:
            async with self._server.lifespan(self._server) as callers:
                callers.forget(Request(scope))


class _Asgi:
    """An ASGI application as an object: routes treat plain functions as request handlers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


_MOST_BY_TOKEN = 1000  # MCP sessions of all clients, which share one token
_CLIENT = Principal("token", Audience.AGENT)


async def serve_http(
    server: Server[Callers],
    transport: str,
    host: str,
    port: int,
    token: str,
    say: Callable[[str], None],
    origins: Collection[str],
) -> None:
    """Serve until a signal ends the process. ``transport``: "http" or "sse"; ``say`` is called with the address;
    ``origins``: allowed page origins besides the server's own. Raises ``Unavailable`` if it cannot listen there."""
    take_descriptors()
    mounted = streamable(server, most_sessions=_MOST_BY_TOKEN) if transport == "http" else sse(server)
    try:
        listening = listen(host, port)
    except OSError as error:
        raise Unavailable(f"cannot listen at {host}:{port}: {error.strerror or error}") from None
    bound: int = listening.getsockname()[1]
    here = "127.0.0.1" if host == "localhost" else host
    names = hosts_of([(here, bound)], (), tls=False)
    own = {f"http://{name}" for name in names}  # this server's own pages
    where = Listener("tcp", names, frozenset(own | {origin.lower().rstrip("/") for origin in origins}))
    place = Place(Guarded(Router(list(mounted.routes)), where, token), listening)
    with _signals(place) as told:
        async with mounted.lifespan:
            shown = f"[{host}]" if ":" in host else host
            say(f"listens at http://{shown}:{bound}/{'mcp' if transport == 'http' else 'sse'}")
            await place.until_ended()
    if told:
        sys.stderr.flush()
        os._exit(128 + told[0])  # threads that wait for programs would keep the process alive


class Guarded:
    """Serves ``app`` to clients that send the token as ``Authorization: Bearer``."""

    def __init__(self, app: ASGIApp, listener: Listener, token: str) -> None:
        self._app = app
        self._listener = listener
        self._digest = hashlib.sha256(token.encode()).digest()
        self._shares = Shares()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def admit(exchange: Exchange) -> None:
            given = hashlib.sha256(token_of(exchange.head).encode("latin-1")).digest()
            is_known = hmac.compare_digest(given, self._digest)
            client = check_principal(exchange.head, _CLIENT if is_known else None)
            with self._shares.of(client.namespace, client.payer) as exchange.share:
                await hand_over(exchange, self._app, {**scope, PRINCIPAL: client.name})

        await answer_request(scope, receive, send, self._listener, admit)


@contextlib.contextmanager
def _signals(place: Place) -> Iterator[list[int]]:
    """End the server on SIGTERM or SIGINT, at once on the second. Yields the signals received."""
    loop, told = asyncio.get_running_loop(), list[int]()

    def end(number: int) -> None:
        place.force_exit = bool(told)
        told.append(number)
        place.end()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, end, number)
    try:
        yield told
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
