"""The maker of a supervisor in a container. The cell is everything in the container except the supervisor."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import contextlib
import errno
import os

from casemate.supervisor import init, kernel, pool, requests, scratch, seccomp, sockets, watch, wire
from casemate.supervisor.calls import SetupPhase
from casemate.supervisor.contained.host import ANY
from casemate.supervisor.namespaces import Identities, Identity
from casemate.supervisor.trees.records import Tree
from casemate.supervisor.trees.walk import enter_folder

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from casemate.supervisor import cells
    from casemate.supervisor.contained.host import StreamHost

_SIGKILL = 9
# Not NPROC: the engine counts tasks.
_RLIMITS = ("CPU", "CORE", "DATA", "NOFILE", "SIGPENDING", "MSGQUEUE", "MEMLOCK")
_PLACES = ("/workspace", "/tmp", "/dev/shm", "/program", "/home/user")


class ContainedCell(pool.ReadyCell):
    """The cell's init, and everything else in the container except the supervisor."""

    has_own_network = False
    is_alone = False  # everything in the container ends before the next cell is made, see `ContainedMaker.leave`

    def __init__(self, pid: int, pending: pool.PendingCell) -> None:
        super().__init__(pid, pending)
        self.terminals_of = self.identity.uid
        self._life, self._held = os.pipe2(os.O_CLOEXEC)  # closed by init's end; gVisor has no pidfd_open(2)

    def open_pidfd(self) -> int:
        """A descriptor that is readable once its process has ended. Raises ``OSError``."""
        return os.dup(self._life)

    def send_request(self, request: dict[str, Any], scratch: scratch.Scratch, fds: dict[str, int]) -> None:
        """Give it its request and all descriptors, including the one that signals its end."""
        all_fds = {**fds, "life": self._held}
        message = {**request, "fds": list(all_fds)}
        kernel.send_fds(self.channel, wire.encode(message), [*all_fds.values()], _socket.MSG_NOSIGNAL)
        os.close(self._held)

    def close(self) -> None:
        super().close()
        os.close(self._life)

    def socket_memory(self, pids: list[int]) -> int:
        """Bytes in the buffers of all sockets; 0 if there are few. Raises ``OSError``."""
        if not sockets.are_many(watch.read("/proc/net/sockstat")):
            return 0
        self._sockets = self._sockets or sockets.CellSockets(-1)
        return self._sockets.memory()

    def end(self) -> None:
        """Kill every process of the container except this one."""
        try:
            os.kill(-1, _SIGKILL)  # never this process, which is process 1 (kill(2))
        except ProcessLookupError:
            return


class ContainedMaker:
    """See `maker.Maker`. There is one cell at a time."""

    def __init__(self, host: StreamHost) -> None:
        self._host = host
        self.identities = Identities(range(os.getuid(), os.getuid() + 1), mapped=False)  # one user for all

    def seccomp_program(self, *, memory_is_counted: bool) -> bytes:
        return seccomp.program(kernel.machine, memory_is_counted=True)  # the engine counts memory

    def build_root(self, key: str, entries: list[dict[str, Any]]) -> Any:
        return key

    def prefork(self, pending: pool.PendingCell, program: bytes) -> pool.ReadyCell:
        pid = os.fork()
        if pid == 0:
            _run_init(program, *pending.ends)
        return ContainedCell(pid, pending)

    def adopt_process(self, pid: int, pending: pool.PendingCell) -> pool.ReadyCell:
        raise OSError(38, "there are no zygotes here")

    def start_zygote(self, root: Any, request: dict[str, Any], fds: dict[int, int]) -> tuple[int, dict[str, Any]]:
        raise OSError(38, "there are no zygotes here")

    def prepare_scratch(
        self, request: dict[str, Any], fds: dict[str, int], identity: Identity, root: Any
    ) -> scratch.Scratch:
        made = self._host.scratch = ContainedScratch(request, identity)
        made.fill(request, fds)
        return made

    def prepare_again(self, request: dict[str, Any], earlier: scratch.Scratch, root: Any) -> scratch.Scratch:
        assert isinstance(earlier, ContainedScratch)
        earlier.open_steps()
        return earlier

    def attend(self, cell: cells.CellProcess, watch: Callable[..., None], unwatch: Callable[[int], None]) -> None:
        pass

    def is_survived(self, cell: cells.CellProcess) -> bool:
        return False

    def leave(self, cell: cells.CellProcess) -> None:
        cell.ready.end()
        try:
            while True:
                os.waitpid(-1, 0)  # by now all processes of the cell are our children
        except ChildProcessError:
            return

    def open_listeners(self, cell: cells.CellProcess, sockets: Sequence[Sequence[object]]) -> list[int]:
        if any(kind == "client" for kind, _, _ in sockets):
            raise OSError(errno.EOPNOTSUPP, "descriptors of a container's sockets cannot be handed out")
        return requests.open_sockets(sockets)

    def show_folder(self, cell: cells.CellProcess, source: str, target: str) -> None:
        pass  # its content came with the message


class ContainedScratch(scratch.Scratch):
    """The writable part of the container: file systems that the engine has mounted."""

    def __init__(self, request: dict[str, Any], identity: Identity) -> None:
        super().__init__(os.open("/workspace", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), identity)
        self.tree = Tree(self.tree_fd, is_cells=True)
        self._disk: int = request["limits"]["disk"]
        self._steps = request["session"]
        os.makedirs("/tmp/.home", 0o700, exist_ok=True)
        self.open_steps()

    def open_steps(self) -> None:
        """Open the folder of a session's pipes."""
        if self._steps:
            program = os.open("/program", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            os.close(enter_folder(program, "steps"))
            self.steps_fd = enter_folder(program, ".pipes")
            os.close(program)
            with contextlib.suppress(FileExistsError):
                os.symlink("../steps", "in_cell", dir_fd=self.steps_fd)

    def fill(self, request: dict[str, Any], fds: dict[str, int]) -> None:
        for entry in request["own_entries"]:
            if not os.path.lexists(entry["target"]):
                os.symlink(entry["points_to"], entry["target"])
        self._put_program(request["program"], fds, fds.get("program", -1), 0)

    def add_program(self, message: dict[str, Any], fds: dict[str, int]) -> None:
        """Write the program and the files of a cell that waited. Raises ``ScratchError``."""
        self._put_program(message["program"], fds, fds["order_file"], message["order_size"])

    def _put_program(self, program: dict[str, Any] | None, fds: dict[str, int], source: int, offset: int) -> None:
        with scratch.part("workspace"):
            if "folder" in fds:
                self.tree.apply(fds["folder"], ANY)
        if program is None:
            return
        with scratch.part("files"):
            inputs = scratch.index(fds)
            scratch.copy_files(self.tree_fd, inputs, fds, self.identity)
        with scratch.part("program"):
            with contextlib.suppress(OSError):  # the caller's folder has something else of that name
                os.close(enter_folder(self.tree_fd, "output"))
            self.tree.note([*(tuple(os.fsencode(name).split(b"/")) for name, _, _ in inputs), (b"output",)])
            scratch.copy_in(f"/program/{program['name']}", source, offset, program["size"], self.identity)

    def files_bytes(self) -> int:
        """Memory in bytes that its files take."""
        return sum((used.f_blocks - used.f_bfree) * used.f_frsize for used in map(os.statvfs, _PLACES))

    def space_left(self) -> dict[str, int]:
        """What is left of the limits, for the host."""
        return {
            "space_left": max(0, self._disk - self.files_bytes()),
            "inodes_left": min(os.statvfs(place).f_favail for place in _PLACES),
        }


def _run_init(program: bytes, channel: int, status: int) -> NoReturn:
    phase = SetupPhase()
    kernel.set_name(b"casemate-init")
    try:
        phase.name = "request"
        link, status = init.keep_own_descriptors(channel, status)
        with contextlib.suppress(OSError):  # missing in gVisor, where process 1 gets and ends the orphans
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        os.setsid()
        request, fds = init.receive_request(link)
        link.close()
        init.do(init.add_descriptors, {**fds, "status": status}, "life")
        status = init.STATUS
        phase.name = "limits"
        for name in _RLIMITS if "rlimits" in request["layers"] else ():
            with contextlib.suppress(OSError):  # gVisor lacks some; the engine limits the rest
                init.do(init.add_rlimits, {name: request["rlimits"][name]})
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # or that file belongs to root
        kernel.write_file("/proc/self/oom_score_adj", "1000")  # out of memory, the kernel kills the cell
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        phase.name = "seccomp"
        if "seccomp" in request["layers"]:
            kernel.install_filter(program)
        phase.name = "exec"
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())  # its program may signal it
        pid = init.start_program(init.PAYLOAD, init.CONTROL if request["control"] else None)
        program_fds = (0, 1, 2, init.CONTROL, init.PAYLOAD, init.ORDER)
        init.wait_for_program(pid, init.STATUS, program_fds, waits=request["awaits_order"])
    except BaseException as error:  # noqa: BLE001 - the end of this process, whatever happened
        init.report_failure(status, phase, error)
    os._exit(125)
