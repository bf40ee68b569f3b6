"""One JSON object per line, as cells talk to the host's services: bounded on the way in, and read strictly."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from casemate.errors import InvalidArgument
from casemate.policy.canonical import MOST_BYTES, parse

_MOST_PIECES = 4096  # that a line may come in: each is looked at
_LINE_SECONDS = 30.0  # in which a line that was begun has to be whole
_MOST_AHEAD = 1 << 16  # bytes that a client may send before it has its answer
_END = b"\n"
Made = TypeVar("Made")


class LineClient(Protocol):
    """A connection from a cell, as the egress proxy gives it. ``ahead`` was received and is not yet used."""

    ahead: bytearray

    async def fill(self) -> bool:
        """Wait for more bytes and append them to ``ahead``; False at the end of what comes. Raises ``OSError``."""

    def take(self, count: int | None = None) -> bytes:
        """The first ``count`` bytes of ``ahead``, which are then used."""

    def watch(self, gone: Callable[[], object], most: int) -> Callable[[], None]:
        """Call ``gone``, once, when the client has gone. Bytes that it sends are appended to ``ahead``; with more than
        ``most`` there it is looked at no longer. What is given ends the watching; nobody fills ``ahead`` before."""

    async def send(self, data: bytes) -> None:
        """Send all of ``data``, as fast as the other side takes it. Raises ``OSError``."""


class Crowded(Exception):
    """The lines of one cell would take more of the host's memory than they may; the message says so."""


class LineBudget:
    """For the lines of one cell, on all of its connections, while they come and until they are answered."""

    def __init__(self, most: int) -> None:
        """``most``: bytes."""
        self._most = most
        self._taken = 0

    @contextlib.contextmanager
    def share(self) -> Iterator[LineShare]:
        """What one connection takes of it; with the block that is given back."""
        share = LineShare(self)
        try:
            yield share
        finally:
            share.hold(0)

    def take(self, count: int) -> None:
        """So many bytes more, or less. Raises :class:`Crowded`."""
        if count > 0 and self._taken + count > self._most:
            raise Crowded(f"requests of more than {self._most >> 20} MiB wait to be answered, or to be whole")
        self._taken += count


class LineShare:
    """Of one connection in a :class:`LineBudget`."""

    def __init__(self, budget: LineBudget) -> None:
        self._budget = budget
        self._held = 0

    def hold(self, count: int) -> None:
        """Its line has ``count`` bytes now. Raises :class:`Crowded`."""
        self._budget.take(count - self._held)
        self._held = count


async def read_line(
    client: LineClient, most: int = MOST_BYTES, share: LineShare | None = None, within: float = _LINE_SECONDS
) -> bytes | None:
    """The next line, without its end; None where nothing more comes. ``share`` holds it until the next one is read.
    Raises ``InvalidArgument`` beyond ``most`` bytes, for one that is cut off, and for one that was begun and is not
    whole ``within`` so many seconds; and :class:`Crowded`."""
    if share is not None:
        share.hold(0)
    if not client.ahead and not await client.fill():
        return None
    try:
        if client.ahead.find(_END, 0, most + 1) >= 0:
            return await _rest(client, most, share)
        async with asyncio.timeout(within):
            return await _rest(client, most, share)
    except TimeoutError:
        raise InvalidArgument("request", f"is not whole after {within:g} s") from None


async def _rest(client: LineClient, most: int, share: LineShare | None) -> bytes:
    seen = 0
    for _ in range(_MOST_PIECES):
        end = client.ahead.find(_END, seen)
        if share is not None:
            share.hold(end + 1 if end >= 0 else len(client.ahead))
        if end >= 0 and end <= most:
            return client.take(end + 1)[:-1]
        if len(client.ahead) > most:
            raise InvalidArgument("request", f"is longer than {most:,} bytes")
        seen = len(client.ahead)
        if not await client.fill():
            raise InvalidArgument("request", "is cut off: a request is one line")
    raise InvalidArgument("request", "comes in too many pieces")


def read_object(line: bytes) -> dict[str, Any]:
    """The object that a line is. Raises ``InvalidArgument`` for any other JSON, for none, and as
    :func:`casemate.policy.canonical.parse`."""
    value = parse(line, "request")
    if not isinstance(value, dict):
        raise InvalidArgument("request", "is no JSON object")
    return value


def line_of(value: Mapping[str, Any]) -> bytes:
    """``value`` as a line. Raises ``ValueError`` for what JSON cannot hold."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii") + _END


async def while_there(client: LineClient, work: Awaitable[Made]) -> Made | None:
    """What comes of ``work``; None where the client goes before, which ends it. Raises what ``work`` does."""
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
