"""Redacts a file on its way out: text loses its secrets, and a binary file that holds one is withheld. Pure.

Archives are hostile. Members of a zip are found by their local headers (APPNOTE.TXT, section 4.3.7), not by the
directory at the end, and inflated piece by piece within a budget; stored members and names appear in the archive's own
bytes. Gzip (RFC 1952), bzip2, xz, streams of PDF (ISO 32000-1, 7.3.8) and chunks of PNG (section 11.3.2 of its
specification) are unpacked too. Compressed data within compressed data is unpacked once more.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from casemate.redaction.redaction import Redaction

WITHHELD = "it contains a secret that cannot be removed, because it is not text"


class RedactedContent:
    """Takes a file in pieces and returns its redacted content, which must not be used once it is :attr:`withheld`."""

    def __init__(self, redaction: Redaction) -> None:
        self._stream = redaction.stream()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_text = True

    def feed(self, data: bytes) -> bytes:
        """Return what can be handed out now."""
        self._look(data, final=False)
        return self._stream.feed(data)

    def finish(self) -> bytes:
        """Return the rest."""
        self._look(b"", final=True)
        return self._stream.finish()

    @property
    def withheld(self) -> str:
        """Why the file must not be handed out, judged by its data so far; empty if it may."""
        return WITHHELD if self._stream.has_found and not self._is_text else ""

    def _look(self, data: bytes, *, final: bool) -> None:
        """Check that this is still text: UTF-8 without NUL characters."""
        if self._is_text:
            try:
                self._is_text = "\0" not in self._decoder.decode(data, final)
            except UnicodeDecodeError:
                self._is_text = False


Read = Callable[[int, int], bytes]  # from an offset, so many bytes; fewer at the end

_SIGNATURE = b"PK\x03\x04"
_END = b"PK\x05\x06"  # begins the record at an archive's end (section 4.3.16)
_BEFORE = 1 << 16  # bytes that may precede the first header: an interpreter line, a self-extractor
_AFTER = 22 + (1 << 16)  # bytes of the end record with the longest comment
_HEADER = struct.Struct("<4sHHHHHIIIHH")
_STORED, _DEFLATED = 0, 8
_LAST_METHOD = 99  # section 4.4.5; with a higher one it is not a header
_ENCRYPTED = 1  # bit of a header's flags (section 4.4.4)
_PIECE = 1 << 18
_FIRST_PIECE = 1 << 12  # most members are small
_EACH = 1 << 12  # bytes that each header takes from the budget: false ones take time too
_TOO_MUCH = "it is an archive that is too large to be searched for secrets"
_UNREADABLE = "it is an archive that is compressed by a method that cannot be searched for secrets"
_LOCKED = "it is an archive with encrypted members, which cannot be searched for secrets"


@dataclass(slots=True)
class Budget:
    left: int  # bytes that may still be read, inflated and searched, in one archive or several

    def spend(self, size: int) -> bool:
        """Subtract ``size``. Returns False if the budget is used up."""
        self.left -= size
        return self.left >= 0


def reason_to_withhold(read: Read, size: int, redaction: Redaction, budget: Budget, *, again: bool = True) -> str:
    """Return why a file must not be handed out for what is compressed in it; empty if it may. If ``budget`` is used up,
    it may not. ``again``: also unpack compressed data within compressed data."""
    head = read(0, _LONGEST_HEAD)
    if head.startswith(_UNSEARCHABLE):
        return _UNREADABLE
    for at, unpack in _places(read, size, head):
        if not budget.spend(_EACH):
            return _TOO_MUCH
        if why := _why_not_stream(_unpack(read, at, unpack), redaction, budget, again=again):
            return why
    return _why_not_zip(read, size, redaction, budget, again=again)


def _why_not_zip(read: Read, size: int, redaction: Redaction, budget: Budget, *, again: bool) -> str:
    if not _may_be_archive(read, size):
        return ""
    for at in _headers(read, size):
        if not budget.spend(_EACH):
            return _TOO_MUCH
        header = read(at, _HEADER.size)
        if len(header) < _HEADER.size:
            break
        _, _, flags, method, *_, name, extra = _HEADER.unpack(header)
        if flags & _ENCRYPTED and method <= _LAST_METHOD:
            return _LOCKED
        begin = at + _HEADER.size + name + extra
        unpack = _raw if method == _DEFLATED else _unpack_of(read(begin, _LONGEST_HEAD)) if method == _STORED else None
        if unpack and (why := _why_not_stream(_unpack(read, begin, unpack), redaction, budget, again=again)):
            return why
        if _STORED < method != _DEFLATED and method <= _LAST_METHOD:
            return _UNREADABLE
    return ""


def _may_be_archive(read: Read, size: int) -> bool:
    return _SIGNATURE in read(0, _BEFORE + len(_SIGNATURE)) or _END in read(max(0, size - _AFTER), _AFTER)


class _Unsearchable(Exception):
    """The data cannot be unpacked here."""


def _why_not_stream(pieces: Iterator[tuple[int, bytes]], redaction: Redaction, budget: Budget, *, again: bool) -> str:
    """Do the same for unpacked data: ``pieces``, each with the bytes that it takes from the budget."""
    stream, inner, is_packed = redaction.stream(), bytearray(), None
    try:
        for looked_at, piece in pieces:
            if not budget.spend(looked_at):
                return _TOO_MUCH
            stream.feed(piece)
            if stream.has_found:
                return WITHHELD
            if piece and is_packed is None:
                is_packed = again and (piece.startswith(_PACKED) or _SIGNATURE in piece[:_BEFORE])
            if is_packed:
                inner += piece
                if len(inner) > _MOST_AGAIN:
                    return _TOO_MUCH
    except _Unsearchable:
        return _UNREADABLE
    stream.finish()
    if stream.has_found:
        return WITHHELD
    if not is_packed:
        return ""
    return reason_to_withhold(lambda at, size: bytes(inner[at : at + size]), len(inner), redaction, budget, again=False)


def _places(read: Read, size: int, head: bytes) -> Iterator[tuple[int, Unpack]]:
    """Yield where compressed data may begin, and how to unpack it."""
    if unpack := _unpack_of(head):
        yield 0, unpack
    if head.startswith(_PNG):
        yield from ((at, _zlib) for at in _chunks(read, size))
    elif _PDF in head:
        yield from ((at, _zlib) for at in _matches(read, size, _STREAM))


def _unpack_of(head: bytes) -> Unpack | None:
    return next((unpack for signature, unpack in _WHOLE.items() if head.startswith(signature)), None)


def _chunks(read: Read, size: int) -> Iterator[int]:
    """Yield where compressed text may begin in a PNG's chunks, except in its pixels."""
    at = len(_PNG)
    while at + 8 <= size:
        length, kind = struct.unpack(">I4s", read(at, 8).ljust(8, b"\0"))
        if kind in (b"zTXt", b"iTXt", b"iCCP"):
            text = read(at + 8, min(length, _KEYWORDS))
            yield from (at + 8 + found.start() for found in _ZLIB_HEADER.finditer(text))
        at += 12 + length


def _matches(read: Read, size: int, pattern: re.Pattern[bytes]) -> Iterator[int]:
    """Yield where matches of ``pattern`` end."""
    last = 0
    for start in range(0, size, _PIECE):
        for found in pattern.finditer(read(start, _PIECE + _LONGEST_MATCH)):
            if start + found.end() > last:
                last = start + found.end()
                yield last


def _headers(read: Read, size: int) -> Iterator[int]:
    """Yield where a local header may begin."""
    for start in range(0, size, _PIECE):
        piece = read(start, _PIECE + len(_SIGNATURE) - 1)
        at = piece.find(_SIGNATURE)
        while at >= 0:
            yield start + at
            at = piece.find(_SIGNATURE, at + 1)


def _unpack(read: Read, at: int, make: Unpack) -> Iterator[tuple[int, bytes]]:
    """Unpack consecutive streams from ``at`` on, in pieces, each with the bytes read or written for it."""
    unpacker, waiting, size = make(), b"", _FIRST_PIECE
    while True:
        if not waiting:
            waiting = read(at, size)
            at += len(waiting)
            yield len(waiting), b""
            size = min(2 * size, _PIECE)
        if not waiting:
            return
        try:
            piece = unpacker.decompress(waiting, _PIECE)
            while piece:
                yield len(piece), piece
                is_over = unpacker.eof or not _has_more(unpacker)
                piece = b"" if is_over else unpacker.decompress(getattr(unpacker, "unconsumed_tail", b""), _PIECE)
        except lzma.LZMAError:  # too large a dictionary, or damaged: the rest cannot be searched
            raise _Unsearchable from None
        except (zlib.error, OSError, EOFError):
            return
        waiting = unpacker.unused_data if unpacker.eof else b""
        if unpacker.eof and (make is _raw or make is _zlib or not waiting.startswith(tuple(_WHOLE))):
            return
        if unpacker.eof:
            unpacker = make()


def _has_more(unpacker: Any) -> bool:
    """Whether the unpacker has more output for the input that it already has."""
    if hasattr(unpacker, "needs_input"):
        return not unpacker.needs_input
    return bool(unpacker.unconsumed_tail)


_MOST_DICTIONARY = 80 << 20  # bytes of memory that an xz file may take: enough for `xz -9`
Unpack = Callable[[], Any]  # makes an unpacker
_raw: Unpack = partial(zlib.decompressobj, -zlib.MAX_WBITS)
_zlib: Unpack = zlib.decompressobj
_WHOLE: dict[bytes, Unpack] = {
    b"\x1f\x8b\x08": partial(zlib.decompressobj, 16 + zlib.MAX_WBITS),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\0": partial(lzma.LZMADecompressor, memlimit=_MOST_DICTIONARY),
}
_UNSEARCHABLE = (b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07")  # zstd, 7z, rar
_PACKED = (*_WHOLE, _SIGNATURE)
_PNG, _PDF = b"\x89PNG\r\n\x1a\n", b"%PDF-"
_STREAM = re.compile(rb"stream\r?\n")
_ZLIB_HEADER = re.compile(rb"\x78[\x01\x5e\x9c\xda]")
_LONGEST_HEAD, _LONGEST_MATCH, _KEYWORDS = 1024, 8, 512  # bytes
_MOST_AGAIN = 64 << 20  # bytes of unpacked data that are unpacked again
