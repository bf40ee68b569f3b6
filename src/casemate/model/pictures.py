"""Pictures from cells: parsed and bounded before other code reads them."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

_MOST_BYTES = 16 << 20  # of one picture
_MOST_SIDE = 16_384  # pixels that browsers and terminals draw
_MOST_PIXELS = 40_000_000  # a decoder takes four bytes for each
_PNG = b"\x89PNG\r\n\x1a\n"
_DRAWN = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")  # chunks; without texts, profiles and animations
_JPEG = b"\xff\xd8\xff"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # markers before a JPEG's size (T.81, B.1.1.3)
_SCAN = 0xDA


class Picture(NamedTuple):
    """``width`` and ``height`` are in pixels; both are 0 for SVG."""

    media_type: str
    data: bytes
    width: int = 0
    height: int = 0


def picture_of(bundle: Mapping[str, Any]) -> Picture | None:
    """The PNG or JPEG in a displayed object; None if it has no valid one within bounds."""
    for media_type, read in (("image/png", _read_png), ("image/jpeg", _read_jpeg)):
        encoded = bundle.get(media_type)
        if not isinstance(encoded, str) or len(encoded) > _MOST_BYTES * 4 // 3:
            continue
        try:
            found = read(base64.b64decode(encoded))
        except (ValueError, struct.error):
            continue
        if found is not None and _is_bounded(*found[1:]):
            return Picture(media_type, *found)
    return None


def _is_bounded(width: int, height: int) -> bool:
    return 0 < width <= _MOST_SIDE and 0 < height <= _MOST_SIDE and width * height <= _MOST_PIXELS


def _read_png(data: bytes) -> tuple[bytes, int, int] | None:
    """Drop the chunks that are not drawn. Returns the rest, the width and the height."""
    if not data.startswith(_PNG):
        return None
    kept, place, width, height = [_PNG], len(_PNG), 0, 0
    while True:
        length, kind = struct.unpack_from(">I4s", data, place)
        chunk = data[place : place + 12 + length]
        if len(chunk) != 12 + length or zlib.crc32(chunk[4:-4]) != int.from_bytes(chunk[-4:]):
            return None
        if (kind == b"IHDR") != (len(kept) == 1):
            return None
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", chunk, 8)
        if kind in _DRAWN:
            kept.append(chunk)
        if kind == b"IEND":
            return b"".join(kept), width, height
        place += len(chunk)


def _read_jpeg(data: bytes) -> tuple[bytes, int, int] | None:
    place = 2
    while data.startswith(_JPEG) and data[place : place + 1] == b"\xff":
        _, marker, length = struct.unpack_from(">BBH", data, place)
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return data, width, height
        if marker == _SCAN:
            return None
        place += 2 + length
    return None
