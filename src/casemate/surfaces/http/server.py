"""uvicorn on a socket, with connections that are checked and bounded before anything is read from them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import selectors
import socket
import ssl
from collections.abc import Iterator
from email.utils import formatdate
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from casemate.errors import Unavailable
from casemate.remote.address import peer_of

_MOST = 24  # connections served in one turn of the loop, at some tenths of a millisecond each


class _Selector(selectors.PollSelector):
    """Reports at most :data:`_MOST` ready connections at once, in rotation, so that each gets its turn. Uses poll(2),
    as :func:`~casemate.event_loop.polling_loop`."""

    _next = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = sorted(super().select(timeout), key=lambda event: ((event[0].fd < self._next), event[0].fd))[:_MOST]
        self._next = ready[-1][0].fd + 1 if ready else 0
        return ready


def new_loop() -> asyncio.AbstractEventLoop:
    """The event loop of a service."""
    return asyncio.SelectorEventLoop(_Selector())


_MOST_CONNECTIONS = 2000  # at one listener; idle ones are closed for new ones, or the new one is if none is idle
_MOST_ENCRYPTED = 500  # TLS connections at one listener: asyncio holds 256 KiB for each
_MOST_HEAD = 64 * 1024  # bytes of a request's head
_KEPT_IDLE = 60  # seconds that a connection may be idle; clients keep theirs for less
_HEAD_WITHIN = 15.0  # seconds for a request's head; the first one's start with the connection
_HANDSHAKE_WITHIN = 10  # seconds for the TLS handshake: three round trips, even on a lossy line
_TAKEN_WITHIN = 60.0  # seconds for the client to take the rest of an answer, and to confirm the end of TLS
_ACCEPTED_AT_ONCE = 24  # connections accepted in one turn of the loop, so that open ones are served in between
_MOST_WAITING = 2048  # connections that the kernel queues before they are accepted
_AT_ONCE = 64 * 1024  # bytes buffered within a turn of the loop; more are passed on at once
_FEWEST_DESCRIPTORS, _MOST_DESCRIPTORS = 256, 16384
_LAST_WORDS = 5  # seconds for answers under way when the service ends


class _AtOnce:
    """A transport that sends all writes of one loop turn, a head and its body, at once: the client wakes up once."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []
        self._size = 0
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > _AT_ONCE:
            self._flush()

    def close(self) -> None:
        """Close once all is sent, or abort if the client does not take it in time."""
        self._flush()
        self._transport.close()
        if not self._is_encrypted and self._transport.get_write_buffer_size():  # TLS has a timeout of its own
            self._loop.call_later(_TAKEN_WITHIN, self._transport.abort)

    def _flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if parts:
            self._transport.write(b"".join(parts))


class _Checked(H11Protocol):
    """A connection that must send something soon and, over a Unix socket, must come from this user (unix(7))."""

    is_encrypted = False
    _waiting: asyncio.TimerHandle | None = None
    _answered_last: Any = None
    _is_made = False
    _early = b""

    def register(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.connections.add(self)
        self._wait_for_head()
        if len(self.connections) > (_MOST_ENCRYPTED if self.is_encrypted else _MOST_CONNECTIONS):
            self._make_room()

    def unregister(self) -> None:
        """Count the connection no more. May be called again."""
        self.connections.discard(self)
        if self._waiting is not None:
            self._waiting.cancel()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._waiting is None:
            self.register(transport)
        super().connection_made(_AtOnce(transport, self.loop))  # type: ignore[arg-type]
        one: Any = transport.get_extra_info("socket")
        if one is not None and one.family == socket.AF_UNIX and peer_of(one) != os.geteuid():
            transport.abort()
        self._is_made = True
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        if not self._is_made:  # the data came with the end of the handshake
            self._early += data
            return
        super().data_received(data)
        if self.cycle is not None and self.cycle.response_complete and self.cycle is not self._answered_last:
            self._wait_for_head()  # part of a head is here; an idle connection may wait longer

    def connection_lost(self, exc: Exception | None) -> None:
        self.unregister()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves this timer, and with it the connection, after a reset

    def _wait_for_head(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._answered_last = self.cycle
        self._waiting = self.loop.call_later(_HEAD_WITHIN, self._hurry)

    def _hurry(self) -> None:
        if self.cycle is self._answered_last:
            self.transport.abort()

    def _make_room(self) -> None:
        """Close the oldest idle connection, or this one if none is idle. It stops counting at once, so that a burst of
        new connections closes as many old ones."""
        others = (one for one in self.connections if isinstance(one, _Checked) and one is not self)
        ended = next((one for one in others if one.cycle is None or one.cycle.response_complete), self)
        self.connections.discard(ended)
        ended.transport.abort()


class _Encrypted(asyncio.Protocol):
    """A TLS connection until its handshake ends. It counts from the moment it is accepted."""

    def __init__(self, context: ssl.SSLContext, **arguments: Any) -> None:
        self._http = _Checked(**arguments)
        self._http.is_encrypted = True
        self._context = context

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._http.register(transport)
        self._handshake = self._http.loop.create_task(self._agree(transport))

    async def _agree(self, transport: asyncio.Transport) -> None:
        encrypted = None
        with contextlib.suppress(OSError):  # also what ssl raises
            encrypted = await self._http.loop.start_tls(
                transport,
                self._http,
                self._context,
                server_side=True,
                ssl_handshake_timeout=_HANDSHAKE_WITHIN,
                ssl_shutdown_timeout=_TAKEN_WITHIN,
            )
        if encrypted is None or encrypted.is_closing():
            self._http.unregister()
            transport.abort()
        else:
            self._http.connection_made(encrypted)


class _InOrder(dict[Any, None]):
    """An insertion-ordered set, with the methods that uvicorn needs."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)


class _ServerState(ServerState):
    """State shared by connections, with a date that is made when needed."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode())]

    @default_headers.setter
    def default_headers(self, _: object) -> None:
        pass


class Server(uvicorn.Server):
    """Serves at one socket. Signals are left to the caller."""

    def __init__(self, app: Any, listening: socket.socket, tls: tuple[str, str] | None = None) -> None:
        """``tls``: the files of a certificate and its key. Raises ``OSError`` and ``ssl.SSLError`` for bad ones."""
        self._listening = listening
        config = uvicorn.Config(
            app,
            http=partial(_Encrypted, _context(*tls)) if tls else _Checked,  # type: ignore[arg-type]  # called
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="error",  # it warns about each malformed request, and anyone can send those
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=2 * _MOST_CONNECTIONS,  # never reached: connections are closed earlier
            h11_max_incomplete_event_size=_MOST_HEAD,
            timeout_keep_alive=_KEPT_IDLE,
            timeout_graceful_shutdown=_LAST_WORDS,
            backlog=_ACCEPTED_AT_ONCE,
        )
        super().__init__(config)
        self.server_state = _ServerState()
        self.server_state.connections = _InOrder()  # type: ignore[assignment]
        self._ended = asyncio.Event()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn. The backlog bounds connections accepted in one turn of asyncio, and the kernel's queue."""
        await super().startup(sockets)
        self._listening.listen(_MOST_WAITING)

    async def main_loop(self) -> None:
        """Wait for :meth:`end`. uvicorn polls ten times a second; a service at rest must do nothing."""
        await self._ended.wait()

    async def until_ended(self) -> None:
        """Answer requests until :meth:`end`."""
        await self.serve(sockets=[self._listening])

    def end(self) -> None:
        """Take no more connections, and finish answers under way."""
        self.should_exit = True
        self._ended.set()


def _context(cert: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.load_cert_chain(cert, key)
    return context


def take_descriptors() -> None:
    """Raise the soft limit of descriptors to what full listeners and cells need. Raises ``Unavailable``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if most < _FEWEST_DESCRIPTORS:
        raise Unavailable(
            f"the service may open {most} files at once (RLIMIT_NOFILE), but needs {_FEWEST_DESCRIPTORS}",
            remediation="Raise the hard limit: ulimit -Hn 4096, or LimitNOFILE=4096 in a unit of systemd.",
        )
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def listen(host: str, port: int) -> socket.socket:
    """A TCP socket at an address of this machine. Raises ``OSError``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(_MOST_WAITING)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
