"""Folders of the host in a cell: its workspace, what covers parts of a folder, and folders that are shown later.

What a cell must not see, or not change, of a folder is covered here, where nothing of a cell runs. Every name is opened
from the folder downwards without following a link, so that nothing in the folder can lead a mount elsewhere
(CVE-2026-87766 is that mistake). A mount covers a file, not a name: a file that another process of the host renames to
that name later is not covered (mount_namespaces(7)).
"""

from __future__ import annotations

import os
import stat

from casemate.supervisor import kernel, namespaces, roots, stage
from casemate.supervisor.namespaces import Identity

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any

_QUIET = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID | kernel.ATTR_NODEV
ATTRIBUTES = kernel.ATTR_NOSUID | kernel.ATTR_NODEV


def is_plain(folder: dict[str, Any]) -> bool:
    """Whether nothing covers parts of ``folder``, and it appears at one place."""
    return not folder["hidden"] and not folder["read_only"] and len(folder["places"]) == 1


def cover_paths(tree: int, folder: dict[str, Any]) -> list[int]:
    """The detached mount ``tree``, which is used up, once for each of the folder's places.

    ``hidden``, ``read_only`` and ``writable`` of ``folder`` are paths beneath it, or empty for all of it. Nobody reads
    the first, nobody changes the second but for the third, and none can be moved away. Raises ``OSError``, also where
    one of them is gone.
    """
    place = stage.COVERED if stat.S_ISDIR(os.fstat(tree).st_mode) else stage.COVERED_FILE
    try:
        kernel.move_mount(tree, place)
    finally:
        os.close(tree)
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


def _covers(folder: dict[str, Any], pins_all: bool) -> list[tuple[str, Any]]:
    """What covers which path, outer folders first. A folder on the way to what is read-only is made a mount of its own:
    then it cannot be renamed to make room for another. ``pins_all``: also on the way to what is hidden, where a renamed
    folder would be one on the host's disk, too."""
    covers = {}
    hidden, read_only = folder["hidden"], folder["read_only"]
    for path in (*read_only, *(hidden if pins_all else ())):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            covers["/".join(parts[:depth])] = _pin
    covers.update(dict.fromkeys(folder["writable"], _make_writable))
    covers.update(dict.fromkeys(read_only, _make_read_only))
    covers.update(dict.fromkeys(hidden, _hide))
    return sorted(covers.items(), key=lambda item: item[0].count("/") + (item[0] != ""))


def _cover_path(folder: str, path: str, cover: Any) -> None:
    try:
        _cover_opened(folder, path, cover)
    except OSError as error:
        detail = f"{path!a}, which is to be hidden or kept: {error.strerror}"
        raise OSError(error.errno, detail) from error


def _cover_opened(folder: str, path: str, cover: Any) -> None:
    """Lay something over what is at ``path`` of the folder now."""
    place = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        for name in filter(None, path.split("/")):
            inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = inner
        cover(place)
    finally:
        os.close(place)


def _hide(place: int) -> None:
    is_folder = stat.S_ISDIR(os.fstat(place).st_mode)
    _mount_over(stage.LOCKED if is_folder else stage.BLANK, place, _QUIET | kernel.ATTR_NOEXEC)


def _make_read_only(place: int) -> None:
    _mount_over(f"/proc/self/fd/{place}", place, kernel.ATTR_RDONLY)


def _make_writable(place: int) -> None:
    _mount_over(f"/proc/self/fd/{place}", place, 0, cleared=kernel.ATTR_RDONLY)


def _pin(place: int) -> None:
    _mount_over(f"/proc/self/fd/{place}", place, 0)


def _mount_over(source: str, place: int, attributes: int, *, cleared: int = 0) -> None:
    tree = kernel.open_tree(source, attributes=attributes)
    try:
        kernel.set_attributes(tree, 0, cleared=cleared)
        kernel.move_mount_onto(tree, place)
    finally:
        os.close(tree)


def mount_workspace(workspace: dict[str, Any], identity: Identity) -> list[int]:
    """The workspace once for each of its places, of which the first is /workspace, as detached mounts."""
    tree = _mount_tree(workspace, identity)
    return [tree] if is_plain(workspace) else cover_paths(tree, workspace)


def _mount_tree(workspace: dict[str, Any], identity: Identity) -> int:
    if workspace["kind"] == "private":
        if not os.path.lexists(f"{stage.SCRATCH}/workspace/output"):
            make_folder(f"{stage.SCRATCH}/workspace/output", 0o755, identity)
        return kernel.open_tree(f"{stage.SCRATCH}/workspace", recursive=False)
    folder = open_folder(workspace)
    try:
        mount = _bind_workspace if workspace["kind"] == "direct" else _overlay_workspace
        return mount(folder, identity)
    finally:
        os.close(folder)


def mount_copy(source: str, number: int, identity: Identity) -> int:
    """A folder of the host's under an overlay of its own, which goes with all that is written to it. Detached."""
    folder = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _make_upper(f"copy.{number}.", folder, identity, output=False)
        return _mount_overlay(folder, f"copy.{number}.", "", identity)
    finally:
        os.close(folder)


def open_folder(workspace: dict[str, Any]) -> int:
    """The caller's folder, opened once here; it must be the very one that the host checked."""
    fd = os.open(workspace["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    status = os.fstat(fd)
    if [status.st_dev, status.st_ino] != workspace["inode"]:
        os.close(fd)
        raise OSError(116, "the folder was replaced while the run was prepared")  # ESTALE
    return fd


def _overlay_workspace(folder: int, identity: Identity) -> int:
    """The caller's folder under an overlay of our own: what is written stays in the scratch."""
    _make_upper("", folder, identity, output=_may_have_output(folder))
    inputs = f"{stage.SCRATCH}/inputs:" if os.path.isdir(f"{stage.SCRATCH}/inputs") else ""
    return _mount_overlay(folder, "", inputs, identity)


def _make_upper(name: str, folder: int, identity: Identity, *, output: bool) -> None:
    """The overlay's upper directory, unless it is there since an earlier cell."""
    upper = f"{stage.SCRATCH}/{name}upper"
    if not os.path.isdir(upper):
        make_folder(upper, os.fstat(folder).st_mode & 0o777 | 0o700, identity)
        make_folder(f"{stage.SCRATCH}/{name}work", 0o700, identity)
        if output:
            make_folder(f"{upper}/output", 0o755, identity)


def _mount_overlay(folder: int, name: str, inputs: str, identity: Identity) -> int:
    """``folder`` under an overlay whose directories in the scratch begin with ``name``.

    ``inputs``: another lower directory.
    """
    status = os.fstat(folder)
    upper, work = f"{stage.SCRATCH}/{name}upper", f"{stage.SCRATCH}/{name}work"
    lower = f"/proc/self/fd/{folder}"
    # Without xino: its numbers pass 2**53, where Node takes those of two files for one.
    options = {"lowerdir": inputs + lower, "upperdir": upper, "workdir": work}
    if not identity.mapped:
        return kernel.new_mount("overlay", {**options, "userxattr": ""}, ATTRIBUTES)
    trusted_options = {**options, "redirect_dir": "off", "metacopy": "off", "index": "off"}
    if status.st_uid == identity.uid:
        return kernel.new_mount("overlay", trusted_options, ATTRIBUTES)
    mapped = kernel.open_tree(lower)
    try:
        _map_owner(mapped, status, identity)
        kernel.move_mount(mapped, stage.LOWER)
    finally:
        os.close(mapped)
    try:
        return kernel.new_mount("overlay", {**trusted_options, "lowerdir": inputs + stage.LOWER}, ATTRIBUTES)
    finally:
        kernel.unmount(stage.LOWER)


def _may_have_output(folder: int) -> bool:
    """Whether ``output/`` can be made without covering something else that has the name."""
    try:
        return stat.S_ISDIR(os.stat("output", dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True


def _bind_workspace(folder: int, identity: Identity) -> int:
    """The caller's folder itself, writable; sub-mounts too."""
    tree = kernel.open_tree(f"/proc/self/fd/{folder}", attributes=ATTRIBUTES)
    try:
        if identity.mapped:
            _map_owner(tree, os.fstat(folder), identity)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _map_owner(tree: int, status: os.stat_result, identity: Identity) -> None:
    """Show the files of the folder's owner as the cell's own."""
    namespace = identity.idmap_namespace((status.st_uid, status.st_gid))
    kernel.set_attributes(tree, kernel.ATTR_IDMAP, userns_fd=namespace, recursive=False)


def make_folder(path: str, mode: int, identity: Identity) -> None:
    """A folder of the cell's."""
    os.mkdir(path)
    os.chmod(path, mode)
    identity.chown(path)


def show_folder(mounts: int, source: str, target: str) -> None:
    """Mount ``source``, a folder of the host, at ``target``, an empty folder of the root of the mount namespace
    ``mounts``: read-only, without setuid programs and devices.

    ``source`` is looked up on the host. The root of a cell is read-only and holds no link of the cell's own making, so
    that ``target`` leads nowhere else. Raises ``OSError``.
    """
    tree = roots.bind(source)

    def attach() -> list[int]:
        kernel.move_mount(tree, target)
        return []

    try:
        namespaces.open_inside(mounts, kernel.CLONE_NEWNS, attach, target)
    finally:
        os.close(tree)
