"""Looking through a large folder for a few names again and again: what cannot have changed is not listed anew.

When a name comes into a folder, or goes, the folder's time of change is set (POSIX.1-2017, rename(), open(), link()),
and no call sets that one back (utimensat(2) sets the other two). So a folder whose number and times are those of an
earlier listing holds the names that it held then, provided that its last change was longer before that listing than the
file system's clock is coarse. That is relied upon where file systems are known to keep to it, which those of other
machines, whose times this machine only hears of, are not. And only as long as nothing is mounted or unmounted
(proc_pid_mountinfo(5) says how that is noticed): another overlay over the same folder, or another image on the same
device, can have its numbers and its times.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from dataclasses import dataclass
from itertools import islice

_LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "overlay"}
_COARSE = 2 * 10**9  # nanoseconds: two of the seconds in which small inodes of ext3 count
_FEW = 64  # folders that are listed in any case: to read which file systems there are takes as long
_MOST_KEPT = 50_000  # folders, some 500 bytes each


@dataclass(frozen=True, slots=True)
class FolderListing:
    """What a folder holds: ``folders``: the paths of those in it; ``named``: links, and names that are looked for, and
    whether each is a folder, and a link; ``entries``: how many names there are in all."""

    stamp: tuple[int, ...]
    folders: tuple[str, ...]
    named: tuple[tuple[str, bool, bool], ...]
    entries: int


class Listings:
    """Of folders in which ``names`` are looked for. From any thread."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._known = _KnownListings(frozenset(), {})
        self._mounts = -1  # a descriptor that tells when something is mounted, from the first large folder on
        self._lock = threading.Lock()

    def walk(self) -> Walk:
        """For one walk, whose every folder is as it is now."""
        return Walk(self._names, self)

    def known_listings(self) -> _KnownListings:
        """What is known of the folders as they are mounted now."""
        with self._lock:
            if self._have_mounts_changed():
                self._known = _KnownListings(_local_devices(), {})  # a walk that is under way keeps to the one before
            return self._known

    def _have_mounts_changed(self) -> bool:
        if self._mounts < 0:
            try:
                self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False  # nothing is kept
            weakref.finalize(self, os.close, self._mounts)
            return True
        poll = select.poll()
        poll.register(self._mounts, select.POLLPRI)
        return bool(poll.poll(0))


@dataclass(frozen=True, slots=True)
class _KnownListings:
    """``local``: devices of which listings are kept; ``kept``: those, by path."""

    local: frozenset[int]
    kept: dict[str, FolderListing]


class Walk:
    """``listed`` for each folder on the way."""

    def __init__(self, names: frozenset[str], listings: Listings) -> None:
        self._names = names
        self._listings = listings
        self._known: _KnownListings | None = None
        self._count = 0

    def list_folder(self, path: str, most: int) -> FolderListing:
        """What the folder at ``path`` holds, without what is in folders that are looked for; of more than ``most``
        entries one more than that. Raises ``OSError``."""
        self._count += 1
        if self._count <= _FEW:
            return self._list(path, (), most)
        if self._known is None:
            self._known = self._listings.known_listings()
        began, kept = time.time_ns(), self._known.kept
        status = os.lstat(path)
        stamp = (status.st_dev, status.st_ino, status.st_ctime_ns, status.st_mtime_ns)
        known = kept.get(path)
        if known is not None and known.stamp == stamp:
            return known
        listed = self._list(path, stamp, most)
        if listed.entries <= most and status.st_dev in self._known.local and began - status.st_ctime_ns > _COARSE:
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            kept[path] = listed
        return listed

    def _list(self, path: str, stamp: tuple[int, ...], most: int) -> FolderListing:
        folders, named, entries = [], [], 0
        with os.scandir(path) as found:
            for entry in islice(found, most + 1):
                entries += 1
                if entry.name in self._names or entry.is_symlink():
                    named.append((entry.name, entry.is_dir(follow_symlinks=False), entry.is_symlink()))
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
        return FolderListing(stamp, tuple(folders), tuple(named), entries)


def _local_devices() -> frozenset[int]:
    """The numbers of devices whose file systems keep to it, as proc_pid_mountinfo(5) has them."""
    found = set()
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            for line in file:
                before, _, after = line.partition(b" - ")
                major, _, minor = before.split(b" ", 3)[2].partition(b":")
                if after.split(b" ", 1)[0].decode("ascii", "replace") in _LOCAL:
                    found.add(os.makedev(int(major), int(minor)))
    except (OSError, ValueError, IndexError):
        return frozenset()
    return frozenset(found)
