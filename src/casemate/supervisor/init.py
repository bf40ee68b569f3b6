"""Init, pid 1 of a cell: it builds the walls around itself, in an order that is the security argument, starts the
program, reaps orphans, and ends the cell with the program.

    cgroup · id maps (written by the supervisor) · namespaces · loopback · /proc, user sysctls and masks ·
    bounding set · mounts · new root · resource limits · capabilities · Landlock · seccomp · program

Every phase needs what a later one takes away. What is the same in every cell is done before
the request comes (`prepare`), so that it costs nobody time. A phase that fails ends the cell
before any code of the guest has run; the supervisor learns which.

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

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
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
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts")
_SIGINT = 2
_NAME = b"casemate-init"
_SIOCSIFFLAGS = 0x8914  # netdevice(7)
_IFF_UP_RUNNING = 0x41
# Mark, wait status of the program, its peak resident memory in bytes, microseconds of cpu of it and its children, and
# how many processes and threads there have been.
SET_UP = b"w"  # written where a cell waits for its program: everything is set up, and the program's process is there
REPORT = struct.Struct("<cIQQQ")
IGNORED_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ: a program expects their default actions
_MAX_PAYLOAD = 64 << 20


class SetupProgress:
    """The phase of its set-up that a cell is at, so that a failure names it."""

    phase = "start"


def run(channel: int, status: int, cgroup_fds: list[int], program: bytes) -> None:
    """The life of a cell's first process: prepare, wait for the request on ``channel``, become init.

    ``status``: where a failure, or the program's end, is reported; ``cgroup_fds``: by which it enters its cgroups;
    ``program``: the seccomp filter. Returns only where the request says that the program is forked and not executed,
    and only in the program's process, which is then behind every wall, with its order to come on ``ORDER``.
    """
    progress = SetupProgress()
    kernel.set_name(_NAME)
    kernel.default_signal(_SIGINT)  # as pid 1 we then do not get it from inside; Python's handler would raise
    try:
        # The kernel may take ten milliseconds for this, so it is the cell and not the supervisor that waits.
        progress.phase = "cgroup"
        for fd in cgroup_fds:
            os.write(fd, b"0")
        link, status = keep_own_descriptors(channel, status)
        _prepare(link, progress)
        request, mounts, fds = receive_request(link, progress)
        _attach_mounts(request, mounts, link, progress)
        place_descriptors({**fds, "status": status})
        status = STATUS
        _restrict(request, program, progress)
        if request["interpreter"]:
            progress.phase = "fork"
            pid = _fork_program(request)
            if pid == 0:
                return
        else:
            progress.phase = "exec"
            pid = start_program(PAYLOAD, CONTROL if request["control"] else None)
        wait_for_program(pid, STATUS, (0, 1, 2, CONTROL, PAYLOAD, ORDER), waits=request["awaits_order"])
    except BaseException as error:  # noqa: BLE001 - the end of this process, whatever happened
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        os.write(status, wire.encode({"failed": progress.phase, "errno": number, "detail": str(error)[:500]}))
    os._exit(125)


def keep_own_descriptors(channel: int, status: int) -> tuple[_socket.socket, int]:
    """Keep only our own two descriptors: what we inherited of other cells would stay alive through us."""
    channel, status = duplicate_high(channel), duplicate_high(status)
    os.dup2(channel, CONTROL, inheritable=False)
    os.dup2(status, STATUS, inheritable=False)
    kernel.close_from(PAYLOAD)
    return _socket.socket(fileno=CONTROL), STATUS


def _prepare(channel: _socket.socket, progress: SetupProgress) -> None:
    """Everything that needs no request."""
    progress.phase = "id maps"
    if channel.recv(1) != MAPPED:
        os._exit(125)  # the supervisor is gone
    os.setresgid(GID, GID, GID)
    os.setresuid(UID, UID, UID)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    progress.phase = "namespaces"
    kernel.unshare(
        kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP | kernel.CLONE_NEWNET
    )
    os.setsid()
    os.umask(0o022)
    progress.phase = "network"
    _loopback_up()
    _socket.sethostname("casemate")
    progress.phase = "proc"
    kernel.mount("proc", stage.PROC, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    _limit_user_sysctls("0")
    progress.phase = "masks"
    _mask_proc()
    progress.phase = "capabilities"
    kernel.drop_bounding_set()
    _report_prepared(channel)


def receive_request(
    channel: _socket.socket, progress: SetupProgress
) -> tuple[dict[str, Any], list[tuple[int, str]], dict[str, int]]:
    """The request, the mounts to attach, and the program's descriptors by name."""
    progress.phase = "request"
    data, fds = kernel.receive_fds(channel, wire.MAX_MESSAGE, wire.MAX_DESCRIPTORS)
    if not data:
        os._exit(125)  # the supervisor is gone
    request = wire.decode(data)
    targets, names = request["targets"], request["fds"]
    mounts = list(zip(fds, targets, strict=False))
    return request, mounts, dict(zip(names, fds[len(targets) :], strict=True))


def _attach_mounts(
    request: dict[str, Any], mounts: list[tuple[int, str]], channel: _socket.socket, progress: SetupProgress
) -> None:
    """Attach the root tree and everything of this cell's own below it, and make it the root."""
    _undo_layers(request["layers"])
    channel.close()
    progress.phase = "mounts"
    kernel.move_mount(mounts[0][0], stage.CELL)
    os.chdir(stage.CELL)
    for fd, target in mounts[1:]:
        kernel.move_mount(fd, target)
    quiet = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("devpts", "dev/pts", "devpts", quiet, "newinstance,ptmxmode=0666,mode=0620")
    kernel.mount(stage.PROC, "proc", None, kernel.MS_MOVE)
    progress.phase = "new root"
    kernel.pivot_root_here()


def _restrict(request: dict[str, Any], program: bytes, progress: SetupProgress) -> None:
    layers = request["layers"]
    progress.phase = "limits"
    if "rlimits" in layers:
        set_rlimits(request["rlimits"])
    if request["cpu_set"]:
        os.sched_setaffinity(0, request["cpu_set"])
    progress.phase = "capabilities"
    if "capabilities" in layers:
        kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    progress.phase = "landlock"
    if "landlock" in layers and landlock.abi():
        # Mounted read-only: only named pipes in it can be written to.
        pipes = ("/program/steps",) if request["session"] else ()
        landlock.restrict(request["readable"], (*_WRITABLE, *request["writable"]), (*_DEVICES, *pipes), listable=("/",))
    progress.phase = "seccomp"
    if "seccomp" in layers:
        kernel.install_filter(program)


def _fork_program(request: dict[str, Any]) -> int:
    """The program's process, out of this one, which is a warmed interpreter: 0 in it, in init its pid.

    The path in ``interpreter`` names the process. What is executed becomes readable from outside,
    for measuring its memory, by itself; what is forked is made so.
    """
    os.chdir(request["cwd"])
    pid = os.fork()
    if pid == 0:
        os.setsid()
        kernel.drop_capabilities()  # as exec would, whatever init had
        kernel.set_name(os.path.basename(request["interpreter"]).encode())
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        os.close(STATUS)
        os.close(PAYLOAD)
    return pid


def _report_prepared(channel: _socket.socket) -> None:
    """Tell the supervisor. While the message waits there, what it carries outlives us, our mounts and our network:
    their removal, which takes the kernel half a millisecond, so comes after the result."""
    namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("mnt", "net")]
    kernel.send_fds(channel, PREPARED, namespaces)
    kernel.close_all(namespaces)


def _undo_layers(layers: list[str]) -> None:
    """Take back what was prepared of layers that the request leaves out, as tests of the other layers do."""
    if "init" not in layers:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    if "mounts" not in layers:
        kernel.mount("proc", stage.PROC, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    if "namespaces" not in layers:
        kernel.mount("proc", stage.PROC, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        _limit_user_sysctls("10000")
        if "mounts" in layers:
            kernel.unmount(stage.PROC)


def _mask_proc() -> None:
    for name in _MASKED_FILES:
        kernel.mount("/dev/null", f"{stage.PROC}/{name}", None, kernel.MS_BIND)
    for name in _MASKED_FOLDERS:
        kernel.mount(stage.EMPTY, f"{stage.PROC}/{name}", None, kernel.MS_BIND)
    tree = kernel.open_tree(f"{stage.PROC}/sys", attributes=kernel.ATTR_RDONLY)
    kernel.move_mount(tree, f"{stage.PROC}/sys")
    os.close(tree)


def _limit_user_sysctls(most: str) -> None:
    """No user namespace can be made in here, and no inotify instance of the user's taken (namespaces(7))."""
    for name in ("max_user_namespaces", "max_inotify_instances"):
        kernel.write_file(f"{stage.PROC}/sys/user/{name}", most)


def _loopback_up() -> None:
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC, 0)
    try:
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING))
    finally:
        sock.close()


def set_rlimits(limits: dict[str, int | None]) -> None:
    """Apply ``RLIMIT_*`` by name; soft and hard alike, so that the program cannot raise them."""
    for name, value in limits.items():
        if value is not None:
            kind = getattr(resource, f"RLIMIT_{name}")
            maximum = resource.getrlimit(kind)[1]
            allowed = value if maximum == resource.RLIM_INFINITY else min(value, maximum)
            resource.setrlimit(kind, (allowed, allowed))


def place_descriptors(fds: dict[str, int], *more: str) -> None:
    """Put the program's descriptors, and ``more`` from `FIRST_FREE` on, at their numbers and close everything else we
    inherited."""
    names = ("stdin", "stdout", "stderr", "control", "status", "payload", "order", *more)
    duplicates = {number: duplicate_high(fds[name]) for number, name in enumerate(names) if name in fds}
    for number, fd in duplicates.items():
        os.dup2(fd, number, inheritable=number not in (STATUS, PAYLOAD) and number < FIRST_FREE)
    for number in {*range(len(names))} - {*duplicates}:
        close(number)
    kernel.close_from(len(names))


def duplicate_high(fd: int) -> int:
    """A duplicate of ``fd`` that no dup2 to a low number can overwrite."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64)


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
    command: dict[str, Any] = wire.decode(os.pread(payload, _MAX_PAYLOAD, 0))
    if control is None:
        fcntl.fcntl(3, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    os.chdir(command["cwd"])
    return os.posix_spawn(
        command["argv"][0], command["argv"], command["env"], setsid=True, setsigmask=(), setsigdef=IGNORED_BY_PYTHON
    )


def _reap_until(pid: int) -> int:
    """Reap every child; the wait status of ``pid`` when it ends."""
    while True:
        ended, code = os.wait()
        if ended == pid:
            return code
