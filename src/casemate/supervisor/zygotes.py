"""The supervisor's side of a zygote: starting it and talking to it. `zygote` runs inside it."""

from __future__ import annotations

import _socket
import os
import time

from casemate.supervisor import init, kernel, pool, roots, stage, watch, wire, zygote
from casemate.supervisor.namespaces import Identity

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from casemate.supervisor.maker import Maker

    Done = Callable[[pool.ReadyCell | None], None]

_NAMESPACES = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWNET | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWCGROUP
)
_LOG_BYTES = 65536
_MAX_ANSWER = 8192  # bytes
_LOG_TAIL = 600  # characters of its output that are reported
_MAX_DATA = 8 << 30  # bytes that preloaded modules may hold; each cell may use this on top of its limit
_ANSWERS_WITHIN = 10.0  # seconds; usually a few milliseconds, longer under heavy load
_WRITABLE_BYTES = "64m"  # for what libraries write on import, mostly caches
_SIGKILL, _SIGINT = 9, 2
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_QUIET = kernel.ATTR_NOSUID | kernel.ATTR_NODEV
_START = f"{zygote.PACKAGES}/casemate/supervisor/start"


class ZygoteProcess:
    def __init__(
        self,
        request: dict[str, Any],
        root: Any,
        maker: Maker,
        program: bytes,
        is_known: Callable[[int], bool],
    ) -> None:
        """``is_known``: whether a pid belongs to a cell, a ready cell or a zygote."""
        self.key: str = request["key"]
        self._is_known = is_known
        self.data: int | None = None  # bytes that each of its cells holds from the start, once it is ready
        self.pending: list[tuple[pool.PendingCell, Done]] = []  # requested cells, in order
        self.waiting_since = 0.0
        self.socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        # A pipe like its cells', because Python's streams remember the kind of file they were opened on.
        self.log, log_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        nothing = os.memfd_create("casemate-no-input", os.MFD_CLOEXEC)
        ends = {0: nothing, 1: log_end, 2: log_end, zygote.SOCKET: theirs.fileno()}
        self._maker = maker
        self.pid, more = maker.start_zygote(root, request, ends)
        theirs.close()
        os.close(nothing)
        os.close(log_end)
        self.pidfd = os.pidfd_open(self.pid)
        self.socket.send(
            wire.encode({"preload": request["preload"], "optional": request["optional"], "program": program, **more}),
            _socket.MSG_NOSIGNAL,
        )

    def request_cell(self, pending_cell: pool.PendingCell, done: Done) -> None:
        """Ask for a cell's process. ``done`` gets the ready cell, or None on failure."""
        try:
            kernel.send_fds(self.socket, b"c", pending_cell.ends, _socket.MSG_NOSIGNAL | _socket.MSG_DONTWAIT)
        except OSError:
            pending_cell.discard()
            done(None)
            return
        if not self.pending:
            self.waiting_since = time.monotonic()
        self.pending.append((pending_cell, done))

    def is_silent(self, now: float) -> bool:
        """Whether it has not answered within `_ANSWERS_WITHIN` seconds."""
        return bool(self.pending) and now - self.waiting_since > _ANSWERS_WITHIN

    def read_message(self) -> dict[str, Any] | None:
        """Read its next message: return the greeting, or handle a cell's pid and return None. Raises ``ValueError`` for
        an invalid message: preloaded code may have changed the zygote in any way."""
        data = self.socket.recv(_MAX_ANSWER)
        if not data:
            raise ValueError("it closed its socket")
        message: dict[str, Any] = wire.decode(data)
        if self.data is None:
            self.data = _check_greeting(message)
            return message
        if not self.pending or set(message) != {"pid"} or type(message["pid"]) is not int:
            raise ValueError("an answer without a request")
        pending_cell, done = self.pending.pop(0)
        self.waiting_since = time.monotonic()
        done(self._adopt(message["pid"], pending_cell))
        return None

    def _adopt(self, pid: int, pending_cell: pool.PendingCell) -> pool.ReadyCell | None:
        if not self._is_a_new_child(pid):
            pending_cell.discard()
            return None
        try:
            made: pool.ReadyCell = self._maker.adopt_process(pid, pending_cell)
        except OSError:
            return None
        return made

    def _is_a_new_child(self, pid: int) -> bool:
        if pid <= 0 or self._is_known(pid):
            return False
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except (OSError, OverflowError):
            return False
        return True

    def end(self) -> str:
        """End the zygote and fail its pending requests. Its cells keep running. Returns the tail of its output."""
        os.kill(self.pid, _SIGKILL)
        os.waitpid(self.pid, 0)
        try:
            words = os.read(self.log, _LOG_BYTES)
        except BlockingIOError:
            words = b""
        kernel.close_all((self.pidfd, self.log))
        self.socket.close()
        for pending_cell, done in self.pending:
            pending_cell.discard()
            done(None)
        self.pending = []
        return words.decode("utf-8", "replace").strip()[-_LOG_TAIL:]


def reap_orphans(is_known: Callable[[int], bool]) -> None:
    """Reap the children that ended zygotes left: a rehearsal, or a cell not yet reported."""
    for pid in watch.children(os.getpid()):
        if not is_known(pid):
            os.waitpid(pid, os.WNOHANG)


def _check_greeting(message: Any) -> int:
    """The data size in a zygote's greeting. Raises ``ValueError`` if the greeting is malformed."""
    if not isinstance(message, dict) or set(message) != {"problem", "data"}:
        raise ValueError("no greeting")
    problem, data = message["problem"], message["data"]
    if not (problem is None or isinstance(problem, str)) or type(data) is not int or not 0 <= data < _MAX_DATA:
        raise ValueError("no greeting")
    return data


def start(root: str, request: dict[str, Any], identity: Identity, fds: dict[int, int]) -> int:
    """Start a zygote in its own namespaces and return its pid. Raises ``OSError``."""
    pid = kernel.clone(_NAMESPACES)
    if pid == 0:
        _run(root, request, identity, fds)
    return pid


def _run(root: str, request: dict[str, Any], identity: Identity, fds: dict[int, int]) -> NoReturn:
    """In the new process: enter its own root, drop all rights, become the interpreter."""
    try:
        os.setsid()
        kernel.default_signal(_SIGINT)
        _own_root(root, request["own_entries"], identity)
        _socket.sethostname("casemate")
        kernel.give_up_rights((identity.uid, identity.gid) if identity.mapped else None)
        place_descriptors(fds)
        env = {**request["env"], "PYTHONPATH": _START}
        os.execve(request["argv"][0], request["argv"], env)
    except BaseException as error:  # noqa: BLE001 - the end of this process, whatever happened
        os.write(fds[2], f"{type(error).__name__}: {error}".encode())
    os._exit(125)


def _own_root(root: str, own_entries: list[dict[str, Any]], identity: Identity) -> None:
    """Enter the environment's read-only tree as its cells see it, with casemate, scratch space and a full /proc."""
    kernel.move_mount(kernel.open_tree(root), stage.CELL)
    os.chdir(stage.CELL)
    for place in ("tmp", "workspace", "dev/shm"):
        kernel.move_mount(kernel.new_mount("tmpfs", {"size": _WRITABLE_BYTES, "mode": "1777"}, _QUIET), place)
    os.mkdir("tmp/.home", 0o700)
    identity.chown("tmp/.home")
    _mount_rehearsal()
    kernel.move_mount(kernel.new_mount("tmpfs", {"size": "4k", "mode": "0755"}, _QUIET), "run")
    os.mkdir("run/casemate", 0o755)
    kernel.move_mount(roots.bind(PACKAGE), "run/casemate")
    for entry in own_entries:
        _mount_own_entry(entry)
    stage.mount_in("sys")
    kernel.mount("proc", "proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.pivot_root_here()


def _mount_rehearsal() -> None:
    tmpfs = kernel.new_mount("tmpfs", {"size": "8k", "mode": "0755"}, _QUIET)
    kernel.move_mount(tmpfs, "program")
    with open(f"program/{zygote.REHEARSAL_PROGRAM}", "w", encoding="utf-8") as program:
        program.write(zygote.REHEARSAL_TEXT)
    kernel.set_attributes(tmpfs, kernel.ATTR_RDONLY, recursive=False)
    os.close(tmpfs)


def _mount_own_entry(entry: dict[str, Any]) -> None:
    folder, path = roots.own_place(entry["target"])
    inside = f"{'dev/shm' if folder == 'shm' else folder}/{path}"
    os.makedirs(os.path.dirname(inside), 0o755, exist_ok=True)
    if entry["kind"] == "link":
        os.symlink(entry["points_to"], inside)
        return
    if os.path.isdir(entry["source"]):
        os.makedirs(inside, 0o755, exist_ok=True)
    else:
        os.close(os.open(inside, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    kernel.move_mount(roots.bind(entry["source"]), inside)


def place_descriptors(fds: dict[int, int]) -> None:
    """Move a zygote's descriptors to their numbers and close all others."""
    duplicates = {number: init.duplicate_high(fd) for number, fd in fds.items()}
    for number, fd in duplicates.items():
        os.dup2(fd, number)
    kernel.close_from(zygote.SOCKET + 1)
