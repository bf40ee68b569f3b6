"""Finds the files whose changes a git index hides from ``git status`` and ``git diff``.

A program may have written the index. It is read in pieces, with one path in memory at a time. Source:
gitformat-index(5). ``git update-index`` sets both flags: --assume-unchanged and --skip-worktree.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import islice
from typing import BinaryIO

from casemate.supervisor.trees.walk import check_deadline

_MOST_PATHS, _LONGEST_PATH = 64 << 20, 4096  # bytes of all paths and of one
_BEFORE_HASH = 40  # bytes of an entry: times, device, inode, mode, owner, size
SHA1, _SHA256 = 20, 32  # bytes of a hash
_ASSUME_UNCHANGED, _IS_EXTENDED, _LENGTH, _SKIP_WORKTREE = 0x8000, 0x4000, 0x0FFF, 0x4000


def hidden_paths(file: BinaryIO, hash_size: int, known: Container[bytes] = (), most: int | None = None) -> set[bytes]:
    """At most ``most`` paths whose changes git hides, without ``known`` ones. ``hash_size``: bytes of the repository's
    hashes, which an index does not state. Raises ``ValueError``, ``OSError``."""
    file.seek(0)
    return set(islice((path for path in _read_hidden(file, hash_size) if path not in known), most))


def hidden_in_own(file: BinaryIO) -> tuple[set[bytes], int]:
    """All paths that the caller's own index hides, and its hash size. Raises like `hidden_paths`."""
    try:
        return hidden_paths(file, SHA1), SHA1
    except ValueError:
        return hidden_paths(file, _SHA256), _SHA256


def _read_hidden(file: BinaryIO, hash_size: int) -> Iterator[bytes]:
    mark, version, count = _read(file, 4), int.from_bytes(_read(file, 4)), int.from_bytes(_read(file, 4))
    if mark != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("it is not a git index")
    path, left = b"", _MOST_PATHS
    for _ in range(count):
        check_deadline()
        fixed = _read(file, _BEFORE_HASH + hash_size + 2)
        flags = int.from_bytes(fixed[-2:])
        extended = _read(file, 2) if flags & _IS_EXTENDED else b""
        kept, length = len(path) - _number(file) if version == 4 else 0, flags & _LENGTH
        path = path[:kept] + _read_to_zero(file, max(0, length - max(0, kept)))
        left -= len(path)
        if kept < 0 or left < 0 or len(path) > _LONGEST_PATH or 0 in path or length not in (_LENGTH, len(path)):
            raise ValueError("a path in it has the wrong length, or its paths are too long")
        if version != 4:  # up to eight zeros follow; one of them was read
            _read(file, 7 - (len(fixed) + len(extended) + len(path)) % 8)
        if flags & _ASSUME_UNCHANGED or int.from_bytes(extended) & _SKIP_WORKTREE:
            yield path


def _read_to_zero(file: BinaryIO, least: int) -> bytes:
    data = _read(file, least + 1)
    while data[-1] and len(data) < _LONGEST_PATH + 2:
        data += _read(file, 1)
    return data[:-1]


def _number(file: BinaryIO) -> int:
    """A number in the encoding of pack offsets. Stops after nine bytes, with a value that is too large for any use."""
    value, byte = -1, 128
    while byte & 128 and value < 1 << 56:  # eight bytes can hold this
        (byte,) = _read(file, 1)
        value = (value + 1) << 7 | byte & 127
    return value


def _read(file: BinaryIO, size: int) -> bytes:
    if len(data := file.read(size)) < size:
        raise ValueError("it is not a git index: it ends too early")
    return data
