"""One request and its answer over ASGI, bounded: in bytes, and in the time that the other end takes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, TypeVar

from casemate.surfaces.http.identity import Heard, Refused
from casemate.surfaces.http.shape import check_shape
from casemate.surfaces.http.shares import Share

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")

MOST_BODY = 2 * 2**20  # bytes of arguments, as JSON: reading more would hold up everybody else. Files are uploaded.
_BODY_WITHIN = 30.0  # seconds between two pieces of a body
_SLOWEST = 4096  # bytes of a body a second, beyond that: a modem's line has as many
_TAKEN_WITHIN = 60.0  # seconds that the other end has to take a piece of an answer
_PIECE = 256 * 1024  # bytes of JSON that are made at once

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_PLAIN = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class Gone(Exception):
    """Whoever asked has closed the connection, or takes nothing."""


class Exchange:
    """``head``: the request's headers; what it sends is read with :meth:`body` or :meth:`pieces`, once."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, head: Heard) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.head = head
        self.status = 0
        self.caller = ""
        self.share: Share | None = None
        self.receive = receive
        self._send = send
        self._is_events = False
        self._is_between = True

    async def body(self, most: int = MOST_BODY) -> bytes:
        """All of it. Raises :class:`Refused` for too much, or too many values, and :class:`Gone`."""
        pieces = []
        async for piece in self.pieces(most):
            if self.share is not None:
                self.share.hold(len(piece))
            pieces.append(piece)
        return check_shape(b"".join(pieces))

    def again(self, body: bytes) -> Receive:
        """The request from its beginning, with a ``body`` that has been read, for another application."""
        is_given = False

        async def receive() -> Message:
            nonlocal is_given
            if is_given:
                return await self.receive()
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return receive

    async def pieces(self, most: int) -> AsyncIterator[bytes]:
        """The body piece by piece; nothing of one that says that it is larger. Raises as :meth:`body`."""
        said = self.head.get("content-length") or "0"
        if not said.isdigit() or int(said) > most:
            raise _too_large(most)
        seen, waited, is_more = 0, 0.0, True
        while is_more:
            began = time.monotonic()
            try:
                async with asyncio.timeout(min(_BODY_WITHIN, _BODY_WITHIN + seen / _SLOWEST - waited)):
                    message = await self.receive()
            except TimeoutError:
                raise Refused(408, f"the body comes too slowly, or nothing came for {_BODY_WITHIN:g} s") from None
            waited += time.monotonic() - began
            if message["type"] == "http.disconnect":
                raise Gone
            piece: bytes = message.get("body", b"")
            seen += len(piece)
            if seen > most:
                raise _too_large(most)
            yield piece
            is_more = message.get("more_body", False)

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` gives, which is cancelled when whoever asked goes away. The body has been read.

        Raises :class:`Gone`, and what it raises.
        """
        outcome: list[T] = []
        gone = False

        async def watch(doing: asyncio.Task[None]) -> None:
            nonlocal gone
            while (await self.receive())["type"] != "http.disconnect":
                pass
            gone = True
            doing.cancel()

        async def do() -> None:
            outcome.append(await work)

        doing = asyncio.ensure_future(do())  # noqa: TID251 - waited for below, whatever happens
        watching = asyncio.ensure_future(watch(doing))  # noqa: TID251 - cancelled and waited for below
        try:
            await asyncio.wait([doing])
        finally:
            doing.cancel()
            watching.cancel()
            await asyncio.wait([doing, watching])
        if gone and not outcome:
            raise Gone
        doing.result()
        return outcome[0]

    @property
    def takes_event(self) -> bool:
        """Whether it is answered with server-sent events, of which none is half sent."""
        return self._is_events and self._is_between

    async def send(self, message: Message) -> None:
        """A part of another application's answer."""
        self._note(message)
        await self._send(message)

    async def answer(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """``value`` as JSON. Raises :class:`Gone`."""
        pieces = [_dumped(value)] if _is_small(value) else [piece async for piece in json_pieces(value)]
        size = sum(len(piece) for piece in pieces)
        given = {"content-type": "application/json", "content-length": str(size), **(headers or {})}
        bodies = [*(_body(piece, is_more=True) for piece in pieces[:-1]), _body(pieces[-1], is_more=False)]
        await self._give(self._head(status, given), bodies[0])
        for body in bodies[1:]:
            await self._give(body)

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of an answer. Raises :class:`Gone`."""
        await self._give(self._head(status, headers))

    def _head(self, status: int, headers: Mapping[str, str]) -> Message:
        raw = [*_PLAIN, *((name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items())]
        return {"type": "http.response.start", "status": status, "headers": raw}

    async def more(self, piece: bytes) -> None:
        """More of its body. Raises :class:`Gone` also where nobody takes it: nothing piles up here."""
        await self._give(_body(piece, is_more=True))

    async def end(self) -> None:
        """The end of the answer. Raises :class:`Gone`."""
        await self._give(_body(b"", is_more=False))

    def _note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            self._is_events = (b"content-type", b"text/event-stream") in (
                (name.lower(), value.partition(b";")[0].strip().lower()) for name, value in message["headers"]
            )
        elif self._is_events:
            body: bytes = message.get("body", b"")
            self._is_between = (not body and self._is_between) or body.endswith((b"\n\n", b"\r\n\r\n"))

    async def _give(self, *messages: Message) -> None:
        for message in messages:
            self._note(message)
        try:
            async with asyncio.timeout(_TAKEN_WITHIN):
                for message in messages:
                    await self._send(message)
        except (TimeoutError, OSError):
            raise Gone from None


def _body(piece: bytes, *, is_more: bool) -> Message:
    return {"type": "http.response.body", "body": piece, "more_body": is_more}


async def json_pieces(value: Any) -> AsyncGenerator[bytes]:
    """``value`` as JSON, made piece by piece: others have their turn in between."""
    if _is_small(value):
        yield _dumped(value)
        return
    held: list[bytes] = []
    size = 0
    for part in _parts(value):
        held.append(part)
        size += len(part)
        if size > _PIECE:
            yield b"".join(held)
            held, size = [], 0
            await asyncio.sleep(0)
    yield b"".join(held)


def _is_small(value: Any) -> bool:
    """Whether there can be no more than a piece of it, as far as a quick look tells."""
    left = _PIECE // 8
    waiting = [value]
    while waiting and left > 0:
        one = waiting.pop()
        left -= 1
        if isinstance(one, str):
            left -= len(one) // 8
        elif isinstance(one, dict):
            left -= len(one)
            waiting.extend(one.values() if left > 0 else ())
        elif isinstance(one, list):
            left -= len(one)
            waiting.extend(one if left > 0 else ())
    return left > 0


def _parts(value: Any) -> Any:
    """JSON of ``value`` in parts that are each made quickly: long texts are cut."""
    if isinstance(value, dict) and not _is_small(value):
        for number, (name, one) in enumerate(value.items()):
            yield b"%s%s:" % (b"," if number else b"{", _dumped(name))
            yield from _parts(one)
        yield b"}"
    elif isinstance(value, list) and not _is_small(value):
        for number, one in enumerate(value):
            yield b"," if number else b"["
            yield from _parts(one)
        yield b"]"
    elif isinstance(value, str) and len(value) > _PIECE:
        yield b'"'
        for start in range(0, len(value), _PIECE):
            yield _dumped(value[start : start + _PIECE])[1:-1]
        yield b'"'
    else:
        yield _dumped(value)


def _dumped(value: Any) -> bytes:
    return _ENCODER.encode(value).encode("ascii")


def _too_large(most: int) -> Refused:
    return Refused(413, f"the body is larger than {most} bytes", "Upload files first: PUT /v1/uploads.")
