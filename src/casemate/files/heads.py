"""Parses the headers of an untrusted tar archive. From pax records, it passes only the sizes on to tarfile.

tarfile's own reader of pax records (POSIX.1-2017, pax Interchange Format) takes quadratic time (CVE-2024-6232), keeps
values beyond their length, and has no total bound. So this module reads them, each byte once.
"""

from __future__ import annotations

import math
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

MOST = 1 << 20  # bytes of all headers of one member, such as a long name, and of all global headers before it
LATEST = 2**33  # seconds since 1970, in the year 2242: as nanoseconds it still fits os.utime
_LONGEST_TIME = 64  # characters, more than a float has
_PATH, _TIME, _SIZE = b"path", b"mtime", b"size"
_SPARSE, _SPARSE_NAME = b"GNU.sparse.", b"GNU.sparse.name"
_KEPT = (_PATH, _TIME, _SIZE, _SPARSE_NAME)
_RECORD = re.compile(rb"([0-9]{1,7}) ([^=\0\n]{1,1000})=")
_NUMBER = re.compile(rb"[0-9]{1,18}")
_OF_ONE = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_OF_ALL = (tarfile.XGLTYPE,)
Records = dict[bytes, bytes]


class Heads:
    """A file for :class:`tarfile.TarFile`, with ``member`` as its ``tarinfo``."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = MOST
        self._is_content = False
        self.kind = b""  # type of the header that the next read belongs to
        self.sees_headers = False  # whether tarfile calls the method that `member` replaces
        self._of_all: Records = {}
        self._of_one: Records = {}
        self.seek, self.tell = file.seek, file.tell
        self.member = _member_class(self)

    @contextmanager
    def content(self) -> Iterator[None]:
        """Treat reads within this context as a member's content."""
        self._is_content = True
        yield
        self._is_content, self._left, self._of_one = False, MOST, {}

    def read(self, most: int = -1) -> bytes:
        """Read ``most`` bytes. From pax headers, returns only a member's size, which tarfile needs. Raises
        ``tarfile.ReadError`` for bad headers."""
        if self._is_content:
            return self._file.read(most)
        self._left -= most
        if most < 0 or self._left < 0:
            raise tarfile.ReadError("a header in it is too large")
        data = self._file.read(most)
        kind, self.kind = self.kind, b""
        if kind in _OF_ALL:
            self._of_all |= _records(data)
            return bytes(tarfile.BLOCKSIZE)
        if kind in _OF_ONE:
            self._of_one = _records(data) | self._of_one  # the first of several wins, as in tarfile
            return _size_alone(self._of_one).ljust(tarfile.BLOCKSIZE, b"\0")
        return data

    def complete(self, member: tarfile.TarInfo) -> None:
        """Set the name, time and sparse type of ``member`` from its records. An invalid time is ignored."""
        if not self.sees_headers:
            raise tarfile.ReadError("this version of Python reads archives in a way that casemate does not know")
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
    # Since its fix of CVE-2025-13462, tarfile reads headers by `_frombuf` alone.
    name = "_frombuf" if hasattr(tarfile.TarInfo, "_frombuf") else "frombuf"
    parse = getattr(tarfile.TarInfo, name).__func__

    def note_header(cls: type[tarfile.TarInfo], /, buf: bytes, *arguments: str, **options: bool) -> tarfile.TarInfo:
        try:
            info: tarfile.TarInfo = parse(cls, buf, *arguments, **options)
        except tarfile.HeaderError as error:
            if any(buf):
                raise tarfile.ReadError(str(error)) from None  # tarfile would take it for the archive's end
            raise
        heads.kind, heads.sees_headers = info.type, True
        return info

    return type("ArchiveMember", (tarfile.TarInfo,), {name: classmethod(note_header)})


def _records(data: bytes) -> Records:
    """The records that matter. Each must have its stated length, and zeros must follow."""
    at, found = 0, {}
    while at < len(data) and data[at]:
        record = _RECORD.match(data, at)
        end = at + int(record[1]) if record else 0
        if record is None or not record.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise tarfile.ReadError("a header in it is not well formed")
        if record[2] in _KEPT:
            found[record[2]] = data[record.end() : end - 1]
        if record[2].startswith(_SPARSE):
            found[_SPARSE] = b""
        at = end
    return found


def _size_alone(records: Records) -> bytes:
    """The size record, which tells where the next member is."""
    if _SIZE not in records:
        return b""
    if _NUMBER.fullmatch(records[_SIZE]) is None:
        raise tarfile.ReadError("a size in it is not a number of bytes")
    rest = b" %s=%s\n" % (_SIZE, records[_SIZE])
    return b"%d%s" % (len(rest) + 2, rest)  # the record begins with its length, in two digits


def _time(text: bytes, otherwise: float) -> float:
    """The seconds since 1970 in a record, or ``otherwise`` if it is invalid."""
    try:
        time = float(text) if len(text) <= _LONGEST_TIME else math.nan
    except ValueError:
        return otherwise
    return time if math.isfinite(time) else otherwise
