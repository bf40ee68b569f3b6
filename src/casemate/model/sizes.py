"""Sizes in bytes, written by people as ``512MiB`` or ``1.5 GB``."""

from __future__ import annotations

import sys
from collections.abc import Mapping

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def parse_size(text: str | int) -> int:
    """The number of bytes that ``text`` means: ``"512MiB"``, ``"64k"``, ``"1.5 GB"`` or ``4096``.

    ``k``, ``m``, ``g`` and ``t`` alone are powers of 1024, as in Docker. Raises ``ValueError``.
    """
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise ValueError(f"{text!r} is not a size; write a number of bytes or e.g. '512MiB'")
    if isinstance(text, int):
        return text
    compact = text.strip().lower().replace(" ", "").replace("_", "")
    digits = compact.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = compact[len(digits) :]
    try:
        return int(float(digits) * _FACTORS[unit]) if "." in digits else int(digits) * _FACTORS[unit]
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"{text!r} is not a size; write a number of bytes or e.g. '512MiB'") from None


def format_size(size: int) -> str:
    """``size`` bytes for people, exact where it can be: ``536870912`` is ``512 MiB``."""
    value, unit = float(size), "bytes"
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{size} bytes" if unit == "bytes" else f"{value:.4g} {unit}"


def held_by(*values: object) -> int:
    """Bytes of memory that JSON values take together, each object once; what other objects hold is not counted."""
    seen: set[int] = set()
    waiting, size = list(values), 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        if isinstance(one, Mapping):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)
    return size
