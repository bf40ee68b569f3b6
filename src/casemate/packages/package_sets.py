"""Package sets: installed packages as host folders, and cached environments of requirements.

A Python set is a series of complete generations. The newest is current:

    <set>/<number>/site ...    what a generation holds: site for modules, bin for programs
    <set>/current -> <number>  replaced atomically, so that a cell sees the old or the new one

A generation never changes, and shares its files with the next by hard links. An npm set is one tree of packages, whose
paths never change:

    <set>/node_modules/...         the packages; and casemate's own, by a link
    <set>/<number>/node_modules    a link to it; there is one number for each installation
    <set>/current -> <number>      so that an interpreter looks again for what it did not find before

Node identifies modules by real path, so a loaded module must stay where it is. An unchanged package is not touched; a
changed one is replaced by renaming.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import os
import posixpath
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from casemate.files.temporary import PREFIX, TemporaryFolder, sweep
from casemate.model.overview import InstalledPackage
from casemate.packages.names import normalize

CURRENT = "current"
SITE = "site"
_INFO = ".dist-info"
_MOST_RECORD = 32 << 20  # characters read of a RECORD, which a package wrote
# Stands for what RECORD paths are relative to, at the same depth (PEP 376)
_SITE_IN_ENVIRONMENT = "lib/python/site-packages"


class _Set:
    """A set at ``folder``, which is created. Cells read it by its permission bits. One writer at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = _number_in(folder / CURRENT)
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.chmod(0o755)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class PackageSet(_Set):
    """A package set of Python."""

    @property
    def current(self) -> Path | None:
        """The folder of the newest generation; None if nothing was installed."""
        return self.folder / str(self._number) if self._number else None

    def begin(self) -> Path:
        """Make an empty folder for the next generation."""
        return _make_anew(self.folder / f"{self._number + 1}")

    def publish(self, new: Path, without: Collection[str] = ()) -> None:
        """Make ``new`` current. It keeps what the previous generation has and it does not replace, except the projects
        ``without``. Raises ``OSError``."""
        old = self.current
        if old is not None:
            replaced = {name for name, _ in projects(new)}.union(without)
            _share(old, new, set(_files_of(old, replaced)))
        _point_to(new)
        self._number += 1
        shutil.rmtree(self.folder / str(self._number - 2), ignore_errors=True)  # no process can still be opening it

    def begin_with(self, other: AnyPackageSet) -> None:
        """Start from the current content of ``other``, a set of the same language. Raises ``OSError``."""
        if other.current is not None:
            new = self.begin()
            _share(other.current, new, set())
            self.publish(new)

    def list_installed(self) -> list[tuple[str, str]]:
        """Names and versions of its packages."""
        return [] if self.current is None else projects(self.current)

    def remove_packages(self, names: Collection[str]) -> None:
        """Raises ``OSError``."""
        self.publish(self.begin(), names)


def _make_folder(path: Path) -> None:
    """Make a folder that cells can read under any umask. Raises ``FileExistsError``: a cell may have left a link."""
    path.mkdir()
    path.chmod(0o755)


def _make_anew(path: Path) -> Path:
    """Make a folder in place of anything at ``path``."""
    shutil.rmtree(path, ignore_errors=True)
    _make_folder(path)
    return path


def _number_in(link: Path) -> int:
    try:
        return int(os.readlink(link))
    except (OSError, ValueError):
        return 0


def projects(generation: Path) -> list[tuple[str, str]]:
    """The normalised name and version of each project in a generation."""
    names = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(name for name in os.listdir(generation / SITE) if name.endswith(_INFO))
    return [project_of(name) for name in names]


def project_of(folder: str) -> tuple[str, str]:
    """The name and the version in the name of a ``.dist-info`` folder."""
    name, _, version = folder.removesuffix(_INFO).partition("-")
    return normalize(name), version


def _files_of(generation: Path, names: Collection[str]) -> Iterator[str]:
    """The files of these projects according to their RECORD, relative to the generation."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for folder in os.listdir(generation / SITE):
            is_one = folder.endswith(_INFO) and (generation / SITE / folder).is_dir()
            if is_one and project_of(folder)[0] in names:
                yield from (f"{SITE}/{folder}/{name}" for name in os.listdir(generation / SITE / folder))
                yield from _read_record(generation / SITE / folder / "RECORD")


def _read_record(record: Path) -> Iterator[str]:
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
    """Link everything from ``old`` into ``new`` that it lacks."""
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
            _make_folder(path)


MODULES = "node_modules"
LOCK = "package-lock.json"
PROGRAMS = ".bin"
_OWN = ("mcptools", "/opt/casemate/node_packages/mcptools")
_MOST_LOCK = 16 << 20
_MOST_PACKAGE_JSON = 1 << 20
_DEEPEST = 32  # levels of packages in packages


@dataclass(frozen=True, slots=True)
class Module:
    """A package in a tree. Name and version come from its package.json, and are empty if that states none."""

    place: str  # relative to the tree
    name: str
    version: str

    @property
    def is_inner(self) -> bool:
        """Whether it lies in another package."""
        return f"/{MODULES}/" in self.place

    @property
    def top(self) -> str:
        """The place of the outermost package around it, or its own."""
        return self.place.partition(f"/{MODULES}/")[0]


class NodePackageSet(_Set):
    """A package set of npm."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.wanted: dict[str, str] = {}  # requested packages by name
        self.lock = ""  # npm's own lock file, with the versions that it chose

    @property
    def current(self) -> Path | None:
        """The folder of the packages; None if nothing was installed."""
        return self.folder / MODULES if self._number else None

    def begin(self) -> Path:
        """Make an empty folder for npm's result."""
        return _make_anew(self.folder / ".new")

    def publish(self, new: Path) -> None:
        """Make the set hold exactly what is in ``new``. Raises ``OSError``."""
        there = self._modules()
        before, after = _contents(there), _contents(new / MODULES)
        with contextlib.suppress(FileNotFoundError), (new / LOCK).open("rb") as file:
            self.lock = file.read(_MOST_LOCK).decode("utf-8", "replace")
        for place in [place for place in before if place not in after]:
            self._take_away(place)
        for place in [place for place in after if after[place] != before.get(place)]:
            self._take_away(place)
            with contextlib.suppress(FileExistsError):
                _make_folder((there / place).parent)
            (new / MODULES / place).rename(there / place)
        self._take_away(PROGRAMS)
        with contextlib.suppress(FileNotFoundError):
            (new / MODULES / PROGRAMS).rename(there / PROGRAMS)
        shutil.rmtree(new, ignore_errors=True)
        self._next()

    def remove_packages(self, names: Collection[str]) -> None:
        """Remove the outermost packages with these names. Raises ``OSError``."""
        for name in names:
            self.wanted.pop(name, None)
            self._take_away(name)
        self.lock = ""  # otherwise npm would restore them
        self._next()

    def begin_with(self, other: AnyPackageSet) -> None:
        """Start from the current content of ``other``, a set of the same language. Raises ``OSError``."""
        assert isinstance(other, NodePackageSet)
        if other.current is not None:
            new = self.begin()
            shutil.copytree(other.current, new / MODULES, symlinks=True, copy_function=_link)
            self.publish(new)
            self.wanted, self.lock = dict(other.wanted), other.lock

    def list_installed(self) -> list[tuple[str, str]]:
        """Names and versions of its packages."""
        there = [] if self.current is None else modules(self.current)
        return [(one.name, one.version) for one in there if not one.is_inner]

    def _modules(self) -> Path:
        there = self.folder / MODULES
        if not there.is_dir():
            _make_folder(there)
            (there / _OWN[0]).symlink_to(_OWN[1])
        return there

    def _take_away(self, place: str) -> None:
        gone = self.folder / ".gone"
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self.folder / MODULES / place).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _next(self) -> None:
        """Announce a change."""
        self._number += 1
        new = self.folder / str(self._number)
        _make_folder(new)
        (new / MODULES).symlink_to(f"../{MODULES}")
        _point_to(new)


AnyPackageSet = PackageSet | NodePackageSet


def _point_to(new: Path) -> None:
    """Make ``new`` current in its folder."""
    link = new.with_name(f".{CURRENT}")
    with contextlib.suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(new.name)
    link.rename(new.with_name(CURRENT))


def modules(tree: Path) -> list[Module]:
    """All packages in a tree, ordered by place. Anything else in it has no name and no version."""
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
                yield Module(place, *_read_name_and_version(tree / name / "package.json"))
                yield from _modules_in(tree / name / MODULES, f"{place}/{MODULES}/", depth - 1)


def _read_name_and_version(package_json: Path) -> tuple[str, str]:
    try:
        if package_json.is_symlink() or package_json.stat().st_size > _MOST_PACKAGE_JSON:
            return "", ""
        said = json.loads(package_json.read_text("utf-8-sig"))
        name, version = said["name"], said["version"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "", ""
    return (name, version) if isinstance(name, str) and isinstance(version, str) else ("", "")


def _contents(tree: Path) -> dict[str, list[Module]]:
    """The content of each outermost package, by its place."""
    found: dict[str, list[Module]] = {}
    for one in modules(tree):
        found.setdefault(one.top, []).append(one)
    return found


def _link(source: str, target: str) -> None:
    os.link(source, target, follow_symlinks=False)


_FILES = "packages.json"
_LAYER = "python"
_MOST_KEPT = 32  # the oldest is removed first


class Environments:
    """The cached environments in ``folder``, which only this user can access. Each is complete and never changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> tuple[PackageSet, tuple[InstalledPackage, ...]] | None:
        """The environment with this key, and its packages."""
        place = self._folder / key
        try:
            said = json.loads((place / _FILES).read_text("utf-8"))
            packages = tuple(InstalledPackage(**one) for one in said["packages"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        package_set = PackageSet(place / _LAYER)
        return (package_set, packages) if package_set.current is not None else None

    def keep(
        self, key: str, package_set: PackageSet, asked: Sequence[str], packages: Sequence[InstalledPackage]
    ) -> None:
        """Keep the current content of ``package_set``, unless another process did so first. Raises ``OSError``."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(self._folder)
        made = TemporaryFolder("new", self._folder)
        new = made.path / key
        try:
            new.mkdir(mode=0o700)
            PackageSet(new / _LAYER).begin_with(package_set)
            said = {"asked": list(asked), "packages": [asdict(one) for one in packages]}
            (new / _FILES).write_text(json.dumps(said, indent=1), "utf-8")
            with contextlib.suppress(OSError):  # it exists already
                new.rename(self._folder / key)
        finally:
            made.remove()
        for place in self._places()[_MOST_KEPT:]:
            shutil.rmtree(place, ignore_errors=True)

    def list_all(self) -> Iterator[tuple[list[str], tuple[InstalledPackage, ...]]]:
        """For each environment, its requirements and its packages."""
        for place in self._places():
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                said = json.loads((place / _FILES).read_text("utf-8"))
                yield list(said["asked"]), tuple(InstalledPackage(**one) for one in said["packages"])

    def _places(self) -> list[Path]:
        with contextlib.suppress(OSError):
            found = [(entry.stat().st_mtime, Path(entry.path)) for entry in os.scandir(self._folder)]
            return [path for _, path in sorted(found, reverse=True) if not path.name.startswith((".", PREFIX))]
        return []


def key_of(*facts: Sequence[str]) -> str:
    """The name of the environment for these facts, which are ordered lists. A digest does not reveal them, and even so
    addresses in them have no credentials."""
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def make_own_folder(cache: Path) -> TemporaryFolder:
    """Make a folder for this process's package sets, on the cache's file system, because files are shared by hard
    links. Removes what dead processes left. Raises ``OSError``."""
    folder = cache / "layers"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep(folder)
    return TemporaryFolder("layers", folder)
