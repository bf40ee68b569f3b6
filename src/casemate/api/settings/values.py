"""Values as a key has them: read from the text of a variable, and checked. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from casemate.api.settings.table import Form, Key
from casemate.model.sizes import format_size, parse_size
from casemate.policy.hosts import MOST_PORT

_MOST_SHOWN = 80  # characters of a wrong value
_HIDDEN = "***"
_FLAGS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
_WITH_PASSWORDS = "package_indexes"


def from_text(key: Key, text: str) -> Any:
    """The value that a variable's text gives ``key``. Raises ``ValueError`` that says what is wrong with it."""
    if key.form == "texts":
        return checked(key, _items(text))
    if key.form == "ports":
        return checked(key, [_number(int, item, text) for item in _items(text)])
    if key.form == "whole":
        return checked(key, _number(int, text, text))
    if key.form in ("number", "seconds"):
        return checked(key, _number(float, text, text))
    if key.form == "flag":
        if text.lower() not in _FLAGS:
            raise ValueError(f"{_cut(text)} is neither true nor false")
        return _FLAGS[text.lower()]
    if key.form == "size" and text.isascii() and text.isdigit():
        return checked(key, int(text))
    return checked(key, text)


def checked(key: Key, value: Any) -> Any:
    """``value`` where it is one that ``key`` may have. Raises ``ValueError`` that says what is wrong with it."""
    _CHECKS[key.form](key, value)
    return value


def shown(key: Key, value: Any) -> str:
    """A value for people, on one line, without what may be secret in it."""
    if value is None:
        return key.unset
    public = without_secrets(key.name, value)
    if key.form == "size" and isinstance(public, int):
        return format_size(public)
    if isinstance(public, bool):
        return str(public).lower()
    if isinstance(public, float):
        return f"{public:g}"
    if isinstance(public, list | tuple):
        return ", ".join(map(str, public)) or "none"
    return str(public)


def without_secrets(name: str, value: Any) -> Any:
    """``value`` of the key ``name`` without passwords in addresses, and of servers no more than their names."""
    if name == _WITH_PASSWORDS and isinstance(value, list | tuple):
        return [_without_password(one) for one in value]
    if isinstance(value, Mapping):
        inner = value.get("mcpServers", value)
        return list(inner) if isinstance(inner, Mapping) else _HIDDEN
    return list(value) if isinstance(value, tuple) else value


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _number(kind: Callable[[str], Any], item: str, text: str) -> Any:
    try:
        return kind(item)
    except ValueError:
        raise ValueError(f"{_cut(text)} is no {'whole ' if kind is int else ''}number") from None


def _text(_: Key, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{_cut(value)} is no text")
    if not value:
        raise ValueError("is empty; give a value, or leave it out")
    if "\0" in value:
        raise ValueError("holds a NUL character")


def _choice(key: Key, value: Any) -> None:
    if value not in key.choices:
        from casemate.model.nearest import meant

        likely = meant(value, key.choices) if isinstance(value, str) else ""
        raise ValueError(f"{_cut(value)} is not known{likely or ';'} choose one of {', '.join(key.choices)}")


def _whole(key: Key, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{_cut(value)} is no whole number")
    _within(key, value)


def _real(key: Key, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{_cut(value)} is no number")
    _within(key, value)


def _size(key: Key, value: Any) -> None:
    size = parse_size(value)
    low, high = key.low or 0, key.high or math.inf
    if not low <= size <= high:
        raise ValueError(f"{_cut(value)} is out of range; give {format_size(int(low))} to {format_size(int(high))}")


def _flag(_: Key, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{_cut(value)} is neither true nor false")


def _texts(key: Key, value: Any) -> None:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        told = "" if key.name == _WITH_PASSWORDS else f"{_cut(value)} "
        raise ValueError(f"{told}is no list of texts")


def _ports(_: Key, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_cut(value)} is no list of ports")
    for port in value:
        if type(port) is not int or not 1 <= port <= MOST_PORT:
            raise ValueError(f"{_cut(port)} is not a port from 1 to {MOST_PORT}")


def _anything(_: Key, __: Any) -> None:
    """A value that others check."""


_CHECKS: Mapping[Form, Callable[[Key, Any], None]] = {
    "text": _text, "path": _text, "choice": _choice, "whole": _whole, "number": _real, "seconds": _real,
    "size": _size, "flag": _flag, "texts": _texts, "ports": _ports, "in file": _anything,
}  # fmt: skip


def _within(key: Key, value: float) -> None:
    if (key.low is not None and value < key.low) or (key.high is not None and value > key.high):
        raise ValueError(f"{_cut(value)} is out of range; give {key.low:g} to {key.high:g}")


def _cut(value: object) -> str:
    told = repr(value) if not isinstance(value, int) or abs(value) < 2**64 else "a much larger number"
    return told if len(told) <= _MOST_SHOWN else f"{told[:_MOST_SHOWN]}…"


def _without_password(address: str) -> str:
    """An address without user and password; what cannot be read as one is not shown."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        return _HIDDEN
    if parts.username is None and parts.password is None:
        return address
    return urlunsplit((parts.scheme, f"{_HIDDEN}@{host}{f':{port}' if port else ''}", parts.path, "", ""))
