"""The scratch: what is writable in one cell, prepared as detached mounts.

Everything a cell can write lies in one sized tmpfs, its *scratch*: the workspace (or the
upper directory over the caller's folder), /tmp and /dev/shm. One size and one number of inodes
bound them all, and the host reads what is left through one descriptor when the cell is dead.
"""

from __future__ import annotations

import os
import stat

from casemate.supervisor import folders, kernel, namespaces, roots, stage, wire
from casemate.supervisor.namespaces import Identity
from casemate.supervisor.trees.walk import open_beneath, open_folder

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any

OWN_INODES = 24  # folders the broker makes itself
_OWN_BYTES = 1 << 17  # pages the broker's own folders and the program's last page may take
_COPY_CHUNK = 1 << 24
STEPS = "program/steps"  # in the cell
_IN_CELL = "in_cell"  # the part of that file system which the cell sees; a pipe is moved there when it is ready
# A step has two pipes. Those of 64 steps are read, those of 16 may be written to by threads, and any by processes.
_MOST_PIPES = 512


class ScratchError(Exception):
    """The scratch of a cell cannot be prepared: which part, and why."""

    def __init__(self, part: str, error: OSError) -> None:
        super().__init__(f"{part}: {error.strerror or error}")
        self.part = part
        self.errno = error.errno or 0


class Scratch:
    """The writable part of one cell: detached mounts to attach inside it, and the descriptor to read it by.

    ``inodes``: as many as casemate itself has made in it. Of a session, whose files outlive a cell: ``whole`` is all
    of it once more, for the next cell, ``workspace_fd`` the workspace as the cell sees it, and ``steps_fd`` where the
    pipes of its steps are made: apart, so that no limit of the user's is in their way. ``program_fd``: to write the
    program by that a cell waits for, until the host has it, who may do that itself.
    """

    def __init__(self, tree_fd: int, identity: Identity) -> None:
        self.tree_fd = tree_fd
        self.identity = identity
        self.mounts: list[tuple[int, str]] = []
        self.extra_workspaces: list[int] = []  # the workspace at its other places, to be attached when all else is
        self.inodes = 0
        self.whole = -1
        self.workspace_fd = -1
        self.steps_fd = -1
        self.program_fd = -1
        self._step_writers: dict[int, list[int]] = {}  # our writing ends of pipes of steps that are not over

    def add_program(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Put the program and the input files of a cell that waited where they belong. Raises :class:`ScratchError`."""
        program, inputs = message["program"], index(fds)
        if program is None:
            return  # it lies there since the session's first cell
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
        """Put the input files into the workspace. Raises ``OSError``."""
        workspace = open_folder(self.tree_fd, "workspace")
        try:
            copy_files(workspace, inputs, fds, self.identity)
        finally:
            os.close(workspace)

    def _resize(self, limits: dict[str, Any], program: int, input_inodes: int) -> None:
        """Hold it to its limits, beyond what casemate itself puts there. Raises ``OSError``."""
        size, inodes = limits["disk"] + program + _OWN_BYTES, self.inodes + input_inodes + limits["inodes"]
        kernel.reconfigure(self.tree_fd, {"size": str(size), "nr_inodes": str(inodes)})

    def files_bytes(self) -> int:
        """Bytes of memory that the files in it take."""
        used = os.fstatvfs(self.tree_fd)
        return (used.f_blocks - used.f_bfree) * used.f_frsize

    def space_left(self) -> dict[str, int]:
        """What of its limits is not used, for the host."""
        usage = os.fstatvfs(self.tree_fd)
        return {"space_left": usage.f_bavail * usage.f_frsize, "inodes_left": usage.f_favail}

    is_watched = False  # whether nothing but looks holds it to its limits
    lays_out = False  # whether `lay_out` has anything to do

    def lay_out(self) -> None:
        """Nothing of the cell runs, and the host is to take its files: an overlay's upper directory is there as it is.
        Raises ``OSError``."""

    def put_off_layout(self) -> None:
        """Something of the cell still runs: have the host ask for its files."""

    def close_mounts(self) -> None:
        """Let go of the mounts, once the cell has them."""
        kernel.close_all((*(fd for fd, _ in self.mounts), *self.extra_workspaces))
        self.mounts, self.extra_workspaces = [], []

    def open_pipes(self, step: int) -> list[int]:
        """Two named pipes for a step of a session, ``out.N`` and ``err.N`` in `STEPS`: our ends, to read from.

        A cell can open them to write and for nothing else. Two steps have theirs ahead, so the names of the third last
        go. Raises ``OSError``.
        """
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
                os.chmod(hidden, 0o222)  # noqa: S103 - to write, and for nothing else
                os.rename(hidden, f"{place}.{step}")
        except BaseException:
            kernel.close_all(fds)
            raise
        return fds

    def end_pipes(self, step: int) -> None:
        """The step is over: its pipes end when nothing in the cell writes to them any more, and not before."""
        kernel.close_all(self._step_writers.pop(step, ()))

    def end_all_pipes(self) -> None:
        """There will be no more steps in this cell."""
        for step in list(self._step_writers):
            self.end_pipes(step)
        if self.steps_fd >= 0:
            os.close(self.steps_fd)
        self.steps_fd = -1

    def close_program(self) -> None:
        """Let go of the descriptor for the program: who writes it opens it again, or has it."""
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
    """Make the scratch of a cell, with the program and the input files in it as far as they are known.

    Raises :class:`ScratchError`.
    """
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
    """The scratch of a session's next cell: the same files. ``earlier`` is used up. Raises :class:`ScratchError`."""
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
    """Name, offset and length of each input file. In a file of its own: there may be more than a message holds."""
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
    """The mounts of what lies at ``stage.SCRATCH``, to be attached inside the cell."""
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
    """Attach each of ``trees`` at its place, which is made first where it lies in what is the cell's own."""
    scratch.mounts += zip(trees, map(_without_links, places), strict=True)
    for tree, place in zip(trees, places, strict=True):
        inside = _in_scratch(place, request["workspace"]["kind"]) if place.startswith(tuple(wire.OWN_PLACES)) else None
        if inside is not None:
            roots.make_parents(stage.SCRATCH, os.path.dirname(inside).removeprefix(stage.SCRATCH))
            _mount_point(inside, is_folder=stat.S_ISDIR(os.fstat(tree).st_mode))


def _without_links(place: str) -> str:
    """``place``, of what is the cell's own, as it is reached from outside, where the cell's links lead elsewhere."""
    for linked in ("/home/user/", "/var/tmp/"):
        if place.startswith(linked):
            return f"{wire.OWN_PLACES[linked]}/{place.removeprefix(linked)}"
    return place[1:]


def _inodes_in_use(tree_fd: int) -> int:
    usage = os.fstatvfs(tree_fd)
    return usage.f_files - usage.f_ffree


def _path_of(tree_fd: int) -> str:
    """A way to the scratch that needs no mount."""
    return f"/proc/self/fd/{tree_fd}"


def _own_binds(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The binds that lie in what is this cell's own; where they go is made, and links there too."""
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
    """Where ``target`` of the cell lies in the scratch; None when it is in a caller's folder and must be there."""
    folder, path = roots.own_place(target)
    is_inside = workspace == "private" or folder != "workspace"
    return f"{stage.SCRATCH}/{folder}/{path}" if is_inside else None


def _mount_point(place: str, *, is_folder: bool) -> None:
    if is_folder:
        roots.make_parents(stage.SCRATCH, place.removeprefix(stage.SCRATCH))
    else:
        _mount_file(place)


def _mount_file(place: str) -> None:
    """A file to mount on. In a session's next cell something may lie there that an earlier one has made."""
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        if not stat.S_ISREG(os.lstat(place).st_mode):
            raise roots.RootError(f"{place.removeprefix(stage.SCRATCH)} is no file in the cell any more") from None


def _copy_inputs(kind: str, inputs: list[Any], fds: dict[str, int], identity: Identity) -> None:
    """The input files: in a private workspace itself, over a caller's folder as a lower directory."""
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
    """Put the input files into ``folder`` (a descriptor), which may hold links of a stranger. Raises ``OSError``."""
    for name, offset, length in inputs:
        *above, last = name.split("/")
        parent = open_beneath(folder, above, make=True, owner=identity.owner)
        try:
            copy(fds["inputs"], offset, length, create(last, identity, parent))
        finally:
            os.close(parent)


def copy_in(path: str, source: int, offset: int, length: int, identity: Identity) -> None:
    """Copy bytes from a descriptor into a new file of the scratch. Raises ``OSError``."""
    copy(source, offset, length, create(path, identity))


def create(path: str, identity: Identity, folder: int | None = None) -> int:
    """A new file of the cell's, below ``folder`` where that is given, to write into. Raises ``OSError``."""
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
    """Copy bytes of a descriptor into another, which is closed, inside the kernel: they never pass through here.

    Raises ``OSError``.
    """
    end = offset + length
    try:
        while offset < end:
            sent = os.sendfile(target, source, offset, min(end - offset, _COPY_CHUNK))
            if sent == 0:
                raise OSError(5, "what is to be copied ended early")
            offset += sent
    finally:
        os.close(target)


def part(name: str) -> namespaces.setup_stage:
    """A block whose ``OSError`` becomes a :class:`ScratchError` that names the part."""
    return namespaces.setup_stage(name, ScratchError)
