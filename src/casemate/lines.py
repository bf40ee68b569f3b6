"""One JSON object per line, as cells talk to the host's services: bounded on the way in, and read strictly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from casemate.errors import InvalidArgument
from casemate.policy.canonical import MOST_BYTES, parse

_MOST_PIECES = 4096  # that a line may come in: each is looked at
_MOST_AHEAD = 1 << 16  # bytes that a client may send before it has its answer
_END = b"\n"
Made = TypeVar("Made")


class Client(Protocol):
    """A connection from a cell, as its door gives it. ``ahead`` was received and is not yet used."""

    ahead: bytearray

    async def fill(self) -> bool:
        """Wait for more bytes and append them to ``ahead``; False at the end of what comes. Raises ``OSError``."""
        ...

    def taken(self, count: int | None = None) -> bytes:
        """The first ``count`` bytes of ``ahead``, which are then used."""
        ...

    def watch(self, gone: Callable[[], object], most: int) -> Callable[[], None]:
        """Call ``gone``, once, when the client has gone. Bytes that it sends are appended to ``ahead``; with more than
        ``most`` there it is looked at no longer. What is given ends the watching; nobody fills ``ahead`` before."""
        ...

    async def send(self, data: bytes) -> None:
        """Send all of ``data``, as fast as the other side takes it. Raises ``OSError``."""
        ...


async def read_line(client: Client, most: int = MOST_BYTES) -> bytes | None:
    """The next line, without its end; None where nothing more comes. Raises ``InvalidArgument`` beyond ``most`` bytes,
    and for one that is cut off."""
    seen = 0
    for _ in range(_MOST_PIECES):
        end = client.ahead.find(_END, seen)
        if end >= 0 and end <= most:
            return client.taken(end + 1)[:-1]
        if len(client.ahead) > most:
            raise InvalidArgument("request", f"is longer than {most:,} bytes")
        seen = len(client.ahead)
        if not await client.fill():
            if client.ahead:
                raise InvalidArgument("request", "is cut off: a request is one line")
            return None
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


async def while_there(client: Client, work: Awaitable[Made]) -> Made | None:
    """What comes of ``work``; None where the client goes before, which ends it. Raises what ``work`` does."""
    task = asyncio.current_task()
    assert task is not None
    before, is_gone = task.cancelling(), False

    def gone() -> None:
        nonlocal is_gone
        is_gone = True
        task.cancel()

    stop = client.watch(gone, _MOST_AHEAD)
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
