"""What a row says, as canonical JSON of bounded size. Pure.

Everything is data: control characters, quotes and line separators are escaped by JSON, which is
plain ASCII here. A string that is too long becomes its beginning, its full length in bytes and its
SHA-256, and so does the whole when it is too large.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import islice

LARGEST = 64 * 1024
_STRING_BOUNDS = (8192, 1024, 128)
_ITEM_BOUNDS = (1000, 100, 20)
_DEEPEST = 8


def bounded(detail: Mapping[str, object], largest: int = LARGEST) -> str:
    """``detail`` as canonical JSON of at most ``largest`` characters, cut step by step until it fits."""
    text = ""
    for longest, most in zip(_STRING_BOUNDS, _ITEM_BOUNDS, strict=True):
        text = _json(_cut(detail, longest, most, _DEEPEST))
        if len(text) <= largest:
            return text
    return _json({"cut": _short(text, min(_STRING_BOUNDS))})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _cut(value: object, longest: int, most: int, deeper: int) -> object:
    match value:
        case None | bool() | int():
            return value if not isinstance(value, int) or value.bit_length() <= 256 else _short(hex(value), longest)
        case float():
            return value if math.isfinite(value) else repr(value)
        case str() | bytes() | bytearray():
            return _short(value, longest)
        case Mapping() if deeper:
            return _cut_mapping(value, longest, most, deeper - 1)
        case Sequence() | set() | frozenset() if deeper:
            return _cut_sequence(value, longest, most, deeper - 1)
        case Mapping() | Sequence() | set() | frozenset():
            return f"… {len(value)} deeper"
        case _:
            return _short(str(value), longest)


def _cut_mapping(value: Mapping[object, object], longest: int, most: int, deeper: int) -> object:
    cut: dict[str, object] = {}
    for key, item in islice(value.items(), most):
        short = _short(str(key), longest)
        cut[short if isinstance(short, str) else _json(short)] = _cut(item, longest, most, deeper)
    if len(value) > most:
        cut["…"] = f"{len(value) - most} more"
    return cut


def _cut_sequence(
    value: Sequence[object] | set[object] | frozenset[object], longest: int, most: int, deeper: int
) -> object:
    items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
    cut = [_cut(item, longest, most, deeper) for item in islice(items, most)]
    if len(value) > most:
        cut.append(f"… {len(value) - most} more")
    return cut


def _short(value: str | bytes | bytearray, longest: int) -> object:
    """The text itself, or its beginning with the length in bytes and the SHA-256 of all of it."""
    if isinstance(value, str) and len(value) <= longest:
        return value
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else bytes(value)
    # A bounded slice is decoded, since the whole may be gigabytes; backslashreplace keeps what is no UTF-8 visible.
    text = value[:longest] if isinstance(value, str) else data[:longest].decode("utf-8", "backslashreplace")
    if len(data) <= longest:
        return text
    return {"begins": text, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
