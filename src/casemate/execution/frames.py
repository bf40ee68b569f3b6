"""Control frames of a program, parsed strictly: whatever does not fit is dropped. No I/O."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from casemate.model.execution import ProgramError, Result

Clean = Callable[[Any], Any]  # takes secrets out of a JSON value
_MAX_PARTS = 200_000  # values in one frame: each takes many times its length in memory
_ESCAPED_SURROGATE = b"\\ud"
# A text, which is one value whatever is in it, also one that does not end: else each quote in it would be tried anew.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_DEEPEST = 200  # lists and objects in each other: whoever handles the value next has its own stack
_MAX_TYPES = 32  # MIME types of one result
_MAX_TYPE_NAME = 128
_MAX_NAME = 256  # characters of an exception's type
_MAX_TEXT = 1 << 20  # characters of an exception's message or traceback


@dataclass(frozen=True, slots=True)
class DisplayFrame:
    """The program displayed something."""

    result: Result


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """The program had an uncaught exception; ``errno`` where it was an operating system error."""

    error: ProgramError
    errno: int | None


def parse(frame: bytes, clean: Clean | None = None) -> DisplayFrame | ErrorFrame | None:
    """What the frame says, or None when it says nothing that is understood. ``clean``: see :func:`decode`."""
    message = decode(frame, clean)
    if message is None:
        return None
    if message.get("type") == "display":
        return parse_bundle(message.get("bundle"))
    if message.get("type") == "error":
        return parse_error(message)
    return None


def decode(frame: bytes, clean: Clean | None = None) -> dict[str, Any] | None:
    """The JSON object that the frame is, without lone surrogates; None when it is none, or has too many values.

    ``clean``: is applied to each of its values, before anything is cut; not to a question, since an answer is for
    exactly that: approvers and the record get it without secrets.
    """
    if parts_of(frame) > _MAX_PARTS and parts_of(_TEXT.sub(b"", frame)) > _MAX_PARTS:
        return None
    try:
        message = json.loads(frame.decode(), parse_constant=_refuse, parse_float=_finite)
        if frame.count(b"[") + frame.count(b"{") > _DEEPEST:
            _check_depth(message, _DEEPEST)
        if _ESCAPED_SURROGATE in frame.lower():
            message = _without_surrogates(message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    return (
        message
        if clean is None or message.get("type") == "ask"
        else {key: clean(value) for key, value in message.items()}
    )


def parts_of(frame: bytes) -> int:
    """About how many values a frame holds: each takes memory of its own, however short it is written."""
    return frame.count(b",") + frame.count(b"[") + frame.count(b"{")


def _without_surrogates(value: Any) -> Any:
    """The same JSON value with every lone surrogate, which no encoder takes, replaced."""
    if isinstance(value, str):
        return _replace_surrogates(value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_replace_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of JSON that Python has")
    return number


def _check_depth(value: Any, most: int) -> None:
    """Raise ``ValueError`` where lists and objects are nested deeper than ``most``."""
    if isinstance(value, list | dict):
        if not most:
            raise ValueError("it is nested too deep")
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, most - 1)


def parse_bundle(bundle: Any, metadata: Any = None) -> DisplayFrame | None:
    """What a display's MIME bundle shows, or None when it is none. ``metadata`` that is no mapping is passed over."""
    if not isinstance(bundle, dict) or not 0 < len(bundle) <= _MAX_TYPES:
        return None
    for media_type, data in bundle.items():
        if not _is_media_type(media_type):
            return None
        if not isinstance(data, str) and not media_type.endswith("json"):
            return None
    return DisplayFrame(Result(bundle, metadata if isinstance(metadata, dict) else None))


def _is_media_type(name: str) -> bool:
    return len(name) <= _MAX_TYPE_NAME and name.isascii() and name.isprintable() and name.count("/") == 1


def parse_error(message: dict[str, Any]) -> ErrorFrame | None:
    """The error in a message, or None."""
    texts = [message.get(key) for key in ("name", "value", "traceback")]
    if not all(isinstance(text, str) for text in texts):
        return None
    name, value, traceback = (_replace_surrogates(str(text)) for text in texts)
    number = message.get("errno")
    error = ProgramError(name[:_MAX_NAME], value[:_MAX_TEXT], traceback[-_MAX_TEXT:])
    return ErrorFrame(error, number if isinstance(number, int) and not isinstance(number, bool) else None)


def _replace_surrogates(text: str) -> str:
    """Text without lone surrogates, which no encoder takes."""
    return text.encode("utf-8", "replace").decode()
