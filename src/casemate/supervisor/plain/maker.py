"""The maker of the landlock wall: cells without namespaces and mounts."""

from __future__ import annotations

import contextlib
import os
import time

from casemate.supervisor import (
    cells,
    init,
    kernel,
    landlock,
    pool,
    roots,
    scratch,
    seccomp,
    sockets,
    watch,
    wire,
    zygote,
    zygotes,
)
from casemate.supervisor.namespaces import Identities, Identity
from casemate.supervisor.plain import connections, files, notify, packages, places, syscall_policy, user_tasks
from casemate.supervisor.plain import init as plain_init
from casemate.supervisor.trees.remove import remove_folder

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, NoReturn

_EOPNOTSUPP = 95
_TERMINALS = ("/dev/ptmx", "/dev/pts")  # a cell's own user cannot open other users' terminals
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
# Files of /etc that a cell may read, as casemate would make them in a cell's root. Not /etc/hosts (`names`).
_ETC = ("passwd", "group", "resolv.conf", "nsswitch.conf", "host.conf", "shells")
# Files of /proc that concern no other process; those in self/ belong to the program's first process.
_PROC = ("cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems",
         "self/auxv", "self/cmdline", "self/comm", "self/environ", "self/fdinfo", "self/io", "self/limits", "self/maps",
         "self/mem", "self/smaps", "self/smaps_rollup", "self/stat", "self/statm", "self/status",
         "sys/vm/overcommit_memory", "sys/kernel/osrelease", "sys/kernel/pid_max", "sys/kernel/cap_last_cap",
         "sys/fs/pipe-max-size", "sys/net/core/somaxconn", "sys/kernel/random/boot_id")  # fmt: skip
_ZYGOTE = "casemate.supervisor.plain.zygote"
_ROUNDS = 1000  # rounds of killing a dead init's orphans; each round ends a generation
_NAME_BYTES = 6  # of randomness in a cell folder's name; all names have one length


class PlainRoot:
    """What cells of one environment see of the machine."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._entries = entries
        binds = [entry for entry in entries if entry["kind"] == "bind" and not entry["device"]]
        pairs = [(entry["target"], entry["source"]) for entry in binds]
        pairs += [(entry["target"], entry["target"]) for entry in entries if entry["kind"] == "link"]
        # The folders of packages that are installed for all cells, by place.
        self.packages = {place: source for place, source in pairs if place in places.PACKAGES}
        self.pairs = [(place, source) for place, source in pairs if place not in places.PACKAGES]
        shown = self.packages.values()  # shown under other names in each cell's folder
        self.readable = list(dict.fromkeys(entry["source"] for entry in binds if entry["source"] not in shown))

    def with_own(self, own_entries: list[dict[str, Any]]) -> PlainRoot:
        """With entries that lie in a folder such as /tmp, if they have the same path. Raises ``RootError``."""
        if not own_entries:
            return self
        binds = [_reachable(one, "") for one in own_entries if one["kind"] == "bind" and one["source"] == one["target"]]
        links = [one for one in own_entries if one["kind"] == "link" and os.path.islink(one["target"])]
        return PlainRoot([*self._entries, *binds, *links])


def _reachable(entry: dict[str, Any], place: str) -> dict[str, Any]:
    """``entry``, or with a copy at ``place`` as its source if the cells' users cannot enter a folder above the source
    and the cell has it at another path. Raises ``OSError`` and ``RootError``."""
    if entry["kind"] != "bind" or entry["target"] in places.PACKAGES:  # packages are shown to each cell separately
        return entry
    parts = os.path.realpath(entry["source"]).split("/")
    folders = ["/".join(parts[:depth]) for depth in range(2, len(parts))]
    closed = next((folder for folder in folders if not os.stat(folder).st_mode & 0o001), "")
    if not closed:
        return entry
    if entry["source"] == entry["target"]:
        why = f"as root, each cell has its own user, which cannot enter {closed}"
        raise roots.RootError(f"{entry['source']}: {why}; run casemate as an ordinary user, or: chmod o+x {closed}")
    packages.copy(entry["source"], place)
    return {**entry, "source": place}


def _put_environment(made: files.CellFiles, own_entries: list[dict[str, Any]]) -> None:
    made.show_packages()
    for entry in own_entries:
        there = places.real(entry["target"], made.places)
        if entry["kind"] == "link" and not os.path.lexists(there):
            os.symlink(places.real(entry["points_to"], made.places), there)


def _open_files(pid: int) -> int:
    """The number of open descriptors (proc(5), since Linux 6.2); 0 if the process has ended."""
    try:
        return os.stat(f"/proc/{pid}/fd").st_size
    except OSError:
        return 0


def _socket_inodes(pid: int) -> Iterator[int]:
    """The inode numbers of open sockets; none if the process has ended or cannot be read."""
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # it was just closed
                if (link := os.readlink(entry.path)).startswith("socket:["):
                    yield int(link[8:-1])


class PlainCell(pool.ReadyCell):
    """A process that waits to become a cell, or a cell's first process. It ends its cell when its channel is shut."""

    has_own_network = False
    calls: notify.NotifiedCalls | None = None  # the calls of its program, once that runs

    def __init__(self, pid: int, pending: pool.PendingCell, tasks: user_tasks.UserTasks) -> None:
        super().__init__(pid, pending)
        self.terminals_of = self.identity.uid if self.identity.release else None
        self.network = connections.HostConnections()
        self._tasks = tasks

    def send_request(self, request: dict[str, Any], made: scratch.Scratch, fds: dict[str, int]) -> None:
        """Send it its request and all descriptors. Raises ``OSError`` when it is dead."""
        assert isinstance(made, files.CellFiles)
        identity = self.identity
        message = {
            **request,
            "rlimits": self.bounds(request["rlimits"], made.limits),
            "fds": list(fds),
            "ids": [identity.uid, identity.gid] if identity.mapped else None,
            "places": made.places,
            "readable": made.readable,
            "writable": made.writable,
            "devices": [*_DEVICES, *(_TERMINALS if self.terminals_of else ()), f"{made.path}/steps/in_cell"],
        }
        kernel.send_fds(self.channel, wire.encode(message), fds.values())

    def socket_memory(self, pids: list[int]) -> int:
        """See `pool.ReadyCell`. Asks the network namespace that all cells share."""
        if sum(map(_open_files, pids)) <= sockets.FEW:
            return 0
        if self._sockets is None:
            self._sockets = sockets.CellSockets(-1)
        if self.identity.mapped:
            kernel.set_file_ids(self.identity.uid, self.identity.gid)  # this user may read their descriptors
        try:
            return self._sockets.memory({number for pid in pids for number in _socket_inodes(pid)})
        finally:
            if self.identity.mapped:
                kernel.set_file_ids(0, 0)

    def bounds(self, rlimits: dict[str, Any], limits: dict[str, Any]) -> dict[str, Any]:
        """Add a limit on the size of a file. Without its own user, a cell's tasks are counted at intervals, and NPROC
        bounds only what it can start in between."""
        file = limits["disk"] - limits["disk"] // 16  # so that a single file cannot exceed the disk limit
        if self.identity.mapped:
            return {**rlimits, "FSIZE": file}
        self.processes = rlimits["NPROC"] - 1  # NPROC includes init
        return {**rlimits, "NPROC": rlimits["NPROC"] + self._tasks.most(time.monotonic()), "FSIZE": file}

    def wait_prepared(self) -> None:
        """Wait until it is in its cgroups. Raises ``OSError`` if it could not enter them."""
        if self.channel.recv(1) != init.PREPARED:
            raise OSError(1, "a cell could not be prepared")

    def end(self) -> None:
        """Make it end everything in the cell, and itself."""
        try:
            self.channel.shutdown(2)  # SHUT_RDWR
        except OSError:
            return  # it has ended


class PlainMaker:
    """See `maker.Maker`. ``base`` is the folder for the cells' folders."""

    def __init__(self, base: str, identities: Identities) -> None:
        self.identities = identities
        self._base = base.rstrip("/")
        self._tasks = user_tasks.UserTasks()
        self._pids: set[int] = set()  # children in use: first processes of cells, zygotes, and helpers
        self._stops: dict[str, Callable[[], None]] = {}  # by cell: stops the answering of its calls

    def seccomp_program(self, *, memory_is_counted: bool) -> bytes:
        return seccomp.program(kernel.machine, memory_is_counted=memory_is_counted, policy=syscall_policy.policy())

    def build_root(self, key: str, entries: list[dict[str, Any]]) -> PlainRoot:
        if self.identities.first.mapped:
            place = f"{self._base}/{key}"
            os.mkdir(place, 0o755)
            entries = [_reachable(entry, f"{place}/{number}") for number, entry in enumerate(entries)]
        return PlainRoot(entries)

    def prefork(self, pending: pool.PendingCell, program: bytes) -> PlainCell:
        try:
            pid = os.fork()
        except OSError:
            pending.discard()
            raise
        if pid == 0:
            channel, status, *cgroup_fds = pending.ends
            plain_init.run(channel, status, cgroup_fds, {"program": program})
        self._pids.add(pid)
        return PlainCell(pid, pending, self._tasks)

    def adopt_process(self, pid: int, pending: pool.PendingCell) -> PlainCell:
        self._pids.add(pid)
        return PlainCell(pid, pending, self._tasks)

    def start_zygote(self, root: PlainRoot, request: dict[str, Any], fds: dict[int, int]) -> tuple[int, dict[str, Any]]:
        path, identity, root = self._new_path(), self.identities.first, root.with_own(request["own_entries"])
        files.make_folders(path, identity)
        with open(f"{path}/program/{zygote.REHEARSAL_PROGRAM}", "w", encoding="utf-8") as program:
            program.write(zygote.REHEARSAL_TEXT)
        os.mkdir(f"{path}/run", 0o755)
        os.symlink(zygotes.PACKAGE, f"{path}/run/casemate")
        table = places.table([*root.pairs, *places.own(path)])
        pid = os.fork()
        if pid == 0:
            self._run_zygote(root, request, fds, path, table)
        self._pids.add(pid)
        return pid, {"module": _ZYGOTE, "places": table, "folder": path}

    def _run_zygote(
        self, root: PlainRoot, request: dict[str, Any], fds: dict[int, int], path: str, table: places.Table
    ) -> NoReturn:
        """In the new process: drop every right except those for making cells, become the interpreter."""
        try:
            os.setsid()
            kernel.default_signals()
            identity = self.identities.first
            if identity.mapped:
                rights = (kernel.CAP_SETGID, kernel.CAP_SETUID, kernel.CAP_SETPCAP)
                kernel.keep_capabilities(rights, identity.uid, identity.gid)
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
            kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
            zygotes.place_descriptors(fds)
            readable = [*root.readable, *(f"/etc/{name}" for name in _ETC), "/proc", zygotes.PACKAGE]
            devices = [*_DEVICES, *_TERMINALS]
            landlock.restrict(readable, [self._base], devices, network=True)
            argv, env = places.command(request["argv"], request["env"], table)
            os.execve(argv[0], argv, {**env, "PYTHONPATH": f"{path}/run/casemate/supervisor/start"})
        except BaseException as error:  # noqa: BLE001 - the end of this process, whatever happened
            os.write(2, f"{type(error).__name__}: {error}".encode())
        os._exit(125)

    def _new_path(self) -> str:
        return f"{self._base}/{os.urandom(_NAME_BYTES).hex()}"

    def prepare_scratch(
        self, request: dict[str, Any], fds: dict[str, int], identity: Identity, root: PlainRoot
    ) -> files.CellFiles:
        if any(one["copied"] or one["hidden"] or one["places"] != [one["source"]] for one in request["shown"]):
            why = "this wall cannot copy a shown folder, hide parts of it, or show it at another path"
            raise scratch.ScratchError("environment", OSError(_EOPNOTSUPP, why))
        path, root = self._new_path(), root.with_own(request["own_entries"])
        made = self._with_places(files.create(path, request, fds, identity), root)
        try:
            with scratch.part("environment"):
                _put_environment(made, request["own_entries"])
        except BaseException:
            made.close()
            raise
        more = [(one, f"{path}/workspace") for one in request["workspace"]["places"]]
        made.places = places.table([*((row[0], row[1]) for row in made.places), *more])
        made.readable += [one["source"] for one in request["shown"]]
        return made

    def prepare_again(self, request: dict[str, Any], earlier: scratch.Scratch, root: PlainRoot) -> files.CellFiles:
        assert isinstance(earlier, files.CellFiles)
        root = root.with_own(request["own_entries"])
        with scratch.part("scratch"):
            made = files.CellFiles(earlier.path, earlier.identity, request["limits"])
        made.copy, earlier.is_kept = earlier.copy, True
        earlier.close()
        made.open_session()
        return self._with_places(made, root)

    def _with_places(self, made: files.CellFiles, root: PlainRoot) -> files.CellFiles:
        path = made.path
        made.packages = root.packages
        made.places = places.table([*root.pairs, *places.own(path)])
        made.readable = [
            *root.readable,
            f"{path}/program",
            f"{path}/packages",
            *(f"/etc/{name}" for name in _ETC),
            *(f"/proc/{name}" for name in _PROC),
        ]
        made.writable = [f"{path}/workspace", f"{path}/tmp"]
        return made

    def attend(self, cell: cells.CellProcess, watch: Callable[..., None], unwatch: Callable[[int], None]) -> None:
        ready, channel = cell.ready, cell.ready.channel.fileno()
        assert isinstance(ready, PlainCell)

        watched = [channel]

        def stop() -> None:
            if watched:
                unwatch(watched.pop())
            if ready.calls:
                ready.calls.close()
            ready.calls = None

        def answer() -> None:
            assert ready.calls
            try:
                ready.calls.answer()
            except OSError:
                stop()  # no process is left to call

        def read_channel() -> None:
            try:
                data, fds = kernel.receive_fds(ready.channel, 1, 1)
            except OSError:
                data, fds = b"", []  # the cell died early (unix(7), ECONNRESET), or no descriptor is free
            if data == init.PREPARED:
                return
            stop()
            if data == plain_init.LISTENER and fds:
                assert isinstance(cell.scratch, files.CellFiles)
                ids = [ready.identity.uid, ready.identity.gid] if ready.identity.mapped else None
                loop = (watch, unwatch, self._pids)
                ready.calls = notify.NotifiedCalls(fds[0], ready.network, cell.scratch.writable, ids, loop)
                watched.append(fds[0])
                watch(fds[0], answer)

        self._stops[cell.id] = stop
        watch(channel, read_channel)

    def is_survived(self, cell: cells.CellProcess) -> bool:
        """See `maker.Maker`. An init ends last. If it was killed, it leaves orphans, which are now our children."""
        if not os.WIFSIGNALED(cell.init_status):
            return False
        for _ in range(_ROUNDS):
            orphans = [pid for pid in watch.children(os.getpid()) if pid not in self._pids]
            if not orphans:
                return False
            for pid in orphans:
                os.kill(pid, 9)  # an unreaped child, so the pid is not reused
                os.waitpid(pid, 0)
        return True

    def leave(self, cell: cells.CellProcess) -> None:
        assert isinstance(cell.ready, PlainCell)
        if cell.id in self._stops:
            self._stops.pop(cell.id)()
        cell.ready.network.close()
        self._pids.discard(cell.pid)

    def open_listeners(self, cell: cells.CellProcess, sockets: Sequence[Sequence[object]]) -> list[int]:
        assert isinstance(cell.ready, PlainCell)
        return cell.ready.network.open(sockets)

    def show_folder(self, cell: cells.CellProcess, source: str, target: str) -> None:
        assert isinstance(cell.scratch, files.CellFiles)
        remove_folder(packages.show(source, cell.scratch.path + target, cell.scratch.places))
