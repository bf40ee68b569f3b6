"""Ask the kernel for what a cell must not have, and hold what is given: namespaces, mounts, descriptors, sockets.

Only asks: nothing that is given is used for anything. MARK names what is mounted and the key that is made;
HANDLE, if there, is a file of the host's as a file handle (hex), opened by way of the file NEAR.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time

from tests.escapes.payloads.attempts import attempt, checked, finish, libc, read, syscall

X86 = os.uname().machine == "x86_64"
NUMBERS = {  # x86_64, aarch64
    "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "userfaultfd": (323, 282),
    "add_key": (248, 217), "keyctl": (250, 219), "open_by_handle_at": (304, 265), "personality": (135, 92),
    "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "clock_settime": (227, 112), "settimeofday": (170, 170), "quotactl": (179, 60), "swapon": (167, 224),
    "reboot": (169, 142), "syslog": (103, 116), "fanotify_init": (300, 262), "setns": (308, 268),
    "move_pages": (279, 239), "lookup_dcookie": (212, 18), "clone3": (435, 435), "openat2": (437, 437),
    "pidfd_getfd": (438, 438), "open_tree": (428, 428), "fsopen": (430, 430), "mount_setattr": (442, 442),
    "landlock_create_ruleset": (444, 444), "memfd_secret": (447, 447), "seccomp": (317, 277), "acct": (163, 89),
}  # fmt: skip
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWNET, CLONE_NEWPID = 0x10000000, 0x00020000, 0x40000000, 0x20000000
MS_REMOUNT_BIND = 32 | 4096
mark = os.environ["MARK"]
IN_CELL = os.path.isdir("/program")


def call(name: str, *arguments: int | bytes | None) -> int:
    return syscall(NUMBERS[name][0 if X86 else 1], *arguments)


def structure(size: int, **words: int) -> int:
    """The address of a zeroed structure, some of whose 64-bit words are set: ``w3=5`` is the fourth."""
    buffer = ctypes.create_string_buffer(size)
    _kept.append(buffer)
    for name, value in words.items():
        ctypes.memmove(ctypes.addressof(buffer) + 8 * int(name[1:]), value.to_bytes(8, "little"), 8)
    return ctypes.addressof(buffer)


_kept: list[object] = []


def clone3_user() -> None:
    pid = call("clone3", structure(88, w0=CLONE_NEWUSER, w4=17), 88)
    if pid == 0:
        time.sleep(60)
        os._exit(0)


def make_key() -> None:
    """In the user's keyring, from which it goes after a minute."""
    call("keyctl", 15, call("add_key", b"user", mark.encode(), b"1", 1, -4), 60)


def open_handle() -> bytes:
    handle = bytes.fromhex(os.environ["HANDLE"])
    buffer = ctypes.create_string_buffer(handle, len(handle))
    near = os.open(os.environ["NEAR"], os.O_RDONLY)
    return os.read(call("open_by_handle_at", near, ctypes.addressof(buffer), os.O_RDONLY), 100)


def sockets() -> None:
    """Those that are not TCP, UDP or unix. They are made, never used."""
    kinds = {
        "packet": (17, 3, 0), "packet-dgram": (17, 2, 0), "netlink-diag": (16, 3, 4), "netlink-audit": (16, 3, 9),
        "netlink-netfilter": (16, 3, 12), "vsock": (40, 1, 0), "alg": (38, 5, 0), "raw": (2, 3, 1), "raw6": (10, 3, 58),
        "icmp": (2, 2, 1), "icmp6": (10, 2, 58), "mptcp": (2, 1, 262), "sctp": (2, 5, 132), "bluetooth": (31, 3, 1),
        "can": (29, 3, 1), "key": (15, 3, 2), "rds": (21, 5, 0), "tipc": (30, 5, 0), "xdp": (44, 3, 0),
        "smc": (43, 1, 0), "ax25": (3, 5, 0), "llc": (26, 1, 0),
        "qipcrtr": (42, 2, 0), "nfc": (39, 5, 0), "udplite": (2, 2, 136),
    }  # fmt: skip
    for name, (family, kind, protocol) in kinds.items():
        attempt(f"socket {name}", lambda f=family, k=kind, p=protocol: _kept.append(socket.socket(f, k, p)) or "made")  # type: ignore[misc, func-returns-value]
    high = 1 << 32
    number = 41 if X86 else 198
    attempt("socket high", lambda: syscall(number, high | 16, 3, high | 12))


witness = os.fork()  # stays as it is, for the host to compare
if witness == 0:
    os.execv("/bin/sleep", ["sleep", "60"])
if "HANDLE" in os.environ:
    attempt("handle", open_handle)
attempt("unshare user", lambda: checked(libc.unshare(CLONE_NEWUSER)))
attempt("unshare all", lambda: checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID)))
attempt("unshare mounts", lambda: checked(libc.unshare(CLONE_NEWNS)))
attempt("clone3", clone3_user)
if IN_CELL:  # bare, root would change the host's own mounts
    attempt("mount tmpfs", lambda: checked(libc.mount(mark.encode(), b"/tmp", b"tmpfs", 0, None)))
    attempt("remount root", lambda: checked(libc.mount(b"none", b"/", None, MS_REMOUNT_BIND, None)))
    attempt("bind", lambda: checked(libc.mount(b"/usr", b"/tmp", None, 4096, None)))
    attempt("umount proc mask", lambda: checked(libc.umount2(b"/proc/kallsyms", 2)))
    attempt("chroot", lambda: os.chroot("/tmp"))
    attempt("pivot_root", lambda: syscall(155 if X86 else 41, b"/tmp", b"/tmp"))
    attempt("setns init", lambda: call("setns", os.open("/proc/1/ns/user", os.O_RDONLY), 0))
attempt("fsopen", lambda: call("fsopen", b"tmpfs", 0))
attempt("open_tree", lambda: call("open_tree", -100, b"/usr", 1))
attempt("io_uring", lambda: call("io_uring_setup", 1, structure(120)))
attempt("userfaultfd", lambda: call("userfaultfd", 1))
attempt("perf", lambda: call("perf_event_open", structure(128, w0=1 | 128 << 32, w5=1 | 1 << 5 | 1 << 6), 0, -1, -1, 0))
attempt("bpf", lambda: call("bpf", 0, structure(72, w0=2 | 4 << 32, w1=4 | 1 << 32), 72))
attempt("fanotify", lambda: call("fanotify_init", 0x200, 0))
attempt("memfd_secret", lambda: call("memfd_secret", 0))
attempt("key", make_key)
attempt("keyring", lambda: call("keyctl", 0, -4, 1))
sockets()
if os.environ.get("PRIVILEGED"):  # each is refused for want of a capability; none would change a thing
    attempt("clock_settime", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
    attempt("init_module", lambda: call("init_module", b"", 0, b""))
    attempt("finit_module", lambda: call("finit_module", -1, b"", 0))
    attempt("delete_module", lambda: call("delete_module", b"no-such-module", 0))
    attempt("kexec", lambda: call("kexec_load", 0, 0, None, 1 << 16))
    attempt("reboot", lambda: call("reboot", 0, 0, 0, None))
    attempt("swapon", lambda: call("swapon", b"/no/such/file", 0))
    attempt("quotactl", lambda: call("quotactl", 0x80000700 & 0x7FFFFFFF, b"/no/such/device", 0, None))
    attempt("syslog", lambda: call("syslog", 10, None, 0))
    attempt("kmsg", lambda: read("/dev/kmsg"))
attempt("personality", lambda: call("personality", 0x0040000))
if not os.environ.get("HOLD"):
    os.kill(witness, signal.SIGKILL)
finish()
