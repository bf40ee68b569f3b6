"""One server of a cell that is shown: who may look, and what has crossed."""

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

TOKEN = "casemate-token"  # noqa: S105 - a name: of the parameter of a link
_BEGIN = "casemate_preview_"
_BYTES = 32  # 256 bits, so that a fast hash of it tells nobody anything
_MOST_LINKS = 100  # that hold at once
_MOST_CLIENTS = 128  # connections at once, of some 400 KiB of buffers each

Connect = Callable[[], Awaitable[socket.socket]]


@dataclass(slots=True)
class _Link:
    end: float  # in seconds of time.monotonic
    is_used: bool = False


@dataclass(slots=True, eq=False)
class ExposedServer:
    """``preview``: without a link; ``host``: the name under which it is shown; ``connect`` gives a connection to it, or
    raises ``OSError``; ``note_use`` is called once for each link that somebody comes with."""

    preview: Preview
    host: str
    connect: Connect
    note_use: Callable[[], None]
    refusals: int = 0
    requests: int = 0  # or connections, at a Unix socket
    bytes_out: int = 0  # that came from the cell
    bytes_in: int = 0
    clients: set[asyncio.Task[object]] = field(default_factory=set)  # connections of these
    _links: dict[bytes, _Link] = field(default_factory=dict)

    def make_link(self, seconds: float) -> Preview:
        """The preview with a link that lets in whoever has it, for so long. Raises ``InvalidArgument``."""
        self._forget_old()
        if len(self._links) >= _MOST_LINKS:
            raise InvalidArgument("port", f"{_MOST_LINKS} links to it hold already; wait, or take it back first")
        token = _BEGIN + secrets.token_urlsafe(_BYTES)
        self._links[_hash(token.encode())] = _Link(time.monotonic() + seconds)
        return replace(self.preview, url=f"{self.preview.url}?{TOKEN}={token}", expires=time.time() + seconds)

    def end_of(self, token: bytes) -> float | None:
        """When the token's link ends (monotonic); None for one that lets in nobody."""
        self._forget_old()
        link = self._links.get(_hash(token))
        if link is None:
            return None
        if not link.is_used:
            link.is_used = True
            self.note_use()
        return link.end

    def describe(self) -> Preview:
        """The preview with the end of its last link, where one holds."""
        self._forget_old()
        ends = [link.end - time.monotonic() for link in self._links.values()]
        return replace(self.preview, expires=time.time() + max(ends) if ends else None)

    @contextlib.contextmanager
    def count_client(self) -> Iterator[None]:
        """Meanwhile the task that runs serves somebody with it: it is cancelled when it is withdrawn. Raises
        ``OSError`` where it serves too many."""
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
        """Nobody may look any more, and whoever does is cut off."""
        self._links.clear()
        for client in tuple(self.clients):
            client.cancel()

    def _forget_old(self) -> None:
        now = time.monotonic()
        self._links = {key: one for key, one in self._links.items() if one.end > now}


def _hash(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
