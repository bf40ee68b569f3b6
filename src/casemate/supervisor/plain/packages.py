"""Machine files at other paths, for cells without mounts: copies and hard links."""

from __future__ import annotations

import os
import stat

from casemate.supervisor.plain import places
from casemate.supervisor.trees.copies import FolderCopy, copy_content, copy_file
from casemate.supervisor.trees.walk import open_folder

TYPE_CHECKING = False  # importing typing would take half of the start

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def copy(source: str, place: str) -> None:
    """Copy a file or folder of the machine, so that every user can read it. Raises ``OSError``."""
    if not os.path.isdir(source):
        with open(source, "rb") as file, open(place, "wb") as copied:
            copy_content(file.fileno(), copied.fileno(), os.fstat(file.fileno()).st_size)
        return
    os.mkdir(place, 0o755)
    folder, copied_folder = os.open(source, _FOLDER), os.open(place, _FOLDER)
    try:
        FolderCopy().fill(folder, copied_folder)
    finally:
        os.close(folder)
        os.close(copied_folder)


def show(source: str, place: str, table: places.Table) -> str:
    """Make ``place`` a link to a tree of hard links to the current files of the package folder ``source``. Its symbolic
    links use real paths. Returns the folder shown before the previous one, which can be removed. Raises ``OSError``."""
    try:
        before = int(os.readlink(place).rpartition(".")[2])
    except (OSError, ValueError):
        before = 0
    number = before + 1
    while os.path.lexists(f"{place}.{number}"):
        number += 1
    folder, name = os.path.split(place)
    parent, shown = os.open(folder, _FOLDER), os.open(source, _FOLDER)
    try:
        _link_folder(shown, parent, f"{name}.{number}", table)
    finally:
        os.close(parent)
        os.close(shown)
    os.symlink(f"{name}.{number}", f"{place}.new")
    os.rename(f"{place}.new", place)
    return f"{place}.{before - 1}"


def _link_folder(source: int, parent: int, name: str, table: places.Table) -> None:
    os.mkdir(name, 0o755, dir_fd=parent)
    place = open_folder(parent, name)
    try:
        for inner in os.listdir(source):
            _link(source, place, inner, table)
    finally:
        os.close(place)


def _link(source: int, place: int, name: str, table: places.Table) -> None:
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(places.real(os.readlink(name, dir_fd=source), table), name, dir_fd=place)
    elif stat.S_ISDIR(status.st_mode):
        folder = open_folder(source, name)
        try:
            _link_folder(folder, place, name, table)
        finally:
            os.close(folder)
    else:
        try:
            os.link(name, name, src_dir_fd=source, dst_dir_fd=place, follow_symlinks=False)
        except OSError:  # another file system, or another owner
            copy_file(source, place, name, status.st_mode & 0o755)
