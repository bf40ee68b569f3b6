"""uvicorn on a socket: connections checked and bounded before anything of them is read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections.abc import Iterator, MutableSet
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from casemate.remote.address import peer_of

_MOST_CONNECTIONS = 2000  # at one place; silent ones end for new ones, and with none of these new ones do
_MOST_HEAD = 64 * 1024  # bytes of a request's head
_KEPT_IDLE = 60  # seconds that a connection may be idle; clients keep theirs for less
_HEAD_WITHIN = 15.0  # seconds until the first request is there
_AT_ONCE = 64 * 1024  # bytes that are held back within a turn of the loop; more than these wait for the other end
_MOST_DESCRIPTORS = 16384
_LAST_WORDS = 5  # seconds that answers under way have when the service ends


class _AtOnce:
    """A transport that sends what is written in one turn of the loop, a head and its body, at once: whoever waits for
    it is woken but once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send ``data`` soon."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _AT_ONCE:
            self._flush()

    def close(self) -> None:
        """Close it when all is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if parts:
            self._transport.write(b"".join(parts))


class _Checked(H11Protocol):
    """A connection of this very user where it comes over a Unix socket (unix(7)), and one that says something soon."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_AtOnce(transport, self.loop))  # type: ignore[arg-type]
        one: Any = transport.get_extra_info("socket")
        if one is not None and one.family == socket.AF_UNIX and peer_of(one) != os.geteuid():
            transport.abort()
            return
        self._waiting = self.loop.call_later(_HEAD_WITHIN, self._hurry)
        if len(self.connections) > _MOST_CONNECTIONS:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """End the oldest that is not being answered, so that who says nothing keeps nobody out; else this one. It is
        forgotten at once: in the turn in which many come, as many go."""
        others = (one for one in self.connections if isinstance(one, _Checked) and one is not self)
        ended = next((one for one in others if one.cycle is None or one.cycle.response_complete), self)
        self.connections.discard(ended)
        ended.transport.abort()

    def _hurry(self) -> None:
        if self.cycle is None:
            self.transport.abort()


class _InOrder(MutableSet[Any]):
    """A set that keeps the order in which its members came."""

    def __init__(self) -> None:
        self._members: dict[Any, None] = {}

    def __contains__(self, one: object) -> bool:
        return one in self._members

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, value: Any) -> None:
        """Behind all others."""
        self._members[value] = None

    def discard(self, value: Any) -> None:
        """Harmless where it is not there."""
        self._members.pop(value, None)


class Server(uvicorn.Server):
    """One place that is listened at. Signals are the business of whoever has it."""

    def __init__(self, app: Any, listening: socket.socket, tls: tuple[str, str] | None = None) -> None:
        """``tls``: the files of a certificate and its key. Raises ``OSError`` and ``ssl.SSLError`` for bad ones."""
        cert, key = tls or (None, None)
        if cert is not None:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key)  # an error before it listens
        self._listening = listening
        config = uvicorn.Config(
            app,
            http=_Checked,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=2 * _MOST_CONNECTIONS,  # never reached: connections are ended before
            h11_max_incomplete_event_size=_MOST_HEAD,
            timeout_keep_alive=_KEPT_IDLE,
            timeout_graceful_shutdown=_LAST_WORDS,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
        super().__init__(config)
        self.server_state.connections = _InOrder()  # type: ignore[assignment]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals alone."""
        yield

    async def until_ended(self) -> None:
        """Answer requests until :meth:`end`."""
        await self.serve(sockets=[self._listening])

    def end(self) -> None:
        """Take no more connections; answers under way are finished."""
        self.should_exit = True


def take_descriptors() -> None:
    """Have as many descriptors as may be had, up to what full places, and cells beside them, need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def listen(host: str, port: int) -> socket.socket:
    """A TCP socket at an address of this machine. Raises ``OSError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(1024)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
