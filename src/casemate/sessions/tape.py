"""Events kept so that anyone may hear them from any point on: the first of them in memory, then in a file without a
name."""

from __future__ import annotations

import array
import json
import os
import tempfile
from collections.abc import Callable
from typing import IO, Any

from casemate.model.approval import ApprovalRequest, Decision
from casemate.model.events import Display, ErrorEvent, Event, Output, ResultEvent
from casemate.model.result import ProgramError, Result

_HELD = 1 << 16  # bytes that are kept in memory: most runs say no more
Answerer = Callable[[str], Callable[[Decision], bool]]  # how a request, by its id, is answered
_OF_A_REQUEST = [
    "id",
    "kind",
    "summary",
    "namespace",
    "session",
    "run",
    "arguments",
    "hash",
    "server",
    "tool",
    "caller",
]


class Tape:
    """Events in order, written once and read by number. Only one thread uses it."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self._held = bytearray()
        self._file: IO[bytes] | None = None
        self._ends = array.array("Q")
        self.is_closed = False  # whether nothing of it can be read any more

    def __len__(self) -> int:
        return len(self._ends)

    def write(self, event: Event) -> None:
        """Keep ``event`` as the next. Raises ``OSError`` when the disk is full."""
        data = _told(event)
        start = self._ends[-1] if self._ends else 0
        end = start + len(data)
        if end <= _HELD:
            self._held += data
        else:
            self._write(data, start)
        self._ends.append(end)

    def _write(self, data: bytes, start: int) -> None:
        if self.is_closed:
            return  # nobody can read it
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close`
        view = memoryview(data)
        while view:
            view = view[os.pwrite(self._file.fileno(), view, start + len(data) - len(view)) :]

    def read(self, number: int) -> Event:
        """The event ``number``, counted from 0."""
        start = self._ends[number - 1] if number else 0
        end = self._ends[number]
        if self._file is None or end <= _HELD:
            data = bytes(self._held[start:end])
        else:
            data = os.pread(self._file.fileno(), end - start, start)
        return _heard(data, self._answerer)

    def close(self) -> None:
        """Nothing of it is wanted any more. Harmless when repeated."""
        self.is_closed = True
        self._held.clear()
        if self._file is not None:
            self._file.close()


def _told(event: Event) -> bytes:
    """A line of JSON, and then the bytes of what was written: as JSON these could be six times as many."""
    match event:
        case Output(stream, text, background, data):
            odd = text if text != data.decode("utf-8", "replace") else None  # a character that two reads cut in two
            return _line({"is": "output", "stream": stream, "background": background, "text": odd}) + data
        case Display(result, name, update):
            return _line({"is": "display", "bundle": dict(result), "name": name, "update": update})
        case ResultEvent(result):
            return _line({"is": "result", "bundle": dict(result)})
        case ErrorEvent(error):
            return _line({"is": "error", "name": error.name, "value": error.value, "traceback": error.traceback})
        case ApprovalRequest():
            return _line({"is": "request", **{name: getattr(event, name) for name in _OF_A_REQUEST}})
    raise TypeError(f"a {type(event).__name__} is not kept")


def _line(told: dict[str, Any]) -> bytes:
    return json.dumps(told, ensure_ascii=False).encode() + b"\n"


def _heard(kept: bytes, answerer: Answerer) -> Event:
    line, _, data = kept.partition(b"\n")
    told = json.loads(line)
    match told["is"]:
        case "output":
            text = data.decode("utf-8", "replace") if told["text"] is None else told["text"]
            return Output(told["stream"], text, told["background"], data)
        case "display":
            return Display(Result(told["bundle"]), told["name"], told["update"])
        case "result":
            return ResultEvent(Result(told["bundle"]))
        case "request":
            return ApprovalRequest(**{name: told[name] for name in _OF_A_REQUEST}, _answer=answerer(told["id"]))
    return ErrorEvent(ProgramError(told["name"], told["value"], told["traceback"]))
