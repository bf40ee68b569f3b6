"""Inside the new process: build the walls, in an order that is the security argument, then start the program.

    cgroup · id maps (written by the supervisor) · namespaces · loopback · /proc, user sysctls and masks ·
    bounding set · mounts · new root · resource limits · capabilities · Landlock · seccomp · program

Every step needs what a later one takes away. What is the same in every cell is done before
the request comes (`prepare`), so that it costs no one time. A step that fails ends the cell
before any code of the guest has run; the supervisor is told which.
"""

from __future__ import annotations

import _socket
import array
import fcntl
import os
import resource
import struct

from casemate.supervisor import enter, filters, init, kernel, landlock, stage, wire

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any

UID = 1000
GID = 1000
# Descriptors of the program and of init, placed before everything else is closed.
CONTROL, STATUS, PAYLOAD, ORDER, FIRST_FREE = 3, 4, 5, 6, 7
PREPARED = b"p"  # the cell's word that it is in its cgroups and its namespaces stand
MAPPED = b"m"  # the supervisor's word that the id maps are written

# Files of /proc that tell about the kernel or steer it, and folders of the same kind, as far as this kernel has them.
_PROC = set(os.listdir("/proc"))
_MASKED_FILES = sorted(
    _PROC & {"kcore", "keys", "key-users", "timer_list", "latency_stats", "sched_debug", "sysrq-trigger", "kallsyms"}
)
_MASKED_FOLDERS = sorted(_PROC & {"acpi", "scsi", "bus", "fs", "irq", "driver", "asound"})
_WRITABLE = ("/workspace", "/tmp", "/dev/shm")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts")
_SIGINT = 2
_NAME = b"casemate-init"
_SIOCSIFFLAGS = 0x8914  # netdevice(7)
_IFF_UP_RUNNING = 0x41


class Step:
    """The step a cell is at, so that a failure names it."""

    name = "start"


def live(channel: int, status: int, doors: list[int], program: bytes) -> None:
    """The life of a cell's first process: prepare, wait for the request on ``channel``, become init.

    ``status``: where a failure, or the program's end, is told; ``doors``: of its cgroups; ``program``: the
    seccomp filter. Returns only where the request says that the program is forked and not executed, and only
    in the program's process, which is then behind every wall, with its order to come on ``ORDER``.
    """
    step = Step()
    kernel.set_name(_NAME)
    kernel.default_signal(_SIGINT)  # as pid 1 we then do not get it from inside; Python's handler would raise
    try:
        # The kernel may take ten milliseconds for this, so it is the cell and not the supervisor that waits.
        step.name = "cgroup"
        for door in doors:
            os.write(door, b"0")
        link, status = _let_go(channel, status)
        _prepare(link, step)
        request, mounts, fds = _receive(link, step)
        _assemble(request, mounts, link, step)
        _place_descriptors({**fds, "status": status})
        status = STATUS
        _restrict(request, program, step)
        if request["forked"]:
            step.name = "fork"
            pid = _fork_program(request)
            if pid == 0:
                return
        else:
            step.name = "exec"
            pid = init.start_program(PAYLOAD, CONTROL if request["control"] else None)
        init.look_after(pid, STATUS, (0, 1, 2, CONTROL, PAYLOAD, ORDER), waits=request["order"])
    except BaseException as error:  # noqa: BLE001 - the end of this process, whatever happened
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        os.write(status, wire.encode({"failed": step.name, "errno": number, "detail": str(error)[:500]}))
    os._exit(125)


def _let_go(channel: int, status: int) -> tuple[_socket.socket, int]:
    """Keep only our own two descriptors: what we inherited of other cells would stay alive through us."""
    ours, told = above(channel), above(status)
    os.dup2(ours, CONTROL, inheritable=False)
    os.dup2(told, STATUS, inheritable=False)
    kernel.close_from(PAYLOAD)
    return _socket.socket(fileno=CONTROL), STATUS


def _prepare(channel: _socket.socket, step: Step) -> None:
    """Everything that needs no request."""
    step.name = "id maps"
    if channel.recv(1) != MAPPED:
        os._exit(125)  # the supervisor is gone
    os.setresgid(GID, GID, GID)
    os.setresuid(UID, UID, UID)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    step.name = "namespaces"
    kernel.unshare(
        kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP | kernel.CLONE_NEWNET
    )
    os.setsid()
    os.umask(0o022)
    step.name = "network"
    _loopback_up()
    _socket.sethostname("casemate")
    step.name = "proc"
    kernel.mount("proc", stage.PROC, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    _forbid_nesting("0")
    step.name = "masks"
    _mask_proc()
    step.name = "capabilities"
    kernel.drop_bounding_set()
    _say_prepared(channel)


def _receive(channel: _socket.socket, step: Step) -> tuple[dict[str, Any], list[tuple[int, str]], dict[str, int]]:
    """The request, the mounts to attach, and the program's descriptors by name."""
    step.name = "request"
    numbers = array.array("i")
    data, ancillary, _, _ = channel.recvmsg(
        wire.MAX_MESSAGE, _socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * numbers.itemsize)
    )
    if not data:
        os._exit(125)  # the supervisor is gone
    for _, _, payload in ancillary:
        numbers.frombytes(payload)
    request = wire.decode(data)
    targets, names = request["targets"], request["fds"]
    fds = list(numbers)
    mounts = list(zip(fds, targets, strict=False))
    return request, mounts, dict(zip(names, fds[len(targets) :], strict=True))


def _assemble(request: dict[str, Any], mounts: list[tuple[int, str]], channel: _socket.socket, step: Step) -> None:
    """Attach the root tree and everything of this cell's own below it, and make it the root."""
    _undo(request["layers"])
    channel.close()
    step.name = "mounts"
    kernel.move_mount(mounts[0][0], stage.CELL)
    os.chdir(stage.CELL)
    for fd, target in mounts[1:]:
        kernel.move_mount(fd, target)
    quiet = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("devpts", "dev/pts", "devpts", quiet, "newinstance,ptmxmode=0666,mode=0620")
    kernel.mount(stage.PROC, "proc", None, kernel.MS_MOVE)
    step.name = "new root"
    kernel.pivot_root_here()


def _restrict(request: dict[str, Any], program: bytes, step: Step) -> None:
    layers = request["layers"]
    step.name = "limits"
    if "rlimits" in layers:
        _limit(request["rlimits"])
    if request["cpu_set"]:
        os.sched_setaffinity(0, request["cpu_set"])
    step.name = "capabilities"
    if "capabilities" in layers:
        kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    step.name = "landlock"
    if "landlock" in layers and landlock.abi():
        pipes = (
            ("/program/steps",) if request["session"] else ()
        )  # mounted read-only: only named pipes can be written to
        landlock.restrict(request["readable"], (*_WRITABLE, *request["writable"]), (*_DEVICES, *pipes), listable=("/",))
    step.name = "seccomp"
    if "seccomp" in layers:
        filters.install(program)


def _fork_program(request: dict[str, Any]) -> int:
    """The program's process, out of this one, which is a warmed interpreter: 0 in it, in init its pid.

    ``forked`` is the interpreter's path, which names the process. What is executed becomes readable from outside,
    for measuring its memory, by itself; what is forked is made so.
    """
    os.chdir(request["cwd"])
    pid = os.fork()
    if pid == 0:
        os.setsid()
        kernel.drop_capabilities()  # as exec would, whatever init had
        kernel.set_name(os.path.basename(request["forked"]).encode())
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
        os.close(STATUS)
        os.close(PAYLOAD)
    return pid


def _say_prepared(channel: _socket.socket) -> None:
    """Tell the supervisor. While the message waits there, what it carries outlives us, our mounts and our network:
    their removal, which takes the kernel half a millisecond, so comes after the result."""
    namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("mnt", "net")]
    channel.sendmsg([PREPARED], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", namespaces))])
    for fd in namespaces:
        os.close(fd)


def _undo(layers: list[str]) -> None:
    """Take back what was prepared of layers that the request leaves out, as tests of the other layers do."""
    if "init" not in layers:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    if "mounts" not in layers:
        kernel.mount("proc", stage.PROC, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    if "namespaces" not in layers:
        kernel.mount("proc", stage.PROC, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
        _forbid_nesting("10000")
        if "mounts" in layers:
            kernel.unmount(stage.PROC)


def _mask_proc() -> None:
    for name in _MASKED_FILES:
        kernel.mount("/dev/null", f"{stage.PROC}/{name}", None, kernel.MS_BIND)
    for name in _MASKED_FOLDERS:
        kernel.mount(stage.EMPTY, f"{stage.PROC}/{name}", None, kernel.MS_BIND)
    tree = kernel.open_tree(f"{stage.PROC}/sys")
    kernel.set_attributes(tree, kernel.ATTR_RDONLY)
    kernel.move_mount(tree, f"{stage.PROC}/sys")
    os.close(tree)


def _forbid_nesting(most: str) -> None:
    """No user namespace can be made in here, and no inotify instance of the user's taken (namespaces(7))."""
    for name in ("max_user_namespaces", "max_inotify_instances"):
        enter.write_file(f"{stage.PROC}/sys/user/{name}", most)


def _loopback_up() -> None:
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC, 0)
    try:
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING))
    finally:
        sock.close()


def _limit(limits: dict[str, int | None]) -> None:
    """Apply ``RLIMIT_*`` by name; soft and hard alike, so that the program cannot raise them."""
    for name, value in limits.items():
        if value is not None:
            kind = getattr(resource, f"RLIMIT_{name}")
            hardest = resource.getrlimit(kind)[1]
            allowed = value if hardest == resource.RLIM_INFINITY else min(value, hardest)
            resource.setrlimit(kind, (allowed, allowed))


def _place_descriptors(fds: dict[str, int]) -> None:
    """Put the program's descriptors at their numbers and close everything else we inherited."""
    names = ("stdin", "stdout", "stderr", "control", "status", "payload", "order")
    high = {number: above(fds[name]) for number, name in enumerate(names) if name in fds}
    for number, fd in high.items():
        os.dup2(fd, number, inheritable=number not in (STATUS, PAYLOAD))
    for number in {*range(FIRST_FREE)} - {*high}:
        init.close(number)
    kernel.close_from(FIRST_FREE)


def above(fd: int) -> int:
    """A duplicate of ``fd`` that no dup2 to a low number can overwrite."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64)
