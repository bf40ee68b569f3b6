"""Writes and reads server-sent events (HTML Living Standard, section 9.2). Sans-io."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from casemate.errors import Unavailable

_MOST_LINE = 128 * 2**20  # bytes of one event, which may be a result with its pictures
PING = b": \n\n"  # a comment that keeps proxies from closing a silent connection


@dataclass(frozen=True, slots=True)
class Event:
    name: str  # "event" for what happened, "error" for a failure that ends the stream, or "end"
    id: str
    data: Any


def frame_event(name: str, data: Any, id: str = "") -> bytes:  # noqa: A002 - the field's name
    """Encode one event. Its data is JSON in ASCII, so it has no line breaks."""
    lines = [f"id: {id}"] if id else []
    text = json.dumps(data, separators=(",", ":"))
    return "\n".join([*lines, f"event: {name}", f"data: {text}", "", ""]).encode("ascii")


class EventReader:
    """Decodes events from bytes. Raises ``Unavailable`` for an event that is too long."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._held = 0
        self._fields: dict[str, str] = {}

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that ``data`` completes."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            whole = b"".join([*self._rest, line])
            self._rest, self._held = [], 0
            yield from self._line(whole)
        self._rest.append(rest)
        self._held += len(rest)
        if self._held > _MOST_LINE:
            raise Unavailable(f"the service sent an event of more than {_MOST_LINE} bytes")

    def _line(self, line: bytes) -> Iterator[Event]:
        if line:
            name, _, value = line.decode("utf-8", "replace").partition(":")
            self._fields[name] = value.removeprefix(" ")
            return
        fields, self._fields = self._fields, {}
        if "data" in fields:
            yield Event(fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"]))
