"""Checks every field of the messages that a supervisor in a container may send."""

from __future__ import annotations

from typing import Any

from casemate.supervisor import carriage, wire

_MOST = 1 << 62
_TEXT = 2000
_MOST_ERRNO, _LAST_SIGNAL = 4096, 64


def _count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _seconds(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and -1e9 < value < 1e12


def _flag(value: object) -> bool:
    return type(value) is bool


def _text(value: object) -> bool:
    return type(value) is str and len(value) <= _TEXT


def _errno(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_ERRNO


def _status(value: object) -> bool:
    """A wait status (wait(2)) of a process that has ended: an exit code or a signal."""
    return value is None or (type(value) is int and (value & ~0xFF00 == 0 or 0 < value & ~0x80 <= _LAST_SIGNAL))


_REASONS = (None, "timeout", "memory", "cpu", "output", "cancelled", "killed", "closed", "silent", "deaf", "pipes",
            "uncovered", "terminals")  # fmt: skip
_ENDING = {
    "wait_status": _status, "seconds": _seconds, "cpu_seconds": _seconds, "tasks": _count, "begun": _count,
    "reason": lambda value: value in _REASONS, "peak_memory": _count, "oom": _flag, "space_left": _count,
    "inodes_left": _count,
}  # fmt: skip
_USAGE = {
    "cpu_seconds": _seconds, "peak_memory": _count, "tasks": _count, "memory_left": _count, "tasks_left": _count,
    "interrupted": _flag, "space_left": _count, "inodes_left": _count,
}  # fmt: skip


def _is(value: object, shape: dict[str, Any]) -> bool:
    return isinstance(value, dict) and set(value) == set(shape) and all(shape[name](value[name]) for name in shape)


_SHAPES: dict[str, dict[str, Any]] = {
    "launch refused": {"stage": _text, "errno": _errno, "detail": _text},
    "ended": {"ending": lambda value: _is(value, _ENDING)},
    "listening": {"number": _count, "errno": _errno, "count": _count},
    "session files": {},
    "pipes": {"step": _count},
    "step over": {"step": _count, "usage": lambda value: _is(value, _USAGE)},
    "files paused": {"complete": _flag},
    "files resumed": {"complete": _flag},
    "shown": {"number": _count, "errno": _errno},
}
# The kinds of channels that each message may open.
_CHANNELS = {"ended": ("content",), "step over": ("content",), "files paused": ("content",), "pipes": ("read", "read"),
             "listening": ("tcp", "udp")}  # fmt: skip
_MOST_LANGUAGES = 10


def check_message(payload: bytes, cell_id: str) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """Check a message and its channels. ``cell_id``: the only cell that the sender knows. Raises ``ValueError``."""
    message, channels = _parts(payload)
    op = message.pop("op", None)
    shape = _SHAPES.get(op) if isinstance(op, str) else None
    if shape is None or message.pop("id", None) != cell_id or not _is(message, shape):
        raise ValueError(f"a malformed message: {op!r}")
    kinds = _CHANNELS.get(op, ())
    if any(kind not in kinds for kind, _ in channels) or (op != "listening" and len(channels) > len(kinds)):
        raise ValueError(f"channels that {op!r} may not open")
    return {"op": op, "id": cell_id, **message}, channels


def check_hello(payload: bytes) -> dict[str, Any]:
    """Check the first message of a container. Raises ``ValueError``."""
    message, _ = _parts(payload)
    if message.pop("op", None) != "ready" or not _is(message, _HELLO):
        raise ValueError("not a greeting")
    if message.pop("version") != carriage.VERSION:
        raise ValueError("the image has another version of casemate; build it from this one")
    return message


def _programs(value: object) -> bool:
    return isinstance(value, dict) and len(value) <= _MOST_LANGUAGES and all(map(_text, value.values()))


_HELLO = {"version": _count, "kernel": _text, "interpreters": _programs}


def _parts(payload: bytes) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    value = wire.decode(payload)
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], dict):
        raise ValueError("not a message")
    message, channels = value
    if not isinstance(channels, list) or len(channels) > wire.MAX_DESCRIPTORS:
        raise ValueError("not a list of channels")
    for channel in channels:
        if not isinstance(channel, list) or [type(part) for part in channel] != [str, int]:
            raise ValueError("not a channel")
        if not 0 <= channel[1] < 1 << 32:
            raise ValueError("not a channel number")
    return message, [(kind, number) for kind, number in channels]
