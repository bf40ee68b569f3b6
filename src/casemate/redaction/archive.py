"""Whether a member of a zip archive holds a secret. Pure; everything in the archive is hostile.

Members are found by their local headers (APPNOTE.TXT, section 4.3.7), whatever the directory at the end says, and
inflated piece by piece within a budget. Stored members and names are seen without this, in the archive's own bytes.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator

from casemate.redaction.content import WITHHELD
from casemate.redaction.redaction import Redaction

Read = Callable[[int, int], bytes]  # so many bytes from there on, fewer at the end

_SIGNATURE = b"PK\x03\x04"
_HEADER = struct.Struct("<4sHHHHHIIIHH")
_DEFLATED = 8
_PIECE = 1 << 18
_TOO_MUCH = "it is an archive that is too large to be searched for secrets"


def reason_to_withhold(read: Read, size: int, redaction: Redaction, budget: int) -> str:
    """Why the ``size`` bytes that ``read`` gives must not be handed out; empty when they are no archive, or may be.

    ``budget``: bytes that are inflated and looked at in all.
    """
    if read(0, len(_SIGNATURE)) != _SIGNATURE:
        return ""
    for at in _headers(read, size):
        header = read(at, _HEADER.size)
        if len(header) < _HEADER.size:
            break
        *_, name, extra = _HEADER.unpack(header)
        if _HEADER.unpack(header)[3] != _DEFLATED:
            continue
        stream = redaction.stream()
        for looked_at, piece in _inflated(read, at + _HEADER.size + name + extra):
            budget -= looked_at
            if budget < 0:
                return _TOO_MUCH
            stream.feed(piece)
            if stream.has_found:
                return WITHHELD
        stream.finish()
        if stream.has_found:
            return WITHHELD
    return ""


def _headers(read: Read, size: int) -> Iterator[int]:
    """Where a local header may be."""
    for start in range(0, size, _PIECE):
        piece = read(start, _PIECE + len(_SIGNATURE) - 1)
        at = piece.find(_SIGNATURE)
        while at >= 0:
            yield start + at
            at = piece.find(_SIGNATURE, at + 1)


def _inflated(read: Read, at: int) -> Iterator[tuple[int, bytes]]:
    """What is deflated there, in pieces, each with the bytes that it took to read and to write it."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    waiting = b""
    while not inflater.eof:
        if not waiting:
            waiting = read(at, _PIECE)
            at += len(waiting)
        if not waiting:
            return
        try:
            piece = inflater.decompress(waiting, _PIECE)
        except zlib.error:
            return
        yield len(waiting) - len(inflater.unconsumed_tail) + len(piece), piece
        waiting = inflater.unconsumed_tail
