"""What is in an open file, in pieces: where there is data, and the data."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from casemate.files.beneath import CHUNK


def data_in(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where in a file there is data; the rest are holes, which take no room and are not to take any here."""
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
            end = min(size, os.lseek(fd, start, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.EINVAL:  # this file system does not tell
                yield end, size
            return  # nothing but a hole follows
        yield start, end


def pieces_of(fd: int, most: int) -> Iterator[bytes]:
    """At most so many bytes: a file may grow while it is read."""
    while most > 0 and (piece := os.read(fd, min(CHUNK, most))):
        most -= len(piece)
        yield piece
