"""The server at an address of its own, for clients that know its token. Served as the service is, within the same
bounds: of connections, of what they say and how soon, and of what is in it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from starlette.routing import Router

from casemate.errors import Unavailable
from casemate.model.operation import Audience, Principal
from casemate.service.few_at_once import new_loop
from casemate.service.serving import Server as Place
from casemate.service.serving import listen, take_descriptors
from casemate.surfaces.http.entrance import entered, handed_over
from casemate.surfaces.http.exchange import Exchange
from casemate.surfaces.http.identity import Listener, hosts_of, known_as, token_of
from casemate.surfaces.http.shares import Shares
from casemate.surfaces.mcp.doors import PRINCIPAL
from casemate.surfaces.mcp.web import sse, streamable

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

    from casemate.surfaces.mcp.callers import Callers

_MOST_SESSIONS = 1000  # MCP sessions: those of all clients, since there is one token
_CLIENT = Principal("token", Audience.AGENT)


def serve_http(
    server: Server[Callers], transport: str, host: str, port: int, token: str, say: Callable[[str], None]
) -> None:
    """Serve until a signal ends it, and the process, with whatever runs in it. ``transport``: "http" or "sse"; ``say``
    is told the address. Raises ``Unavailable`` where it cannot listen there."""
    take_descriptors()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(server, transport, host, port, token, say))


async def _serve(
    server: Server[Callers], transport: str, host: str, port: int, token: str, say: Callable[[str], None]
) -> None:
    mounted = streamable(server, None, most_sessions=_MOST_SESSIONS) if transport == "http" else sse(server, None)
    try:
        listening = listen(host, port)
    except OSError as error:
        raise Unavailable(f"cannot listen at {host}:{port}: {error.strerror or error}") from None
    bound: int = listening.getsockname()[1]
    here = "127.0.0.1" if host == "localhost" else host
    where = Listener("tcp", hosts_of([(here, bound)], (), tls=False))
    place = Place(Guarded(Router(list(mounted.routes)), where, token), listening)
    with _signals(place) as told:
        async with mounted.living:
            shown = f"[{host}]" if ":" in host else host
            say(f"listens at http://{shown}:{bound}/{'mcp' if transport == 'http' else 'sse'}")
            await place.until_ended()
    if told:
        sys.stderr.flush()
        os._exit(128 + told[0])  # threads that wait for programs would keep it


class Guarded:
    """An application for those who come to ``listener`` with the token as ``Authorization: Bearer``."""

    def __init__(self, app: ASGIApp, listener: Listener, token: str) -> None:
        self._app = app
        self._listener = listener
        self._digest = hashlib.sha256(token.encode()).digest()
        self._shares = Shares()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request (ASGI 3)."""

        async def admit(exchange: Exchange) -> None:
            given = hashlib.sha256(token_of(exchange.head).encode("latin-1")).digest()
            is_known = hmac.compare_digest(given, self._digest)
            client = known_as(exchange.head, _CLIENT if is_known else None)
            with self._shares.of(client.namespace, client.payer) as exchange.share:
                await handed_over(exchange, self._app, {**scope, PRINCIPAL: client.name})

        await entered(scope, receive, send, self._listener, admit)


@contextlib.contextmanager
def _signals(place: Place) -> Iterator[list[int]]:
    """SIGTERM and SIGINT end it, a second one at once; those that came."""
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
