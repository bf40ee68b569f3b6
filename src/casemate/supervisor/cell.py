"""Inside the new process: build the walls, in an order that is the security argument, then start the program.

    id maps (written by the supervisor) · namespaces · mounts · /proc · user sysctls ·
    masks · new root · loopback · resource limits · capabilities · Landlock · seccomp · program

Every step needs what a later one takes away. A step that fails ends the cell before any
code of the guest has run; the supervisor is told which.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import resource
import struct
from typing import Any, NoReturn

from casemate.supervisor import init, kernel, landlock, seccomp, stage, wire

UID = 1000
GID = 1000
# Descriptors of the program and of init, placed before everything else is closed.
CONTROL, STATUS, PAYLOAD, FIRST_FREE = 3, 4, 5, 6

# Files of /proc that tell about the kernel or steer it, and folders of the same kind, as far as this kernel has them.
_PROC = set(os.listdir("/proc"))
_MASKED_FILES = sorted(
    _PROC & {"kcore", "keys", "key-users", "timer_list", "latency_stats", "sched_debug", "sysrq-trigger", "kallsyms"}
)
_MASKED_FOLDERS = sorted(_PROC & {"acpi", "scsi", "bus", "fs", "irq", "driver", "asound"})
_WRITABLE = ("/workspace", "/tmp", "/dev/shm")  # noqa: S108 - inside the cell
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/pts")
_READABLE = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32", "/etc", "/opt", "/proc", "/program", "/dev")
_SIOCSIFFLAGS = 0x8914  # netdevice(7)
_IFF_UP_RUNNING = 0x41
_UNLIMITED = resource.RLIM_INFINITY


class Step:
    """The step a cell is at, so that a failure names it."""

    name = "start"


def build_and_run(request: dict[str, Any], mounts: list[tuple[int, str]], fds: dict[str, int], go: int) -> NoReturn:
    """Never returns: becomes init of the cell, or exits saying which step failed."""
    step = Step()
    status = fds["status"]
    try:
        _build(request, mounts, go, step)
        _place_descriptors(fds)
        status = STATUS
        _restrict(request, step)
        step.name = "exec"
        init.run(STATUS, PAYLOAD, CONTROL if request["control"] else None)
    except BaseException as error:  # noqa: BLE001 - the end of this process, whatever happened
        number = error.errno if isinstance(error, OSError) and error.errno else 0
        os.write(status, wire.encode({"failed": step.name, "errno": number, "detail": str(error)[:500]}))
    os._exit(125)


def _build(request: dict[str, Any], mounts: list[tuple[int, str]], go: int, step: Step) -> None:
    layers = request["layers"]
    step.name = "id maps"
    if os.read(go, 1) != b"m":
        os._exit(125)  # the supervisor is gone
    os.setresgid(GID, GID, GID)
    os.setresuid(UID, UID, UID)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    step.name = "namespaces"
    kernel.unshare(
        kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP | kernel.CLONE_NEWNET
    )
    os.setsid()
    step.name = "mounts"
    _assemble(mounts)
    step.name = "proc"
    kernel.mount("proc", "proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    step.name = "sysctls"
    if "namespaces" in layers:
        _forbid_nesting()
    step.name = "masks"
    if "mounts" in layers:
        _mask_proc()
    step.name = "root"
    kernel.pivot_root_here()
    step.name = "network"
    _loopback_up()
    _name_host()
    step.name = "limits"
    if os.read(go, 1) != b"g":  # the supervisor has put us into our cgroup
        os._exit(125)
    os.close(go)


def _restrict(request: dict[str, Any], step: Step) -> None:
    layers = request["layers"]
    os.umask(0o022)
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
        readable = [path for path in _READABLE if not os.path.islink(path)]
        landlock.restrict([*readable, *request["readable"]], _WRITABLE, _DEVICES, listable=("/",))
    step.name = "seccomp"
    if "seccomp" in layers:
        seccomp.install(request["seccomp"])


def _assemble(mounts: list[tuple[int, str]]) -> None:
    """Attach the root tree and everything of this cell's own below it; the working directory is the new root."""
    kernel.move_mount(mounts[0][0], stage.CELL)
    os.chdir(stage.CELL)
    for fd, target in mounts[1:]:
        kernel.move_mount(fd, target)
    quiet = kernel.MS_NOSUID | kernel.MS_NOEXEC
    kernel.mount("devpts", "dev/pts", "devpts", quiet, "newinstance,ptmxmode=0666,mode=0620")


def _mask_proc() -> None:
    for name in _MASKED_FILES:
        kernel.mount("dev/null", f"proc/{name}", None, kernel.MS_BIND)
    for name in _MASKED_FOLDERS:
        kernel.mount(stage.EMPTY, f"proc/{name}", None, kernel.MS_BIND)
    tree = kernel.open_tree("proc/sys")
    kernel.set_attributes(tree, kernel.ATTR_RDONLY)
    kernel.move_mount(tree, "proc/sys")
    os.close(tree)


def _forbid_nesting() -> None:
    """No user namespace can be made in here, and no inotify instance of the user's taken (namespaces(7))."""
    for name in ("max_user_namespaces", "max_inotify_instances"):
        _write(f"proc/sys/user/{name}", b"0")


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _loopback_up() -> None:
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC, 0)
    try:
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP_RUNNING))
    finally:
        sock.close()


def _name_host() -> None:
    _socket.sethostname("casemate")


def _limit(limits: dict[str, int | None]) -> None:
    """Apply ``RLIMIT_*`` by name; soft and hard alike, so that the program cannot raise them."""
    for name, value in limits.items():
        if value is not None:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def _place_descriptors(fds: dict[str, int]) -> None:
    """Put the program's descriptors at their numbers and close everything else we inherited."""
    wanted = {0: "stdin", 1: "stdout", 2: "stderr", CONTROL: "control", STATUS: "status", PAYLOAD: "payload"}
    high = {number: _above(fds[name]) for number, name in wanted.items()}
    for number, fd in high.items():
        os.dup2(fd, number, inheritable=number <= CONTROL)
    kernel.close_from(FIRST_FREE)


def _above(fd: int) -> int:
    """A duplicate of ``fd`` that no dup2 to a low number can overwrite."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64)
