"""A server in a cell that a preview shows: its links, its clients, and what has crossed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace

from casemate.errors import InvalidArgument
from casemate.model.preview import Preview

TOKEN = "casemate-token"  # noqa: S105 - the name of a link's parameter
_BEGIN = "casemate_preview_"
_BYTES = 32  # 256 bits: a fast hash of them reveals nothing
_MOST_LINKS = 100  # valid at once
_MOST_CLIENTS = 128  # connections at once, each with some 400 KiB of buffers

Connect = Callable[[], Awaitable[socket.socket]]


@dataclass(slots=True)
class _Link:
    end: float  # of time.monotonic
    is_used: bool = False


@dataclass(slots=True, eq=False)
class ExposedServer:
    preview: Preview  # without a link
    host: str  # the name under which it is shown
    connect: Connect  # raises OSError
    note_use: Callable[[], None]  # called at the first use of each link
    refusals: int = 0
    requests: int = 0  # connections, for a Unix socket
    bytes_out: int = 0  # from the cell
    bytes_in: int = 0
    clients: set[asyncio.Task[object]] = field(default_factory=set)  # those that serve a connection
    _links: dict[bytes, _Link] = field(default_factory=dict)

    def make_link(self, seconds: float) -> Preview:
        """Return the preview with a link that admits anyone who has it, for ``seconds``. Raises ``InvalidArgument``."""
        self._forget_old()
        if len(self._links) >= _MOST_LINKS:
            raise InvalidArgument("port", f"{_MOST_LINKS} links to it are valid already; wait, or unexpose it first")
        token = _BEGIN + secrets.token_urlsafe(_BYTES)
        self._links[_hash(token.encode())] = _Link(time.monotonic() + seconds)
        return replace(self.preview, url=f"{self.preview.url}?{TOKEN}={token}", expires=time.time() + seconds)

    def end_of(self, token: bytes) -> float | None:
        """Return when the token's link ends (monotonic); None if the token is not valid."""
        self._forget_old()
        link = self._links.get(_hash(token))
        if link is None:
            return None
        if not link.is_used:
            link.is_used = True
            self.note_use()
        return link.end

    def describe(self) -> Preview:
        """Return the preview with the expiry of its last valid link, if any."""
        self._forget_old()
        ends = [link.end - time.monotonic() for link in self._links.values()]
        return replace(self.preview, expires=time.time() + max(ends) if ends else None)

    @contextlib.contextmanager
    def count_client(self) -> Iterator[None]:
        """Count the current task as a client. :meth:`withdraw` cancels it. Raises ``OSError`` for too many."""
        task = asyncio.current_task()
        assert task is not None
        if len(self.clients) >= _MOST_CLIENTS:
            raise OSError(errno.EBUSY, f"{_MOST_CLIENTS} connections to it are open already")
        self.clients.add(task)
        self.requests += 1
        try:
            yield
        finally:
            self.clients.discard(task)

    def withdraw(self) -> None:
        """Invalidate all links and disconnect all clients."""
        self._links.clear()
        for client in tuple(self.clients):
            client.cancel()

    def _forget_old(self) -> None:
        now = time.monotonic()
        self._links = {key: one for key, one in self._links.items() if one.end > now}


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
