"""Checks of host files before a cell may see them, for all languages."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from casemate.languages.runtime import SYSTEM_FOLDERS
from casemate.model.plan import Bind, Entry, Symlink

# Systems that keep each program in a separate folder here. A program needs many of them.
_STORES = ("/nix/store", "/gnu/store")
_IN_SYSTEM = tuple(f"{folder}/" for folder in SYSTEM_FOLDERS)
_LONGEST_CHAIN = 40


def is_inside(path: str | Path, folder: str | Path) -> bool:
    """Whether ``path`` is ``folder`` or lies in it, by name alone. Both are absolute."""
    return f"{_normalise(path)}/".startswith(f"{_normalise(folder).rstrip('/')}/")


def _normalise(path: str | Path) -> str:
    """Remove redundant separators. Comparing strings takes a tenth of the time of comparing paths."""
    return str(path if isinstance(path, Path) else Path(path))


def is_system(path: str | Path) -> bool:
    """Whether every cell sees ``path`` already."""
    return f"{_normalise(path)}/".startswith(_IN_SYSTEM)


def homes() -> tuple[Path, ...]:
    """The user's home folder, from the environment and from the user database."""
    found = [Path(os.path.expanduser("~"))]
    try:
        found.append(Path(pwd.getpwuid(os.getuid()).pw_dir))
    except KeyError:
        pass
    return tuple(home.resolve() for home in found if home.is_absolute() and home != Path("/"))


def too_wide(folder: Path) -> str:
    """Why a cell must not see all of ``folder``; empty if it may."""
    real = folder.resolve()
    if real == Path("/"):
        return "it is the whole file system"
    if any(is_inside(home, real) for home in homes()):
        return "it contains a home folder"
    return ""


def stamp_of(path: str | Path) -> tuple[int, int]:
    """The inode and modification time of a file, which change when it is replaced; zeros if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def is_program(path: Path) -> bool:
    """Whether ``path`` is a compiled program that this user may start, not a script such as a shim."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF" and os.access(path, os.X_OK)
    except OSError:
        return False


def hops(path: Path) -> Iterator[Path]:
    """``path``, then each link target as spelled; the last is not a link. Links in parent folders are not resolved."""
    for _ in range(_LONGEST_CHAIN):
        yield path
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
    raise OSError(f"{path} is a link to itself")


def unreadable(paths: Iterable[Path]) -> Path | None:
    """The first of ``paths`` that a program in a cell could not read, by its permission bits.

    If root runs casemate, a cell has another user's rights; otherwise it has this user's. Folders above a path do not
    matter, because a bind shows only the path.
    """
    for path in paths:
        try:
            mode = path.stat().st_mode
        except OSError:
            return path
        if os.geteuid() != 0:
            readable = os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0))
        else:
            wanted = 0o005 if stat.S_ISDIR(mode) else 0o004
            readable = mode & wanted == wanted
        if not readable:
            return path
    return None


def entries_for(trees: Iterable[Path], chain: Iterable[Path]) -> tuple[Entry, ...]:
    """The binds that put each of ``trees`` at its own path, and the links of ``chain`` that those do not cover.

    A tree behind linked folders is bound at the path as spelled and at its real path.
    """
    binds: dict[str, Bind] = {}
    for tree in trees:
        source = tree.resolve()
        for target in (tree, source):
            if not is_system(target):
                store = next((store for store in _STORES if is_inside(target, store)), None)
                bind = Bind(store, store) if store else Bind(str(source), str(target))
                binds.setdefault(bind.target, bind)
    outer = tuple(bind for bind in binds.values() if not _within_another(bind, binds.values()))
    links = (Symlink(str(hop), os.readlink(hop)) for hop in chain if hop.is_symlink() and not _is_covered(hop, outer))
    return (*outer, *links)


def _within_another(bind: Bind, binds: Iterable[Bind]) -> bool:
    """Whether another bind already shows the same files at the same place."""
    for other in binds:
        if other is not bind and is_inside(bind.target, other.target):
            below = Path(bind.target).relative_to(other.target)
            if Path(other.source, below).resolve() == Path(bind.source):
                return True
    return False


def _is_covered(path: Path, binds: Iterable[Bind]) -> bool:
    return is_system(path) or any(is_inside(path, bind.target) for bind in binds)
