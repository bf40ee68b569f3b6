"""Which files a git index hides the changes of: those that ``git status`` and ``git diff`` do not look at. Pure.

Source: gitformat-index(5). Both flags are set by ``git update-index``: --assume-unchanged and --skip-worktree.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MOST_BYTES = 256 << 20  # of an index that is looked at: some millions of files
_HEAD = struct.Struct(">4sII")
_BEFORE_HASH = 40  # bytes of an entry: times, device, inode, mode, owner, size
_HASHES = (20, 32)  # SHA-1, SHA-256
_ASSUME_UNCHANGED, _IS_EXTENDED, _LENGTH, _SKIP_WORKTREE = 0x8000, 0x4000, 0x0FFF, 0x4000


def hidden_paths(data: bytes) -> frozenset[bytes]:
    """The paths whose changes git does not show. Raises ``ValueError`` for what is no index."""
    for size in _HASHES:
        try:
            return frozenset(_read_hidden(data, size))
        except (ValueError, struct.error, IndexError):
            continue
    raise ValueError("this is no index of git's")


def _read_hidden(data: bytes, hash_size: int) -> Iterator[bytes]:
    mark, version, count = _HEAD.unpack_from(data)
    if mark != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("this is no index of git's")
    at, path = _HEAD.size, b""
    for _ in range(count):
        begin, at = at, at + _BEFORE_HASH + hash_size
        (flags,) = struct.unpack_from(">H", data, at)
        at += 2
        extended = 0
        if flags & _IS_EXTENDED:
            (extended,) = struct.unpack_from(">H", data, at)
            at += 2
        kept = b""
        if version == 4:
            stripped, at = _varint(data, at)
            if stripped > len(path):
                raise ValueError("a path that takes more away than there is")
            kept = path[: len(path) - stripped]
        end = data.index(0, at)
        path = kept + data[at:end]
        if flags & _LENGTH not in (_LENGTH, len(path)):
            raise ValueError("a path of another length than it says")
        at = end + 1 if version == 4 else begin + (end - begin + 8) // 8 * 8
        if flags & _ASSUME_UNCHANGED or extended & _SKIP_WORKTREE:
            yield path


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """As of a pack's offsets: a number, and where what follows begins."""
    value = data[at] & 127
    while data[at] & 128:
        at += 1
        value = (value + 1) << 7 | data[at] & 127
    return value, at + 1
