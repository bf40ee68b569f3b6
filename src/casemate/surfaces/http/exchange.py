"""One request and its answer over ASGI, bounded in bytes, time, and each account's share.

The number of values is bounded too: a megabyte of empty lists takes twenty megabytes once parsed, and blocks the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    MutableMapping,
)
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from casemate.errors import CasemateError, QueueFull
from casemate.operations.documents import error_document
from casemate.remote.sse import PING, frame_event
from casemate.surfaces.http.identity import Headers, Refused

_SMALL = 64 * 1024  # bytes; smaller bodies are not counted
_MOST_CONTAINERS = 25_000  # lists and mappings
_MOST_VALUES = 60_000  # entries in all lists and mappings
_MOST_TEXTS = 60_000


def check_shape(body: bytes) -> bytes:
    """The same bytes. Raises :class:`Refused` for too many values. Invalid JSON is counted up to the error, which is
    all that a parser reads of it."""
    if len(body) <= _SMALL:
        return body
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if plain.count(b'"') > 2 * _MOST_TEXTS:
        raise _too_many(f"{_MOST_TEXTS:,} texts")
    outside = b"".join(plain.split(b'"')[::2])
    if outside.count(b"[") + outside.count(b"{") > _MOST_CONTAINERS:
        raise _too_many(f"{_MOST_CONTAINERS:,} lists and objects")
    if outside.count(b",") > _MOST_VALUES:
        raise _too_many(f"{_MOST_VALUES:,} values")
    return body


def _too_many(most: str) -> Refused:
    return Refused(413, f"the body holds more than {most}", "Give large data as files: PUT /v1/uploads.")


_MOST_REQUESTS = 1000  # requests of one account at once: half of a listener's connections
_SOON = 1.0  # seconds
_MOST_BYTES = 64 * 2**20  # of one account's bodies in memory


@dataclass(slots=True)
class _Used:
    requests: int = 0
    bytes: int = 0


@dataclass(slots=True)
class Share:
    """One request's part of its account's usage."""

    used: _Used
    bytes: int = 0

    def hold(self, size: int) -> None:
        """Account for ``size`` more bytes until the request ends. Raises ``QueueFull`` for too many."""
        if self.used.bytes + size > _MOST_BYTES:
            raise QueueFull(f"more than {_MOST_BYTES} bytes of your requests are being read", retry_after=_SOON)
        self.used.bytes += size
        self.bytes += size


class Shares:
    def __init__(self) -> None:
        self._used: dict[tuple[str, str], _Used] = {}

    @contextmanager
    def of(self, namespace: str, payer: str) -> Iterator[Share]:
        """A request's share while it is answered. Raises ``QueueFull`` for too many requests."""
        used = self._used.setdefault((namespace, payer), _Used())
        if used.requests >= _MOST_REQUESTS:
            raise QueueFull(f"{_MOST_REQUESTS} requests of yours are under way", retry_after=_SOON)
        used.requests += 1
        share = Share(used)
        try:
            yield share
        finally:
            used.bytes -= share.bytes
            used.requests -= 1
            if not used.requests:
                self._used.pop((namespace, payer), None)


_EACH = 48  # requests started and events sent in one turn of the loop, at some tenths of a millisecond each


class Turns:
    """Bounds the work done in one turn of the event loop."""

    def __init__(self) -> None:
        self._taken = 0

    async def take(self) -> None:
        """Wait for a turn of the loop that has capacity."""
        while self._taken >= _EACH:  # noqa: ASYNC110 - waits for the next turn of the loop
            await asyncio.sleep(0)
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._begin)
        self._taken += 1

    def _begin(self) -> None:
        self._taken = 0


TURNS = Turns()


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")

MOST_BODY = 2 * 2**20  # bytes of JSON arguments: parsing more would block the loop. Files are uploaded.
_BODY_WITHIN = 30.0  # seconds between two pieces of a body
_SLOWEST = 4096  # bytes of a body a second after that: about a modem's rate
_TAKEN_WITHIN = 60.0  # seconds for the client to take a piece of an answer
_PIECE = 256 * 1024  # bytes of JSON encoded at once

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_PLAIN = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Gone(Exception):
    """The client has closed the connection, or takes nothing."""


class Exchange:
    """``head``: the request's headers. The body can be read once, with :meth:`body` or :meth:`pieces`."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, head: Headers) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.port: int = (scope.get("server") or ("", 0))[1] or 0  # the local port; 0 over a Unix socket
        self.head = head
        self.status = 0
        self.caller = ""
        self.credential = ""  # the token or console session that it came with; empty over a Unix socket
        self.share: Share | None = None
        self.receive = receive
        self._send = send
        self._is_events = False
        self._is_between = True

    async def body(self, most: int = MOST_BODY) -> bytes:
        """The whole body. Raises :class:`Refused` if it is too large or has too many values, and :class:`Gone`."""
        pieces = []
        async for piece in self.pieces(most):
            if self.share is not None:
                self.share.hold(len(piece))
            pieces.append(piece)
        return check_shape(b"".join(pieces))

    def again(self, body: bytes) -> Receive:
        """The ``receive`` of a request whose ``body`` has been read, for another application."""
        is_given = False

        async def receive() -> Message:
            nonlocal is_given
            if is_given:
                return await self.receive()
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}

        return receive

    async def pieces(self, most: int) -> AsyncIterator[bytes]:
        """The body piece by piece; nothing if its declared length is too large. Raises as :meth:`body`."""
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
                raise Refused(408, f"the body came too slowly, or nothing came for {_BODY_WITHIN:g} s") from None
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
        """The result of ``work``, which is cancelled with :class:`Gone` if the client leaves. Read the body before."""
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

        doing = asyncio.ensure_future(do())  # noqa: TID251 - always waited for below
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
        """Whether the answer is a stream of server-sent events, and the last one is complete."""
        return self._is_events and self._is_between

    async def send(self, message: Message) -> None:
        """Send a part of another application's answer."""
        self._note(message)
        await self._send(message)

    async def answer(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        """Send ``value`` as JSON. Raises :class:`Gone`."""
        pieces = [piece async for piece in json_pieces(value)]
        size = sum(len(piece) for piece in pieces)
        given = {"content-type": "application/json", "content-length": str(size), **(headers or {})}
        bodies = [*(_body(piece, is_more=True) for piece in pieces[:-1]), _body(pieces[-1], is_more=False)]
        await self._give(self._head(status, given), bodies[0])
        for body in bodies[1:]:
            await self._give(body)

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of an answer. Raises :class:`Gone`."""
        await self._give(self._head(status, headers))

    def _head(self, status: int, headers: Mapping[str, str]) -> Message:
        raw = [(name.encode("ascii"), value.encode("latin-1")) for name, value in {**_PLAIN, **headers}.items()]
        return {"type": "http.response.start", "status": status, "headers": raw}

    async def more(self, piece: bytes) -> None:
        """Send more of the body. Raises :class:`Gone` also if the client does not take it: nothing piles up here."""
        await self._give(_body(piece, is_more=True))

    async def end(self) -> None:
        """End the answer. Raises :class:`Gone`."""
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
    """``value`` as JSON, encoded piece by piece, so that other tasks run in between."""
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
    """Whether ``value`` fits into one piece, by a quick estimate."""
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
    """JSON of ``value`` in parts that are quick to encode: long texts are cut."""
    if isinstance(value, dict) and not _is_small(value):
        for number, (name, one) in enumerate(value.items()):
            yield b"%s%s:" % (b"," if number else b"{", _dump(name))
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
            yield _dump(value[start : start + _PIECE])[1:-1]
        yield b'"'
    else:
        yield _dump(value)


def _dump(value: Any) -> bytes:
    return _ENCODER.encode(value).encode("ascii")


def _too_large(most: int) -> Refused:
    return Refused(413, f"the body is larger than {most} bytes", "Upload files first: PUT /v1/uploads.")


_PING_EVERY = 15.0  # seconds without an event
_BEGUN_AFTER = 0.05  # seconds; an earlier failure is an error of the request
_AT_ONCE = 64 * 1024  # bytes
_HEAD = {"content-type": "text/event-stream", "x-accel-buffering": "no"}
_END = frame_event("end", {})


async def send_events(exchange: Exchange, events: AsyncGenerator[dict[str, Any]]) -> None:
    """Answer with ``events``; each is asked for when the one before it was taken. The stream ends with the event
    ``end``, or with ``error`` after a failure. A failure before the first event is raised, as is :class:`Gone`."""
    stream = _Stream(exchange)
    async with contextlib.aclosing(events):
        alive = asyncio.ensure_future(stream.keep_alive())  # noqa: TID251 - cancelled and waited for below
        try:
            async for event in events:
                await TURNS.take()
                await stream.give(event)
            await stream.write(_END)
        except CasemateError as error:
            if not exchange.status:
                raise
            await stream.write(frame_event("error", error_document(error)))
        finally:
            alive.cancel()
            await asyncio.wait([alive])
    await exchange.end()


class _Stream:
    """Writes one message at a time, and a ping when there is nothing to write."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._turn = asyncio.Lock()
        self._written = 0

    async def give(self, event: dict[str, Any]) -> None:
        """Write one event; a large one, such as an outcome, in pieces."""
        cursor = event.get("cursor")
        before = f"{f'id: {cursor}' + chr(10) if cursor is not None else ''}event: event\ndata: ".encode("ascii")
        async with self._turn:
            await self._begin()
            held = before
            async for piece in json_pieces(event):
                if len(held) > _AT_ONCE:
                    await self._exchange.more(held)
                    held = b""
                held += piece
            await self._exchange.more(held + b"\n\n")

    async def write(self, data: bytes) -> None:
        async with self._turn:
            await self._begin()
            await self._exchange.more(data)

    async def keep_alive(self) -> None:
        """Start the answer soon, even without an event, and ping when the stream is quiet."""
        await asyncio.sleep(_BEGUN_AFTER)
        while True:
            before = self._written
            await asyncio.sleep(0 if not self._exchange.status else _PING_EVERY)
            if before == self._written:
                try:
                    await self.write(PING)
                except Gone:
                    return  # the next writer gets it too

    async def _begin(self) -> None:
        self._written += 1
        if not self._exchange.status:
            await self._exchange.begin(200, _HEAD)
