"""The wire format between the host and the supervisor: one value a message, descriptors beside it.

A value is None, a bool, an int, a float, a str, bytes, a list or a dict with str keys. The
encoding is length-prefixed and parsed strictly; it needs no import, which is why it is
not JSON: the json module alone would cost a third of the supervisor's start.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


MAX_MESSAGE = 160_000  # bytes; a unix socket's default send buffer takes 212,992 with its overhead
MAX_DESCRIPTORS = 64  # beside one message; the kernel's own limit is 253
PROGRAM_BYTES = 1 << 16  # space that a cell has for a program that it does not know yet
# Of a cell, and the folder of its scratch that each is: what is bound below them must be put over them.
OWN_PLACES = {
    "/home/user/": "tmp/.home",
    "/tmp/": "tmp",
    "/var/tmp/": "tmp",
    "/dev/shm/": "shm",
    "/workspace/": "workspace",
    "/program/": "program",
}
_MAX_DEPTH = 12  # no message of ours is deeper than 5


FAILED = "a failure in its supervisor: "  # and the error: the reason of a cell that is ended for it
ANSWER_WITHIN = 5_000  # milliseconds; a child that prepares itself needs some, and no other cell is served meanwhile
_MARKS = {None: b"n", True: b"t", False: b"f"}


_MOST_SHARED = 256  # values of messages that the receiver of many keeps


class SharedValue:
    """A list or dict that many messages have in common: encoded once here, and decoded once where it is received."""

    __slots__ = ("data",)

    def __init__(self, value: list[Any] | dict[str, Any]) -> None:
        self.data = encode(value)


class WireError(ValueError):
    """A message that is not well formed."""


def encode(value: Any) -> bytes:
    """``value`` as bytes. Raises :class:`WireError` for a type the format does not have."""
    parts: list[bytes] = []
    _encode(value, parts)
    return b"".join(parts)


def _encode(value: Any, parts: list[bytes]) -> None:
    if value is None or value is True or value is False:
        parts.append(_MARKS[value])
    elif isinstance(value, int):
        parts.append(b"i%d;" % value)
    elif isinstance(value, float):
        parts.append(b"d%s;" % value.hex().encode())
    elif isinstance(value, str):
        _encode_bytes(b"s", value.encode("utf-8", "surrogateescape"), parts)
    elif isinstance(value, bytes):
        _encode_bytes(b"b", value, parts)
    elif isinstance(value, SharedValue):
        _encode_bytes(b"k", value.data, parts)
    elif isinstance(value, list | tuple):
        parts.append(b"l")
        for item in value:
            _encode(item, parts)
        parts.append(b"e")
    elif isinstance(value, dict):
        _encode_dict(value, parts)
    else:
        raise WireError(f"cannot send a {type(value).__name__}")


def _encode_bytes(mark: bytes, data: bytes, parts: list[bytes]) -> None:
    parts.append(b"%s%d:" % (mark, len(data)))
    parts.append(data)


def _encode_dict(value: dict[Any, Any], parts: list[bytes]) -> None:
    parts.append(b"m")
    for key, item in value.items():
        if not isinstance(key, str):
            raise WireError(f"a key must be a str, not {type(key).__name__}")
        _encode(key, parts)
        _encode(item, parts)
    parts.append(b"e")


def decode(data: bytes, shared: dict[bytes, Any] | None = None) -> Any:
    """The value in ``data``, which must hold exactly one. Raises :class:`WireError`.

    ``shared``: what of earlier messages may come again, where :class:`SharedValue` values are taken.
    """
    value, end = _decode(data, 0, 0, shared)
    if end != len(data):
        raise WireError("bytes after the value")
    return value


def encode_command(argv: tuple[str, ...], env: Mapping[str, str], cwd: str) -> bytes:
    """A command as init.c can read it, too: texts, each ended by a zero byte. The folder in which it begins, how many
    arguments it has, these, and its variables. Raises :class:`WireError` for a text with a zero byte in it."""
    texts = (cwd, str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items()))
    data = "".join(f"{text}\0" for text in texts).encode("utf-8", "surrogateescape")
    if data.count(0) != len(texts):
        raise WireError("a command with a zero byte in an argument or a variable")
    return data


def decode_command(data: bytes) -> tuple[list[str], dict[str, str], str]:
    """Arguments, variables and folder of a command."""
    cwd, count, *texts = data.decode("utf-8", "surrogateescape").split("\0")[:-1]
    variables = (text.partition("=") for text in texts[int(count) :])
    return texts[: int(count)], {name: value for name, _, value in variables}, cwd


def _decode(data: bytes, at: int, depth: int, shared: dict[bytes, Any] | None = None) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise WireError("nested too deeply")
    mark = data[at : at + 1]
    at += 1
    if mark in _CONSTANTS:
        return _CONSTANTS[mark], at
    if mark == b"i" or mark == b"d":
        end = data.find(b";", at, at + 40)
        return _number(mark, data[at:end] if end >= 0 else b""), end + 1
    if mark == b"s" or mark == b"b":
        return _string(mark, data, at)
    if mark == b"l":
        return _list(data, at, depth)
    if mark == b"m":
        return _dict(data, at, depth, shared)
    if mark == b"k" and shared is not None:
        raw, end = _string(b"b", data, at)
        return _take_shared(raw, shared).copy(), end
    raise WireError(f"unknown mark {mark!r}")


_CONSTANTS: dict[bytes, Any] = {b"n": None, b"t": True, b"f": False}


def _number(mark: bytes, text: bytes) -> int | float:
    try:
        return int(text) if mark == b"i" else float.fromhex(text.decode("ascii"))
    except (ValueError, OverflowError):
        raise WireError("not a number") from None


def _string(mark: bytes, data: bytes, at: int) -> tuple[str | bytes, int]:
    colon = data.find(b":", at, at + 12)
    length = data[at:colon] if colon >= 0 else b""
    if not length.isdigit():
        raise WireError("a string without a length")
    start, end = colon + 1, colon + 1 + int(length)
    if end > len(data):
        raise WireError("a string that ends early")
    raw = data[start:end]
    return (raw.decode("utf-8", "surrogateescape") if mark == b"s" else raw), end


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    items = []
    while data[at : at + 1] != b"e":
        item, at = _decode(data, at, depth + 1)
        items.append(item)
    return items, at + 1


def _dict(data: bytes, at: int, depth: int, shared: dict[bytes, Any] | None = None) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    while data[at : at + 1] != b"e":
        key, at = _decode(data, at, depth + 1)
        if not isinstance(key, str) or key in items:
            raise WireError("a key that is no str, or is there twice")
        items[key], at = _decode(data, at, depth + 1, shared)
    return items, at + 1


def _take_shared(data: Any, shared: dict[bytes, Any]) -> Any:
    if data not in shared:
        value = decode(data)
        if not isinstance(value, list | dict):
            raise WireError("a shared value that is no list or dict")
        if len(shared) == _MOST_SHARED:
            shared.clear()
        shared[data] = value
    return shared[data]
