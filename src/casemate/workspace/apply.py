"""Writing what a run changed back into the caller's folder.

The folder was the lower layer of an overlay; the upper one, in which nothing runs any more, holds the
changes. It must have been mounted with ``redirect_dir=off,metacopy=off`` (``userxattr`` implies both):
what refers to the lower tree is refused. First everything is written, then names are removed, and
removed only if nothing was lost on the way: a rename must not cost the file on a full disk.

Regular files, folders and inner links are applied, each by a temporary name and a rename, so that a file is
whole or not there. Setuid, setgid and sticky bits, xattrs, ACLs and capabilities are dropped. An existing file or
folder is not opened further to group and others, and new ones are never writable for them. Names that are
protected, or not safe, are neither written nor removed.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from casemate.files.beneath import mount_of, open_beneath, status_of
from casemate.files.bounds import Skipped, TreeBounds
from casemate.files.names import display_path, path_problem
from casemate.files.walk import identity, walk
from casemate.workspace.protected import PROTECTED, Protection
from casemate.workspace.remove import remove
from casemate.workspace.write import Owner, Writer, text_of

if TYPE_CHECKING:
    from casemate.files.walk import SeenFiles
    from casemate.model.execution import SkippedFile

WRITTEN_BACK = TreeBounds(files=20_000, file_bytes=2**30, total_bytes=2**30, depth=64, entries=100_000, reports=1000)


@dataclass(frozen=True, slots=True)
class Applied:
    """``written`` and ``removed``: relative names, a folder's with ``/`` at its end; ``skipped``: what was not applied.

    Folders are listed when they are new. Removing a folder lists it alone, not what was in it.
    """

    written: tuple[str, ...]
    removed: tuple[str, ...]
    skipped: tuple[SkippedFile, ...]


def apply(
    upper: int,
    folder: int,
    *,
    owner: Owner | None = None,
    bounds: TreeBounds = WRITTEN_BACK,
    protected: Protection = PROTECTED,
    seen: SeenFiles | None = None,
    unlock: bool = True,
    unless_empty: tuple[bytes, ...] = (),
    marks: str | None,
) -> Applied:
    """Apply the changes in ``upper`` to ``folder`` (descriptors); new files belong to ``owner`` (user, group).

    ``seen``: what was applied before, and is not again as long as it is unchanged; what was made for something that has
    gone since is removed; ``unless_empty``: folders at the top that are only made when there is something in them;
    ``unlock``: permission bits in
    ``upper`` that hinder reading are changed; ``marks``: where the overlay has its own, as
    :func:`casemate.workspace.upper.marks_here` says for cells; None where ``upper`` was no overlay's. Raises nothing
    for what either tree holds, nor for a full disk: what could be applied stays, the rest is in ``skipped``.
    """
    skipped = Skipped(bounds.reports)
    writer: Writer | None = None
    try:
        if seen is not None:
            seen.begin()
        writer = Writer(folder, bounds, protected, owner, skipped, seen, unless_empty, marks=marks)
        with writer:
            walk(upper, writer, depth=bounds.depth, entries=bounds.entries, unlock=unlock)
    except OSError as error:
        skipped.lose(".", f"it cannot be read: {error.strerror}")
    if writer is None:
        return Applied((), (), skipped.as_tuple())
    removed = remove_all(folder, writer, skipped)
    if seen is not None and skipped.complete:
        removed += _remove_made(folder, seen, skipped)
    if seen is not None:
        seen.forget_unmet()
    return Applied(tuple(writer.written), tuple(removed), skipped.as_tuple())


def _remove_made(root: int, seen: SeenFiles, skipped: Skipped) -> list[str]:
    """Remove what was made here for things that are no longer in the upper folder, unless somebody has changed it."""
    removed = []
    for path in seen.orphaned_paths():
        try:
            folder = open_beneath(root, tuple(os.fsdecode(name) for name in path[:-1]))
        except OSError:
            continue
        try:
            there = status_of(folder, path[-1])
            if there is None or seen.is_somebody_elses(path, there):
                continue
            is_folder = stat.S_ISDIR(there.st_mode)
            (os.rmdir if is_folder else os.unlink)(path[-1], dir_fd=folder)
            removed.append(text_of(path, is_folder))
        except OSError as error:
            skipped.refuse(display_path(path), f"it cannot be removed: {error.strerror}")
        finally:
            os.close(folder)
            seen.forget(path)
    return removed


def remove_all(folder: int, writer: Writer, skipped: Skipped) -> list[str]:
    """Remove what ``writer`` noted, unless something was lost on the way; the names that are gone."""
    removed = []
    for path in writer.removals:
        if not skipped.complete:
            skipped.refuse(display_path(path), "it is not removed, because not all changes could be written")
            continue
        try:
            name = _remove(folder, path, writer, skipped)
        except OSError as error:
            # Not `lose`: one name that cannot be removed is no reason to keep the others.
            skipped.refuse(display_path(path), f"it cannot be removed: {error.strerror}")
            continue
        if name:
            removed.append(name)
    return removed


def _remove(root: int, path: tuple[bytes, ...], writer: Writer, skipped: Skipped) -> str | None:
    """The name as it is reported, or None when nothing was there or something stays."""
    if reason := path_problem(path):
        skipped.refuse(display_path(path), f"{reason}, and so it is not removed")
        return None
    try:
        folder = open_beneath(root, tuple(os.fsdecode(name) for name in path[:-1]))
    except FileNotFoundError:
        return None
    try:
        there = status_of(folder, path[-1])
        if there is None or identity(there) in writer.identities:
            return None  # on a file system that ignores case, the new name may be the removed one
        if mount_of(folder) != mount_of(root):
            raise OSError(0, "another file system is mounted there")
        is_folder = stat.S_ISDIR(there.st_mode)
        gone = remove(folder, path, writer.keep, skipped.refuse)
        return text_of(path, is_folder) if gone else None
    finally:
        os.close(folder)
