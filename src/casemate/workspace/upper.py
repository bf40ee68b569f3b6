"""What overlayfs writes into an upper folder besides files: removed names, replaced folders, references.

Source: Documentation/filesystems/overlayfs.rst (whiteouts and opaque directories, redirect_dir, metadata only copy up).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from casemate.files.beneath import status_of
from casemate.files.walk import open_folder

_SPACES = ("user.overlay.", "trusted.overlay.")


def is_opaque(folder: int) -> bool:
    """Whether a folder hides everything that the lower one holds. Raises ``OSError``."""
    return _mark(folder, "opaque") == b"y"


def covers(upper: int, path: str) -> bool:
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
            is_over = is_over or is_opaque(folder)
        return is_over
    except OSError:
        return False
    finally:
        os.close(folder)


def is_marked_whiteout(file: int) -> bool:
    """Whether an empty regular file stands for a removed name, as the xattr kind of whiteout does."""
    return _mark(file, "whiteout") is not None


def refers_elsewhere(thing: int) -> bool:
    """Whether the content of a file or folder is not here but in the lower tree (metacopy, redirect_dir)."""
    return _mark(thing, "metacopy") is not None or _mark(thing, "redirect") is not None


def _mark(thing: int, name: str) -> bytes | None:
    for space in _SPACES:
        with suppress(OSError):  # ENODATA, EOPNOTSUPP; trusted.* is visible to root alone
            return os.getxattr(thing, space + name)
    return None
