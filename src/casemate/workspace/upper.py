"""What overlayfs writes into an upper folder besides files: removed names, replaced folders, references.

It keeps its marks in one of two spaces of extended attributes, and lets no program write to that one through the
overlay. The other is any program's to write to: what is there says nothing.

Source: Documentation/filesystems/overlayfs.rst (whiteouts and opaque directories, redirect_dir, metadata only copy up).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from casemate.supervisor.trees.walk import open_folder, status_of

USERS = "user.overlay."  # of an overlay with the option userxattr
ROOTS = "trusted.overlay."  # of one without it


def marks_here() -> str:
    """Where the overlays of cells have their marks on this machine: the supervisor mounts them with ``userxattr`` where
    it is an ordinary user, or root over no other id than that (``casemate.supervisor.enter``)."""
    if os.geteuid() != 0:
        return USERS
    with open("/proc/self/uid_map", encoding="ascii") as file:
        first, _, count = map(int, file.readline().split())
    return USERS if (first, count) == (0, 1) else ROOTS


def is_opaque(folder: int, marks: str | None) -> bool:
    """Whether a folder hides everything that the lower one holds. Raises ``OSError``."""
    return _mark(folder, "opaque", marks) == b"y"


def covers(upper: int, path: str, marks: str) -> bool:
    """Whether who sees ``upper`` over a folder sees nothing of that folder at ``path``: something of its own is there,
    or what was there is removed. False also where that cannot be told."""
    folder, is_over = os.dup(upper), False
    try:
        for name in path.split("/"):
            there = status_of(folder, name)
            if there is None or not stat.S_ISDIR(there.st_mode):
                return is_over or there is not None
            below = open_folder(folder, name)
            os.close(folder)
            folder = below
            is_over = is_over or is_opaque(folder, marks)
        return is_over
    except OSError:
        return False
    finally:
        os.close(folder)


def is_marked_whiteout(file: int, marks: str | None) -> bool:
    """Whether an empty regular file stands for a removed name, as the xattr kind of whiteout does."""
    return _mark(file, "whiteout", marks) is not None


def refers_elsewhere(thing: int, marks: str | None) -> bool:
    """Whether the content of a file or folder is not here but in the lower tree (metacopy, redirect_dir)."""
    return _mark(thing, "metacopy", marks) is not None or _mark(thing, "redirect", marks) is not None


def _mark(thing: int, name: str, marks: str | None) -> bytes | None:
    if marks is None:
        return None
    with suppress(OSError):  # ENODATA, EOPNOTSUPP; trusted.* is visible to root alone
        return os.getxattr(thing, marks + name)
    return None
