"""The events of one run in a file, a line of JSON each, read by number or by position in the text of all.

One thread writes; any may read what has been written.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import deque
from itertools import islice
from pathlib import Path
from typing import Any

from casemate.operations.wire import Document

_EACH = 64  # events between two places that are known
_SPAN = 1 << 16  # bytes likewise
_RECENT = 256  # events that need not be read again
_SMALL = 1 << 14  # bytes of one of these
_BATCH = 1 << 20  # bytes of events that are given at once


class EventLog:
    """``events`` and ``chars``: how many events there are, and characters of text: what the program wrote, and the text
    of what it showed on lines of its own."""

    def __init__(self, path: Path, *, is_step: bool) -> None:
        """``is_step``: the text of errors is in nothing that was written."""
        self._path = path
        self._is_step = is_step
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._ends_line = True
        self.events = self.chars = self.size = 0
        self._places: list[tuple[int, int, int]] = [(0, 0, 0)]  # event, character, byte
        self._is_open = True
        self._recent: deque[Document] = deque(maxlen=_RECENT)

    @classmethod
    def reopened(cls, path: Path, *, is_step: bool) -> EventLog:
        """One that was written before, up to where its writer was ended. Raises ``OSError``."""
        log = cls(path, is_step=is_step)
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                log._note(json.loads(line), len(line))
        log.close()
        return log

    def write(self, event: Document) -> None:
        """One more event. Raises ``OSError``."""
        text = self._text_of(event)
        data = json.dumps({**event, "_text": text} if text != event.get("text") else event).encode() + b"\n"
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
        self._note(event, len(data), text)
        if len(data) > _SMALL:
            self._recent.clear()
        else:
            self._recent.append(event)

    def _note(self, event: Document, size: int, text: str | None = None) -> None:
        number, _, at = self._places[-1]
        if self.events - number >= _EACH or self.size - at >= _SPAN:
            self._places.append((self.events, self.chars, self.size))
        text = _kept_text(event) if text is None else text
        self.events, self.chars, self.size = self.events + 1, self.chars + len(text), self.size + size

    def _text_of(self, event: Document) -> str:
        match event["event"]:
            case "output":
                text = str(event["text"])
            case "result":
                text = self._own_line(event["result"].get("text/plain"))
            case "display" if not event["update"]:
                text = self._own_line(event["result"].get("text/plain"))
            case "error" if self._is_step:
                text = self._own_line(event["error"]["traceback"])
            case _:
                text = ""
        if text:
            self._ends_line = text.endswith("\n")
        return text

    def _own_line(self, text: object) -> str:
        if not isinstance(text, str) or not text:
            return ""
        return ("" if self._ends_line else "\n") + text + ("" if text.endswith("\n") else "\n")

    def recent(self, number: int) -> list[Document]:
        """Events from ``number`` on where all of them are still at hand, else none. In the thread that writes."""
        first = self.events - len(self._recent)
        return list(islice(self._recent, number - first, None)) if number >= first else []

    def read(self, number: int) -> list[Document]:
        """Events from ``number`` on, about a megabyte of them; none where there are none yet. Raises ``OSError``."""
        found: list[Document] = []
        for at, size, event in self._from(bisect_right(self._places, (number, 1 << 62, 0)) - 1):
            if at < number:
                continue
            event.pop("_text", None)
            found.append(event)
            number += 1
            if size > _BATCH:
                break
        return found

    def text(self, cursor: int, limit: int) -> tuple[str, int]:
        """At most ``limit`` characters of text from the one with number ``cursor`` on, and the number of the next.
        Raises ``OSError``."""
        cursor = min(cursor, self.chars)
        end = min(cursor + limit, self.chars)
        place = bisect_right([chars for _, chars, _ in self._places], cursor) - 1
        at, parts = self._places[place][1], []
        for _, _, event in self._from(place) if end > cursor else ():
            text = _kept_text(event)
            parts.append(text[max(0, cursor - at) : max(0, end - at)])
            at += len(text)
            if at >= end:
                break
        return "".join(parts), end

    def _from(self, place: int) -> Any:
        """Number, bytes since the place, and event, of each from a place that is known on."""
        number, _, start = self._places[place]
        end, read = self.size, 0
        with self._path.open("rb") as file:
            file.seek(start)
            while start + read < end and (line := file.readline()):
                read += len(line)
                yield number, read, json.loads(line)
                number += 1

    def close(self) -> None:
        """Nothing more is written. Harmless when repeated."""
        if self._is_open:
            self._is_open = False
            os.close(self._fd)


def _kept_text(event: Document) -> str:
    return str(event["_text"] if "_text" in event else event.get("text", ""))
