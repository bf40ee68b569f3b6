"""What of a layer may be written into a caller's folder: permission bits, links, and indexes of git's. Pure."""

from __future__ import annotations

import os
import stat

from casemate.files.names import problem

_FOLDER_BITS = stat.S_ISGID | stat.S_ISVTX  # of a folder that people share; they stay as its owner set them


def mode_in(wanted: int, there: os.stat_result | None) -> int:
    """The permission bits of the upper thing, but nothing that the caller kept from group and others is opened."""
    if there is None or stat.S_ISLNK(there.st_mode):
        return wanted & 0o755
    executable = (there.st_mode & 0o044) >> 2
    kept = there.st_mode & _FOLDER_BITS if stat.S_ISDIR(wanted) and stat.S_ISDIR(there.st_mode) else 0
    return kept | wanted & (0o700 | there.st_mode & 0o077 | executable)


def link_problem(target: bytes, depth: int) -> str | None:
    """Why a link to ``target``, lying ``depth`` folders beneath the root, is refused, or None.

    A target is relative, and goes up only at its beginning and not above the root: a ``..`` behind a name
    could go up from wherever another link leads (``inner/..`` with ``inner -> .`` is not the folder it seems).
    """
    if target.startswith(b"/"):
        return "it is a link to an absolute path"
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    ups = 0
    while ups < len(parts) and parts[ups] == b"..":
        ups += 1
    if ups > depth:
        return "it is a link out of the folder"
    if b".." in parts[ups:]:
        return "it is a link that goes up behind a name, so that where it leads cannot be told"
    if any(problem(part) for part in parts[ups:]):
        return "it is a link to a name that is not safe"
    return None


def is_index(path: tuple[bytes, ...]) -> bool:
    """Whether git reads it as an index of a repository or a worktree, or a part of one (git-update-index(1))."""
    return b".git" in path[:-1] and (path[-1] == b"index" or path[-1].startswith(b"sharedindex."))
