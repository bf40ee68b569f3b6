"""Init, pid 1 of a cell: it builds the walls around itself, in an order that is the security argument, starts the
program, reaps orphans, and ends the cell with the program.

    cgroup · id maps (written by the supervisor) · namespaces · loopback · /proc, user sysctls and masks ·
    bounding set · mounts · new root · resource limits · capabilities · Landlock · seccomp · program

Every phase needs what a later one takes away. What is the same in every cell is done before
the request comes (`preparation`), so that it costs nobody time. A phase that fails ends the cell
before any code of the guest has run; the supervisor learns which.

What is done is decided here, by the supervisor, and written down as lists of system calls (`calls`). Who does it is
init.c, or where that was not built, `run`: a copy of this interpreter, which takes more than
twice the processor time.

It runs under everything the program runs under and cannot be traced by it. The supervisor trusts nothing it says: its
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

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, NoReturn

UID = 1000
GID = 1000
# Descriptors of the program and of init, placed before everything else is closed.
CONTROL, STATUS, PAYLOAD, ORDER, FIRST_FREE = 3, 4, 5, 6, 7
PREPARED = b"p"  # the cell is in its cgroups and has its namespaces
MAPPED = b"m"  # the supervisor's word that the id maps are written

# Files of /proc that tell about the kernel and other programs, or steer it, and folders of the same kind, as far as
# this kernel has them.
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
MOST_TERMINALS = 64  # pseudo-terminals of a cell; all of the machine share some thousand
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts")
_SIGINT, _SIGKILL = 2, 9
_NAME = b"casemate-init"
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x8914, 0x8916, 0x891C  # netdevice(7)
_IFF_UP_RUNNING = 0x41
_AF_INET, _AF_INET6, _SOCK_DGRAM = 2, 10, 2
# Addresses of the loopback besides 127.0.0.1 and ::1. Nobody uses the range of the first, which is for tests of devices
# (RFC 2544): all of it is the cell's own. The second is for documents (RFC 3849). A resolver takes a family without an
# address besides the loopback's for unreachable (getaddrinfo(3), AI_ADDRCONFIG).
_RANGE, _MASK, _IPV6 = bytes((198, 18, 0, 1)), bytes((255, 254, 0, 0)), bytes.fromhex("20010db8") + bytes(11) + b"\1"
MOST_INOTIFY = {"max_inotify_instances": 8, "max_inotify_watches": 8192}  # of a cell
# Mark, wait status of the program, its peak resident memory in bytes, microseconds of cpu of it and its children, and
# how many processes and threads there have been.
SET_UP = b"w"  # written where a cell waits for its program: everything is set up, and the program's process is there
REPORT = struct.Struct("<cIQQQ")
IGNORED_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ: a program expects their default actions
# What a request says besides its lists: that its program is a fork of init and not executed, that it is still to come,
# that it has a control pipe.
_FORKS, _AWAITS, _CONTROLS = 1, 2, 4
_REQUEST = struct.Struct("=qq")  # these, and the length of the list of walls; after that the list of the program's own
_MAX_PAYLOAD = 64 << 20
_ALL = 0x7FFFFFFF  # descriptors; gVisor takes no more
_HIGH = 64  # above every number that descriptors are placed at


def run(channel: int, status: int, cgroup_fds: list[int], program: bytes, prepared: bytes) -> None:
    """The life of a cell's first process: prepare, wait for the request on ``channel``, become init.

    ``status``: where a failure, or the program's end, is reported; ``cgroup_fds``: by which it enters its cgroups;
    ``program``: the seccomp filter; ``prepared``: the list of `preparation`. Returns only where the request says that
    the program is forked and not executed, and only in the program's process, which is then behind every wall, with its
    order to come on ``ORDER``.
    """
    phase = SetupPhase()
    kernel.set_name(_NAME)
    kernel.default_signal(_SIGINT)  # as pid 1 we then do not get it from inside; Python's handler would raise
    try:
        # The kernel may take ten milliseconds for this, so it is the cell and not the supervisor that waits.
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
    """Tell the supervisor why there will be no program."""
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    os.write(status, wire.encode({"failed": phase.name, "errno": number, "detail": str(error)[:500]}))


def preparation(*, has_inotify: bool = True) -> bytes:
    """The list of everything that needs no request, once the ids are mapped."""
    calls = CallList()
    calls.phase("id maps")
    calls.call("setresgid", GID, GID, GID)
    calls.call("setresuid", UID, UID, UID)
    calls.call("prctl", kernel.PR_SET_DUMPABLE, 0, 0, 0, 0)
    calls.call("prctl", kernel.PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)  # of the supervisor, also in a fork of a zygote's
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
    for capability in range(kernel.last_capability() + 1):  # no exec can gain one any more (capabilities(7))
        calls.call("prctl", kernel.PR_CAPBSET_DROP, capability, 0, 0, 0)
    return calls.encode()


_requests: dict[tuple[Any, ...], bytes] = {}
_MOST_REQUESTS = 64  # kept: those of one kind of cells are the same


def request_message(request: dict[str, Any], targets: list[str], names: list[str]) -> bytes:
    """What init is told, besides descriptors: mounts for ``targets``, of which the first is the root, and those of the
    program, whose ``names`` are given."""
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
    """Attach the root tree and everything of this cell's own below it, and make it the root."""
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
    """The list for the program's process where it is forked from init, which is a warmed interpreter.

    The path of the ``interpreter`` names it. What is executed becomes readable from outside, for measuring its memory,
    by itself; what is forked is made so.
    """
    calls = CallList()
    calls.call("setsid")
    _add_no_capabilities(calls)  # as exec would, whatever init had
    calls.call("prctl", kernel.PR_SET_NAME, os.path.basename(interpreter)[:15], 0, 0, 0)
    calls.call("prctl", kernel.PR_SET_DUMPABLE, 1, 0, 0, 0)
    calls.call("close", STATUS)
    calls.call("close", PAYLOAD)
    return calls.encode()


def keep_own_descriptors(channel: int, status: int) -> tuple[_socket.socket, int]:
    """Keep only our own two descriptors: what we inherited of other cells would stay alive through us."""
    channel, status = duplicate_high(channel), duplicate_high(status)
    os.dup2(channel, CONTROL, inheritable=False)
    os.dup2(status, STATUS, inheritable=False)
    kernel.close_from(PAYLOAD)
    return _socket.socket(fileno=CONTROL), STATUS


def receive_request(channel: _socket.socket) -> tuple[dict[str, Any], dict[str, int]]:
    """The request of a cell that has no lists, and the program's descriptors by name."""
    data, fds = kernel.receive_fds(channel, wire.MAX_MESSAGE, wire.MAX_DESCRIPTORS)
    if not data:
        os._exit(125)  # the supervisor is gone
    request = wire.decode(data)
    return request, dict(zip(request["fds"], fds, strict=True))


def _report_prepared(channel: _socket.socket) -> None:
    """Tell the supervisor. While the message waits there, what it carries outlives us, our mounts and our network:
    their removal, which takes the kernel half a millisecond, so comes after the result."""
    namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("mnt", "net")]
    kernel.send_fds(channel, PREPARED, namespaces)
    kernel.close_all(namespaces)


def _undo_layers(calls: CallList, layers: list[str]) -> None:
    """Take back what was prepared of layers that the request leaves out, as tests of the other layers do."""
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
    """Attach the detached mounts ``tree`` at ``target``."""
    calls.call("move_mount", tree, "", kernel.AT_FDCWD, target, kernel.MOVE_FROM_EMPTY)


def _add_user_sysctls(calls: CallList, most_namespaces: int, *, has_inotify: bool = True) -> None:
    """Allow no new user namespace in the cell, and a small part of the user's inotify (namespaces(7))."""
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
    """Empty every capability set, for good (capabilities(7))."""
    calls.attempt("prctl", kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, none = struct.pack("=Ii", kernel.CAPABILITY_VERSION_3, 0), bytes(24)
    calls.call("capset", header, none)


def add_rlimits(calls: CallList, limits: dict[str, int | None]) -> None:
    """Apply ``RLIMIT_*`` by name; soft and hard alike, so that the program cannot raise them."""
    for name, value in limits.items():
        if value is not None:
            kind = getattr(resource, f"RLIMIT_{name}")
            maximum = resource.getrlimit(kind)[1]
            allowed = value if maximum == resource.RLIM_INFINITY else min(value, maximum)
            calls.call("prlimit64", 0, kind, struct.pack("=2Q", allowed, allowed), None)


def add_descriptors(calls: CallList, fds: Mapping[str, int], *more: str) -> None:
    """Put the program's descriptors, and ``more`` from `FIRST_FREE` on, at their numbers and close everything else that
    was inherited."""
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
    """Have this process do now what ``add`` adds to a list."""
    calls = CallList()
    add(calls, *arguments)
    perform(calls.encode())


def duplicate_high(fd: int) -> int:
    """A duplicate of ``fd`` that no dup2 to a low number can overwrite."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH)


def wait_for_program(pid: int, status: int, program_fds: tuple[int, ...], *, waits: bool) -> NoReturn:
    """Wait for the end of the program ``pid``, report it on ``status`` and exit as it did.

    ``program_fds``: the program's descriptors, of which we must hold none; ``waits``: whether its program is to come.
    """
    if waits:
        os.write(status, SET_UP)
    for fd in program_fds:
        close(fd)
    kernel.default_signals()  # what a preloaded module handles must not run in here
    code = _reap_until(pid)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = int((used.ru_utime + used.ru_stime) * 1e6)
    os.write(status, REPORT.pack(b"x", code, used.ru_maxrss * 1024, cpu, _count_begun()))
    os._exit(os.WEXITSTATUS(code) if os.WIFEXITED(code) else 128 + os.WTERMSIG(code))


def _count_begun() -> int:
    """How many processes and threads there have been besides this one: the kernel tells the last pid that it gave in
    this namespace (proc(5), loadavg). 0 where it does not."""
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
    """Start the command in ``payload``, a descriptor that only this cell holds; its pid.

    posix_spawn(3) shares our memory until the exec, which is faster than a fork.
    """
    argv, env, cwd = wire.decode_command(os.pread(payload, _MAX_PAYLOAD, 0))
    if control is None:
        fcntl.fcntl(3, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    os.chdir(cwd)
    return os.posix_spawn(argv[0], argv, env, setsid=True, setsigmask=(), setsigdef=IGNORED_BY_PYTHON)


def _reap_until(pid: int) -> int:
    """Reap every child; the wait status of ``pid`` when it ends."""
    while True:
        ended, code = os.wait()
        if ended == pid:
            return code
