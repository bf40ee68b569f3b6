"""A strict parser of a program's control frames. Malformed frames are dropped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from casemate.model.execution import ProgramError, Result

Clean = Callable[[Any], Any]  # redacts secrets in a JSON value
_MAX_PARTS = 200_000  # values in one frame: each takes many times its length in memory
_ESCAPED_SURROGATE = b"\\ud"
# A string. It also matches an unterminated one; otherwise the search would restart at each quote in it.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_DEEPEST = 200  # nested lists and objects; later code may recurse over them
_MAX_TYPES = 32  # MIME types of one result
_MAX_TYPE_NAME = 128
_MAX_NAME = 256  # characters of an exception's type
_MAX_TEXT = 1 << 20  # characters of an exception's message or traceback


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    error: ProgramError
    errno: int | None  # of an operating system error


def parse(frame: bytes, clean: Clean | None = None) -> Result | ErrorFrame | None:
    """The frame's displayed result or error; None for any other frame. ``clean``: see :func:`decode`."""
    message = decode(frame, clean)
    if message is None:
        return None
    if message.get("type") == "display":
        return parse_bundle(message.get("bundle"))
    if message.get("type") == "error":
        return parse_error(message)
    return None


def decode(frame: bytes, clean: Clean | None = None) -> dict[str, Any] | None:
    """The frame's JSON object without lone surrogates; None if it is not an object, too deep or has too many values.

    ``clean`` is applied to each value before anything is cut, but not to an approval request, because the decision must
    be on the exact request.
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
    """An estimate of the values in a frame. Each takes memory, even if it is short in JSON."""
    return frame.count(b",") + frame.count(b"[") + frame.count(b"{")


def _without_surrogates(value: Any) -> Any:
    """The JSON value with lone surrogates, which cannot be encoded, replaced."""
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
    if isinstance(value, list | dict):
        if not most:
            raise ValueError("it is nested too deep")
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, most - 1)


def parse_bundle(bundle: Any, metadata: Any = None) -> Result | None:
    """The result in a MIME bundle, or None if the bundle is malformed. Malformed ``metadata`` is ignored."""
    if not isinstance(bundle, dict) or not 0 < len(bundle) <= _MAX_TYPES:
        return None
    for media_type, data in bundle.items():
        if not _is_media_type(media_type):
            return None
        if not isinstance(data, str) and not media_type.endswith("json"):
            return None
    return Result(bundle, metadata if isinstance(metadata, dict) else None)


def _is_media_type(name: str) -> bool:
    return len(name) <= _MAX_TYPE_NAME and name.isascii() and name.isprintable() and name.count("/") == 1


def parse_error(message: dict[str, Any]) -> ErrorFrame | None:
    """The error in a message, or None if it is malformed."""
    texts = [message.get(key) for key in ("name", "value", "traceback")]
    if not all(isinstance(text, str) for text in texts):
        return None
    name, value, traceback = (_replace_surrogates(str(text)) for text in texts)
    number = message.get("errno")
    error = ProgramError(name[:_MAX_NAME], value[:_MAX_TEXT], traceback[-_MAX_TEXT:])
    return ErrorFrame(error, number if isinstance(number, int) and not isinstance(number, bool) else None)


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
