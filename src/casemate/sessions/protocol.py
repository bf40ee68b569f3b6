"""What a session's interpreter says, parsed strictly: whatever does not fit is dropped. No I/O.

The other way, requests, is what each language's interpreter reads: see `casemate.sessions.interpreters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

from casemate.execution import frames
from casemate.execution.frames import Failed, Shown
from casemate.model.result import Result

_MOST_NAMES = 10_000
_MOST_NAME = 200  # characters
_MOST_WORDS = 1 << 16  # characters of a problem or a reason
_MOST_ASKED = 1 << 18  # characters of a command: with JSON's escapes within what a person is asked about
_MOST_EXIT = 255

At = tuple[int, int] | None  # bytes written to the step's two pipes before; None: all that is in them


@dataclass(frozen=True, slots=True)
class Ready:
    """It takes requests; or why it cannot."""

    problem: str


@dataclass(frozen=True, slots=True)
class Displayed:
    """A step displayed something: by a name, or in place of what it had displayed by that name."""

    result: Result
    display_id: str | None
    update: bool


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a step's last expression."""

    result: Result


@dataclass(frozen=True, slots=True)
class Cleared:
    """A step takes back what it displayed; with ``wait`` when it displays something else."""

    wait: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """Nothing but the order of text."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A step wants to run a shell command, and waits for the answer to its request ``id``. ``arguments``: ``command``,
    and ``input`` where there is a script for it."""

    id: int
    arguments: dict[str, str]


@dataclass(frozen=True, slots=True)
class Finished:
    """A step is over; ``new`` and ``gone``: names that it bound for the first time, or deleted."""

    exit: int
    new: tuple[str, ...]
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to request ``id``: a value, text that holds one, or why there is none."""

    id: int
    value: Any = None
    text: str | None = None
    error: str | None = None


OfStep = Displayed | Value | Cleared | Mark | Asked | Failed | Finished


@dataclass(frozen=True, slots=True)
class Said:
    """What was said about ``step``, after so much text; it came in ``size`` bytes."""

    step: int
    at: At
    what: OfStep
    size: int

    @property
    def ends(self) -> bool:
        """Whether it tells of the step's end."""
        return isinstance(self.what, Finished | Failed)

    @property
    def comes_after_all(self) -> bool:
        """Whether all that is in the step's pipes was written before it: by children of the interpreter, too, whose
        bytes it does not count."""
        return self.at is None or isinstance(self.what, Finished)


def parse(frame: bytes, clean: frames.Clean | None = None) -> Ready | Said | Reply | None:
    """What the frame says, or None when it says nothing that is understood. ``clean``: as `frames.decode` has it."""
    message = frames.decode(frame, clean)
    if message is None:
        return None
    match message.get("type"):
        case "ready":
            return Ready(_words(message.get("problem")) or "")
        case "reply":
            return _reply(message)
    what = _of_step(message)
    step, at = message.get("step"), message.get("at")
    if what is None or not _is_count(step) or not (at is None or _is_place(at)):
        return None
    return Said(step, None if at is None else (at[0], at[1]), what, len(frame))


def _of_step(message: dict[str, Any]) -> OfStep | None:
    match message.get("type"):
        case "display":
            return _displayed(message)
        case "result":
            found = frames.shown(message.get("bundle"))
            return Value(found.result) if isinstance(found, Shown) else None
        case "clear":
            return Cleared(message.get("wait") is True)
        case "mark":
            return Mark()
        case "ask":
            return _asked(message)
        case "error":
            return frames.failed(message)
        case "done":
            return _finished(message)
    return None


def _displayed(message: dict[str, Any]) -> Displayed | None:
    found, name = frames.shown(message.get("bundle")), message.get("id")
    if found is None or not (name is None or (isinstance(name, str) and len(name) <= _MOST_NAME)):
        return None
    return Displayed(found.result, name, message.get("update") is True)


def _asked(message: dict[str, Any]) -> Asked | None:
    number, arguments = message.get("id"), message.get("arguments")
    if message.get("kind") != "shell" or not _is_count(number) or not isinstance(arguments, dict):
        return None
    is_known = {"command"} <= set(arguments) <= {"command", "input"}
    is_short = all(isinstance(text, str) and len(text) <= _MOST_ASKED for text in arguments.values())
    return Asked(number, arguments) if is_known and is_short else None


def _finished(message: dict[str, Any]) -> Finished | None:
    code = message.get("exit")
    if not _is_count(code) or code > _MOST_EXIT:
        return None
    return Finished(code, _names(message.get("new")), _names(message.get("gone")))


def _names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list):
        return ()
    return tuple(name for name in names[:_MOST_NAMES] if isinstance(name, str) and 0 < len(name) <= _MOST_NAME)


def _reply(message: dict[str, Any]) -> Reply | None:
    number = message.get("id")
    if not _is_count(number):
        return None
    if "error" in message:
        return Reply(number, error=_words(message["error"]) or "it failed")
    if "text" in message:
        text = message["text"]
        return Reply(number, text=text) if isinstance(text, str) else None
    return Reply(number, value=message.get("value"))


def _words(text: Any) -> str | None:
    return text[:_MOST_WORDS] if isinstance(text, str) else None


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 1 << 53


def _is_place(at: Any) -> bool:
    return isinstance(at, list) and len(at) == 2 and all(_is_count(value) for value in at)
