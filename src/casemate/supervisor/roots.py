"""Read-only root trees, one for each environment, built once and cloned for each of its cells."""

from __future__ import annotations

import os
import stat

from casemate.supervisor import kernel, stage, wire
from casemate.supervisor.trees.walk import open_beneath

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from typing import Any

# Mount points for a cell's own places; they must exist before the root becomes read-only.
_OWN = ("proc", "tmp", "workspace", "program", "dev", "dev/shm", "dev/pts", "home", "opt", "run", "sys", "var",
        "packages", "packages/python", "packages/node")  # fmt: skip
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
    "/dev/ptmx": "pts/ptmx",
    "/var/tmp": "/tmp",
    "/home/user": "/tmp/.home",
    "/packages/node/node_modules": "/opt/casemate/node_packages",  # until packages are shown there
}
# A link in the last place that Node searches, also for imports of workspace modules. Until something is installed, its
# target is missing: otherwise npm would take this folder for the project that contains every folder.
NODE_MODULES = "/node_modules"
INSTALLED_NODE = "packages/node/current/node_modules"
_READ_ONLY = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
_DEVICE = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NOEXEC


class RootError(Exception):
    """An entry of a root tree cannot be made. Names the target and the cause."""


def build(key: str, entries: list[dict[str, Any]]) -> str:
    """Mount the tree of ``entries`` under ``key``, make it read-only, and return its path."""
    root = f"{stage.ROOTS}/{key}"
    os.mkdir(root, 0o755)
    tmpfs = kernel.new_mount("tmpfs", {"size": "4m", "mode": "0755"}, kernel.ATTR_NOSUID | kernel.ATTR_NODEV)
    kernel.move_mount(tmpfs, root)
    for folder in _OWN:
        os.mkdir(f"{root}/{folder}", 0o755)
    for target, points_to in _LINKS.items():
        os.symlink(points_to, root + target)
    for entry in entries:
        _add(root, entry)
    if not os.path.lexists(root + NODE_MODULES):  # the machine's own folder of that name may be bound there
        os.symlink(INSTALLED_NODE, root + NODE_MODULES)
    kernel.set_attributes(tmpfs, kernel.ATTR_RDONLY, recursive=False)
    os.close(tmpfs)
    return root


def _add(root: str, entry: dict[str, Any]) -> None:
    target = root + entry["target"]
    try:
        make_parents(root, os.path.dirname(entry["target"]))
        if entry["kind"] == "link":
            if os.path.islink(target):  # a bound folder already contains the link
                return
            os.symlink(entry["points_to"], target)
        elif entry["kind"] == "place":
            _make_place(root, entry)
        elif entry["kind"] == "text":
            _write(target, entry["content"].encode())
        else:
            _bind(entry["source"], target, _DEVICE if entry["device"] else _READ_ONLY)
    except OSError as error:
        raise RootError(f"{entry['target']}: {error}") from error


def _make_place(root: str, entry: dict[str, Any]) -> None:
    """Make a mount point for the cell, unless a bound folder has it."""
    if entry["folder"]:
        make_parents(root, entry["target"])
    elif not stat.S_ISREG(_mode(root + entry["target"])):
        _write(root + entry["target"], b"")


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


def make_parents(root: str, folder: str) -> None:
    """Make the folders down to ``folder`` in the tree. Refuses links, which would lead to the host's own root."""
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(open_beneath(top, [name for name in folder.split("/") if name], make=True))
    except NotADirectoryError as error:
        raise RootError(f"{folder}: {error.filename} is not a folder in the cell") from None
    finally:
        os.close(top)


def own_place(target: str) -> tuple[str, str]:
    """The folder that backs the cell's own place with ``target`` (`wire.OWN_PLACES`), and the path in that folder."""
    for prefix, folder in wire.OWN_PLACES.items():
        if target.startswith(prefix):
            return folder, target.removeprefix(prefix)
    raise OSError(22, f"{target} is not in one of the cell's own folders")


def bind(source: str, attributes: int = _READ_ONLY) -> int:
    """A detached, read-only mount of ``source`` and all below it."""
    return kernel.open_tree(source, attributes=attributes)


def _bind(source: str, target: str, attributes: int) -> None:
    tree = bind(source, attributes)
    try:
        if os.path.isdir(source):
            os.makedirs(target, 0o755, exist_ok=True)
        else:
            _write(target, b"")
        kernel.move_mount(tree, target)
    finally:
        os.close(tree)


def _write(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
