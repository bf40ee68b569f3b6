"""Chromium's DevTools protocol over two pipes: JSON objects, each ended by NUL. All messages are untrusted."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from casemate.execution.frames import decode

T = TypeVar("T")
Handler = Callable[[str, Mapping[str, Any]], None]

MOST_SAID = 64 << 20  # bytes that a browser may send per call
_MESSAGE_COST = 256  # bytes that each message counts for beyond its size: parsing an empty one takes time too
ENDED = "it ended"  # without being told to
_MOST_WORDS = 300  # characters of a refusal


class CdpRefused(Exception):
    """The browser refused a call. Holds its message."""


class CdpEnded(Exception):
    """The connection to the browser has ended."""


class Nonsense(Exception):
    """The browser sent a malformed message."""


def part(value: object, *names: str, kind: type[T]) -> T:
    """Return a member of nested objects. Raises ``Nonsense`` if it is missing or not of ``kind``."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, kind):
        raise Nonsense(f"its {'.'.join(names)} is not of type {kind.__name__}")
    return value


class CdpPipe(asyncio.Protocol):
    """The connection to one browser."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """``on_end`` is called once, when the pipes are closed; it must end the browser."""
        self.handlers: dict[str, Handler] = {}  # by session, for its events; at the end each gets ("", {})
        self.why_ended = ""  # empty while it lives
        self._on_end = on_end
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._buffer = bytearray()
        self._left = 0  # bytes that the browser may still send
        self._transports: list[asyncio.BaseTransport] = []

    async def open(self, readable: int, writable: int) -> None:
        """Read and write these pipe ends. :meth:`end` closes them."""
        loop = asyncio.get_running_loop()
        self._writes, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(writable, "wb", 0))
        self._transports.append(self._writes)
        self._transports.append((await loop.connect_read_pipe(lambda: self, os.fdopen(readable, "rb", 0)))[0])

    def allow_more(self, *, afresh: bool) -> None:
        """Raise the byte limit for a new call; ``afresh`` resets it, because no other call is in progress."""
        self._left = MOST_SAID + (0 if afresh else self._left)

    def tell(self, method: str, session: str = "", **params: object) -> int:
        """Send a message without waiting for its answer. Returns its number."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        self._writes.write(json.dumps(message).encode() + b"\0")
        return number

    async def call(self, method: str, session: str = "", **params: object) -> dict[str, Any]:
        """Send a message and return the answer. Raises ``CdpRefused``, ``CdpEnded`` and ``Nonsense``."""
        if self.why_ended:
            raise CdpEnded(self.why_ended)
        answer = asyncio.get_running_loop().create_future()
        number = self.tell(method, session, **params)
        self._waiting[number] = answer
        try:
            said = await answer
        finally:
            del self._waiting[number]
        if "error" in said:
            raise CdpRefused(" ".join(part(said, "error", "message", kind=str).split())[:_MOST_WORDS])
        return part(said, "result", kind=dict)

    def data_received(self, data: bytes) -> None:
        """Handle each complete message."""
        *ends, rest = data.split(b"\0")
        self._left -= len(data) + _MESSAGE_COST * len(ends)
        if self._left < 0:
            self.end(f"it said more than {MOST_SAID >> 20} MiB")
        for end in ends:
            message, self._buffer = bytes(self._buffer + end), bytearray()
            if not self.why_ended:
                try:
                    self._take(message)
                except Nonsense as error:
                    self.end(f"it sent an invalid message: {error}")
        self._buffer += rest

    def connection_lost(self, _error: Exception | None) -> None:
        """End, because the browser closed its pipe."""
        self.end(ENDED)

    def end(self, why: str) -> None:
        """Close the pipes and fail all waiting calls. Idempotent."""
        if self.why_ended:
            return
        self.why_ended = why
        for transport in self._transports:
            if not transport.is_closing():
                transport.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(CdpEnded(why))
        for handle in list(self.handlers.values()):
            handle("", {})
        self._on_end()

    def _take(self, message: bytes) -> None:
        said = decode(message)
        if said is None:
            raise Nonsense("it is not a JSON object, or it has too many parts")
        answer = self._waiting.get(number) if isinstance(number := said.get("id"), int) else None
        if answer is not None and not answer.done():
            answer.set_result(said)
        elif "id" not in said and (handle := self.handlers.get(str(said.get("sessionId")))):
            handle(part(said, "method", kind=str), part(said, "params", kind=dict))
