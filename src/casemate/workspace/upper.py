"""Marks that overlayfs writes into an upper folder: removed names, replaced folders, references.

It keeps them in one of two namespaces of extended attributes, and lets no program write to that one through the
overlay. Programs can write to the other, so marks there mean nothing.

Source: Documentation/filesystems/overlayfs.rst (whiteouts and opaque directories, redirect_dir, metadata only copy up).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from casemate.supervisor.trees.walk import open_folder, status_of

USERS = "user.overlay."  # of overlays mounted with userxattr
ROOTS = "trusted.overlay."  # of overlays mounted without it


def marks_here() -> str:
    """The namespace of the marks of cells' overlays on this machine. The supervisor mounts with ``userxattr`` if it is
    an ordinary user, or root of a namespace with no other id (``casemate.supervisor.enter``)."""
    if os.geteuid() != 0:
        return USERS
    with open("/proc/self/uid_map", encoding="ascii") as file:
        first, _, count = map(int, file.readline().split())
    return USERS if (first, count) == (0, 1) else ROOTS


def is_opaque(folder: int, marks: str | None) -> bool:
    """Whether a folder hides all content of the lower one."""
    return _mark(folder, "opaque", marks) == b"y"


def covers(upper: int, path: str, marks: str) -> bool:
    """Whether ``upper`` hides ``path`` of the lower folder, by an entry or a removal. False if that is uncertain."""
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
    """Whether an empty regular file marks a removed name, as xattr whiteouts do."""
    return _mark(file, "whiteout", marks) is not None


def refers_elsewhere(thing: int, marks: str | None) -> bool:
    """Whether the content of a file or folder is in the lower tree instead (metacopy, redirect_dir)."""
    return _mark(thing, "metacopy", marks) is not None or _mark(thing, "redirect", marks) is not None


def _mark(thing: int, name: str, marks: str | None) -> bytes | None:
    if marks is None:
        return None
    with suppress(OSError):  # ENODATA, EOPNOTSUPP; trusted.* is visible to root alone
        return os.getxattr(thing, marks + name)
    return None
