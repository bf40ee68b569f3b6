"""The event log of a run. Each event is written once; any number of readers read it by number, or as text by position.

An event is a line of JSON. The first 64 KiB stay in memory. After that all events are in a file: an unnamed one, which
is gone when the log closes, or one at a path, which stays. One event loop writes; `read` and `read_text` may be called
from any thread.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from casemate.model.events import (
    Answer,
    Display,
    Document,
    ErrorEvent,
    Event,
    Output,
    ResultEvent,
    event_document,
    event_of,
)

_IN_MEMORY = 1 << 16  # bytes; most runs write less
_INDEX_EVENTS = 64  # events between two entries of the index
_INDEX_BYTES = 1 << 16  # bytes between two entries of the index
_RECENT_EVENTS = 256  # events that can be read without the file
_RECENT_BYTES = 1 << 18  # approximate size of these
_BATCH = 1 << 20  # approximate bytes of one `read`
_CHUNK = 1 << 20  # bytes read from the file at once
_TO_JSON = json.JSONEncoder(ensure_ascii=False).encode  # made once: json.dumps would make one for each event
_PRIVATE = ("_data", "_text")  # keys of a stored document that readers do not get
_SHORT = 200  # bytes by which JSON text may exceed twice its raw bytes before Base64 is used


class EventLog:
    """Events, and their text: what the program wrote, with the text of each result on separate lines."""

    def __init__(self, path: Path | None = None, *, is_step: bool) -> None:
        """``path``: a file for all events. Raises ``OSError``."""
        self.events = self.chars = self.size = 0  # events, characters of text, bytes of the log
        self._is_step = is_step  # a step does not write its traceback, so the error event adds it to the text
        self._path = path
        self._memory = bytearray()
        self._fd = -1 if path is None else _create(path)
        self._lock = threading.Lock()  # of the memory and the descriptor
        self._index: list[tuple[int, int, int]] = [(0, 0, 0)]  # event, character, byte
        self._recent: deque[tuple[Document, int]] = deque()
        self._recent_bytes = 0
        self._ends_line = True
        self._is_finished = False
        self._is_closed = False
        self._changed: asyncio.Event | None = None  # for readers that wait

    @classmethod
    def reopen(cls, path: Path, *, is_step: bool) -> EventLog:
        """Open a log written earlier, up to its last complete line. Raises ``OSError`` and ``ValueError``."""
        log = cls(is_step=is_step)
        log._path = path
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                log._count(len(line), _text_of_kept(json.loads(line)))
        log.finish()
        log.close()
        return log

    @property
    def is_readable(self) -> bool:
        """Whether its events can still be read. A closed log can be read only if it has a path."""
        return not self._is_closed or self._path is not None

    # -- writing

    def append(self, event: Event) -> None:
        """Add ``event``. Raises ``OSError`` if it cannot be written."""
        document, text = event_document(event), self._text_of(event)
        if text != document.get("text", ""):
            document["_text"] = text
        data = _line(document)
        # JSON text may be six times as long as the raw bytes, and decoding may have lost some of them.
        if isinstance(event, Output) and (text.encode() != event.data or len(data) > 2 * len(event.data) + _SHORT):
            document = _with_bytes(event, document)
            data = _line(document)
        if not self._is_closed:
            self._write(data)
        self._count(len(data), text)
        self._remember(document, len(data))
        self._wake()

    def keep_at(self, path: Path) -> None:
        """Move all events to a new file at ``path``, and write later ones there. Raises ``OSError``."""
        fd = _create(path)
        try:
            at = 0
            while chunk := self._read_bytes(at):
                at += _write_all(fd, chunk, at)
        except BaseException:
            os.close(fd)
            raise
        with self._lock:
            self._path, self._memory, old, self._fd = path, bytearray(), self._fd, fd
            if old >= 0:
                os.close(old)

    def finish(self) -> None:
        """Mark the end: no more events will come."""
        self._is_finished = True
        self._wake()

    def close(self) -> None:
        """Stop writing. Without a path nothing can be read afterwards. May be repeated."""
        with self._lock:
            self._is_closed = True
            self._memory.clear()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
        self._recent.clear()

    def _write(self, data: bytes) -> None:
        with self._lock:
            if self._fd < 0 and self.size + len(data) <= _IN_MEMORY:
                self._memory += data
                return
            if self._fd < 0:
                self._fd = _create_unnamed()
                _write_all(self._fd, self._memory, 0)
                self._memory = bytearray()
            _write_all(self._fd, data, self.size)

    def _count(self, size: int, text: str) -> None:
        number, _, at = self._index[-1]
        if self.events - number >= _INDEX_EVENTS or self.size - at >= _INDEX_BYTES:
            self._index.append((self.events, self.chars, self.size))
        self.chars, self.size = self.chars + len(text), self.size + size
        self.events += 1

    def _remember(self, document: Document, size: int) -> None:
        self._recent.append((document, size))
        self._recent_bytes += size
        while len(self._recent) > _RECENT_EVENTS or self._recent_bytes > _RECENT_BYTES:
            self._recent_bytes -= self._recent.popleft()[1]

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def _text_of(self, event: Event) -> str:
        match event:
            case Output():
                text = event.text
            case ResultEvent(result) | Display(result, _, False):
                text = self._own_line(result.get("text/plain"))
            case ErrorEvent(error) if self._is_step:
                text = self._own_line(error.traceback)
            case _:
                text = ""
        if text:
            self._ends_line = text.endswith("\n")
        return text

    def _own_line(self, text: object) -> str:
        if not isinstance(text, str) or not text:
            return ""
        return ("" if self._ends_line else "\n") + text + ("" if text.endswith("\n") else "\n")

    # -- reading

    async def wait(self, cursor: int) -> None:
        """Wait until event number ``cursor`` exists, or no more will come."""
        while self.events <= cursor and not self._is_finished:
            if self._changed is None:
                self._changed = asyncio.Event()
            await self._changed.wait()

    def read_recent(self, cursor: int) -> list[Document]:
        """All events from number ``cursor`` on if all are in memory, else none. Only for the loop that writes."""
        return [_public(document) for document in self._recent_from(cursor)]

    def read(self, cursor: int) -> list[Document]:
        """Up to about a megabyte of events from number ``cursor`` on. Raises ``OSError``."""
        return [_public(document) for document in self._batch(cursor)]

    def read_events(self, cursor: int, answer: Answer) -> list[Event]:
        """The same, as event objects. ``answer`` answers requests. Only for the event loop that writes."""
        return [_event_of(document, answer) for document in self._recent_from(cursor) or self._batch(cursor)]

    def _recent_from(self, cursor: int) -> list[Document]:
        first = self.events - len(self._recent)
        return [document for document, _ in islice(self._recent, cursor - first, None)] if cursor >= first else []

    def read_text(self, cursor: int, limit: int) -> tuple[str, int]:
        """At most ``limit`` characters from position ``cursor`` on, and the next position. Raises ``OSError``."""
        cursor = min(cursor, self.chars)
        end = min(cursor + limit, self.chars)
        place = bisect_right([chars for _, chars, _ in self._index], cursor) - 1
        at, parts = self._index[place][1], []
        for _, _, document in self._documents(place) if end > cursor else ():
            text = _text_of_kept(document)
            parts.append(text[max(0, cursor - at) : max(0, end - at)])
            at += len(text)
            if at >= end:
                break
        return "".join(parts), end

    def _batch(self, cursor: int) -> list[Document]:
        batch: list[Document] = []
        start = None
        for number, at, document in self._documents(bisect_right(self._index, (cursor, 1 << 62, 0)) - 1):
            if number < cursor:
                continue
            start = at if start is None else start
            batch.append(document)
            if at - start > _BATCH:
                break
        return batch

    def _documents(self, place: int) -> Iterator[tuple[int, int, Document]]:
        """Number, byte position and document of each event, from an entry of the index on."""
        number, _, at = self._index[place]
        end, rest = self.size, b""
        while at + len(rest) < end and (chunk := self._read_bytes(at + len(rest))):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if at >= end:
                    return
                yield number, at, json.loads(line)
                number, at = number + 1, at + len(line) + 1

    def _read_bytes(self, at: int) -> bytes:
        with self._lock:
            if self._fd >= 0:
                return os.pread(self._fd, _CHUNK, at)
            if self._path is None:
                return bytes(self._memory[at : at + _CHUNK])
        with self._path.open("rb") as file:
            file.seek(at)
            return file.read(_CHUNK)


def read_log(path: Path) -> Iterator[Document]:
    """The events of a log at ``path``. Raises ``OSError`` and ``ValueError``."""
    with path.open("rb") as file:
        for line in file:
            document = json.loads(line)
            if isinstance(document, dict):
                yield _public(document)


def _create(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def _create_unnamed() -> int:
    import tempfile

    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _write_all(fd: int, data: bytes | bytearray, at: int) -> int:
    view = memoryview(data)
    while view:
        view = view[os.pwrite(fd, view, at + len(data) - len(view)) :]
    return len(data)


def _line(document: Document) -> bytes:
    return _TO_JSON(document).encode() + b"\n"


def _with_bytes(event: Output, document: Document) -> Document:
    """The document of output with its raw bytes in Base64. The text is left out if the bytes decode to it."""
    document = {**document, "_data": base64.b64encode(event.data).decode()}
    if event.text == event.data.decode("utf-8", "replace"):
        del document["text"]
    return document


def _output_text(document: Document) -> str:
    if "text" in document:
        return str(document["text"])
    return base64.b64decode(document["_data"]).decode("utf-8", "replace")


def _text_of_kept(document: Document) -> str:
    if "_text" in document:
        return str(document["_text"])
    return _output_text(document) if document["event"] == "output" else ""


def _public(document: Document) -> Document:
    if not any(key in document for key in _PRIVATE):
        return dict(document)
    public = {key: value for key, value in document.items() if key not in _PRIVATE}
    return {**public, "text": _output_text(document)} if document["event"] == "output" else public


def _event_of(document: Document, answer: Answer) -> Event:
    if "_data" not in document:
        return event_of(document, answer)
    data = base64.b64decode(document["_data"])
    return Output(document["stream"], _output_text(document), document["background"], data)
