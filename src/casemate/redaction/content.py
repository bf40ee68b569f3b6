"""A file's content on its way out: text without the secrets, and nothing of what is no text and holds one. Pure.

Members of a zip archive, which is hostile, are found by their local headers (APPNOTE.TXT, section 4.3.7), whatever the
directory at the end says, and inflated piece by piece within a budget. Stored members and names are seen without this,
in the archive's own bytes.
"""

from __future__ import annotations

import codecs
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from casemate.redaction.redaction import Redaction

WITHHELD = "it holds a secret, and is no text that could be handed out without it"


class RedactedContent:
    """Takes a file piece by piece and gives what can be handed on of it, as long as it is not :attr:`withheld`."""

    def __init__(self, redaction: Redaction) -> None:
        self._stream = redaction.stream()
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_text = True

    def feed(self, data: bytes) -> bytes:
        """What can be handed on now."""
        self._look(data, final=False)
        return self._stream.feed(data)

    def finish(self) -> bytes:
        """The rest."""
        self._look(b"", final=True)
        return self._stream.finish()

    @property
    def withheld(self) -> str:
        """Why it must not be handed out, as far as it was seen; empty when it may."""
        return WITHHELD if self._stream.has_found and not self._is_text else ""

    def _look(self, data: bytes, *, final: bool) -> None:
        """Text is UTF-8 without NUL characters."""
        if self._is_text:
            try:
                self._is_text = "\0" not in self._decoder.decode(data, final)
            except UnicodeDecodeError:
                self._is_text = False


Read = Callable[[int, int], bytes]  # so many bytes from there on, fewer at the end

_SIGNATURE = b"PK\x03\x04"
_END = b"PK\x05\x06"  # of the record at an archive's end (section 4.3.16)
_BEFORE = 1 << 16  # bytes that may come before the first header: a line for an interpreter, a program that unpacks
_AFTER = 22 + (1 << 16)  # bytes of the end record with the longest comment
_HEADER = struct.Struct("<4sHHHHHIIIHH")
_STORED, _DEFLATED = 0, 8
_LAST_METHOD = 99  # section 4.4.5; what has a higher one is no header
_ENCRYPTED = 1  # bit of a header's flags (section 4.4.4)
_PIECE = 1 << 18
_FIRST_PIECE = 1 << 12  # most members are small
_EACH = 1 << 12  # bytes that a header counts for, whatever follows it: headers cost time that lead nowhere
_TOO_MUCH = "it is an archive that is too large to be searched for secrets"
_UNREADABLE = "it is an archive that is compressed by a method that cannot be searched for secrets"
_LOCKED = "it is an archive with encrypted members, which cannot be searched for secrets"


@dataclass(slots=True)
class Budget:
    """``left``: bytes that may still be read, inflated and looked at, in one archive or in several."""

    left: int

    def spend(self, size: int) -> bool:
        """Whether there was so much left."""
        self.left -= size
        return self.left >= 0


def reason_to_withhold(read: Read, size: int, redaction: Redaction, budget: Budget) -> str:
    """Why the ``size`` bytes that ``read`` gives must not be handed out; empty when they are no archive, or may be.

    ``budget``: when it is used up, the archive is withheld.
    """
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
        if method == _DEFLATED:
            if why := _why_not_member(read, at + _HEADER.size + name + extra, redaction, budget):
                return why
        elif _STORED < method <= _LAST_METHOD:
            return _UNREADABLE
    return ""


def _may_be_archive(read: Read, size: int) -> bool:
    return _SIGNATURE in read(0, _BEFORE + len(_SIGNATURE)) or _END in read(max(0, size - _AFTER), _AFTER)


def _why_not_member(read: Read, at: int, redaction: Redaction, budget: Budget) -> str:
    """The same of the member whose content begins there."""
    stream = redaction.stream()
    for looked_at, piece in _inflate(read, at):
        if not budget.spend(looked_at):
            return _TOO_MUCH
        stream.feed(piece)
        if stream.has_found:
            return WITHHELD
    stream.finish()
    return WITHHELD if stream.has_found else ""


def _headers(read: Read, size: int) -> Iterator[int]:
    """Where a local header may be."""
    for start in range(0, size, _PIECE):
        piece = read(start, _PIECE + len(_SIGNATURE) - 1)
        at = piece.find(_SIGNATURE)
        while at >= 0:
            yield start + at
            at = piece.find(_SIGNATURE, at + 1)


def _inflate(read: Read, at: int) -> Iterator[tuple[int, bytes]]:
    """What is deflated there, in pieces, each with the bytes that it took to read and to write it."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    waiting, size = b"", _FIRST_PIECE
    while not inflater.eof:
        if not waiting:
            waiting = read(at, size)
            at += len(waiting)
            yield len(waiting), b""
            size = min(2 * size, _PIECE)
        if not waiting:
            return
        try:
            piece = inflater.decompress(waiting, _PIECE)
        except zlib.error:
            return
        yield len(piece), piece
        waiting = inflater.unconsumed_tail
