"""Host folders in a cell: its workspace, covers over parts of a folder, and folders that are shown later.

Covers hide or protect parts of a folder. The supervisor mounts them, in a namespace where no cell runs. Each name is
opened from the folder downwards without following a link, so that nothing in the folder can redirect a mount
(CVE-2026-87766 is that mistake). A mount covers a file, not a name: a file that another host process later renames to
that name is not covered (mount_namespaces(7)).
"""

from __future__ import annotations

import os
import stat

from casemate.supervisor import kernel, namespaces, roots, stage
from casemate.supervisor.namespaces import Identity
from casemate.supervisor.trees.walk import opened

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from typing import Any

_QUIET = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
ATTRIBUTES = kernel.ATTR_NOSUID | kernel.ATTR_NODEV


def is_plain(folder: dict[str, Any]) -> bool:
    """Whether ``folder`` appears at one place with nothing covered."""
    return not folder["hidden"] and not folder["read_only"] and len(folder["places"]) == 1


def cover_paths(tree: int, folder: dict[str, Any]) -> list[int]:
    """Cover parts of the detached mount ``tree``, and return one mount for each of the folder's places.

    Consumes ``tree``. The folder's ``hidden``, ``read_only`` and ``writable`` are paths beneath it; an empty path is
    all of it. Hidden paths cannot be read. Read-only paths cannot be changed, except for ``writable`` ones. None can be
    moved away. Raises ``OSError``, including if one of them is gone.
    """
    place = stage.COVERED if stat.S_ISDIR(os.fstat(tree).st_mode) else stage.COVERED_FILE
    with opened(tree):
        kernel.move_mount(tree, place)
    trees: list[int] = []
    try:
        pins_all = folder.get("kind") == "direct"
        for path, cover in _covers(folder, pins_all):
            _cover_path(place, path, cover)
        trees.extend(kernel.open_tree(place) for _ in folder["places"])
    except BaseException:
        kernel.close_all(trees)
        raise
    finally:
        kernel.unmount(place)
    return trees


# Covers: attributes to set and to clear on a mount of the path itself; None hides the path.
_PINNED, _READ_ONLY, _WRITABLE, _HIDDEN = (0, 0), (kernel.ATTR_RDONLY, 0), (0, kernel.ATTR_RDONLY), None


def _covers(folder: dict[str, Any], pins_all: bool) -> list[tuple[str, tuple[int, int] | None]]:
    """The cover of each path, outer folders first. A folder above a read-only path becomes a mount, so that it cannot
    be renamed and replaced. ``pins_all``: the same above hidden paths, because a rename would reach the host."""
    covers: dict[str, tuple[int, int] | None] = {}
    hidden, read_only = folder["hidden"], folder["read_only"]
    for path in (*read_only, *(hidden if pins_all else ())):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            covers["/".join(parts[:depth])] = _PINNED
    covers.update(dict.fromkeys(folder["writable"], _WRITABLE))
    covers.update(dict.fromkeys(read_only, _READ_ONLY))
    covers.update(dict.fromkeys(hidden, _HIDDEN))
    return sorted(covers.items(), key=lambda item: item[0].count("/") + (item[0] != ""))


def _cover_path(folder: str, path: str, cover: tuple[int, int] | None) -> None:
    try:
        _cover_opened(folder, path, cover)
    except OSError as error:
        detail = f"cannot hide or protect {path!a}: {error.strerror}"
        raise OSError(error.errno, detail) from error


def _cover_opened(folder: str, path: str, cover: tuple[int, int] | None) -> None:
    place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        for name in filter(None, path.split("/")):
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = inner
        if cover is None:
            is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
            _mount_over(stage.LOCKED if is_folder else stage.BLANK, place, _QUIET | kernel.ATTR_NOEXEC)
        else:
            _mount_over(f"/proc/self/fd/{place}", place, *cover)
    finally:
        os.close(place)


def _mount_over(source: str, place: int, attributes: int, cleared: int = 0) -> None:
    with opened(kernel.open_tree(source, attributes=attributes)) as tree:
        kernel.set_attributes(tree, 0, cleared=cleared)
        kernel.move_mount_onto(tree, place)


def mount_workspace(workspace: dict[str, Any], identity: Identity) -> list[int]:
    """The workspace as detached mounts, one for each of its places; the first is /workspace."""
    tree = _mount_tree(workspace, identity)
    return [tree] if is_plain(workspace) else cover_paths(tree, workspace)


def _mount_tree(workspace: dict[str, Any], identity: Identity) -> int:
    if workspace["kind"] == "private":
        if not os.path.lexists(f"{stage.SCRATCH}/workspace/output"):
            make_folder(f"{stage.SCRATCH}/workspace/output", 0o755, identity)
        return kernel.open_tree(f"{stage.SCRATCH}/workspace", recursive=False)
    with opened(open_folder(workspace)) as folder:
        mount = _bind_workspace if workspace["kind"] == "direct" else _overlay_workspace
        return mount(folder, identity)


def mount_copy(source: str, number: int, identity: Identity) -> int:
    """A detached mount of a host folder under an overlay; writes are discarded with the overlay."""
    with opened(os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
        _make_upper(f"copy.{number}.", folder, identity, output=False)
        return _mount_overlay(folder, f"copy.{number}.", "", identity)


def open_folder(workspace: dict[str, Any]) -> int:
    """Open the caller's folder, once. It must be the one that the host checked."""
    fd = os.open(workspace["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    status = os.fstat(fd)
    if [status.st_dev, status.st_ino] != workspace["inode"]:
        os.close(fd)
        raise OSError(116, "the folder was replaced while the run was prepared")  # ESTALE
    return fd


def _overlay_workspace(folder: int, identity: Identity) -> int:
    _make_upper("", folder, identity, output=_may_have_output(folder))
    inputs = f"{stage.SCRATCH}/inputs:" if os.path.isdir(f"{stage.SCRATCH}/inputs") else ""
    return _mount_overlay(folder, "", inputs, identity)


def _make_upper(name: str, folder: int, identity: Identity, *, output: bool) -> None:
    upper = f"{stage.SCRATCH}/{name}upper"
    if not os.path.isdir(upper):
        make_folder(upper, os.fstat(folder).st_mode & 0o777 | 0o700, identity)
        make_folder(f"{stage.SCRATCH}/{name}work", 0o700, identity)
        if output:
            make_folder(f"{upper}/output", 0o755, identity)


def _mount_overlay(folder: int, name: str, inputs: str, identity: Identity) -> int:
    """``folder`` under an overlay with the lower directory ``inputs``. Names in the scratch start with ``name``."""
    status = os.fstat(folder)
    upper, work = f"{stage.SCRATCH}/{name}upper", f"{stage.SCRATCH}/{name}work"
    lower = f"/proc/self/fd/{folder}"
    # Without xino: its inode numbers exceed 2**53, where Node cannot tell two files apart.
    options = {"lowerdir": inputs + lower, "upperdir": upper, "workdir": work}
    if not identity.mapped:
        return kernel.new_mount("overlay", {**options, "userxattr": ""}, ATTRIBUTES)
    trusted_options = {**options, "redirect_dir": "off", "metacopy": "off", "index": "off"}
    if status.st_uid == identity.uid:
        return kernel.new_mount("overlay", trusted_options, ATTRIBUTES)
    with opened(kernel.open_tree(lower)) as mapped:
        _map_owner(mapped, status, identity)
        kernel.move_mount(mapped, stage.LOWER)
    try:
        return kernel.new_mount("overlay", {**trusted_options, "lowerdir": inputs + stage.LOWER}, ATTRIBUTES)
    finally:
        kernel.unmount(stage.LOWER)


def _may_have_output(folder: int) -> bool:
    """Whether ``output/`` can be made without covering something else of that name."""
    try:
        return stat.S_ISDIR(os.stat("output", dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True


def _bind_workspace(folder: int, identity: Identity) -> int:
    tree = kernel.open_tree(f"/proc/self/fd/{folder}", attributes=ATTRIBUTES)
    try:
        if identity.mapped:
            _map_owner(tree, os.fstat(folder), identity)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _map_owner(tree: int, status: os.stat_result, identity: Identity) -> None:
    """Show the files of the folder's owner as owned by the cell."""
    namespace = identity.idmap_namespace((status.st_uid, status.st_gid))
    kernel.set_attributes(tree, kernel.ATTR_IDMAP, userns_fd=namespace, recursive=False)


def make_folder(path: str, mode: int, identity: Identity) -> None:
    """Make a folder that the cell owns."""
    os.mkdir(path)
    os.chmod(path, mode)
    identity.chown(path)


def show_folder(mounts: int, source: str, target: str) -> None:
    """Mount the host folder ``source`` read-only, without setuid programs and devices, at ``target``, an empty folder
    of the root of the mount namespace ``mounts``. A cell's root is read-only and holds no link that the cell made, so
    ``target`` cannot lead elsewhere. Raises ``OSError``."""
    with opened(roots.bind(source)) as tree:

        def attach() -> list[int]:
            kernel.move_mount(tree, target)
            return []

        namespaces.open_inside(mounts, kernel.CLONE_NEWNS, attach, target)
