"""The mount broker: what is writable in one cell, prepared as detached mounts.

Everything a cell can write lies in one sized tmpfs, its *scratch*: the workspace (or the
upper layer over the caller's folder), /tmp and /dev/shm. One size and one number of inodes
bound them all, and the host reads what is left through one descriptor when the cell is dead.
"""

from __future__ import annotations

import os
import stat

from casemate.supervisor import enter, kernel, roots, stage, wire

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any

_ATTRIBUTES = kernel.ATTR_NOSUID | kernel.ATTR_NODEV
_OWN_INODES = 24  # folders the broker makes itself
_OWN_BYTES = 1 << 17  # pages the broker's own folders and the program's last page may take
_PROGRAM_BYTES = 1 << 16  # room that a cell has for a program that it does not know yet
_COPY_CHUNK = 1 << 24


class BrokerError(Exception):
    """The scratch of a cell cannot be prepared: which part, and why."""

    def __init__(self, part: str, error: OSError) -> None:
        super().__init__(f"{part}: {error.strerror or error}")
        self.part = part
        self.errno = error.errno or 0


class Scratch:
    """The writable part of one cell: detached mounts to attach inside it, and the descriptor to read it by.

    ``inodes``: as many as casemate itself has made in it.
    """

    def __init__(self, tree_fd: int, mounts: list[tuple[int, str]]) -> None:
        self.tree_fd = tree_fd
        self.mounts = mounts
        self.inodes = 0

    def begin(self, message: dict[str, Any], fds: dict[str, int], identity: Identity) -> None:
        """Put the program and the given files of a cell that waited where they belong. Raises :class:`BrokerError`."""
        program, inputs = message["program"], _index(fds)
        with _part("program"):
            if inputs or program["size"] > _PROGRAM_BYTES or message["narrow"]:
                self._resize(message["limits"], program["size"], _OWN_INODES + 4 * len(inputs))
            if "content" in program:
                _write_program(self.tree_fd, program["name"], program["content"], identity)
            else:
                place = f"{_path_of(self.tree_fd)}/program/{program['name']}"
                _copy_in(place, fds["program"], 0, program["size"], identity)
        if inputs:
            with _part("files"):
                before = _inodes_made(self.tree_fd)
                _put_files(f"{_path_of(self.tree_fd)}/workspace", inputs, fds, identity)
                given = _inodes_made(self.tree_fd) - before
                self._resize(message["limits"], program["size"], given)

    def _resize(self, limits: dict[str, Any], program: int, given: int) -> None:
        """Hold it to its limits, beyond what casemate itself puts there. Raises ``OSError``."""
        size, inodes = limits["disk"] + program + _OWN_BYTES, self.inodes + 1 + given + limits["inodes"]
        kernel.reconfigure(self.tree_fd, {"size": str(size), "nr_inodes": str(inodes)})

    def files_bytes(self) -> int:
        """Bytes of memory that the files in it take."""
        used = os.fstatvfs(self.tree_fd)
        return (used.f_blocks - used.f_bfree) * used.f_frsize

    def space_left(self) -> dict[str, int]:
        """What of its limits is not used, as told to the host."""
        left = os.fstatvfs(self.tree_fd)
        return {"space_left": left.f_bavail * left.f_frsize, "inodes_left": left.f_favail}

    def close_mounts(self) -> None:
        """Let go of the mounts, once the cell has them."""
        for fd, _ in self.mounts:
            os.close(fd)
        self.mounts = []

    def close(self) -> None:
        self.close_mounts()
        if self.tree_fd >= 0:
            os.close(self.tree_fd)
            self.tree_fd = -1


class Identity:
    """Who a cell is on the host. ``mapped``: the supervisor is real root and must give files away."""

    def __init__(self, uid: int, gid: int, *, mapped: bool) -> None:
        self.uid = uid
        self.gid = gid
        self.mapped = mapped
        self._namespaces: dict[tuple[int, int], int] = {}

    def give(self, path: str) -> None:
        """Make the cell the owner of ``path``."""
        if self.mapped:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def give_fd(self, fd: int) -> None:
        """Let the cell reopen what it holds (``>/dev/stderr``): only pipes and files without a name are given away."""
        status = os.fstat(fd)
        if self.mapped and (stat.S_ISFIFO(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 0)):
            os.fchown(fd, self.uid, self.gid)

    def as_cell(self) -> _AsCell:
        """A block in which our real ids are a cell's: root without CAP_SYS_RESOURCE may lower limits only of processes
        that have the same (prlimit(2))."""
        return _AsCell(self)

    def namespace_for(self, owner: tuple[int, int]) -> int:
        """A user namespace that shows the files of ``owner`` as the cell's own (mount_setattr(2), idmapped mounts)."""
        if owner not in self._namespaces:
            maps = (f"{owner[0]} {self.uid} 1", f"{owner[1]} {self.gid} 1")
            self._namespaces[owner] = enter.userns_with_map(*maps)
        return self._namespaces[owner]


def prepare(request: dict[str, Any], fds: dict[str, int], identity: Identity) -> Scratch:
    """Make the scratch of a cell, with the program and the given files in it as far as they are known.

    Raises :class:`BrokerError`.
    """
    program, inputs = request["program"], _index(fds)
    size = request["limits"]["disk"] + (program["size"] if program else _PROGRAM_BYTES) + _OWN_BYTES
    inodes = request["limits"]["inodes"] + _OWN_INODES
    with _part("scratch"):
        tmpfs = kernel.new_mount("tmpfs", {"size": str(size), "nr_inodes": str(inodes), "mode": "0755"}, _ATTRIBUTES)
        kernel.move_mount(tmpfs, stage.SCRATCH)
        os.close(tmpfs)
    try:
        return _fill(request, inputs, fds, identity)
    finally:
        kernel.unmount(stage.SCRATCH)


def _index(fds: dict[str, int]) -> list[Any]:
    """Name, offset and length of each given file. In a file of its own: there may be more than a message holds."""
    if "index" not in fds:
        return []
    size = os.fstat(fds["index"]).st_size
    inputs: list[Any] = wire.decode(os.pread(fds["index"], size, 0))
    return inputs


def _fill(request: dict[str, Any], inputs: list[Any], fds: dict[str, int], identity: Identity) -> Scratch:
    program = request["program"]
    with _part("scratch"):
        for name, mode in (("tmp", 0o1777), ("tmp/.home", 0o700), ("shm", 0o1777), ("program", 0o755)):
            _folder(f"{stage.SCRATCH}/{name}", mode, identity)
    with _part("program"):
        if program:
            _copy_in(f"{stage.SCRATCH}/program/{program['name']}", fds["program"], 0, program["size"], identity)
    scratch = Scratch(os.open(stage.SCRATCH, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), [])
    try:
        with _part("files"):
            before = _inodes_made(scratch.tree_fd)
            _take_files(request["workspace"]["kind"], inputs, fds, identity)
            given = _inodes_made(scratch.tree_fd) - before
        with _part("workspace"):
            scratch.mounts.append((_workspace(request["workspace"], identity), "workspace"))
        with _part("scratch"):
            for name, target in (("tmp", "tmp"), ("shm", "dev/shm"), ("program", "program")):
                fd = kernel.open_tree(f"{stage.SCRATCH}/{name}", recursive=False)
                scratch.mounts.append((fd, target))
            kernel.set_attributes(scratch.mounts[-1][0], kernel.ATTR_RDONLY, recursive=False)
        with _part("environment"):
            for entry in _places(request):
                scratch.mounts.append((roots.bind(entry["source"]), entry["target"][1:]))
        with _part("scratch"):
            scratch.inodes = _inodes_made(scratch.tree_fd) - given
            most = scratch.inodes + (0 if program else 1) + request["limits"]["inodes"]
            kernel.reconfigure(scratch.tree_fd, {"nr_inodes": str(most)})
    except BaseException:
        scratch.close()
        raise
    return scratch


def _inodes_made(tree_fd: int) -> int:
    made = os.fstatvfs(tree_fd)
    return made.f_files - made.f_ffree


def _path_of(tree_fd: int) -> str:
    """A way to the scratch that needs no mount."""
    return f"/proc/self/fd/{tree_fd}"


def _write_program(tree_fd: int, name: str, content: bytes, identity: Identity) -> None:
    """A small program, straight from the message that brought it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(f"program/{name}", flags, 0o644, dir_fd=tree_fd)
    try:
        if os.write(fd, content) != len(content):
            raise OSError(28, os.strerror(28))
        if identity.mapped:
            os.fchown(fd, identity.uid, identity.gid)
    finally:
        os.close(fd)


def _places(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The binds that lie in what is this cell's own; where they go is made, and links there too."""
    binds = []
    for entry in request["late"]:
        place = _in_scratch(entry["target"], request["workspace"]["kind"])
        if place is not None:
            roots.make_parents(stage.SCRATCH, os.path.dirname(place).removeprefix(stage.SCRATCH))
        if entry["kind"] == "link":
            if place is not None:
                os.symlink(entry["points_to"], place)
            continue
        if place is not None:
            _mount_point(place, is_folder=os.path.isdir(entry["source"]))
        binds.append(entry)
    return binds


def _in_scratch(target: str, workspace: str) -> str | None:
    """Where ``target`` of the cell lies in the scratch; None when it is in a caller's folder and must be there."""
    for prefix, folder in wire.OWN_PLACES.items():
        if target.startswith(prefix):
            inside = workspace == "private" or folder != "workspace"
            return f"{stage.SCRATCH}/{folder}/{target.removeprefix(prefix)}" if inside else None
    raise OSError(22, f"{target} is not in what is the cell's own")


def _mount_point(place: str, *, is_folder: bool) -> None:
    if is_folder:
        roots.make_parents(stage.SCRATCH, place.removeprefix(stage.SCRATCH))
    else:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))


def _take_files(kind: str, inputs: list[Any], fds: dict[str, int], identity: Identity) -> None:
    """The given files: in a private workspace itself, over a caller's folder as a layer that nothing writes back."""
    folder = f"{stage.SCRATCH}/{'workspace' if kind == 'private' else 'inputs'}"
    if kind == "private" or inputs:
        _folder(folder, 0o755, identity)
    _put_files(folder, inputs, fds, identity)


def _put_files(folder: str, inputs: list[Any], fds: dict[str, int], identity: Identity) -> None:
    for name, offset, length in inputs:
        _parents(folder, name, identity)
        _copy_in(f"{folder}/{name}", fds["inputs"], offset, length, identity)


def _workspace(workspace: dict[str, Any], identity: Identity) -> int:
    """The mount of /workspace, detached."""
    if workspace["kind"] == "private":
        if not os.path.lexists(f"{stage.SCRATCH}/workspace/output"):
            _folder(f"{stage.SCRATCH}/workspace/output", 0o755, identity)
        return kernel.open_tree(f"{stage.SCRATCH}/workspace", recursive=False)
    folder = _open_folder(workspace)
    try:
        return _direct(folder, identity) if workspace["kind"] == "direct" else _overlay(folder, identity)
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
    status = os.fstat(folder)
    _folder(f"{stage.SCRATCH}/upper", status.st_mode & 0o777 | 0o700, identity)
    _folder(f"{stage.SCRATCH}/work", 0o700, identity)
    if _may_have_output(folder):
        _folder(f"{stage.SCRATCH}/upper/output", 0o755, identity)
    lower = f"/proc/self/fd/{folder}"
    given = f"{stage.SCRATCH}/inputs:" if os.path.isdir(f"{stage.SCRATCH}/inputs") else ""
    options = {"lowerdir": given + lower, "upperdir": f"{stage.SCRATCH}/upper", "workdir": f"{stage.SCRATCH}/work"}
    if not identity.mapped:
        return kernel.new_mount("overlay", {**options, "userxattr": ""}, _ATTRIBUTES)
    whole = {**options, "redirect_dir": "off", "metacopy": "off", "index": "off"}
    if status.st_uid == identity.uid:
        return kernel.new_mount("overlay", whole, _ATTRIBUTES)
    mapped = kernel.open_tree(lower)
    try:
        owner = (status.st_uid, status.st_gid)
        kernel.set_attributes(mapped, kernel.ATTR_IDMAP, userns_fd=identity.namespace_for(owner), recursive=False)
        kernel.move_mount(mapped, stage.LOWER)
    finally:
        os.close(mapped)
    try:
        return kernel.new_mount("overlay", {**whole, "lowerdir": given + stage.LOWER}, _ATTRIBUTES)
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
        kernel.set_attributes(tree, _ATTRIBUTES)
        if identity.mapped:
            status = os.fstat(folder)
            owner = (status.st_uid, status.st_gid)
            kernel.set_attributes(tree, kernel.ATTR_IDMAP, userns_fd=identity.namespace_for(owner), recursive=False)
    except BaseException:
        os.close(tree)
        raise
    return tree


def _folder(path: str, mode: int, identity: Identity) -> None:
    os.mkdir(path)
    os.chmod(path, mode)
    identity.give(path)


def _parents(folder: str, name: str, identity: Identity) -> None:
    parts = name.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        path = f"{folder}/{'/'.join(parts[:depth])}"
        if not os.path.isdir(path):
            _folder(path, 0o755, identity)


def _copy_in(path: str, source: int, offset: int, length: int, identity: Identity) -> None:
    """Copy bytes from a descriptor into the scratch inside the kernel; they never pass through this process."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        end = offset + length
        while offset < end:
            sent = os.sendfile(fd, source, offset, min(end - offset, _COPY_CHUNK))
            if sent == 0:
                raise OSError(5, f"{os.path.basename(path)} ended early")
            offset += sent
        if identity.mapped:
            os.fchown(fd, identity.uid, identity.gid)
    finally:
        os.close(fd)


class _part:  # noqa: N801 - reads as a statement
    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            raise BrokerError(self.name, error) from error


class _AsCell:
    def __init__(self, identity: Identity) -> None:
        self.identity = identity

    def __enter__(self) -> None:
        if self.identity.mapped:
            os.setresgid(self.identity.gid, -1, -1)
            os.setresuid(self.identity.uid, -1, -1)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.identity.mapped:
            os.setresuid(0, -1, -1)
            os.setresgid(0, -1, -1)
