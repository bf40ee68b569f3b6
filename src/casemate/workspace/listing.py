"""Search a large folder repeatedly for a few names, without listing unchanged folders again.

Adding or removing a name in a folder sets the folder's time of change (POSIX.1-2017, rename(), open(), link()), and no
call sets that back (utimensat(2) sets the other two). So a folder with the same inode number and times as at an earlier
listing holds the same names, if its last change preceded that listing by more than the resolution of the file system's
clock. This module relies on it only for file systems known to behave so; network file systems do not. It also relies on
it only until something is mounted or unmounted (see proc_pid_mountinfo(5) for how that is noticed): another overlay
over the same folder, or another image on the same device, can have its numbers and times.
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
_COARSE = 2 * 10**9  # nanoseconds; small inodes of ext3 count in seconds, so two of those
_FEW = 64  # folders to list in any case: reading the list of file systems takes as long
_MOST_KEPT = 50_000  # folders, about 500 bytes each


@dataclass(frozen=True, slots=True)
class FolderListing:
    """The content of a folder."""

    stamp: tuple[int, ...]
    folders: tuple[str, ...]  # paths of its subfolders
    named: tuple[tuple[str, bool, bool], ...]  # names searched for, and links; whether each is a folder, and a link
    entries: int  # number of all its names


class Listings:
    """Listings of folders in which ``names`` are searched for. Thread-safe."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._known = _KnownListings(frozenset(), {})
        self._mounts = -1  # reports mounts; opened at the first large folder
        self._lock = threading.Lock()

    def walk(self) -> Walk:
        """Start a walk, for which every folder is as it is now."""
        return Walk(self._names, self)

    def known_listings(self) -> _KnownListings:
        """The known listings under the current mounts."""
        with self._lock:
            if self._have_mounts_changed():
                self._known = _KnownListings(_local_devices(), {})  # a walk in progress keeps the old listings
            return self._known

    def _have_mounts_changed(self) -> bool:
        if self._mounts < 0:
            try:
                self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False  # keep no listings
            weakref.finalize(self, os.close, self._mounts)
            return True
        poll = select.poll()
        poll.register(self._mounts, select.POLLPRI)
        return bool(poll.poll(0))


@dataclass(frozen=True, slots=True)
class _KnownListings:
    local: frozenset[int]  # devices whose listings are kept
    kept: dict[str, FolderListing]  # by path


class Walk:
    def __init__(self, names: frozenset[str], listings: Listings) -> None:
        self._names = names
        self._listings = listings
        self._known: _KnownListings | None = None
        self._count = 0

    def list_folder(self, path: str, most: int) -> FolderListing:
        """The content of the folder at ``path``, without what is in folders that are searched for; if it has more than
        ``most`` entries, one more than ``most``. Raises ``OSError``."""
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
    """The numbers of devices whose file systems behave so, from proc_pid_mountinfo(5)."""
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
