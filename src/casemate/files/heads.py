"""The heads of a tar archive that is nobody's friend's, before tarfile reads them.

tarfile looks at records of extended heads (POSIX.1-2017, pax Interchange Format) with expressions that take the square
of what they meet (CVE-2024-6232), keeps what their lengths do not bound, and has no bound for all of them together.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO

MOST = 1 << 20  # bytes of all heads of one member, such as a long name, and of those for all members
_MOST_COMMON = 100  # records for all members
_MOST_DIGITS = 255  # in a row, as a name may have
_DIGITS = re.compile(rb"[0-9]+")
_RECORD = re.compile(rb"([0-9]{1,7}) [^=\0\n]{1,1000}=")
_WITH_RECORDS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


class Heads:
    """An archive's file as :class:`tarfile.TarFile` takes it, with ``member`` as its ``tarinfo``."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = MOST
        self._is_content = False
        self._are_records = False
        self.seek, self.tell = file.seek, file.tell
        self.member = _told_of_each(self)

    @contextmanager
    def content(self) -> Iterator[None]:
        """While this lasts, what is read is a member's content."""
        self._is_content = True
        yield
        self._is_content, self._left = False, MOST

    def expect(self, kind: bytes) -> None:
        """What is read next belongs to a head of this kind."""
        self._are_records = kind in _WITH_RECORDS

    def read(self, most: int = -1) -> bytes:
        """So many bytes. Raises ``tarfile.ReadError`` for heads that are not read."""
        if self._is_content:
            return self._file.read(most)
        self._left -= most
        if most < 0 or self._left < 0:
            raise tarfile.ReadError("a head in it is too large")
        data = self._file.read(most)
        if any(len(digits) > _MOST_DIGITS for digits in _DIGITS.findall(data)):
            raise tarfile.ReadError("a number in it is too long")
        if self._are_records:
            self._are_records = False
            _check_records(data)
        return data


def check_common(records: Mapping[str, str]) -> None:
    """Raises ``tarfile.ReadError`` where records for all members are more than are kept."""
    if len(records) > _MOST_COMMON or sum(map(len, records.values())) > MOST:
        raise tarfile.ReadError("too much is said of all its members")


def _told_of_each(heads: Heads) -> type[tarfile.TarInfo]:
    class Member(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Member:
            info = super().frombuf(buf, encoding, errors)
            heads.expect(info.type)
            return info

    return Member


def _check_records(data: bytes) -> None:
    """Each is as long as it says, and zeros follow."""
    at = 0
    while at < len(data) and data[at]:
        found = _RECORD.match(data, at)
        end = at + int(found[1]) if found else 0
        if found is None or not found.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise tarfile.ReadError("a head in it is not well formed")
        at = end
