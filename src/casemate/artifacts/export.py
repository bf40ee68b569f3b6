"""Writes artifacts beneath a folder that the caller names, and nowhere else.

No link in the folder is followed. A file or link at an artifact's name is replaced. Two artifacts can have the
same name to the folder's file system (case, Unicode forms); the second is then written as ``name (2).txt``.
Protected names (``.envrc``, ``.git/hooks``) are refused, as in a workspace.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from casemate.artifacts.content import Slice
from casemate.files.beneath import hold, write_file
from casemate.files.names import path_problem, problem
from casemate.files.protected import PROTECTED
from casemate.model.execution import SkippedFile
from casemate.supervisor.trees.walk import identity, open_beneath, status_of

if TYPE_CHECKING:
    from casemate.model.execution import Artifact


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of :func:`export`."""

    written: tuple[Path, ...]  # the new files
    skipped: tuple[SkippedFile, ...]  # the artifacts that could not be written, each with the reason


def export(
    artifacts: Iterable[Artifact],
    folder: str | os.PathLike[str],
    *,
    under: tuple[str, ...] = (),
) -> Exported:
    """Write ``artifacts`` beneath ``folder``, created if missing. ``under``: leading folders to strip from names.

    Raises ``OSError`` only if the folder itself cannot be created or opened.
    """
    os.makedirs(folder, exist_ok=True)
    written: list[Path] = []
    skipped: list[SkippedFile] = []
    mine: set[tuple[int, int]] = set()
    with hold(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        for artifact in artifacts:
            try:
                written.append(Path(folder, *_write(root, artifact, under, mine)))
            except OSError as error:
                skipped.append(SkippedFile(artifact.name, f"it cannot be written: {error.strerror or error}"))
    return Exported(tuple(written), tuple(skipped))


def _write(root: int, artifact: Artifact, under: tuple[str, ...], mine: set[tuple[int, int]]) -> tuple[str, ...]:
    path = _path_of(artifact.name, under)
    reason = PROTECTED.reason(path)
    if reason:
        raise OSError(0, reason)
    with hold(open_beneath(root, path[:-1], make=True)) as folder:
        name = _free_name(folder, path[-1], mine)
        mine.add(write_file(folder, name, _chunks(artifact)))
    return (*path[:-1], name)


def _path_of(name: str, under: tuple[str, ...]) -> tuple[str, ...]:
    """Split an artifact's name. Its parts are checked again: the name may have passed through other code."""
    path = tuple(name.split("/"))
    if len(path) > len(under) and path[: len(under)] == under:
        path = path[len(under) :]
    raw = tuple(part.encode("utf-8", "surrogatepass") for part in path)
    reason = next(filter(None, map(problem, raw)), None) or path_problem(raw)
    if reason:
        raise OSError(0, reason)
    return path


def _free_name(folder: int, name: str, mine: set[tuple[int, int]]) -> str:
    stem, extension = os.path.splitext(name)
    for candidate in (name, *(f"{stem} ({number}){extension}" for number in range(2, 1000))):
        there = status_of(folder, candidate)
        if there is None or (candidate == name and identity(there) not in mine and not stat.S_ISDIR(there.st_mode)):
            return candidate
    raise OSError(0, "its name is taken")


def _chunks(artifact: Artifact) -> Iterable[bytes]:
    return artifact.content.chunks() if isinstance(artifact.content, Slice) else (artifact.read_bytes(),)
