"""The files of cells without mounts: a folder for each, removed once neither a cell nor the host uses it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os

from casemate.supervisor import folders, roots, scratch
from casemate.supervisor.namespaces import Identity
from casemate.supervisor.plain import packages
from casemate.supervisor.trees.copies import FolderCopy
from casemate.supervisor.trees.remove import remove_entry, remove_folder, remove_when_unused
from casemate.supervisor.trees.walk import Entry, Visitor, enter_folder, open_folder, walk

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from casemate.supervisor.plain.places import Table

_FOLDERS = (("workspace", 0o755), ("tmp", 0o700), ("tmp/.home", 0o700))  # where the cell can write
_STEPS_LINK = "../steps/in_cell"  # target of the link /program/steps
_CURRENT = "current"  # a link in a package folder that changes with each installation
_GUEST = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "guest")
_MOST_DEPTH = 200  # nested folders that a count visits


class CellFiles(scratch.Scratch):
    """The writable part of one cell, in the folder ``path``. Copies of ``tree_fd`` keep the folder (flock(2))."""

    is_watched = True

    def __init__(self, path: str, identity: Identity, limits: dict[str, Any]) -> None:
        super().__init__(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), identity)
        fcntl.flock(self.tree_fd, fcntl.LOCK_SH)
        self.path = path
        self.limits = limits
        self.is_kept = False  # whether its folder stays after `close`
        self._own = (0, 0)  # bytes and number of files that the program did not make
        self.workspace: dict[str, Any] | None = None  # a caller's folder that is still to be copied
        self.copy: FolderCopy | None = None  # of a caller's folder
        self.places: Table = []  # real paths of the cell's places
        self.readable: list[str] = []  # paths of the machine that the cell may read
        self.writable: list[str] = []
        self.packages: dict[str, str] = {}  # folders of packages installed for all cells, by place
        self._shown: dict[str, str] = {}

    def show_packages(self) -> None:
        """Show the packages that were installed for all cells since the last call. Raises ``OSError``."""
        for place, source in self.packages.items():
            link = f"{source}/{_CURRENT}"
            current = os.readlink(link) if os.path.islink(link) else ""
            if self._shown.get(place) != current:
                remove_folder(packages.show(source, self.path + place, self.places))
                self._shown[place] = current

    def add_program(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Write the program and the input files of a cell that waited. Raises ``ScratchError``."""
        self.limits = message["limits"]
        with scratch.part("environment"):
            self.show_packages()
        program = message["program"]
        if program:  # else the session's first cell has it
            self.put_program(program, fds, fds["order_file"], message["order_size"])

    def put_program(self, program: dict[str, Any], fds: dict[str, int], source: int, offset: int) -> None:
        """Copy the caller's folder as it is now. Write the program and the input files. Raises ``ScratchError``."""
        self.copy_folder()
        with scratch.part("program"):
            place = f"{self.path}/program/{program['name']}"
            scratch.copy_in(place, source, offset, program["size"], self.identity)
        with scratch.part("files"):
            self.copy_files(scratch.index(fds), fds)
            self.note_folder()

    @property
    def lays_out(self) -> bool:  # type: ignore[override]
        return self.copy is not None

    def copy_folder(self) -> None:
        """Copy the caller's folder, if any. Raises ``ScratchError``."""
        workspace, self.workspace = self.workspace, None
        if workspace:
            with scratch.part("workspace"):
                self.copy = FolderCopy(self.identity.owner)
                self._copy_in(self.copy, workspace)

    def _copy_in(self, copy: FolderCopy, workspace: dict[str, Any]) -> None:
        if workspace["kind"] == "direct":
            raise OSError(errno.EOPNOTSUPP, "this wall copies a folder into the cell and cannot write through to it")
        os.close(enter_folder(self.tree_fd, "upper"))
        folder = folders.open_folder(workspace)
        try:
            with self._open("workspace") as place:
                copy.fill(folder, place, workspace["hidden"])
        finally:
            os.close(folder)

    def note_folder(self) -> None:
        """Take the workspace in its current state as unchanged. Raises ``OSError``."""
        with self._open("workspace") as place:
            if self.copy:
                self.copy.note(place)
                self._own = self._usage()
            with contextlib.suppress(OSError):  # the caller's folder has something else of that name
                os.close(enter_folder(place, "output", self.identity.owner))

    def lay_out(self) -> None:
        """Lay out the changes of a caller's folder for the host. Raises ``OSError``."""
        if self.copy:
            os.close(enter_folder(self.tree_fd, "upper"))
            try:
                with self._open("workspace") as place, self._open("upper") as upper:
                    self.copy.lay_out(place, upper)
            except BaseException:  # so that nothing is applied
                remove_entry(self.tree_fd, "upper")
                raise

    def put_off_layout(self) -> None:
        """See `Scratch`. A new entry makes the host notice a change."""
        with contextlib.suppress(OSError), self._open("upper") as upper:
            os.mkdir(os.urandom(8).hex(), dir_fd=upper)

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[int]:
        folder = open_folder(self.tree_fd, name, unlock=True)
        try:
            yield folder
        finally:
            os.close(folder)

    def files_bytes(self) -> int:
        """0, because the files are on disk and take no memory."""
        return 0

    def space_left(self) -> dict[str, int]:
        """What is left of its limits, for the host."""
        size, count = self._usage()
        disk, inodes = self.limits["disk"] - size + self._own[0], self.limits["inodes"] - count + self._own[1]
        return {"space_left": max(0, disk), "inodes_left": max(0, inodes)}

    def _usage(self) -> tuple[int, int]:
        usage, most = _DiskUse(), 2 * (self.limits["inodes"] + self._own[1])
        for name in ("workspace", "tmp"):
            with self._open(name) as folder:
                walk(folder, usage, depth=_MOST_DEPTH, entries=most)
        return usage.size, usage.count

    def close(self) -> None:
        super().close()
        if not self.is_kept:
            remove_when_unused(self.path)

    def open_session(self) -> None:
        """Open two folders of a session: its workspace, for the host, and the folder of its steps' pipes."""
        self.workspace_fd = open_folder(self.tree_fd, "workspace", unlock=True)
        self.steps_fd = open_folder(self.tree_fd, "steps")


def create(path: str, request: dict[str, Any], fds: dict[str, int], identity: Identity) -> CellFiles:
    """Make the folder ``path`` with the program and the input files that are already known. Raises ``ScratchError``."""
    with scratch.part("scratch"):
        if not os.path.isdir(f"{path}/program"):
            make_folders(path, identity)
        files = CellFiles(path, identity, request["limits"])
    try:
        if request["workspace"]["kind"] != "private":
            files.workspace = request["workspace"]
        if request["program"]:
            files.put_program(request["program"], fds, fds["program"], 0)
        if request["session"]:
            files.open_session()
    except BaseException:
        files.close()
        raise
    return files


def make_folders(path: str, identity: Identity) -> None:
    """Make the empty folders of a cell at ``path``. Raises ``OSError``."""
    os.makedirs(path, 0o700, exist_ok=True)
    for name, mode in _FOLDERS:
        folders.make_folder(f"{path}/{name}", mode, identity)
    for name in ("program", "steps", "steps/in_cell"):
        os.mkdir(f"{path}/{name}", 0o755)
    os.symlink(_STEPS_LINK, f"{path}/program/steps")
    os.mkdir(f"{path}/opt", 0o755)
    os.symlink(_GUEST, f"{path}/opt/casemate")
    os.makedirs(f"{path}/packages/.none", 0o755)
    os.symlink("../../opt/casemate/node_packages", f"{path}/packages/.none/node_modules")
    os.symlink(".none", f"{path}/packages/node")
    os.symlink(roots.INSTALLED_NODE, path + roots.NODE_MODULES)
    identity.chown(path)


class _DiskUse(Visitor):
    """Counts files and their bytes on disk, without unreadable ones."""

    def __init__(self) -> None:
        self.size = self.count = 0

    def enter(self, entry: Entry, _folder: int) -> bool:
        self.visit(entry)
        return True

    def visit(self, entry: Entry) -> None:
        self.size += entry.stat.st_blocks * 512
        self.count += 1
