"""The wire format between the host and the supervisor: one value per message, with descriptors beside it.

A value is None, a bool, an int, a float, a str, bytes, a list or a dict with str keys. The encoding is length-prefixed
and parsed strictly. It is not JSON, because importing json would take a third of the supervisor's start.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


MAX_MESSAGE = 160_000  # bytes; a unix socket's default send buffer takes 212,992 with its overhead
MAX_DESCRIPTORS = 64  # beside one message; the kernel's own limit is 253
PROGRAM_BYTES = 1 << 16  # space that a cell reserves for a program that comes later
# A cell's own places, and the folder of its scratch behind each. Binds below them must be mounted over them.
OWN_PLACES = {
    "/home/user/": "tmp/.home",
    "/tmp/": "tmp",
    "/var/tmp/": "tmp",
    "/dev/shm/": "shm",
    "/workspace/": "workspace",
    "/program/": "program",
}
_MAX_DEPTH = 12  # real messages reach 5


FAILED = "a failure in its supervisor: "  # start of the reason of a cell that the error ends; the error follows
ANSWER_WITHIN = 5_000  # milliseconds to wait for a child; meanwhile no other cell is served
_MARKS = {None: b"n", True: b"t", False: b"f"}


_MOST_SHARED = 256  # shared values that a receiver keeps


class SharedValue:
    """A list or dict that many messages share. It is encoded once, and decoded once by each receiver."""

    __slots__ = ("data",)

    def __init__(self, value: list[Any] | dict[str, Any]) -> None:
        self.data = encode(value)


class WireError(ValueError):
    """A malformed message."""


def encode(value: Any) -> bytes:
    """``value`` as bytes. Raises :class:`WireError` for an unsupported type."""
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
    """The single value in ``data``. Raises :class:`WireError`. ``shared`` keeps decoded :class:`SharedValue` values
    between messages; without it, none are accepted."""
    value, end = _decode(data, 0, 0, shared)
    if end != len(data):
        raise WireError("bytes after the value")
    return value


def encode_command(argv: tuple[str, ...], env: Mapping[str, str], cwd: str) -> bytes:
    """A command as NUL-terminated strings, which init.c can parse too: the working directory, the number of arguments,
    the arguments, and the variables. Raises :class:`WireError` if one contains a NUL."""
    texts = (cwd, str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items()))
    data = "".join(f"{text}\0" for text in texts).encode("utf-8", "surrogateescape")
    if data.count(0) != len(texts):
        raise WireError("a command with a zero byte in an argument or a variable")
    return data


def decode_command(data: bytes) -> tuple[list[str], dict[str, str], str]:
    """The arguments, variables and working directory of a command."""
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
            raise WireError("a key that is not a str or occurs twice")
        items[key], at = _decode(data, at, depth + 1, shared)
    return items, at + 1


def _take_shared(data: Any, shared: dict[bytes, Any]) -> Any:
    if data not in shared:
        value = decode(data)
        if not isinstance(value, list | dict):
            raise WireError("a shared value that is not a list or dict")
        if len(shared) == _MOST_SHARED:
            shared.clear()
        shared[data] = value
    return shared[data]
