"""The scratch: everything that one cell can write, prepared as detached mounts.

It is one tmpfs with the workspace (or the upper directory over the caller's folder), /tmp and /dev/shm. One limit on
size and one on inodes bound them all, and the host reads the files of a dead cell through one descriptor.
"""

from __future__ import annotations

import os
import stat

from casemate.supervisor import folders, kernel, namespaces, roots, stage, wire
from casemate.supervisor.namespaces import Identity
from casemate.supervisor.trees.walk import open_beneath, open_folder

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from typing import Any

OWN_INODES = 24  # for folders that the supervisor makes
_OWN_BYTES = 1 << 17  # for pages of the supervisor's folders and the program's last page
_COPY_CHUNK = 1 << 24
STEPS = "program/steps"  # in the cell
_IN_CELL = "in_cell"  # the folder of that file system that the cell sees; a pipe is moved there once it is ready
# A step has two pipes. Those of 64 steps are read, 16 may be written to by threads, and any number by processes.
_MOST_PIPES = 512


class ScratchError(Exception):
    """The scratch of a cell cannot be prepared. Has the part and the errno."""

    def __init__(self, part: str, error: OSError) -> None:
        super().__init__(f"{part}: {error.strerror or error}")
        self.part = part
        self.errno = error.errno or 0


class Scratch:
    """The writable part of one cell: detached mounts to attach inside it, and descriptors for the host."""

    def __init__(self, tree_fd: int, identity: Identity) -> None:
        self.tree_fd = tree_fd
        self.identity = identity
        self.mounts: list[tuple[int, str]] = []
        self.extra_workspaces: list[int] = []  # the workspace at its other places, to be attached last
        self.inodes = 0  # made by casemate itself
        self.whole = -1  # of a session: all of it once more, for the next cell
        self.workspace_fd = -1  # of a session: the workspace as the cell sees it
        self.steps_fd = -1  # of a session: where its pipes are made, outside the cell's disk limits
        self.program_fd = -1  # writes the program of a waiting cell, until the host has this descriptor
        self._step_writers: dict[int, list[int]] = {}  # our write ends of the pipes of unfinished steps

    def add_program(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Write the program and the input files of a cell that waited. Raises :class:`ScratchError`."""
        program, inputs = message["program"], index(fds)
        if program is None:
            return  # it is there since the session's first cell
        with part("program"):
            if inputs or program["size"] > wire.PROGRAM_BYTES or message["narrows"]:
                self._resize(message["limits"], program["size"], OWN_INODES + 4 * len(inputs))
            place = f"{_path_of(self.tree_fd)}/program/{program['name']}"
            fd = os.open(place, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            copy(fds["order_file"], message["order_size"], program["size"], fd)
        if inputs:
            with part("files"):
                before = _inodes_in_use(self.tree_fd)
                self.copy_files(inputs, fds)
                input_inodes = _inodes_in_use(self.tree_fd) - before
                self._resize(message["limits"], program["size"], input_inodes)

    def copy_files(self, inputs: list[Any], fds: dict[str, int]) -> None:
        """Copy the input files into the workspace. Raises ``OSError``."""
        workspace = open_folder(self.tree_fd, "workspace")
        try:
            copy_files(workspace, inputs, fds, self.identity)
        finally:
            os.close(workspace)

    def _resize(self, limits: dict[str, Any], program: int, input_inodes: int) -> None:
        size, inodes = limits["disk"] + program + _OWN_BYTES, self.inodes + input_inodes + limits["inodes"]
        kernel.reconfigure(self.tree_fd, {"size": str(size), "nr_inodes": str(inodes)})

    def files_bytes(self) -> int:
        """Memory in bytes that its files take."""
        used = os.fstatvfs(self.tree_fd)
        return (used.f_blocks - used.f_bfree) * used.f_frsize

    def space_left(self) -> dict[str, int]:
        """What is left of its limits, for the host."""
        usage = os.fstatvfs(self.tree_fd)
        return {"space_left": usage.f_bavail * usage.f_frsize, "inodes_left": usage.f_favail}

    is_watched = False  # whether only checks hold it to its limits
    lays_out = False  # whether `lay_out` has anything to do

    def lay_out(self) -> None:
        """Prepare an upper directory while nothing of the cell runs; overlays have one. Raises ``OSError``."""

    def put_off_layout(self) -> None:
        """Have the host request the files later, because the cell still runs."""

    def close_mounts(self) -> None:
        """Close the mounts, once the cell has them."""
        kernel.close_all((*(fd for fd, _ in self.mounts), *self.extra_workspaces))
        self.mounts, self.extra_workspaces = [], []

    def open_pipes(self, step: int) -> list[int]:
        """Make the named pipes ``out.N`` and ``err.N`` of a session's step in `STEPS`, and return our read ends. A cell
        can only write to them. Two steps have pipes in advance, so the names of step - 3 go. Raises ``OSError``."""
        fds: list[int] = []
        writers = self._step_writers[step] = []
        try:
            for name in ("out", "err"):
                place, hidden = f"{_path_of(self.steps_fd)}/{_IN_CELL}/{name}", f"{_path_of(self.steps_fd)}/{name}"
                if os.path.lexists(f"{place}.{step - 3}"):
                    os.unlink(f"{place}.{step - 3}")
                os.mkfifo(hidden, 0o600)
                fds.append(os.open(hidden, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
                writers.append(os.open(hidden, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
                os.chmod(hidden, 0o222)  # noqa: S103 - write only
                os.rename(hidden, f"{place}.{step}")
        except BaseException:
            kernel.close_all(fds)
            raise
        return fds

    def end_pipes(self, step: int) -> None:
        """Close our write ends of a step's pipes: they end once nothing in the cell writes to them."""
        kernel.close_all(self._step_writers.pop(step, ()))

    def end_all_pipes(self) -> None:
        """End all pipes of this cell."""
        for step in list(self._step_writers):
            self.end_pipes(step)
        if self.steps_fd >= 0:
            os.close(self.steps_fd)
        self.steps_fd = -1

    def close_program(self) -> None:
        """Close the descriptor for the program: its writer has its own by then."""
        if self.program_fd >= 0:
            os.close(self.program_fd)
        self.program_fd = -1

    def close(self) -> None:
        self.close_mounts()
        self.end_all_pipes()
        self.close_program()
        for fd in (self.tree_fd, self.whole, self.workspace_fd):
            if fd >= 0:
                os.close(fd)
        self.tree_fd = self.whole = self.workspace_fd = -1


def prepare(request: dict[str, Any], fds: dict[str, int], identity: Identity) -> Scratch:
    """Make a cell's scratch, with the program and input files that are already known. Raises :class:`ScratchError`."""
    program, inputs = request["program"], index(fds)
    size = request["limits"]["disk"] + (program["size"] if program else wire.PROGRAM_BYTES) + _OWN_BYTES
    inodes = request["limits"]["inodes"] + OWN_INODES
    with part("scratch"):
        tmpfs = kernel.new_mount(
            "tmpfs", {"size": str(size), "nr_inodes": str(inodes), "mode": "0755"}, folders.ATTRIBUTES
        )
        kernel.move_mount(tmpfs, stage.SCRATCH)
        os.close(tmpfs)
    try:
        return _make_contents(request, inputs, fds, identity)
    finally:
        kernel.unmount(stage.SCRATCH)


def prepare_again(request: dict[str, Any], earlier: Scratch) -> Scratch:
    """The scratch of a session's next cell, with the same files. Consumes ``earlier``. Raises :class:`ScratchError`."""
    try:
        with part("scratch"):
            kernel.move_mount(earlier.whole, stage.SCRATCH)
        try:
            return _reattach(request, earlier.inodes, earlier.identity)
        finally:
            kernel.unmount(stage.SCRATCH)
    finally:
        earlier.close()


def _reattach(request: dict[str, Any], inodes: int, identity: Identity) -> Scratch:
    scratch = Scratch(os.open(stage.SCRATCH, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), identity)
    try:
        _attach(request, scratch)
    except BaseException:
        scratch.close()
        raise
    scratch.inodes = inodes
    return scratch


def index(fds: dict[str, int]) -> list[Any]:
    """Name, offset and length of each input file. They come in a file, because a message may be too small."""
    if "index" not in fds:
        return []
    size = os.fstat(fds["index"]).st_size
    inputs: list[Any] = wire.decode(os.pread(fds["index"], size, 0))
    return inputs


def _make_contents(request: dict[str, Any], inputs: list[Any], fds: dict[str, int], identity: Identity) -> Scratch:
    program = request["program"]
    with part("scratch"):
        steps = ((STEPS, 0o755),) if request["session"] else ()
        for name, mode in (("tmp", 0o1777), ("tmp/.home", 0o700), ("shm", 0o1777), ("program", 0o755), *steps):
            folders.make_folder(f"{stage.SCRATCH}/{name}", mode, identity)
    with part("program"):
        if program:
            copy_in(f"{stage.SCRATCH}/program/{program['name']}", fds["program"], 0, program["size"], identity)
    scratch = Scratch(os.open(stage.SCRATCH, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), identity)
    try:
        with part("program"):
            if not program:
                scratch.program_fd = create(f"{stage.SCRATCH}/program/{request['program_name']}", identity)
        with part("files"):
            before = _inodes_in_use(scratch.tree_fd)
            _copy_inputs(request["workspace"]["kind"], inputs, fds, identity)
            input_inodes = _inodes_in_use(scratch.tree_fd) - before
        _attach(request, scratch)
        with part("scratch"):
            scratch.inodes = _inodes_in_use(scratch.tree_fd) - input_inodes
            kernel.reconfigure(scratch.tree_fd, {"nr_inodes": str(scratch.inodes + request["limits"]["inodes"])})
    except BaseException:
        scratch.close()
        raise
    return scratch


def _attach(request: dict[str, Any], scratch: Scratch) -> None:
    with part("workspace"):
        workspace, *scratch.extra_workspaces = folders.mount_workspace(request["workspace"], scratch.identity)
        scratch.mounts.append((workspace, "workspace"))
    with part("scratch"):
        for name, target, attributes in (
            ("tmp", "tmp", 0),
            ("shm", "dev/shm", 0),
            ("program", "program", kernel.ATTR_RDONLY),
        ):
            fd = kernel.open_tree(f"{stage.SCRATCH}/{name}", recursive=False, attributes=attributes)
            scratch.mounts.append((fd, target))
        if request["session"]:
            scratch.whole = kernel.open_tree(stage.SCRATCH, recursive=False)
            scratch.workspace_fd = os.dup(scratch.mounts[0][0])
            options = {"nr_inodes": str(_MOST_PIPES), "mode": "0755"}
            scratch.steps_fd = kernel.new_mount("tmpfs", options, folders.ATTRIBUTES)
            in_cell = f"{_path_of(scratch.steps_fd)}/{_IN_CELL}"
            os.mkdir(in_cell)
            os.chmod(in_cell, 0o755)  # noqa: S103
            steps = kernel.open_tree(in_cell, recursive=False, attributes=kernel.ATTR_RDONLY)
            scratch.mounts.append((steps, STEPS))
    with part("environment"):
        for entry in _own_binds(request):
            scratch.mounts.append((roots.bind(entry["source"]), _without_links(entry["target"])))
        for number, folder in enumerate(request["shown"]):
            source = folder["source"]
            tree = folders.mount_copy(source, number, scratch.identity) if folder["copied"] else roots.bind(source)
            _add_mounts(scratch, folders.cover_paths(tree, folder), folder["places"], request)
    with part("workspace"):
        others, scratch.extra_workspaces = scratch.extra_workspaces, []
        _add_mounts(scratch, others, request["workspace"]["places"][1:], request)


def _add_mounts(scratch: Scratch, trees: list[int], places: list[str], request: dict[str, Any]) -> None:
    """Attach each of ``trees`` at its place. A place in the scratch is made first."""
    scratch.mounts += zip(trees, map(_without_links, places), strict=True)
    for tree, place in zip(trees, places, strict=True):
        inside = _in_scratch(place, request["workspace"]["kind"]) if place.startswith(tuple(wire.OWN_PLACES)) else None
        if inside is not None:
            roots.make_parents(stage.SCRATCH, os.path.dirname(inside).removeprefix(stage.SCRATCH))
            _mount_point(inside, is_folder=stat.S_ISDIR(os.fstat(tree).st_mode))


def _without_links(place: str) -> str:
    """``place`` as reached from outside the cell, without the links of the cell's root."""
    for linked in ("/home/user/", "/var/tmp/"):
        if place.startswith(linked):
            return f"{wire.OWN_PLACES[linked]}/{place.removeprefix(linked)}"
    return place[1:]


def _inodes_in_use(tree_fd: int) -> int:
    usage = os.fstatvfs(tree_fd)
    return usage.f_files - usage.f_ffree


def _path_of(tree_fd: int) -> str:
    """A path to the scratch that needs no mount."""
    return f"/proc/self/fd/{tree_fd}"


def _own_binds(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The binds in the cell's own places. Makes their mount points, and the links there."""
    binds = []
    for entry in request["own_entries"]:
        place = _in_scratch(entry["target"], request["workspace"]["kind"])
        if place is not None:
            roots.make_parents(stage.SCRATCH, os.path.dirname(place).removeprefix(stage.SCRATCH))
        if entry["kind"] == "link":
            if place is not None and not os.path.lexists(place):
                os.symlink(entry["points_to"], place)
            continue
        if place is not None:
            _mount_point(place, is_folder=os.path.isdir(entry["source"]))
        binds.append(entry)
    return binds


def _in_scratch(target: str, workspace: str) -> str | None:
    """The path of ``target`` in the scratch; None if it is in a caller's folder, where it must exist."""
    folder, path = roots.own_place(target)
    is_inside = workspace == "private" or folder != "workspace"
    return f"{stage.SCRATCH}/{folder}/{path}" if is_inside else None


def _mount_point(place: str, *, is_folder: bool) -> None:
    if is_folder:
        roots.make_parents(stage.SCRATCH, place.removeprefix(stage.SCRATCH))
    else:
        _mount_file(place)


def _mount_file(place: str) -> None:
    """Make a file to mount on. An earlier cell of the session may have left something there."""
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        if not stat.S_ISREG(os.lstat(place).st_mode):
            raise roots.RootError(f"{place.removeprefix(stage.SCRATCH)} is no longer a file in the cell") from None


def _copy_inputs(kind: str, inputs: list[Any], fds: dict[str, int], identity: Identity) -> None:
    """Copy the input files: into a private workspace, or into a lower directory over a caller's folder."""
    name = "workspace" if kind == "private" else "inputs"
    if kind != "private" and not inputs:
        return
    folders.make_folder(f"{stage.SCRATCH}/{name}", 0o755, identity)
    folder = os.open(f"{stage.SCRATCH}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        copy_files(folder, inputs, fds, identity)
    finally:
        os.close(folder)


def copy_files(folder: int, inputs: list[Any], fds: dict[str, int], identity: Identity) -> None:
    """Copy the input files into the folder descriptor ``folder``, which may hold hostile links. Raises ``OSError``."""
    for name, offset, length in inputs:
        *above, last = name.split("/")
        parent = open_beneath(folder, above, make=True, owner=identity.owner)
        try:
            copy(fds["inputs"], offset, length, create(last, identity, parent))
        finally:
            os.close(parent)


def copy_in(path: str, source: int, offset: int, length: int, identity: Identity) -> None:
    """Copy bytes of a descriptor into a new file of the scratch. Raises ``OSError``."""
    copy(source, offset, length, create(path, identity))


def create(path: str, identity: Identity, folder: int | None = None) -> int:
    """A new file owned by the cell, open for writing, relative to ``folder`` if given. Raises ``OSError``."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path, flags, 0o644, dir_fd=folder)
    try:
        if identity.owner:
            os.fchown(fd, *identity.owner)
    except OSError:
        os.close(fd)
        raise
    return fd


def copy(source: int, offset: int, length: int, target: int) -> None:
    """Copy bytes of a descriptor to another, which is closed. They stay in the kernel. Raises ``OSError``."""
    end = offset + length
    try:
        while offset < end:
            sent = os.sendfile(target, source, offset, min(end - offset, _COPY_CHUNK))
            if sent == 0:
                raise OSError(5, "the source of a copy ended early")
            offset += sent
    finally:
        os.close(target)


def part(name: str) -> namespaces.setup_stage:
    """A block that turns ``OSError`` into a :class:`ScratchError` with the part."""
    return namespaces.setup_stage(name, ScratchError)
