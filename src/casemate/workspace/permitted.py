"""What may be written from a layer into a caller's folder: permission bits, links, and git indexes."""

from __future__ import annotations

import os
import stat

from casemate.files.names import problem

_FOLDER_BITS = stat.S_ISGID | stat.S_ISVTX  # of shared folders; they stay as the owner set them


def mode_in(wanted: int, there: os.stat_result | None) -> int:
    """The permission bits of the upper entry, without access that the caller's entry denies to group and others."""
    if there is None or stat.S_ISLNK(there.st_mode):
        return wanted & 0o755
    executable = (there.st_mode & 0o044) >> 2
    kept = there.st_mode & _FOLDER_BITS if stat.S_ISDIR(wanted) and stat.S_ISDIR(there.st_mode) else 0
    return kept | wanted & (0o700 | there.st_mode & 0o077 | executable)


def link_problem(target: bytes, depth: int) -> str | None:
    """Why a link to ``target``, ``depth`` folders beneath the root, is refused, or None.

    A target must be relative, and ``..`` may stand only at its beginning and not lead above the root. After a name,
    ``..`` could go up from wherever another link leads (``inner/..`` with ``inner -> .`` is not the folder it seems).
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
        return "it is a link with .. after a name, so its target is not certain"
    if any(problem(part) for part in parts[ups:]):
        return "it is a link to a name that is not safe"
    return None


def is_index(path: tuple[bytes, ...]) -> bool:
    """Whether git reads ``path`` as an index of a repository or worktree, or as part of one (git-update-index(1))."""
    return b".git" in path[:-1] and (path[-1] == b"index" or path[-1].startswith(b"sharedindex."))
