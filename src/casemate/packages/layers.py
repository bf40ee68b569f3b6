"""What was installed, as folders of the host: one generation after the other, each complete, and the newest is current.

    <layer>/<number>/site ...    what a generation holds: site for modules, bin for programs
    <layer>/current -> <number>  changed in one step, so that a cell that sees the layer has the old or the new

A generation never changes, and shares its files with the next by hard links.
"""

from __future__ import annotations

import contextlib
import csv
import os
import posixpath
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from casemate.packages.names import normalized

CURRENT = "current"
SITE = "site"
_INFO = ".dist-info"
_MOST_RECORD = 32 << 20  # characters that are read of a RECORD, which a package wrote
_SITE_IN_ENVIRONMENT = "lib/python/site-packages"  # what RECORD names are relative to, as deep as it is (PEP 376)


class Layer:
    """At ``folder``, which is made; whoever sees it in a cell reads it by its permission bits. One writer at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = _number_in(folder / CURRENT)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.chmod(0o755)  # whatever the umask is

    @property
    def current(self) -> Path | None:
        """The folder of the newest generation; None where nothing was installed."""
        return self.folder / str(self._number) if self._number else None

    def begin(self) -> Path:
        """An empty folder for the next generation."""
        new = self.folder / f"{self._number + 1}"
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(new)
        new.mkdir()
        new.chmod(0o755)
        return new

    def publish(self, new: Path, without: Collection[str] = ()) -> None:
        """Make ``new`` the current generation, with everything of the one before that it does not replace; ``without``
        these projects. Raises ``OSError``."""
        old = self.current
        if old is not None:
            replaced = {name for name, _ in projects(new)}.union(without)
            _share(old, new, set(_files_of(old, replaced)))
        link = self.folder / f".{CURRENT}"
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(new.name)
        link.rename(self.folder / CURRENT)
        self._number += 1
        shutil.rmtree(self.folder / str(self._number - 2), ignore_errors=True)  # nobody can be on the way to it

    def begin_with(self, other: Layer) -> None:
        """Begin with what ``other`` holds now. Raises ``OSError``."""
        if other.current is not None:
            new = self.begin()
            _share(other.current, new, set())
            self.publish(new)

    def remove(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _number_in(link: Path) -> int:
    try:
        return int(os.readlink(link))
    except (OSError, ValueError):
        return 0


def projects(generation: Path) -> list[tuple[str, str]]:
    """Name, as indexes have it, and version of each project in a generation."""
    names = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(name for name in os.listdir(generation / SITE) if name.endswith(_INFO))
    return [project_of(name) for name in names]


def project_of(folder: str) -> tuple[str, str]:
    """The name and the version in the name of a ``.dist-info`` folder."""
    name, _, version = folder.removesuffix(_INFO).partition("-")
    return normalized(name), version


def _files_of(generation: Path, names: Collection[str]) -> Iterator[str]:
    """The files that belong to projects of these names, relative to the generation, as their RECORD says."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for folder in os.listdir(generation / SITE):
            is_one = folder.endswith(_INFO) and (generation / SITE / folder).is_dir()
            if is_one and project_of(folder)[0] in names:
                yield from (f"{SITE}/{folder}/{name}" for name in os.listdir(generation / SITE / folder))
                yield from _recorded(generation / SITE / folder / "RECORD")


def _recorded(record: Path) -> Iterator[str]:
    try:
        with record.open(encoding="utf-8", errors="replace") as file:
            rows = list(csv.reader(file.read(_MOST_RECORD).splitlines()))
    except (OSError, csv.Error):
        return
    for row in rows:
        if row:
            path = posixpath.normpath(f"{_SITE_IN_ENVIRONMENT}/{row[0]}")
            yield path.replace(_SITE_IN_ENVIRONMENT, SITE, 1) if path.startswith(_SITE_IN_ENVIRONMENT) else path


def _share(old: Path, new: Path, without: Collection[str]) -> None:
    """Link everything of ``old`` into ``new`` that is not there."""
    for folder, _, files in os.walk(old):
        below = os.path.relpath(folder, old)
        kept = [name for name in files if posixpath.normpath(f"{below}/{name}") not in without]
        links = [name for name in os.listdir(folder) if os.path.islink(os.path.join(folder, name))]
        if not kept and not links:
            continue
        _make_folders(new, below)
        for name in {*kept, *links}:
            if posixpath.normpath(f"{below}/{name}") not in without:
                with contextlib.suppress(FileExistsError):
                    os.link(os.path.join(folder, name), new / below / name, follow_symlinks=False)


def _make_folders(new: Path, below: str) -> None:
    path = new
    for name in Path(below).parts:
        path /= name
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            path.chmod(0o755)
