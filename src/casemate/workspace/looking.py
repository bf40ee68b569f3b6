"""Find what applying a layer to a folder would do. Writes only the staged copies.

:class:`Looker` is a :class:`casemate.workspace.apply.Writer`, so the rules are the same. Staged copies are in a
separate folder on the same file system, so that they only have to be renamed afterwards.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256

from casemate.files.beneath import CHUNK, Attributes, Hashed, hold, pieces_of, write_file, write_link
from casemate.files.bounds import Skipped
from casemate.files.names import display_path, path_problem, text_of
from casemate.files.walk import is_whiteout
from casemate.model.limits import format_size
from casemate.model.review import Change
from casemate.supervisor.trees.walk import Entry, Visitor, identity, open_beneath, open_folder, status_of, walk
from casemate.workspace.apply import WRITTEN_BACK, Writer
from casemate.workspace.baseline import Baseline, signature
from casemate.workspace.permitted import mode_in
from casemate.workspace.remove import obstacle
from casemate.workspace.rules import HIDDEN, Path
from casemate.workspace.text import MOST_BYTES, TextDiff, TextDiffs

Token = tuple[object, ...]  # exactly what would be at a path
REMOVED: Token = ("removed",)
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_HASHED = 256 << 20  # bytes of removed files to compare with new ones, to find renames
_NO_TEXT = TextDiff()


@dataclass(slots=True)
class FoundChange:
    """A change, and the token that it leaves at each path."""

    change: Change
    tokens: dict[Path, Token] = field(default_factory=dict)


class StageFailed(Exception):
    """A change cannot be written beside the folder. The message says what and why."""


class Looker(Writer):
    """A walk over the layer. ``wanted``: look only at these paths, and stage them in ``stage``."""

    def __init__(
        self, folder: int, baseline: Baseline, marks: str, wanted: Mapping[Path, Token] | None = None, stage: int = -1
    ) -> None:
        self.skips = Skipped(WRITTEN_BACK.reports)
        passing = tuple(path[0] for path in baseline.passing)
        super().__init__(folder, WRITTEN_BACK, baseline.rules, self.skips, unless_empty=passing, marks=marks)
        self.found: list[FoundChange] = []
        self.signatures: dict[Path, tuple[int, ...]] = {}  # of what the walk met in the layer
        self.opaque_folders: set[Path] = set()
        self.unlisted = 0
        self.holding: set[Path] = set()  # folders that hold something hidden
        self._applicable = 0
        self._baseline, self._wanted, self._stage, self._root = baseline, wanted, stage, folder
        self._on_the_way = {path[:depth] for path in wanted or () for depth in range(1, len(path) + 1)}
        self._texts = TextDiffs()
        self._nothing = _empty_folder()
        self._staged: tuple[Path | None, int] = None, os.dup(self._nothing)

    def __exit__(self, *failure: object) -> None:
        super().__exit__(None, None, None)
        os.close(self._nothing)
        os.close(self._staged[1])

    # ------------------------------------------------------------------------------------------- the walk's visits

    def enter(self, entry: Entry, folder: int) -> bool:
        self.signatures[entry.path] = signature(entry.stat)
        if self._wanted is not None and entry.path not in self._on_the_way:
            self._note(entry)
            return False
        return super().enter(entry, folder)

    def visit(self, entry: Entry) -> None:
        now = self.signatures[entry.path] = signature(entry.stat)
        # a whiteout stands for all paths in a removed folder
        is_unwanted = not self._is_wanted(entry.path) and not is_whiteout(entry.stat)
        if self._baseline.applied.get(entry.path) == now or is_unwanted:
            self._note(entry)
        else:
            super().visit(entry)

    def _is_wanted(self, path: Path) -> bool:
        return self._wanted is None or path in self._wanted

    def _is_opaque(self, entry: Entry, upper: int) -> bool:
        applied = self._baseline.applied.get(entry.path, ())[:1]
        is_opaque = applied != (entry.stat.st_ino,) and super()._is_opaque(entry, upper)
        self.opaque_folders.update((entry.path,) if is_opaque else ())
        return is_opaque

    def _make_folder(self, entry: Entry, there: os.stat_result | None) -> int:
        if not self._is_wanted(entry.path):
            raise StageFailed(f"{display_path(entry.path)} is no longer a folder")
        if there is not None:
            if reason := self._reason(entry, is_folder=False):
                raise OSError(0, reason)
            self.add_removed(entry.path, there, self._levels[-1].folder, {})
        if self._wanted is not None:
            self._staged_folder(entry.path)
        mode, conflict = mode_in(entry.stat.st_mode, None), self._baseline.conflict(entry.path, there)
        self._add(entry, None, ("folder", mode), mode_after=mode, conflict=conflict)
        return os.dup(self._nothing)

    def _progress(self) -> tuple[int, int]:
        return self._applicable, len(self.found) - self._applicable

    def _unmake_folder(self, entry: Entry) -> None:
        del self.found[next(place for place, one in enumerate(self.found) if entry.path in one.tokens)]
        self._applicable -= 1

    def _set_mode(self, entry: Entry, folder: int, mode: int) -> None:
        before = os.fstat(folder)
        if identity(before) != identity(os.fstat(self._nothing)) and mode != before.st_mode & 0o777:
            self._add(entry, before, ("folder", mode), mode_after=mode)

    # ----------------------------------------------------------------------------------------------- files, links

    def _put_file(self, entry: Entry, file: int, there: os.stat_result | None) -> None:
        mode, size, text = mode_in(entry.stat.st_mode, there), entry.stat.st_size, _NO_TEXT
        content = Hashed(self._chunks(file))
        if self._wanted is not None:
            attributes = Attributes(mode, modified=entry.stat.st_mtime_ns)
            write_file(self._staged_folder(entry.path[:-1]), os.fsdecode(entry.name), content, attributes)
        else:
            new = b"".join(chunk if size <= MOST_BYTES else b"" for chunk in content)
            if not self._is_same(entry.name, there, size, new, content.sha256):
                text = self._text(self._levels[-1].folder, entry.name, there, new, size)
            elif there is not None and mode == there.st_mode & 0o777:
                return
        self._replace_folder(entry, there)
        self._add(entry, there, ("file", mode, content.sha256), text, mode_after=mode, size_after=size)

    def _put_link(self, entry: Entry, target: bytes, there: os.stat_result | None) -> None:
        after = os.fsdecode(target)
        if self._wanted is not None:
            write_link(self._staged_folder(entry.path[:-1]), os.fsdecode(entry.name), after)
        elif after == _link_at(self._levels[-1].folder, entry.name, there):
            return
        self._replace_folder(entry, there)
        self._add(entry, there, ("link", after), link_after=after)

    def _replace_folder(self, entry: Entry, there: os.stat_result | None) -> None:
        """Check that a folder which is to be replaced can be removed as a whole, and list its content."""
        if there is None or not stat.S_ISDIR(there.st_mode):
            return
        if reason := obstacle(self._levels[-1].folder, entry.path, self.keep):
            raise OSError(0, f"a folder lies there and must stay ({reason})")
        self._list_folder(entry.path, self._levels[-1].folder, {})

    def _staged_folder(self, path: Path) -> int:
        """A descriptor of this staged folder, valid until the next call with another path."""
        if path != self._staged[0]:
            folder = open_beneath(self._stage, path, make=True)
            os.close(self._staged[1])
            self._staged = path, folder
        return self._staged[1]

    # -------------------------------------------------------------------------------------------- what lies there

    def _is_same(self, name: bytes, there: os.stat_result | None, size: int, new: bytes, digest: str) -> bool:
        if there is None or there.st_size != size or not stat.S_ISREG(there.st_mode):
            return False
        folder = self._levels[-1].folder
        with suppress(PermissionError):
            return _read_at(folder, name) == new if size <= MOST_BYTES else _digest_at(folder, (name,)) == digest
        return False

    def _text(self, folder: int, name: bytes, there: os.stat_result | None, new: bytes, size: int) -> TextDiff:
        before = there if there is not None and stat.S_ISREG(there.st_mode) else None
        if max(size, before.st_size if before else 0) > MOST_BYTES:
            return TextDiff(left_out=f"it is larger than {format_size(MOST_BYTES)}")
        with suppress(PermissionError):
            return self._texts.compare(_read_at(folder, name) if before and not self._texts.is_over else b"", new)
        return TextDiff(left_out="what was there cannot be read")

    # ---------------------------------------------------------------------------------------------------- removals

    def list_removals(self) -> None:
        """List all removals with their content, after the walk over the layer."""
        for path in (*self.removals, *self._baseline.orphans(self.signatures, self.removals, self.skips.complete)):
            try:
                with hold(open_beneath(self._root, path[:-1])) as folder:
                    self._list_removal(path, folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                self.skip(path, f"it cannot be removed: {error.strerror}")

    def _list_removal(self, path: Path, folder: int) -> None:
        there = os.stat(path[-1], dir_fd=folder, follow_symlinks=False)
        if stat.S_ISDIR(there.st_mode) and not path_problem(path) and not self.keep(path, True):
            self._list_folder(path, folder, {path: REMOVED})
        else:
            self.add_removed(path, there, folder, {path: REMOVED})

    def _list_folder(self, path: Path, parent: int, tokens: dict[Path, Token]) -> None:
        start = len(self.found)
        with hold(open_folder(parent, path[-1])) as folder:
            walk(folder, _Lister(self), depth=WRITTEN_BACK.depth, entries=WRITTEN_BACK.entries, at=path)
            self.add_removed(path, os.fstat(folder), parent, tokens, start)

    def add_removed(
        self, path: Path, there: os.stat_result, folder: int, tokens: dict[Path, Token], start: int | None = None
    ) -> None:
        """Add a removal. ``start``: index of the first change found in the folder."""
        stays = path in self.holding or (start is not None and any(one.change.refused for one in self.found[start:]))
        reason = path_problem(path) or self.keep(path, stat.S_ISDIR(there.st_mode)) or ""
        if reason == HIDDEN:  # programs never saw it: it stays and is not reported
            self.holding |= {path[:depth] for depth in range(1, len(path))}
            return
        if not reason and (stays or not self.skips.complete):
            reason = "something in it stays" if stays else "not all changes can be written, and so it is not removed"
        text = _NO_TEXT
        if stat.S_ISREG(there.st_mode) and not reason and self._wanted is None:
            text = self._text(folder, path[-1], there, b"", 0)
        self._add_at(
            path, there, folder, tokens, text, is_folder=stat.S_ISDIR(there.st_mode), kind="removed", refused=reason
        )

    def find_renamed(self) -> None:
        """Turn a new file into a rename if it is identical to one that was removed."""
        new: dict[tuple[object, object], FoundChange] = {
            (one.change.size_after, token[2]): one
            for one in self.found if one.change.kind == "added"
            for token in one.tokens.values() if token[0] == "file" and one.change.size_after
        }  # fmt: skip
        sizes, left = {size for size, _ in new}, _MOST_HASHED
        for old in [one for one in self.found if one.change.kind == "removed" and one.change.size_before in sizes]:
            left -= old.change.size_before or 0
            if left < 0 or not old.tokens or old.change.left_out:
                continue
            key: tuple[object, object] = old.change.size_before, _digest_at(self._root, next(iter(old.tokens)))
            match = new.pop(key, None)
            if match is not None:
                match.change = replace(
                    match.change, kind="renamed", source=old.change.path, mode_before=old.change.mode_before,
                    size_before=old.change.size_before, diff="", left_out="",
                    conflict=match.change.conflict or old.change.conflict,
                )  # fmt: skip
                match.tokens |= old.tokens
                self.found.remove(old)

    # ---------------------------------------------------------------------------------------------------- reports

    def _add(
        self, entry: Entry, there: os.stat_result | None, token: Token, text: TextDiff = _NO_TEXT, **known: object
    ) -> None:
        is_folder = stat.S_ISDIR(entry.stat.st_mode)
        self._add_at(
            entry.path, there, self._levels[-1].folder, {entry.path: token}, text, is_folder=is_folder, **known
        )

    def _add_at(
        self, path: Path, there: os.stat_result | None, folder: int, tokens: dict[Path, Token], text: TextDiff, *,
        is_folder: bool, **known: object,
    ) -> None:  # fmt: skip
        """``folder``: the folder that holds ``there``."""
        if not self._is_wanted(path):
            return
        conflict = known["conflict"] if "conflict" in known else tokens and self._baseline.conflict(path, there)
        if conflict:  # programs may never have seen this content
            text = TextDiff(left_out=str(conflict))
        name = display_path(path) if known.get("refused") else text_of(path)
        facts: dict[str, object] = {
            "kind": "added" if there is None else "changed",
            "mode_before": None if there is None else stat.S_IMODE(there.st_mode),
            "size_before": there.st_size if there is not None and stat.S_ISREG(there.st_mode) else None,
            "link_before": _link_at(folder, path[-1], there),
            "is_binary": text.is_binary, "diff": text.text, "left_out": text.left_out,
            "conflict": conflict or "", **known,
        }  # fmt: skip
        change = Change(f"{name}/" if is_folder else name, **facts)  # type: ignore[arg-type]
        self.found.append(FoundChange(change, {} if change.refused else tokens))
        self._applicable += not change.refused

    def _refuse(self, entry: Entry, reason: str) -> None:
        folder, there = self._levels[-1].folder, None
        is_file = stat.S_ISREG(entry.stat.st_mode)
        with suppress(OSError):
            there = None if reason == HIDDEN else status_of(folder, entry.name)
            is_alike = there is not None and (there.st_mode, there.st_size) == (entry.stat.st_mode, entry.stat.st_size)
            if is_alike and is_file and _read_at(entry.parent, entry.name) == _read_at(folder, entry.name):
                return  # it was only opened for writing
        self.unlisted += self.skips.is_full
        if not self.skips.is_full and self._wanted is None:
            self._add_at(
                entry.path, there, folder, {}, _NO_TEXT, is_folder=stat.S_ISDIR(entry.stat.st_mode), refused=reason,
                mode_after=stat.S_IMODE(entry.stat.st_mode), size_after=entry.stat.st_size if is_file else None,
            )  # fmt: skip
        self.skips.refuse("", reason)

    def _lose(self, entry: Entry, error: OSError) -> None:
        if self._wanted is not None and self._is_wanted(entry.path):
            raise StageFailed(f"{display_path(entry.path)}: {error.strerror or error}")
        self.skips.complete = False
        self._refuse(entry, f"it cannot be written: {error.strerror or error}")

    def skip(self, path: Path, reason: str) -> None:
        if self._wanted is None and not self.skips.is_full:
            self.found.append(FoundChange(Change(display_path(path), "changed", refused=reason)))
        self.skips.lose("", reason)


class _Lister(Visitor):
    """Lists the content of a folder that is to be removed."""

    def __init__(self, looker: Looker) -> None:
        self._looker = looker
        self._starts: list[int] = []

    def enter(self, entry: Entry, _folder: int) -> bool:
        if path_problem(entry.path) or self._looker.keep(entry.path, True):
            self.visit(entry)
            return False
        self._starts.append(len(self._looker.found))
        return True

    def leave(self, entry: Entry) -> None:
        self._looker.add_removed(entry.path, entry.stat, entry.parent, {entry.path: REMOVED}, self._starts.pop())

    def visit(self, entry: Entry) -> None:
        self._looker.add_removed(entry.path, entry.stat, entry.parent, {entry.path: REMOVED})

    def skip(self, path: Path, reason: str) -> None:
        self._looker.skip(path, reason)


def _link_at(folder: int, name: bytes, there: os.stat_result | None) -> str | None:
    if there is None or not stat.S_ISLNK(there.st_mode):
        return None
    return os.fsencode(os.readlink(name, dir_fd=folder)).decode("utf-8", "backslashreplace")


def _read_at(folder: int, name: bytes) -> bytes:
    """At most the first MiB of a file."""
    with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
        return file.read(CHUNK)


def _digest_at(root: int, path: Path) -> str:
    with hold(open_beneath(root, path[:-1])) as folder, hold(os.open(path[-1], _READ, dir_fd=folder)) as file:
        digest = sha256()
        for piece in pieces_of(file, os.fstat(file).st_size):
            digest.update(piece)
        return digest.hexdigest()


def _empty_folder() -> int:
    """A descriptor of a deleted, empty folder, which stands for folders that would be made."""
    path = tempfile.mkdtemp(prefix="casemate-")
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.rmdir(path)
