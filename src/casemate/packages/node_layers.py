"""What npm installed, as folders of the host: one tree of packages, whose places never change.

    <layer>/node_modules/...         the packages; and casemate's own, by a link
    <layer>/<number>/node_modules    leads there; there is one number for each installation
    <layer>/current -> <number>      so that an interpreter looks anew for what it has looked for in vain

Node knows modules by their real paths, so what is loaded has to stay where it is: a package that is the same as before
is not touched, and another one takes its place by renaming.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from casemate.packages.layers import CURRENT

MODULES = "node_modules"
LOCK = "package-lock.json"
PROGRAMS = ".bin"
_OWN = ("mcptools", "/opt/casemate/node_packages/mcptools")
_MOST_LOCK = 16 << 20
_MOST_PACKAGE_JSON = 1 << 20
_DEEPEST = 32  # packages in packages


@dataclass(frozen=True, slots=True)
class Module:
    """A package in a tree. ``place``: relative to it; ``name`` and ``version`` as its package.json says, empty where it
    says none."""

    place: str
    name: str
    version: str

    @property
    def is_inner(self) -> bool:
        """Whether it lies in another package."""
        return f"/{MODULES}/" in self.place

    @property
    def top(self) -> str:
        """The place of the outermost package that it is in, or is."""
        return self.place.partition(f"/{MODULES}/")[0]


class NodeLayer:
    """At ``folder``, which is made. One writer at a time. ``wanted``: what was asked for, by name; ``lock``: npm's own
    notes of which versions that came to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wanted: dict[str, str] = {}
        self.lock = ""
        self._number = 0
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.chmod(0o755)  # whatever the umask is

    @property
    def current(self) -> Path | None:
        """The folder of the packages; None where nothing was installed."""
        return self.folder / MODULES if self._number else None

    def begin(self) -> Path:
        """An empty folder for what npm leaves."""
        new = self.folder / ".new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        new.chmod(0o755)
        return new

    def publish(self, new: Path) -> None:
        """Have what is in ``new``, and nothing else. Raises ``OSError``."""
        there = self._modules()
        before, after = _contents(there), _contents(new / MODULES)
        with contextlib.suppress(FileNotFoundError):
            self.lock = (new / LOCK).read_bytes()[:_MOST_LOCK].decode("utf-8", "replace")
        for place in [place for place in before if place not in after]:
            self._take_away(place)
        for place in [place for place in after if after[place] != before.get(place)]:
            self._take_away(place)
            _make_parent(there / place)
            (new / MODULES / place).rename(there / place)
        self._take_away(PROGRAMS)
        with contextlib.suppress(FileNotFoundError):
            (new / MODULES / PROGRAMS).rename(there / PROGRAMS)
        shutil.rmtree(new, ignore_errors=True)
        self._next()

    def remove_packages(self, names: Collection[str]) -> None:
        """Take the outermost packages of these names away. Raises ``OSError``."""
        for name in names:
            self.wanted.pop(name, None)
            self._take_away(name)
        self.lock = ""  # else npm would put them back
        self._next()

    def begin_with(self, other: NodeLayer) -> None:
        """Begin with what ``other`` holds now. Raises ``OSError``."""
        if other.current is not None:
            new = self.begin()
            shutil.copytree(other.current, new / MODULES, symlinks=True, copy_function=_link)
            self.publish(new)
            self.wanted, self.lock = dict(other.wanted), other.lock

    def remove(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _modules(self) -> Path:
        there = self.folder / MODULES
        if not there.is_dir():
            there.mkdir()
            there.chmod(0o755)
            (there / _OWN[0]).symlink_to(_OWN[1])
        return there

    def _take_away(self, place: str) -> None:
        gone = self.folder / ".gone"
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self.folder / MODULES / place).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _next(self) -> None:
        """Say that there is something new."""
        self._number += 1
        new = self.folder / str(self._number)
        new.mkdir()
        new.chmod(0o755)
        (new / MODULES).symlink_to(f"../{MODULES}")
        link = self.folder / f".{CURRENT}"
        with contextlib.suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(new.name)
        link.rename(self.folder / CURRENT)


def modules(tree: Path) -> list[Module]:
    """All packages in a tree, in the order of their places; what is no package there has no name and no version."""
    return sorted(_modules_in(tree, "", _DEEPEST), key=lambda one: one.place)


def _modules_in(tree: Path, below: str, depth: int) -> Iterator[Module]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(tree):
            place = f"{below}{name}"
            if name.startswith(".") or (not below and name == _OWN[0] and (tree / name).is_symlink()):
                continue
            if (tree / name).is_symlink() or not (tree / name).is_dir() or depth == 0:
                yield Module(place, "", "")
            elif name.startswith("@") and not below.rpartition("/")[0].rpartition("/")[2].startswith("@"):
                yield from _modules_in(tree / name, f"{place}/", depth)
            else:
                yield Module(place, *_said(tree / name / "package.json"))
                yield from _modules_in(tree / name / MODULES, f"{place}/{MODULES}/", depth - 1)


def _said(package_json: Path) -> tuple[str, str]:
    try:
        if package_json.is_symlink() or package_json.stat().st_size > _MOST_PACKAGE_JSON:
            return "", ""
        said = json.loads(package_json.read_text("utf-8-sig"))
        name, version = said["name"], said["version"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "", ""
    return (name, version) if isinstance(name, str) and isinstance(version, str) else ("", "")


def _contents(tree: Path) -> dict[str, list[Module]]:
    """By the places of the outermost packages: what is in each."""
    found: dict[str, list[Module]] = {}
    for one in modules(tree):
        found.setdefault(one.top, []).append(one)
    return found


def _make_parent(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir()
        path.parent.chmod(0o755)


def _link(source: str, target: str) -> None:
    os.link(source, target, follow_symlinks=False)
