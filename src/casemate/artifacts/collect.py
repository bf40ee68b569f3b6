"""Collecting the files that a run left, from a hostile tree in which nothing runs any more.

The tree is a file system of its own (a tmpfs made for the cell), so a hard link in it can only lead to
another file in it: such a file is handed out under each of its names. Links are never followed, only
regular files are opened, and each is read once: the hash is of the bytes that are handed out.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from casemate.artifacts.content import ContentStore, Slice, media_type_of
from casemate.files.beneath import hold, pieces_of
from casemate.files.bounds import Skipped, TreeBounds
from casemate.files.names import display_path, path_problem, text_of
from casemate.files.walk import is_whiteout, kind_of
from casemate.model.execution import Artifact
from casemate.model.limits import format_size
from casemate.supervisor.trees.walk import Entry, Visitor, open_file, open_folder, walk

if TYPE_CHECKING:
    from casemate.files.walk import SeenFiles
    from casemate.model.execution import SkippedFile
    from casemate.redaction.content import Budget
    from casemate.redaction.redaction import Redaction

_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class CollectedFiles:
    """``files`` in order of names; ``skipped``: what was left behind; ``complete``: no bound and no failure cut it."""

    files: tuple[Artifact, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    complete: bool = True


def collect(
    root: int,
    *,
    under: tuple[str, ...] = (),
    inputs: Mapping[str, str] = _NOTHING,
    bounds: TreeBounds | None = None,
    unlock: bool = True,
    seen: SeenFiles | None = None,
    redaction: Redaction | None = None,
    hidden: Callable[[str], bool] = lambda _: False,
) -> CollectedFiles:
    """The regular files beneath ``under`` in the tree ``root``, a descriptor; names are relative to ``root``.

    ``inputs``: SHA-256 of input files by name, which are no artifacts as long as they are unchanged.
    ``unlock``: permission bits that hinder reading are changed; not for a tree that somebody else goes on using.
    ``seen``: what was collected before, and is left out as long as it is unchanged. ``redaction``: takes secrets out of
    names and of text; what is no text and holds one is withheld. ``hidden``: names that are passed over. Nothing is
    raised for what the tree holds: what cannot be handed out is in ``skipped``.
    """
    bounds = bounds or TreeBounds()
    collector = _Collector(bounds, inputs, unlock, seen, redaction, hidden, Skipped(bounds.reports))
    if seen is not None:
        seen.begin()
    path = tuple(os.fsencode(name) for name in under)
    top = _open_top(root, path, collector.skipped, unlock)
    if top is not None:
        with hold(top):
            collector.walk(top, path)
    if seen is not None:
        seen.forget_unmet()
    return CollectedFiles(tuple(collector.files), collector.skipped.as_tuple(), collector.skipped.complete)


def _open_top(root: int, path: tuple[bytes, ...], skipped: Skipped, unlock: bool) -> int | None:
    """A descriptor of the folder to collect from; None when there is none, or something else lies there."""
    top = os.dup(root)
    for position, name in enumerate((b".", *path)):
        try:
            with hold(top):
                top = open_folder(top, name, unlock=unlock)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            skipped.refuse(display_path(path[:position]), "it is not a folder")
            return None
        except OSError as error:
            skipped.lose(display_path(path[:position]), f"it cannot be read: {error.strerror}")
            return None
    return top


@dataclass(slots=True)
class _Collector(Visitor):
    """Keeps what a walk finds."""

    bounds: TreeBounds
    inputs: Mapping[str, str]
    unlock: bool
    seen: SeenFiles | None
    redaction: Redaction | None
    hidden: Callable[[str], bool]
    skipped: Skipped
    store: ContentStore = field(default_factory=ContentStore)
    files: list[Artifact] = field(default_factory=list)
    archives: Budget | None = None  # made when there is a file to look into; one for all of them

    def walk(self, top: int, path: tuple[bytes, ...]) -> None:
        bounds = self.bounds
        try:
            walk(top, self, depth=bounds.depth, entries=bounds.entries, at=path, unlock=self.unlock)
        except OSError as error:
            self.skipped.lose(self._display_path(path), f"it cannot be read: {error.strerror}")

    def _display_path(self, path: tuple[bytes, ...]) -> str:
        return display_path(self._without_secrets(path))

    def _without_secrets(self, path: tuple[bytes, ...]) -> tuple[bytes, ...]:
        return path if self.redaction is None else tuple(self.redaction.data(b"/".join(path)).split(b"/"))

    def enter(self, entry: Entry, _folder: int) -> bool:
        reason = path_problem(entry.path)
        if reason:
            self.skipped.refuse(self._display_path(entry.path), f"{reason}, and so nothing in it is handed out")
        return reason is None and not self.hidden(text_of(entry.path))

    def skip(self, path: tuple[bytes, ...], reason: str) -> None:
        self.skipped.lose(self._display_path(path), reason)

    def visit(self, entry: Entry) -> None:
        if is_whiteout(entry.stat) or (self.seen and self.seen.is_old(entry)):
            return
        if not stat.S_ISREG(entry.stat.st_mode):
            self.skipped.refuse(self._display_path(entry.path), f"it is {kind_of(entry.stat.st_mode)}")
        elif reason := path_problem(entry.path):
            self.skipped.refuse(self._display_path(entry.path), reason)
        elif self.hidden(text_of(entry.path)):
            return
        elif bound := self._too_much(entry.stat.st_size):
            self.skipped.lose(self._display_path(entry.path), bound)
        else:
            self._keep(entry)

    def _too_much(self, size: int) -> str | None:
        bounds = self.bounds
        if len(self.files) >= bounds.files:
            return f"there are more than {bounds.files} files"
        if size > bounds.file_bytes:
            return f"it is larger than {format_size(bounds.file_bytes)}"
        if self.store.size + size > bounds.total_bytes:
            return f"all files together are larger than {format_size(bounds.total_bytes)}"
        return None

    def _keep(self, entry: Entry) -> None:
        start = self.store.size
        try:
            copied = self._copy(entry)
        except OSError as error:
            self.store.cut(start)
            self.skipped.lose(self._display_path(entry.path), f"it cannot be copied: {error.strerror or error}")
            return
        size = self.store.size - start
        if copied.withheld or self.inputs.get(text_of(entry.path)) == copied.original:
            self.store.cut(start)
            if copied.withheld:
                self.skipped.refuse(self._display_path(entry.path), copied.withheld)
            return
        name = text_of(self._without_secrets(entry.path))
        self.files.append(Artifact(name, size, copied.sha256, media_type_of(name), Slice(self.store, start, size)))

    def _copy(self, entry: Entry) -> _Copied:
        """Append the file to the store and hash what is appended; bounded by what is read and by what is appended,
        which markers may make more, not by what stat said."""
        start, original = self.store.size, hashlib.sha256()
        content, redacted = None, hashlib.sha256()
        if self.redaction:
            from casemate.redaction.content import RedactedContent

            content = RedactedContent(self.redaction)
        left = most = min(self.bounds.file_bytes, self.bounds.total_bytes - start)
        with hold(open_file(entry, unlock=self.unlock)) as file:
            for chunk in pieces_of(file, most + 1):
                left -= len(chunk)
                if left < 0:
                    raise OSError(errno.EFBIG, "it grew while it was read")
                original.update(chunk)
                if content is not None:
                    redacted.update(chunk := content.feed(chunk))
                self.store.append(chunk)
                if self.store.size - start > most:
                    raise OSError(errno.EFBIG, "with its secrets replaced it is too large")
        if content is None:
            return _Copied(original.hexdigest(), original.hexdigest())
        redacted.update(rest := content.finish())
        self.store.append(rest)
        return _Copied(redacted.hexdigest(), original.hexdigest(), content.withheld or self._why_not_archive(start))

    def _why_not_archive(self, start: int) -> str:
        """Why what the store holds from ``start`` on is an archive that must not be handed out; empty when it may."""
        from casemate.redaction.content import Budget, reason_to_withhold

        assert self.redaction is not None
        size = self.store.size - start
        read = Slice(self.store, start, size).read
        if self.archives is None:
            self.archives = Budget(self.bounds.total_bytes)
        return reason_to_withhold(read, size, self.redaction, self.archives)


@dataclass(frozen=True, slots=True)
class _Copied:
    """SHA-256 of what is in the store and of the file as it was; why a secret keeps it from being handed out."""

    sha256: str
    original: str
    withheld: str = ""
