"""JSON objects, one per line, as cells send them to the host's services: bounded and strictly parsed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from casemate.errors import InvalidArgument
from casemate.policy.canonical import MOST_BYTES, parse

_MOST_PIECES = 4096  # pieces of one line; each is searched
_LINE_SECONDS = 30.0  # for a line to be complete after its first byte
_MOST_AHEAD = 1 << 16  # bytes that a client may send before it gets its answer
_END = b"\n"
Made = TypeVar("Made")
LineShare = Callable[[int], None]  # called with the bytes of a connection's current line; raises Crowded


class LineClient(Protocol):
    """A connection from a cell, from the egress proxy. ``ahead``: received but unused bytes."""

    ahead: bytearray

    async def fill(self) -> bool:
        """Wait for more bytes and append them to ``ahead``. False at the end of the stream. Raises ``OSError``."""

    def take(self, count: int | None = None) -> bytes:
        """Take the first ``count`` bytes from ``ahead``, or all."""

    def watch(self, gone: Callable[[], object], most: int) -> Callable[[], None]:
        """Call ``gone`` once, when the client is gone, and append received bytes to ``ahead``. Watching stops when
        ``ahead`` has more than ``most`` bytes, or by the returned function. Do not call ``fill`` before that."""

    async def send(self, data: bytes) -> None:
        """Send all of ``data`` as fast as the client reads it. Raises ``OSError``."""


class Crowded(Exception):
    """The lines of one cell would exceed their share of the host's memory."""


class LineBudget:
    """A memory budget for one cell's lines on all connections, from their first byte to their answer."""

    def __init__(self, most: int) -> None:
        """``most``: bytes."""
        self._most = most
        self._taken = 0

    @contextlib.contextmanager
    def share(self) -> Iterator[LineShare]:
        """The share of one connection, which is returned at the end of the block."""
        held = 0

        def hold(count: int) -> None:
            nonlocal held
            if count > held and self._taken + count - held > self._most:
                raise Crowded(f"requests of more than {self._most >> 20} MiB wait to be completed or answered")
            self._taken += count - held
            held = count

        try:
            yield hold
        finally:
            hold(0)


async def read_line(
    client: LineClient, most: int = MOST_BYTES, share: LineShare | None = None, within: float = _LINE_SECONDS
) -> bytes | None:
    """The next line without its end; None at the end of the stream. ``share`` holds the line until the next is read.
    Raises ``InvalidArgument`` for a line longer than ``most`` bytes, a truncated line, and one that is not complete
    within so many seconds of its first byte. Raises :class:`Crowded`."""
    if share is not None:
        share(0)
    if not client.ahead and not await client.fill():
        return None
    try:
        if client.ahead.find(_END, 0, most + 1) >= 0:
            return await _rest(client, most, share)
        async with asyncio.timeout(within):
            return await _rest(client, most, share)
    except TimeoutError:
        raise InvalidArgument("request", f"is not complete after {within:g} s") from None


async def _rest(client: LineClient, most: int, share: LineShare | None) -> bytes:
    seen = 0
    for _ in range(_MOST_PIECES):
        end = client.ahead.find(_END, seen)
        if share is not None:
            share(end + 1 if end >= 0 else len(client.ahead))
        if end >= 0 and end <= most:
            return client.take(end + 1)[:-1]
        if len(client.ahead) > most:
            raise InvalidArgument("request", f"is longer than {most:,} bytes")
        seen = len(client.ahead)
        if not await client.fill():
            raise InvalidArgument("request", "is cut off: a request is one line")
    raise InvalidArgument("request", "comes in too many pieces")


def read_object(line: bytes) -> dict[str, Any]:
    """The object in a line. Raises ``InvalidArgument`` for all else, like :func:`casemate.policy.canonical.parse`."""
    value = parse(line, "request")
    if not isinstance(value, dict):
        raise InvalidArgument("request", "is not a JSON object")
    return value


def line_of(value: Mapping[str, Any]) -> bytes:
    """Encode ``value`` as a line. Raises ``ValueError`` for values that JSON does not have."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii") + _END


async def while_there(client: LineClient, work: Awaitable[Made]) -> Made | None:
    """The result of ``work``; None if the client goes first, which cancels it. Raises what ``work`` raises."""
    task = asyncio.current_task()
    assert task is not None
    before, is_gone = task.cancelling(), False

    def note_gone() -> None:
        nonlocal is_gone
        is_gone = True
        task.cancel()

    stop = client.watch(note_gone, _MOST_AHEAD)
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and task.cancelling() <= before + 1:
            return None
        raise
    finally:
        stop()
        if is_gone:
            task.uncancel()
