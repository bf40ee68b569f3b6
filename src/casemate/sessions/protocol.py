"""The frames of a session's interpreter: parsed strictly, and put in order. Invalid frames are dropped. Pure.

Text comes through two pipes and everything else as frames through a third. Each frame gives the number of bytes written
to the other two before it, so that the cell never has to wait for the host to read.

`casemate.languages.session_program` defines the requests in the other direction.
"""

from __future__ import annotations

import binascii
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, get_args

from casemate.execution import frames
from casemate.execution.frames import ErrorFrame
from casemate.languages.session_program import COMMAND_KINDS, CommandKind
from casemate.model.execution import Result
from casemate.model.front_end import Cleared, CommKind, CommMessage, LineRequest

if TYPE_CHECKING:
    from casemate.walls.wall import Stream

_MOST_NAMES = 10_000
_MOST_NAME = 200  # characters
_MOST_REASON = 1 << 16  # characters of a problem or a reason
_MOST_COMMAND = 1 << 18  # characters of a command; an approval request holds it even with JSON's escapes
_MOST_EXIT = 255
_MOST_LINE = 1 << 24  # number of a line
_MOST_VARIABLE_TEXT = 200  # characters each of a variable's name, type and repr
_MOST_SIZE = 1 << 62  # bytes of a variable
_MOST_PROMPT = 10_000  # characters
_MOST_BUFFERS = 1000  # of one widget message

Position = tuple[int, int] | None  # bytes written to stdout and stderr before the frame; None for everything in them


@dataclass(frozen=True, slots=True)
class Ready:
    """The interpreter takes requests, or ``problem`` says why it cannot."""

    problem: str


@dataclass(frozen=True, slots=True)
class Displayed:
    """A step displayed something. With ``update`` it replaces what has the same ``display_id``."""

    result: Result
    display_id: str | None
    update: bool


@dataclass(frozen=True, slots=True)
class Value:
    result: Result


@dataclass(frozen=True, slots=True)
class OrderMark:
    """Only marks a position in the text."""


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A step waits for approval of a command. ``arguments``: ``command``, and perhaps ``input``, a script for it.
    ``line``: its line in the step's code, if reported."""

    kind: CommandKind
    id: int
    arguments: dict[str, str]
    line: int | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    exit: int
    new: tuple[str, ...]  # names bound for the first time
    gone: tuple[str, ...]  # names deleted


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to request ``id``: a value, a text that holds one, or an error."""

    id: int
    value: Any = None
    text: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    type: str
    size: int | None  # bytes, None if unknown
    repr: str  # short, made without running the value's own code


StepContent = (
    Displayed | Value | Cleared | OrderMark | CommandRequest | LineRequest | CommMessage | ErrorFrame | StepDone
)


@dataclass(frozen=True, slots=True)
class StepMessage:
    step: int
    at: Position
    content: StepContent
    size: int  # bytes of the frame

    @property
    def ends(self) -> bool:
        return isinstance(self.content, StepDone | ErrorFrame)

    @property
    def comes_after_all(self) -> bool:
        """Whether all text in the step's pipes precedes it. Children of the interpreter write there too, uncounted."""
        return self.at is None or isinstance(self.content, StepDone)


Text = tuple["Stream", bytes]


class MessageOrder:
    """Puts the text and frames of one step into the order in which they were written."""

    def __init__(self) -> None:
        self._read: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        self._waiting: deque[StepMessage] = deque()  # frames that wait for earlier text
        self.count = 0  # frames so far
        self._later: deque[Text] = deque()  # text written after the first waiting frame

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def add_text(self, stream: Stream, data: bytes) -> Iterator[Text | StepMessage]:
        """Take data from one of the step's pipes. Yields what is in order now."""
        yield from self._take(deque([(stream, data)]))

    def add_frame(self, message: StepMessage) -> Iterator[StepMessage]:
        """Take a frame. Yields nothing while it waits."""
        self._waiting.append(message)
        self.count += 1
        yield from self._take_due()

    def settle(self, upto: int = 1 << 62) -> Iterator[Text | StepMessage]:
        """Release the first ``upto`` frames: the pipes hold no more text written before them."""
        while self._waiting and self.count - len(self._waiting) < upto:
            message = self._waiting.popleft()
            if message.at is not None:
                # from here on, continue from its own counts
                self._read = {"stdout": message.at[0], "stderr": message.at[1]}
            yield message
            yield from self._take(self._release())

    def _take(self, texts: deque[Text]) -> Iterator[Text | StepMessage]:
        while texts:
            stream, data = texts.popleft()
            due = self._count_missing(self._waiting[0], stream) if self._waiting else len(data)
            if due <= 0:
                self._later.append((stream, data))
                continue
            self._read[stream] += len(data[:due])
            yield stream, data[:due]
            if data[due:]:
                texts.appendleft((stream, data[due:]))
            if self._waiting and self._is_due(self._waiting[0]):
                yield from self._take_due()
                texts.extendleft(reversed(self._release()))

    def _take_due(self) -> Iterator[StepMessage]:
        while self._waiting and self._is_due(self._waiting[0]):
            yield self._waiting.popleft()

    def _release(self) -> deque[Text]:
        texts, self._later = self._later, deque()
        return texts

    def _is_due(self, message: StepMessage) -> bool:
        return not message.comes_after_all and all(self._count_missing(message, stream) <= 0 for stream in self._read)

    def _count_missing(self, message: StepMessage, stream: Stream) -> int:
        if message.at is None or message.comes_after_all:
            return 1 << 62
        return message.at[0 if stream == "stdout" else 1] - self._read[stream]


def parse(frame: bytes, clean: frames.Clean | None = None) -> Ready | StepMessage | Reply | None:
    """Parse a frame. Returns None if it is invalid. ``clean``: see `frames.decode`."""
    message = frames.decode(frame, clean)
    if message is None:
        return None
    match message.get("type"):
        case "ready":
            return Ready(_parse_text(message.get("problem")) or "")
        case "reply":
            return _parse_reply(message)
    content = _parse_content(message)
    step, at = message.get("step"), message.get("at")
    if content is None or not _is_count(step) or not (at is None or _is_position(at)):
        return None
    return StepMessage(step, None if at is None else (at[0], at[1]), content, len(frame))


def parse_variable(entry: Any) -> Variable | None:
    """Parse an entry of the interpreter's list of variables. Returns None if it is invalid."""
    if not isinstance(entry, dict):
        return None
    texts = [entry.get(key) for key in ("name", "type", "repr")]
    size = entry.get("size")
    if not all(isinstance(text, str) for text in texts):
        return None
    name, kind, short = (str(text)[:_MOST_VARIABLE_TEXT] for text in texts)
    return Variable(name, kind, size if type(size) is int and 0 <= size < _MOST_SIZE else None, short)


def _parse_content(message: dict[str, Any]) -> StepContent | None:
    match message.get("type"):
        case "display":
            return _parse_display(message)
        case "result":
            shown = frames.parse_bundle(message.get("bundle"), message.get("metadata"))
            return Value(shown) if shown is not None else None
        case "clear":
            return Cleared(message.get("wait") is True)
        case "mark":
            return OrderMark()
        case "ask":
            return _parse_command(message)
        case "input":
            return _parse_line_request(message)
        case "comm":
            return _parse_comm(message)
        case "error":
            return frames.parse_error(message)
        case "done":
            return _parse_done(message)
    return None


def _parse_display(message: dict[str, Any]) -> Displayed | None:
    display, name = frames.parse_bundle(message.get("bundle"), message.get("metadata")), message.get("id")
    if display is None or not (name is None or (isinstance(name, str) and len(name) <= _MOST_NAME)):
        return None
    return Displayed(display, name, message.get("update") is True)


def _parse_command(message: dict[str, Any]) -> CommandRequest | None:
    kind = next((one for one in COMMAND_KINDS if one == message.get("kind")), None)
    number, arguments = message.get("id"), message.get("arguments")
    if kind is None or not _is_count(number) or not isinstance(arguments, dict):
        return None
    is_known = {"command"} <= set(arguments) <= {"command", "input"}
    is_short = all(isinstance(text, str) and len(text) <= _MOST_COMMAND for text in arguments.values())
    line = message.get("line")
    line = line if _is_count(line) and 0 < line <= _MOST_LINE else None
    return CommandRequest(kind, number, arguments, line) if is_known and is_short else None


def _parse_line_request(message: dict[str, Any]) -> LineRequest | None:
    number, prompt = message.get("id"), message.get("prompt")
    if not _is_count(number) or not isinstance(prompt, str):
        return None
    return LineRequest(number, prompt[:_MOST_PROMPT], message.get("hidden") is True)


def _parse_comm(message: dict[str, Any]) -> CommMessage | None:
    kind = next((one for one in get_args(CommKind) if one == message.get("kind")), None)
    names, buffers = [message.get(key) for key in ("comm", "target")], message.get("buffers")
    contents = [message.get(key) for key in ("data", "metadata")]
    if kind is None or not all(isinstance(name, str) and len(name) <= _MOST_NAME for name in names):
        return None
    if not all(isinstance(content, dict) for content in contents) or not isinstance(buffers, list):
        return None
    try:
        decoded = tuple(binascii.a2b_base64(data, strict_mode=True) for data in buffers[:_MOST_BUFFERS])
    except (TypeError, ValueError):
        return None
    return CommMessage(kind, str(names[0]), str(names[1]), contents[0] or {}, contents[1] or {}, decoded)


def _parse_done(message: dict[str, Any]) -> StepDone | None:
    code = message.get("exit")
    if not _is_count(code) or code > _MOST_EXIT:
        return None
    return StepDone(code, _parse_names(message.get("new")), _parse_names(message.get("gone")))


def _parse_names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list):
        return ()
    return tuple(name for name in names[:_MOST_NAMES] if isinstance(name, str) and 0 < len(name) <= _MOST_NAME)


def _parse_reply(message: dict[str, Any]) -> Reply | None:
    number = message.get("id")
    if not _is_count(number):
        return None
    if "error" in message:
        return Reply(number, error=_parse_text(message["error"]) or "it failed")
    if "text" in message:
        text = message["text"]
        return Reply(number, text=text) if isinstance(text, str) else None
    return Reply(number, value=message.get("value"))


def _parse_text(text: Any) -> str | None:
    return text[:_MOST_REASON] if isinstance(text, str) else None


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 53


def _is_position(at: Any) -> bool:
    return isinstance(at, list) and len(at) == 2 and all(_is_count(value) for value in at)
