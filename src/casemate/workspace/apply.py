"""Write what a run changed back into the caller's folder.

The folder was the lower layer of an overlay. The upper layer holds the changes, and nothing runs in it any more. It
must have been mounted with ``redirect_dir=off,metacopy=off`` (``userxattr`` implies both): entries that refer to the
lower tree are refused. Everything is written first. Names are removed afterwards, and only if nothing was lost: a
rename must not cost the file on a full disk.

Regular files, folders and inner links are applied, each by a temporary name and a rename, so that a file is whole or
absent. Setuid, setgid and sticky bits, xattrs, ACLs and capabilities are dropped, but an existing folder keeps its
setgid and sticky bits. Existing files and folders are not opened further to group and others, and new ones are never
writable for them. Protected and unsafe names are neither written nor removed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from casemate.files.beneath import Attributes, hold, mount_of, pieces_of, write_file, write_link
from casemate.files.bounds import Skipped, TreeBounds
from casemate.files.names import display_path, path_problem, text_of
from casemate.files.walk import is_whiteout, kind_of
from casemate.model.limits import format_size
from casemate.model.review import Applied
from casemate.supervisor.trees.walk import (
    Deadline,
    Entry,
    Visitor,
    identity,
    open_beneath,
    open_file,
    open_folder,
    status_of,
    walk,
)
from casemate.workspace.git_index import SHA1, hidden_in_own, hidden_paths
from casemate.workspace.permitted import is_index, link_problem, mode_in
from casemate.workspace.remove import obstacle, remove
from casemate.workspace.rules import FolderRules, lossy_names
from casemate.workspace.upper import is_marked_whiteout, is_opaque, refers_elsewhere

if TYPE_CHECKING:
    from casemate.files.walk import SeenFiles

WRITTEN_BACK = TreeBounds(files=20_000, file_bytes=2**30, total_bytes=2**30, depth=64, entries=100_000, reports=1000)
APPLY_SECONDS = 30.0
_REFERS = "its content is not here; the overlay must be mounted with redirect_dir=off,metacopy=off"
_MOST_NAMED = 5
_MOUNTED = "another file system is mounted there"


def apply(
    upper: int,
    folder: int,
    *,
    bounds: TreeBounds = WRITTEN_BACK,
    rules: FolderRules | None = None,
    seen: SeenFiles | None = None,
    unlock: bool = True,
    unless_empty: tuple[bytes, ...] = (),
    marks: str | None,
    seconds: float = APPLY_SECONDS,
) -> Applied:
    """Apply the changes in ``upper`` to ``folder`` (descriptors). New files get the folder's owner.

    ``seen``: what earlier calls applied. It is applied again only if it has changed; what was made for entries that are
    gone is removed. ``unless_empty``: top-level folders that are made only if they hold something. ``unlock``: change
    permission bits in ``upper`` that prevent reading. ``marks``: from :func:`casemate.workspace.upper.marks_here`;
    None if ``upper`` was no overlay's. ``rules``: what stays as it is, together with the folders that hold it. Raises
    nothing for the content of either tree, a full disk, or the end of ``seconds``: what could be applied stays, and the
    rest is in ``skipped``.
    """
    with Deadline(seconds):
        skipped = Skipped(bounds.reports)
        writer: Writer | None = None
        try:
            if seen is not None:
                seen.begin()
            writer = Writer(folder, bounds, rules or FolderRules(), skipped, seen, unless_empty, marks=marks)
            with writer:
                walk(upper, writer, depth=bounds.depth, entries=bounds.entries, unlock=unlock)
        except OSError as error:
            skipped.lose(".", f"it cannot be read: {error.strerror}")
        if writer is None:
            return Applied((), (), skipped.as_tuple())
        removed = remove_all(folder, writer, skipped)
        if seen is not None and skipped.complete:
            with writer.rights:
                removed += _remove_made(folder, seen, skipped)
            seen.forget_unmet()
        return Applied(tuple(writer.written), tuple(removed), skipped.as_tuple())


def _remove_made(root: int, seen: SeenFiles, skipped: Skipped) -> list[str]:
    """Remove what was made for entries that are gone from the upper folder, unless someone has changed it since."""
    removed = []
    for path in seen.orphaned_paths():
        try:
            folder = open_beneath(root, path[:-1])
        except OSError:
            continue
        try:
            there = status_of(folder, path[-1])
            if there is None or seen.is_somebody_elses(path, there):
                continue
            (os.rmdir if stat.S_ISDIR(there.st_mode) else os.unlink)(path[-1], dir_fd=folder)
            removed.append(_reported_name(path, there))
        except OSError as error:
            skipped.refuse(display_path(path), f"it cannot be removed: {error.strerror}")
        finally:
            os.close(folder)
            seen.forget(path)
    return removed


def remove_all(folder: int, writer: Writer, skipped: Skipped) -> list[str]:
    """Remove the names that ``writer`` noted, unless something was lost. Returns the removed names."""
    removed = []
    for path in writer.removals:
        if not skipped.complete:
            skipped.refuse(display_path(path), "it is not removed, because not all changes could be written")
            continue
        try:
            with writer.rights:
                name = _remove(folder, path, writer, skipped)
        except OSError as error:
            # Not `lose`: one name that cannot be removed does not keep the rest.
            skipped.refuse(display_path(path), f"it cannot be removed: {error.strerror}")
            continue
        if name:
            removed.append(name)
    return removed


def _remove(root: int, path: tuple[bytes, ...], writer: Writer, skipped: Skipped) -> str | None:
    """The name to report, or None if it was absent or something of it stays."""
    if reason := path_problem(path):
        skipped.refuse(display_path(path), f"{reason}, and so it is not removed")
        return None
    try:
        folder = open_beneath(root, path[:-1])
    except FileNotFoundError:
        return None
    with hold(folder):
        there = status_of(folder, path[-1])
        if there is None or identity(there) in writer.identities:
            return None  # on a file system that ignores case, the new name may be the removed one
        if mount_of(folder) != mount_of(root):
            raise OSError(0, _MOUNTED)
        gone = remove(folder, path, writer.keep, skipped.refuse)
        return _reported_name(path, there) if gone else None


def _reported_name(path: tuple[bytes, ...], there: os.stat_result) -> str:
    return text_of(path) + ("/" if stat.S_ISDIR(there.st_mode) else "")


@dataclass(slots=True)
class _Level:
    """A folder of the caller that is being written to."""

    folder: int
    rules: tuple[str, ...]  # its path as the protected names see it
    mode: int | None  # its final mode; None keeps the current one
    replaced: set[bytes] | None  # names in the upper folder, if it replaces this one
    progress: tuple[int, int] | None = None  # the progress when it was made; None if it existed


class Writer(Visitor):
    """Applies what is new or changed, and collects in ``removals`` what is to be removed afterwards."""

    def __init__(
        self,
        folder: int,
        bounds: TreeBounds,
        rules: FolderRules,
        skipped: Skipped,
        seen: SeenFiles | None = None,
        unless_empty: tuple[bytes, ...] = (),
        *,
        marks: str | None,
    ) -> None:
        self._marks = marks
        self._seen = seen
        self._unless_empty = unless_empty
        self.written: list[str] = []
        self.removals: list[tuple[bytes, ...]] = []
        self.identities: set[tuple[int, int]] = set()
        self._bounds = bounds
        self._rules = rules
        self._skipped = skipped
        self._left = bounds.total_bytes
        self._files = self._refusals = 0
        self._mount = mount_of(folder)
        self.rights = rights_over(folder)  # access to the folder and everything in it
        self._levels = [_Level(open_folder(folder, "."), _rules((), None, folder), None, None)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        while self._levels:
            os.close(self._levels.pop().folder)

    def keep(self, path: tuple[bytes, ...], is_folder: bool) -> str | None:
        """Why ``path`` must not be removed, or None."""
        return self._rules.reason(path, folder=is_folder)

    # ------------------------------------------------------------------------------------------- the walk's visits

    def enter(self, entry: Entry, folder: int) -> bool:
        """Make or open the caller's folder of the same path; False if nothing in it can or need be applied."""
        if self._seen is not None:
            self._seen.meet_folder(entry)
        if len(entry.path) == 1 and entry.name in self._unless_empty and not os.listdir(folder):
            return False
        reason = path_problem(entry.path) or self._reason(entry, is_folder=True)
        if reason and len(entry.path) == 1 and entry.name == os.fsencode(self._rules.output):
            return False
        passes = self._rules.is_policy(reason, entry.path) and self._is_folder(entry)
        if (reason and not passes) or refers_elsewhere(folder, self._marks):
            self._refuse(entry, reason or _REFERS)
            if not reason:
                self._skipped.complete = False
            return False
        self._note(entry)
        try:
            with self.rights:
                self._levels.append(self._level(entry, folder, passes=passes))
        except OSError as error:
            self._lose(entry, error)
            return False
        return True

    def leave(self, entry: Entry) -> None:
        """Set the folder's permission bits, now that nothing more is made in it."""
        level = self._levels.pop()
        try:
            with self.rights:
                if level.replaced is not None:
                    self._remove_hidden(entry, level)
                if level.mode is not None:
                    self._set_mode(entry, level.folder, level.mode)
                done, refused = self._progress()
                # All of its content was refused.
                if level.progress and level.progress[0] == done and level.progress[1] < refused:
                    self._unmake_folder(entry)
        except OSError as error:
            self._lose(entry, error)
        finally:
            os.close(level.folder)

    def _set_mode(self, _entry: Entry, folder: int, mode: int) -> None:
        os.fchmod(folder, mode)

    def visit(self, entry: Entry) -> None:
        mode = entry.stat.st_mode
        is_old = self._seen is not None and self._seen.is_old(entry)
        if is_whiteout(entry.stat):
            if not is_old and not self._is_the_callers(entry):
                self.removals.append(entry.path)
            return
        self._note(entry)
        if is_old or self._is_the_callers(entry):
            return
        reason = path_problem(entry.path) or self._reason(entry, is_folder=False)
        if not reason and not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            reason = f"it is {kind_of(mode)}"
        if not reason and is_index(entry.path):
            reason = self._what_is_hidden(entry)
        if reason:
            self._refuse(entry, reason)
            return
        try:
            if stat.S_ISLNK(mode):
                self._write_link(entry)
            else:
                self._write_file(entry)
        except OSError as error:
            self._lose(entry, error)

    def _what_is_hidden(self, entry: Entry) -> str:
        """Why a git index is not written back: it would keep ``git diff`` from showing other changes."""
        try:
            known, hash_size = self._hidden_before(entry.name)
            with os.fdopen(open_file(entry, unlock=True), "rb") as file:
                hidden = hidden_paths(file, hash_size, known, _MOST_NAMED + 1)
        except (OSError, ValueError) as error:
            return f"it is not a readable git index: {error}"
        names = ", ".join(display_path((name,)) for name in sorted(hidden)[:_MOST_NAMED])
        more = " and others" if len(hidden) > _MOST_NAMED else ""
        return f"it would hide changes from git (skip-worktree, assume-unchanged) of {names}{more}" if hidden else ""

    def _hidden_before(self, name: bytes) -> tuple[set[bytes], int]:
        """The paths that the caller's own index hides, and its hash size."""
        folder = self._levels[-1].folder
        if (there := status_of(folder, name)) is None:
            return set(), SHA1
        with os.fdopen(open_file(Entry((name,), there, folder)), "rb") as file:
            return hidden_in_own(file)

    def _is_the_callers(self, entry: Entry) -> bool:
        """Whether the caller changed what an earlier step wrote here. Then the caller's stays, and this is reported."""
        there = status_of(self._levels[-1].folder, entry.name)
        changed = self._seen is not None and self._seen.is_somebody_elses(entry.path, there)
        if changed:
            self._refuse(entry, "it was changed here since an earlier step wrote it, and is left as it is")
        return changed

    def skip(self, path: tuple[bytes, ...], reason: str) -> None:
        """Report something in the upper folder that was not examined."""
        self._skipped.lose(display_path(path), reason)

    # --------------------------------------------------------------------------------------------------- folders

    def _is_folder(self, entry: Entry) -> bool:
        there = status_of(self._levels[-1].folder, entry.name)
        return there is not None and stat.S_ISDIR(there.st_mode)

    def _level(self, entry: Entry, upper: int, *, passes: bool) -> _Level:
        above, name = self._levels[-1], os.fsdecode(entry.name)
        there = status_of(above.folder, name)
        is_new = there is None or not stat.S_ISDIR(there.st_mode)
        folder = self._make_folder(entry, there) if is_new else open_folder(above.folder, name)
        try:
            replaced = above.replaced is not None or self._is_opaque(entry, upper)
            if not is_new and mount_of(folder) != self._mount:
                raise OSError(errno.EXDEV, _MOUNTED)
            mode = mode_in(entry.stat.st_mode, None if is_new else there)
            changed = not passes and (is_new or there is None or mode != stat.S_IMODE(there.st_mode))
            rules = _rules(above.rules, name, folder)
        except BaseException:
            os.close(folder)
            raise
        hiding = set[bytes]() if replaced and not is_new else None
        return _Level(folder, rules, mode if changed else None, hiding, self._progress() if is_new else None)

    def _is_opaque(self, entry: Entry, upper: int) -> bool:
        """Whether it hides the caller's content. True only once: what the owner adds later was never hidden."""
        return is_opaque(upper, self._marks) and not (self._seen is not None and self._seen.is_old(entry))

    def _make_folder(self, entry: Entry, there: os.stat_result | None) -> int:
        above, name = self._levels[-1].folder, entry.name
        if there is not None:  # a file or a link
            if reason := self._reason(entry, is_folder=False):
                raise OSError(0, reason)
            os.unlink(name, dir_fd=above)
        os.mkdir(name, 0o700, dir_fd=above)
        self._note_made(entry)
        self.written.append(f"{text_of(entry.path)}/")
        return open_folder(above, name)

    def _progress(self) -> tuple[int, int]:
        """The number of things written and of things refused."""
        return len(self.written), self._refusals

    def _unmake_folder(self, entry: Entry) -> None:
        os.rmdir(entry.name, dir_fd=self._levels[-1].folder)
        self.written.pop()
        if self._seen is not None:
            self._seen.forget(entry.path)

    def _remove_hidden(self, entry: Entry, level: _Level) -> None:
        kept = level.replaced or set()
        with os.scandir(level.folder) as listing:
            names = sorted(os.fsencode(item.name) for item in listing)
        self.removals.extend((*entry.path, name) for name in names if name not in kept)

    # ----------------------------------------------------------------------------------------------- files, links

    def _write_file(self, entry: Entry) -> None:
        with hold(open_file(entry, unlock=True)) as file:
            if entry.stat.st_size == 0 and is_marked_whiteout(file, self._marks):
                self._unnote(entry)
                self.removals.append(entry.path)
                return
            if refers_elsewhere(file, self._marks):
                raise OSError(0, _REFERS)
            self._admit(entry.stat.st_size)
            there = status_of(self._levels[-1].folder, entry.name)
            with self.rights:
                self._put_file(entry, file, there)

    def _put_file(self, entry: Entry, file: int, there: os.stat_result | None) -> None:
        attributes = Attributes(mode_in(entry.stat.st_mode, there), modified=entry.stat.st_mtime_ns)
        clear = partial(self._clear, entry, there)
        write_file(self._levels[-1].folder, os.fsdecode(entry.name), self._chunks(file), attributes, before=clear)
        self._note_written(entry)

    def _write_link(self, entry: Entry) -> None:
        target = os.fsencode(os.readlink(entry.name, dir_fd=entry.parent))
        if reason := link_problem(target, len(entry.path) - 1) or self._rules.why_no_link(entry.path):
            self._refuse(entry, reason)
            return
        self._admit(0)
        with self.rights:
            self._put_link(entry, target, status_of(self._levels[-1].folder, entry.name))

    def _put_link(self, entry: Entry, target: bytes, there: os.stat_result | None) -> None:
        clear, name = partial(self._clear, entry, there), os.fsdecode(entry.name)
        write_link(self._levels[-1].folder, name, os.fsdecode(target), before=clear)
        self._note_written(entry)

    def _note_written(self, entry: Entry) -> None:
        self._note_made(entry)
        self.written.append(text_of(entry.path))

    def _note_made(self, entry: Entry) -> None:
        made = os.stat(entry.name, dir_fd=self._levels[-1].folder, follow_symlinks=False)
        self.identities.add(identity(made))
        if self._seen is not None:
            self._seen.note_made(entry.path, made)

    def _clear(self, entry: Entry, there: os.stat_result | None) -> None:
        """Remove a folder that a file or link replaces: as a whole or not at all."""
        if there is None or not stat.S_ISDIR(there.st_mode):
            return
        folder = self._levels[-1].folder
        if reason := obstacle(folder, entry.path, self.keep):
            raise OSError(0, f"a folder lies there and must stay ({reason})")
        remove(folder, entry.path, self.keep, self._skipped.lose)

    def _admit(self, size: int) -> None:
        bounds = self._bounds
        if self._files >= bounds.files:
            raise OSError(errno.EFBIG, f"there are more than {bounds.files} files")
        if size > bounds.file_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {format_size(bounds.file_bytes)}")
        if size > self._left:
            raise OSError(errno.EFBIG, f"all changes together are larger than {format_size(bounds.total_bytes)}")
        self._files += 1

    def _chunks(self, file: int) -> Iterator[bytes]:
        left = min(self._bounds.file_bytes, self._left)
        for chunk in pieces_of(file, left + 1):
            left -= len(chunk)
            self._left -= len(chunk)
            if left < 0:
                raise OSError(errno.EFBIG, "it grew while it was read")
            yield chunk

    # ---------------------------------------------------------------------------------------------------- reports

    def _reason(self, entry: Entry, *, is_folder: bool) -> str | None:
        names = (*self._levels[-1].rules, *lossy_names((entry.name,)))
        return self._rules.reason(entry.path, folder=is_folder, names=names)

    def _note(self, entry: Entry) -> None:
        """Note a name of a replaced folder, so that the caller's entry of this name is not removed."""
        replaced = self._levels[-1].replaced
        if replaced is not None:
            replaced.add(entry.name)

    def _unnote(self, entry: Entry) -> None:
        replaced = self._levels[-1].replaced
        if replaced is not None:
            replaced.discard(entry.name)

    def _refuse(self, entry: Entry, reason: str) -> None:
        self._refusals += 1
        self._skipped.refuse(display_path(entry.path), reason)

    def _lose(self, entry: Entry, error: OSError) -> None:
        if self._seen is not None and isinstance(error, TimeoutError):
            self._seen.put_off(entry.path)
        self._skipped.lose(display_path(entry.path), f"it cannot be written: {error.strerror or error}")


def rights_over(folder: int) -> AbstractContextManager[None]:
    """A block in which this thread has the rights of the folder's owner, not root's. Raises ``PermissionError``."""
    if os.geteuid() != 0:
        return nullcontext()
    from casemate.supervisor.trees.rights import OwnersRights

    return OwnersRights(folder)


def _rules(above: tuple[str, ...], name: str | None, folder: int) -> tuple[str, ...]:
    """A folder's path as the protected names see it: any folder with a HEAD counts as a repository."""
    if status_of(folder, "HEAD") is not None:
        return (*above, ".git")
    return above if name is None else (*above, name)
