"""The heads of a tar archive that is nobody's friend's: of extended ones tarfile is told no more than a size.

tarfile looks at records of extended heads (POSIX.1-2017, pax Interchange Format) with expressions that take the square
of what they meet (CVE-2024-6232), keeps what their lengths do not bound, and has no bound for all of them together. So
they are read here, each byte once.
"""

from __future__ import annotations

import math
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

MOST = 1 << 20  # bytes of all heads of one member, such as a long name, and of those for all members before it
LATEST = 2**33  # seconds since 1970, in the year 2242: a number of nanoseconds as os.utime takes it
_LONGEST_TIME = 64  # characters: a float's digits and more
_PATH, _TIME, _SIZE = b"path", b"mtime", b"size"
_SPARSE, _SPARSE_NAME = b"GNU.sparse.", b"GNU.sparse.name"
_KEPT = (_PATH, _TIME, _SIZE, _SPARSE_NAME)
_RECORD = re.compile(rb"([0-9]{1,7}) ([^=\0\n]{1,1000})=")
_NUMBER = re.compile(rb"[0-9]{1,18}")
_OF_ONE = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_OF_ALL = (tarfile.XGLTYPE,)
Records = dict[bytes, bytes]


class Heads:
    """An archive's file as :class:`tarfile.TarFile` takes it, with ``member`` as its ``tarinfo``."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = MOST
        self._is_content = False
        self._kind = b""
        self._of_all: Records = {}
        self._of_one: Records = {}
        self.seek, self.tell = file.seek, file.tell
        self.member = _member_class(self)

    @contextmanager
    def content(self) -> Iterator[None]:
        """While this lasts, what is read is a member's content."""
        self._is_content = True
        yield
        self._is_content, self._left, self._of_one = False, MOST, {}

    def expect(self, kind: bytes) -> None:
        """What is read next belongs to a head of this kind."""
        self._kind = kind

    def read(self, most: int = -1) -> bytes:
        """So many bytes; of records only the one that tarfile needs. Raises ``tarfile.ReadError`` for heads that are
        not read."""
        if self._is_content:
            return self._file.read(most)
        self._left -= most
        if most < 0 or self._left < 0:
            raise tarfile.ReadError("a head in it is too large")
        data = self._file.read(most)
        kind, self._kind = self._kind, b""
        if kind in _OF_ALL:
            self._of_all |= _records(data)
            return bytes(tarfile.BLOCKSIZE)
        if kind in _OF_ONE:
            self._of_one = _records(data) | self._of_one  # of several the first counts, as it does for tarfile
            return _size_alone(self._of_one).ljust(tarfile.BLOCKSIZE, b"\0")
        return data

    def complete(self, member: tarfile.TarInfo) -> None:
        """Give it what its records say: its name, its time, and that it is sparse. A time that is none changes
        nothing."""
        records = self._of_all | self._of_one
        name = records.get(_SPARSE_NAME, records.get(_PATH))
        if name is not None:
            member.name = name.decode("utf-8", "surrogateescape")
        if _TIME in records:
            member.mtime = _time(records[_TIME], member.mtime)
        member.mtime = min(max(int(member.mtime), 0), LATEST)
        if _SPARSE in records:
            member.type = tarfile.GNUTYPE_SPARSE


def _member_class(heads: Heads) -> type[tarfile.TarInfo]:
    class ArchiveMember(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> ArchiveMember:
            try:
                info = super().frombuf(buf, encoding, errors)
            except tarfile.HeaderError as error:
                if any(buf):
                    raise tarfile.ReadError(str(error)) from None  # tarfile takes it for the archive's end
                raise
            heads.expect(info.type)
            return info

    return ArchiveMember


def _records(data: bytes) -> Records:
    """Those that count. Each is as long as it says, and zeros follow."""
    at, found = 0, {}
    while at < len(data) and data[at]:
        record = _RECORD.match(data, at)
        end = at + int(record[1]) if record else 0
        if record is None or not record.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise tarfile.ReadError("a head in it is not well formed")
        if record[2] in _KEPT:
            found[record[2]] = data[record.end() : end - 1]
        if record[2].startswith(_SPARSE):
            found[_SPARSE] = b""
        at = end
    return found


def _size_alone(records: Records) -> bytes:
    """The record of a size, which says where the next member is."""
    if _SIZE not in records:
        return b""
    if _NUMBER.fullmatch(records[_SIZE]) is None:
        raise tarfile.ReadError("a size in it is no number of bytes")
    rest = b" %s=%s\n" % (_SIZE, records[_SIZE])
    return b"%d%s" % (len(rest) + 2, rest)  # its length begins it, in two digits


def _time(text: bytes, otherwise: float) -> float:
    """Seconds since 1970, as a record has them."""
    try:
        time = float(text) if len(text) <= _LONGEST_TIME else math.nan
    except ValueError:
        return otherwise
    return time if math.isfinite(time) else otherwise
