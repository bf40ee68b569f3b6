"""Init, pid 1 of a cell: it builds the walls around itself, starts the program, reaps orphans, and ends the cell with
the program. The order of its phases is the security argument:

    cgroup · id maps (written by the supervisor) · namespaces · loopback · /proc, user sysctls and masks ·
    bounding set · mounts · new root · resource limits · capabilities · Landlock · seccomp · program

Each phase needs what a later one takes away. `preparation`, the same for every cell, is done before the request comes.
A phase that fails ends the cell before any guest code has run, and the supervisor learns which.

The supervisor decides everything here and writes it down as lists of system calls (`calls`). init.c performs them, or,
if that was not built, `run` in a copy of this interpreter, which takes more than twice the cpu time.

Init runs under all the program's restrictions, and the program cannot trace it. The supervisor does not trust it: its
report only refines what wait(2) shows from outside.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import resource
import struct

from casemate.supervisor import kernel, landlock, stage, wire
from casemate.supervisor.calls import CallList, Reference, SetupPhase, perform

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

UID = 1000
GID = 1000
# Descriptors of the program and of init. Everything else is closed.
CONTROL, STATUS, PAYLOAD, ORDER, FIRST_FREE = 3, 4, 5, 6, 7
PREPARED = b"p"  # the cell is in its cgroups and has its namespaces
MAPPED = b"m"  # the supervisor has written the id maps

# Files and folders of /proc that reveal or control the kernel and other programs, if this kernel has them.
_PROC = set(os.listdir("/proc"))
_MASKED_FILES = sorted(
    _PROC
    & {
        *("kcore", "keys", "key-users", "timer_list", "latency_stats", "sched_debug", "sysrq-trigger", "kallsyms"),
        *("cmdline", "interrupts", "softirqs", "diskstats"),
    }
)
_MASKED_FOLDERS = sorted(_PROC & {"acpi", "scsi", "bus", "fs", "irq", "driver", "asound", "pressure"})
_WRITABLE = ("/workspace", "/tmp", "/dev/shm")
MOST_TERMINALS = 64  # pseudo-terminals of a cell; the machine has a few thousand in all
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts")
_SIGINT, _SIGKILL = 2, 9
_NAME = b"casemate-init"
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C  # netdevice(7)
_IFF_UP_RUNNING = 0x41
_AF_INET, _AF_INET6, _SOCK_DGRAM = 2, 10, 2
# Loopback addresses in addition to 127.0.0.1 and ::1. The first range is for benchmarks of devices (RFC 2544), so it is
# otherwise unused, and the cell has all of it. The second is for documentation (RFC 3849). A resolver takes a family
# with only its loopback address for unreachable (getaddrinfo(3), AI_ADDRCONFIG).
_RANGE, _MASK, _IPV6 = bytes((198, 18, 0, 1)), bytes((255, 254, 0, 0)), bytes.fromhex("20010db8") + bytes(11) + b"\1"
MOST_INOTIFY = {"max_inotify_instances": 8, "max_inotify_watches": 8192}  # of a cell
SET_UP = b"w"  # a cell that waits for its program is set up, and the program's process exists
# Mark, the program's wait status, its peak resident memory in bytes, cpu microseconds of it and its children, and how
# many processes and threads were started.
REPORT = struct.Struct("<cIQQQ")
IGNORED_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ: programs expect their default actions
# Flags of a request: the program is a fork of init and not executed; it comes later; it has a control pipe.
_FORKS, _AWAITS, _CONTROLS = 1, 2, 4
_REQUEST = struct.Struct("=qq")  # the flags, and the length of the list of walls, which the program's own list follows
_MAX_PAYLOAD = 64 << 20
_ALL = 0x7FFFFFFF  # the highest descriptor; gVisor's maximum
_HIGH = 64  # above every descriptor placed here


def run(channel: int, status: int, cgroup_fds: list[int], program: bytes, prepared: bytes) -> None:
    """Run a cell's first process: prepare, wait for the request on ``channel``, become init.

    ``status`` takes the report. Writing to ``cgroup_fds`` enters the cgroups. ``program`` is the seccomp filter,
    ``prepared`` the list of `preparation`. Returns only if the program is forked and not executed, and then in its
    process, behind every wall; its order comes on ``ORDER``."""
    phase = SetupPhase()
    kernel.set_name(_NAME)
    kernel.default_signal(_SIGINT)  # pid 1 then does not get it from inside; Python's handler would raise
    try:
        # This may take the kernel ten milliseconds, so the cell does it and not the supervisor.
        phase.name = "cgroup"
        for fd in cgroup_fds:
            os.write(fd, b"0")
        link, status = keep_own_descriptors(channel, status)
        phase.name = "id maps"
        if link.recv(1) != MAPPED:
            os._exit(125)  # the supervisor is gone
        perform(prepared, phase=phase)
        _report_prepared(link)
        phase.name = "request"
        request, fds = kernel.receive_fds(link, wire.MAX_MESSAGE, wire.MAX_DESCRIPTORS)
        if not request:
            os._exit(125)
        link.detach()  # the first of the walls closes it
        told, length = _REQUEST.unpack_from(request)
        own = _REQUEST.size + length
        perform(request[_REQUEST.size : own], fds, program, phase)
        if told & _FORKS:
            phase.name = "fork"
            pid = os.fork()
            if pid == 0:
                perform(request[own:], fds)
                return
        else:
            phase.name = "exec"
            pid = start_program(PAYLOAD, CONTROL if told & _CONTROLS else None)
        wait_for_program(pid, STATUS, (0, 1, 2, CONTROL, PAYLOAD, ORDER), waits=bool(told & _AWAITS))
    except BaseException as error:  # noqa: BLE001 - the end of this process, whatever happened
        report_failure(status, phase, error)
    os._exit(125)


def report_failure(status: int, phase: SetupPhase, error: BaseException) -> None:
    """Report why no program will run."""
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    os.write(status, wire.encode({"failed": phase.name, "errno": number, "detail": str(error)[:500]}))


def preparation(*, has_inotify: bool = True) -> bytes:
    """The list of everything that needs no request, to be done once the ids are mapped."""
    calls = CallList()
    calls.phase("id maps")
    calls.call("setresgid", GID, GID, GID)
    calls.call("setresuid", UID, UID, UID)
    calls.call("prctl", kernel.PR_SET_DUMPABLE, 0, 0, 0, 0)
    calls.call("prctl", kernel.PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)  # at the supervisor's end, even in a zygote's fork
    calls.phase("namespaces")
    calls.call(
        "unshare",
        kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP | kernel.CLONE_NEWNET,
    )
    calls.call("setsid")
    calls.call("umask", 0o022)
    calls.phase("network")
    _add_loopback_up(calls)
    calls.call("sethostname", "casemate", len("casemate"))
    calls.phase("proc")
    _add_proc(calls)
    _add_user_sysctls(calls, 0, has_inotify=has_inotify)
    calls.phase("masks")
    _add_masks(calls)
    calls.phase("capabilities")
    for capability in range(kernel.last_capability() + 1):  # no exec can gain one afterwards (capabilities(7))
        calls.call("prctl", kernel.PR_CAPBSET_DROP, capability, 0, 0, 0)
    return calls.encode()


_requests: dict[tuple[Any, ...], bytes] = {}
_MOST_REQUESTS = 64  # cached: cells of one kind have the same


def request_message(request: dict[str, Any], targets: list[str], names: list[str]) -> bytes:
    """The request to init. Its descriptors: the mounts for ``targets``, the root first, and the program's ``names``."""
    values = (tuple(one.items()) if isinstance(one, dict) else tuple(one) if isinstance(one, list) else one
              for one in request.values())  # fmt: skip
    key = (*values, tuple(targets), tuple(names))
    if key not in _requests:
        if len(_requests) == _MOST_REQUESTS:
            _requests.clear()
        _requests[key] = _request_message(request, targets, names)
    return _requests[key]


def _request_message(request: dict[str, Any], targets: list[str], names: list[str]) -> bytes:
    walls = CallList()
    _add_mounts(walls, request["layers"], targets)
    fds = {name: Reference(len(targets) + number) for number, name in enumerate(names)}
    add_descriptors(walls, {**fds, "status": STATUS})
    _add_restrictions(walls, request)
    told = _AWAITS * request["awaits_order"] | _CONTROLS * request["control"]
    own = b""
    if request["interpreter"]:
        walls.phase("fork")
        walls.call("chdir", request["cwd"])
        told |= _FORKS
        own = _own_calls(request["interpreter"])
    encoded = walls.encode()
    return _REQUEST.pack(told, len(encoded)) + encoded + own


def _add_mounts(calls: CallList, layers: list[str], targets: list[str]) -> None:
    _undo_layers(calls, layers)
    calls.call("close", CONTROL)  # the channel
    calls.phase("mounts")
    _add_move(calls, Reference(0), stage.CELL)
    calls.call("chdir", stage.CELL)
    for number, target in enumerate(targets[1:], 1):
        _add_move(calls, Reference(number), target)
    quiet = kernel.MS_NOSUID | kernel.MS_NOEXEC
    calls.call(
        "mount", "devpts", "dev/pts", "devpts", quiet, f"newinstance,ptmxmode=0666,mode=0620,max={MOST_TERMINALS}"
    )
    calls.call("mount", stage.PROC, "proc", None, kernel.MS_MOVE, None)
    calls.phase("new root")
    calls.call("pivot_root", ".", ".")  # pivot_root(2), "pivot_root(".", ".")"
    calls.call("umount2", ".", kernel.MNT_DETACH)
    calls.call("chdir", "/")


def _add_restrictions(calls: CallList, request: dict[str, Any]) -> None:
    layers = request["layers"]
    calls.phase("limits")
    if "rlimits" in layers:
        add_rlimits(calls, request["rlimits"])
    if request["cpu_set"]:
        mask = sum(1 << cpu for cpu in request["cpu_set"])
        size = (max(request["cpu_set"]) // 64 + 1) * 8  # whole words
        calls.call("sched_setaffinity", 0, size, mask.to_bytes(size, "little"))
    calls.phase("capabilities")
    if "capabilities" in layers:
        _add_no_capabilities(calls)
    calls.call("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    calls.phase("landlock")
    if "landlock" in layers and landlock.abi():
        # Mounted read-only: only named pipes in it can be written to.
        pipes = ("/program/steps",) if request["session"] else ()
        writable = (*_WRITABLE, *request["writable"])
        landlock.add_restriction(calls, request["readable"], writable, (*_DEVICES, *pipes), listable=("/",))
    calls.phase("seccomp")
    if "seccomp" in layers:
        calls.install_filter()


def _own_calls(interpreter: str) -> bytes:
    """The list for a program's process that is forked from init, a warmed ``interpreter``. Exec would make it dumpable,
    so that its memory can be measured from outside; a fork must do so itself."""
    calls = CallList()
    calls.call("setsid")
    _add_no_capabilities(calls)  # as exec would, whatever init had
    calls.call("prctl", kernel.PR_SET_NAME, os.path.basename(interpreter)[:15], 0, 0, 0)
    calls.call("prctl", kernel.PR_SET_DUMPABLE, 1, 0, 0, 0)
    calls.call("close", STATUS)
    calls.call("close", PAYLOAD)
    return calls.encode()


def keep_own_descriptors(channel: int, status: int) -> tuple[_socket.socket, int]:
    """Keep only the cell's own two descriptors: others would keep other cells' resources alive."""
    channel, status = duplicate_high(channel), duplicate_high(status)
    os.dup2(channel, CONTROL, inheritable=False)
    os.dup2(status, STATUS, inheritable=False)
    kernel.close_from(PAYLOAD)
    return _socket.socket(fileno=CONTROL), STATUS


def receive_request(channel: _socket.socket) -> tuple[dict[str, Any], dict[str, int]]:
    """Receive the request of a cell without lists, with the program's descriptors by name."""
    data, fds = kernel.receive_fds(channel, wire.MAX_MESSAGE, wire.MAX_DESCRIPTORS)
    if not data:
        os._exit(125)  # the supervisor is gone
    request = wire.decode(data)
    return request, dict(zip(request["fds"], fds, strict=True))


def _report_prepared(channel: _socket.socket) -> None:
    """Report that the cell is prepared. While that message is unread, the namespaces in it outlive the cell, so their
    removal, which takes the kernel half a millisecond, comes after the result."""
    namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("mnt", "net")]
    kernel.send_fds(channel, PREPARED, namespaces)
    kernel.close_all(namespaces)


def _undo_layers(calls: CallList, layers: list[str]) -> None:
    """Undo preparation for layers that the request leaves out, as tests of the other layers do."""
    if "init" not in layers:
        calls.call("prctl", kernel.PR_SET_DUMPABLE, 1, 0, 0, 0)
    if "mounts" not in layers:
        _add_proc(calls)
    if "namespaces" not in layers:
        _add_proc(calls)
        _add_user_sysctls(calls, 10000)
        if "mounts" in layers:
            calls.call("umount2", stage.PROC, kernel.MNT_DETACH)


def _add_proc(calls: CallList) -> None:
    calls.call("mount", "proc", stage.PROC, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, None)


def _add_masks(calls: CallList) -> None:
    for name in _MASKED_FILES:
        calls.call("mount", "/dev/null", f"{stage.PROC}/{name}", None, kernel.MS_BIND, None)
    for name in _MASKED_FOLDERS:
        calls.call("mount", stage.EMPTY, f"{stage.PROC}/{name}", None, kernel.MS_BIND, None)
    sysctls = f"{stage.PROC}/sys"
    tree = calls.call("open_tree", kernel.AT_FDCWD, sysctls, kernel.OPEN_TREE)
    attributes = struct.pack("=4Q", kernel.ATTR_RDONLY, 0, 0, 0)  # struct mount_attr
    calls.call("mount_setattr", tree, "", kernel.AT_TREE, attributes, len(attributes))
    _add_move(calls, tree, sysctls)
    calls.call("close", tree)


def _add_move(calls: CallList, tree: Reference, target: str) -> None:
    calls.call("move_mount", tree, "", kernel.AT_FDCWD, target, kernel.MOVE_FROM_EMPTY)


def _add_user_sysctls(calls: CallList, most_namespaces: int, *, has_inotify: bool = True) -> None:
    """Forbid new user namespaces in the cell, and allow it a small part of the user's inotify (namespaces(7))."""
    inotify = {name: most * has_inotify for name, most in MOST_INOTIFY.items()}
    for name, most in {"max_user_namespaces": most_namespaces, **inotify}.items():
        path = f"{stage.PROC}/sys/user/{name}"
        file = calls.call("openat", kernel.AT_FDCWD, path, os.O_WRONLY | os.O_CLOEXEC, 0)
        calls.call("write", file, str(most), len(str(most)))
        calls.call("close", file)


def _add_loopback_up(calls: CallList) -> None:
    socket = calls.call("socket", _AF_INET, _SOCK_DGRAM | os.O_CLOEXEC, 0)
    calls.call("ioctl", socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING))
    for number, address in ((_SIOCSIFADDR, _RANGE), (_SIOCSIFNETMASK, _MASK)):
        calls.call("ioctl", socket, number, struct.pack("16sh2x4s16x", b"lo:1", _AF_INET, address))
    calls.call("close", socket)
    if os.path.exists("/proc/net/if_inet6"):
        socket = calls.call("socket", _AF_INET6, _SOCK_DGRAM | os.O_CLOEXEC, 0)
        calls.attempt("ioctl", socket, _SIOCSIFADDR, _IPV6 + struct.pack("=Ii", 128, 1))  # fails where IPv6 is disabled
        calls.call("close", socket)


def _add_no_capabilities(calls: CallList) -> None:
    calls.attempt("prctl", kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, none = struct.pack("=Ii", kernel.CAPABILITY_VERSION_3, 0), bytes(24)
    calls.call("capset", header, none)


def add_rlimits(calls: CallList, limits: dict[str, int | None]) -> None:
    """Set ``RLIMIT_*`` by name, soft and hard, so that the program cannot raise them."""
    for name, value in limits.items():
        if value is not None:
            kind = getattr(resource, f"RLIMIT_{name}")
            maximum = resource.getrlimit(kind)[1]
            allowed = value if maximum == resource.RLIM_INFINITY else min(value, maximum)
            calls.call("prlimit64", 0, kind, struct.pack("=2Q", allowed, allowed), None)


def add_descriptors(calls: CallList, fds: Mapping[str, int], *more: str) -> None:
    """Place the program's descriptors at their numbers, and ``more`` from `FIRST_FREE` on. Close all others."""
    names = ("stdin", "stdout", "stderr", "control", "status", "payload", "order", *more)
    duplicates = {
        number: calls.call("fcntl", fds[name], fcntl.F_DUPFD_CLOEXEC, _HIGH)
        for number, name in enumerate(names)
        if name in fds
    }
    for number, fd in duplicates.items():
        is_inheritable = number not in (STATUS, PAYLOAD) and number < FIRST_FREE
        calls.call("dup3", fd, number, 0 if is_inheritable else os.O_CLOEXEC)
    for number in {*range(len(names))} - {*duplicates}:
        calls.attempt("close", number)
    calls.call("close_range", len(names), _ALL, 0)


def do(add: Callable[..., None], *arguments: Any) -> None:
    """Perform at once, in this process, what ``add`` adds to a list."""
    calls = CallList()
    add(calls, *arguments)
    perform(calls.encode())


def duplicate_high(fd: int) -> int:
    """A duplicate of ``fd`` that no dup2 to a low number can overwrite."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)


def wait_for_program(pid: int, status: int, program_fds: tuple[int, ...], *, waits: bool) -> NoReturn:
    """Wait for the program ``pid``, report its end on ``status``, and exit with its status. Closes ``program_fds``,
    which only the program may hold. ``waits``: the program comes later."""
    if waits:
        os.write(status, SET_UP)
    for fd in program_fds:
        close(fd)
    kernel.default_signals()  # handlers of preloaded modules must not run here
    code = _reap_until(pid)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = int((used.ru_utime + used.ru_stime) * 1e6)
    os.write(status, REPORT.pack(b"x", code, used.ru_maxrss * 1024, cpu, _count_begun()))
    os._exit(os.WEXITSTATUS(code) if os.WIFEXITED(code) else 128 + os.WTERMSIG(code))


def _count_begun() -> int:
    """Count other processes and threads by the last pid of the namespace (proc(5), loadavg); 0 if unknown."""
    try:
        fd = os.open("/proc/loadavg", os.O_RDONLY)
        try:
            return max(0, int(os.read(fd, 100).split()[-1]) - 1)
        finally:
            os.close(fd)
    except (OSError, ValueError, IndexError):
        return 0


def close(fd: int) -> None:
    """Close a descriptor that this cell may not have."""
    try:
        os.close(fd)
    except OSError:
        return


def start_program(payload: int, control: int | None) -> int:
    """Start the command in ``payload``, a descriptor that only this cell holds, and return its pid. posix_spawn(3) is
    faster than a fork: it shares our memory until the exec."""
    argv, env, cwd = wire.decode_command(os.pread(payload, _MAX_PAYLOAD, 0))
    if control is None:
        fcntl.fcntl(3, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    os.chdir(cwd)
    return os.posix_spawn(argv[0], argv, env, setsid=True, setsigmask=(), setsigdef=IGNORED_BY_PYTHON)


def _reap_until(pid: int) -> int:
    while True:
        ended, code = os.wait()
        if ended == pid:
            return code
