"""Collects the files that a run left, from a hostile tree in which nothing runs any more.

The tree is the cell's own tmpfs, so a hard link can only lead to another file in the tree. Such a file becomes
an artifact under each of its names. Links are never followed, and only regular files are opened. Each file is
read once, so its hash is always the hash of the artifact's bytes.
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
    """The result of :func:`collect`."""

    files: tuple[Artifact, ...] = ()  # sorted by name
    skipped: tuple[SkippedFile, ...] = ()
    complete: bool = True  # false if a bound or an error left something out


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
    """Collect the regular files beneath ``under`` in the tree ``root``, a descriptor. Names are relative to ``root``.

    Unchanged ``inputs`` (SHA-256 by name) are left out, and so are unchanged files in ``seen`` and ``hidden`` names.
    ``unlock`` changes permission bits that prevent reading; false for a tree in use. ``redaction`` replaces secrets in
    names and text; any other file with a secret is withheld. Files that cannot be collected go to ``skipped``.
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
    """Open the folder to collect from. None if it is missing or is not a folder."""
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
    """Stores the files that a walk finds."""

    bounds: TreeBounds
    inputs: Mapping[str, str]
    unlock: bool
    seen: SeenFiles | None
    redaction: Redaction | None
    hidden: Callable[[str], bool]
    skipped: Skipped
    store: ContentStore = field(default_factory=ContentStore)
    files: list[Artifact] = field(default_factory=list)
    archives: Budget | None = None  # shared by all archives; made for the first file that is checked

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
        """Append the file and hash the appended bytes. The bound is on bytes read and appended, not on stat's size."""
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
        """Why the stored file at ``start`` must be withheld as an archive. Empty if it need not be."""
        from casemate.redaction.content import Budget, reason_to_withhold

        assert self.redaction is not None
        size = self.store.size - start
        read = Slice(self.store, start, size).read
        if self.archives is None:
            self.archives = Budget(self.bounds.total_bytes)
        return reason_to_withhold(read, size, self.redaction, self.archives)


@dataclass(frozen=True, slots=True)
class _Copied:
    """A file that was copied into the store."""

    sha256: str  # of the stored bytes
    original: str  # the SHA-256 of the file before redaction
    withheld: str = ""  # the reason to withhold it, if it holds a secret
