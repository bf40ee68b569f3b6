"""The mount of a cell's workspace: a private folder, a caller's under a layer, or a caller's itself."""

from __future__ import annotations

import os
import stat

from casemate.supervisor import guards, kernel, stage
from casemate.supervisor.identity import Identity

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any

ATTRIBUTES = kernel.ATTR_NOSUID | kernel.ATTR_NODEV


def mounts(workspace: dict[str, Any], identity: Identity) -> list[int]:
    """The workspace once for each of its places, of which the first is /workspace, as detached mounts."""
    tree = _mount(workspace, identity)
    return [tree] if guards.is_plain(workspace) else guards.guarded(tree, workspace)


def _mount(workspace: dict[str, Any], identity: Identity) -> int:
    if workspace["kind"] == "private":
        if not os.path.lexists(f"{stage.SCRATCH}/workspace/output"):
            make_folder(f"{stage.SCRATCH}/workspace/output", 0o755, identity)
        return kernel.open_tree(f"{stage.SCRATCH}/workspace", recursive=False)
    folder = _open_folder(workspace)
    try:
        return _direct(folder, identity) if workspace["kind"] == "direct" else _overlay(folder, identity)
    finally:
        os.close(folder)


def copied(source: str, number: int, identity: Identity) -> int:
    """A folder of the host's under a layer of its own, with which all that is written is gone. Detached."""
    folder = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _make_layer(f"layer.{number}.", folder, identity, output=False)
        return _layered(folder, f"layer.{number}.", "", identity)
    finally:
        os.close(folder)


def _open_folder(workspace: dict[str, Any]) -> int:
    """The caller's folder, opened once here; it must be the very one that the host checked."""
    fd = os.open(workspace["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    found = os.fstat(fd)
    if [found.st_dev, found.st_ino] != workspace["inode"]:
        os.close(fd)
        raise OSError(116, "the folder was replaced while the run was prepared")  # ESTALE
    return fd


def _overlay(folder: int, identity: Identity) -> int:
    """The caller's folder under a layer of our own: what is written stays in the scratch."""
    _make_layer("", folder, identity, output=_may_have_output(folder))
    given = f"{stage.SCRATCH}/inputs:" if os.path.isdir(f"{stage.SCRATCH}/inputs") else ""
    return _layered(folder, "", given, identity)


def _make_layer(name: str, folder: int, identity: Identity, *, output: bool) -> None:
    """A layer for what is written, unless it is there since an earlier cell."""
    upper = f"{stage.SCRATCH}/{name}upper"
    if not os.path.isdir(upper):
        make_folder(upper, os.fstat(folder).st_mode & 0o777 | 0o700, identity)
        make_folder(f"{stage.SCRATCH}/{name}work", 0o700, identity)
        if output:
            make_folder(f"{upper}/output", 0o755, identity)


def _layered(folder: int, name: str, given: str, identity: Identity) -> int:
    """``folder`` under a layer in the scratch whose own folders' names begin with ``name``; ``given``: more layers."""
    status = os.fstat(folder)
    upper, work = f"{stage.SCRATCH}/{name}upper", f"{stage.SCRATCH}/{name}work"
    lower = f"/proc/self/fd/{folder}"
    options = {"lowerdir": given + lower, "upperdir": upper, "workdir": work}
    if not identity.mapped:
        return kernel.new_mount("overlay", {**options, "userxattr": ""}, ATTRIBUTES)
    whole = {**options, "redirect_dir": "off", "metacopy": "off", "index": "off"}
    if status.st_uid == identity.uid:
        return kernel.new_mount("overlay", whole, ATTRIBUTES)
    mapped = kernel.open_tree(lower)
    try:
        owner = (status.st_uid, status.st_gid)
        kernel.set_attributes(mapped, kernel.ATTR_IDMAP, userns_fd=identity.namespace_for(owner), recursive=False)
        kernel.move_mount(mapped, stage.LOWER)
    finally:
        os.close(mapped)
    try:
        return kernel.new_mount("overlay", {**whole, "lowerdir": given + stage.LOWER}, ATTRIBUTES)
    finally:
        kernel.unmount(stage.LOWER)


def _may_have_output(folder: int) -> bool:
    """Whether ``output/`` can be made without covering something else that has the name."""
    try:
        return stat.S_ISDIR(os.stat("output", dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True


def _direct(folder: int, identity: Identity) -> int:
    """The caller's folder itself, writable; sub-mounts too."""
    tree = kernel.open_tree(f"/proc/self/fd/{folder}")
    try:
        kernel.set_attributes(tree, ATTRIBUTES)
        if identity.mapped:
            status = os.fstat(folder)
            owner = (status.st_uid, status.st_gid)
            kernel.set_attributes(tree, kernel.ATTR_IDMAP, userns_fd=identity.namespace_for(owner), recursive=False)
    except BaseException:
        os.close(tree)
        raise
    return tree


def make_folder(path: str, mode: int, identity: Identity) -> None:
    """A folder of the cell's."""
    os.mkdir(path)
    os.chmod(path, mode)
    identity.give(path)
