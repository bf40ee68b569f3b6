"""What a session's interpreter tells of its names, checked. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_MOST = 200  # characters
_MOST_SIZE = 1 << 62


@dataclass(frozen=True, slots=True)
class Variable:
    """A name of the user's: its value's ``type`` by name, its ``size`` in bytes (None where that is not known), and a
    short ``repr``, made without running the value's own code."""

    name: str
    type: str
    size: int | None
    repr: str


def variable_of(told: Any) -> Variable | None:
    """One entry of the interpreter's list, or None when it is none."""
    if not isinstance(told, dict):
        return None
    texts = [told.get(key) for key in ("name", "type", "repr")]
    size = told.get("size")
    if not all(isinstance(text, str) for text in texts):
        return None
    name, kind, short = (str(text)[:_MOST] for text in texts)
    return Variable(name, kind, size if type(size) is int and 0 <= size < _MOST_SIZE else None, short)
