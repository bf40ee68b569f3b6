"""System calls that Python does not offer, as functions that raise ``OSError``.

Sources: mount_setattr(2), open_tree(2), move_mount(2), fsopen(2), clone(2), prctl(2), seccomp(2) and
the kernel's uapi headers. Numbers from 424 on are the same on every architecture.
"""

from __future__ import annotations

import _socket
import array
import ctypes
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# All calls keep the interpreter's lock, because clone returns in two processes and both must still hold it.
_libc = ctypes.PyDLL(None, use_errno=True)

CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_SLAVE = 1 << 19
MNT_DETACH = 2

ATTR_RDONLY = 0x1
ATTR_NOSUID = 0x2
ATTR_NODEV = 0x4
ATTR_NOEXEC = 0x8
ATTR_IDMAP = 0x00100000

AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_CLOEXEC = 0o2000000
AT_TREE = _AT_EMPTY_PATH | _AT_RECURSIVE  # a mount by descriptor, with everything below it
OPEN_TREE = _OPEN_TREE_CLONE | _CLOEXEC | _AT_RECURSIVE  # a detached copy of mounts
MOVE_FROM_EMPTY = 0x4
_MOVE_TO_EMPTY = 0x40
_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_CONFIG_FLAG, _CONFIG_STRING, _CONFIG_CREATE, _CONFIG_RECONFIGURE = 0, 1, 6, 7
_FSPICK_CLOEXEC, _FSPICK_EMPTY_PATH = 1, 8

_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_FSPICK = 433
_SYS_MOUNT_SETATTR = 442
_SYS_CLOSE_RANGE = 436
_MADV_POPULATE_WRITE = 23  # since Linux 5.14
_PER_MACHINE = {  # pivot_root, clone, capset, seccomp, utimensat, setfsuid, setfsgid
    "x86_64": (155, 56, 126, 317, 280, 122, 123),
    "aarch64": (41, 220, 91, 277, 88, 151, 152),
}
machine = os.uname().machine
if machine not in _PER_MACHINE:
    raise SystemExit(f"casemate has no system call numbers for {machine}")
_SYS_PIVOT_ROOT, _SYS_CLONE, _SYS_CAPSET, _SYS_SECCOMP, _SYS_UTIMENSAT, _SYS_SETFSUID, _SYS_SETFSGID = _PER_MACHINE[
    machine
]

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE, PR_CAP_AMBIENT_CLEAR_ALL = 2, 4
_PR_SET_KEEPCAPS = 8
_PR_SET_SECUREBITS, _NO_SETUID_FIXUP = 28, 4
CAP_SETGID, CAP_SETUID, CAP_SETPCAP = 6, 7, 8
_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FILTER_FLAG_TSYNC = 1  # for all threads, so that none escapes the filter
_SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
_SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV = 32  # a signal does not restart a call that is being answered
_SIGNALS = 65
_FILTER_INSTRUCTION_BYTES = 8  # of struct sock_filter
_LAST_CAPABILITY = 63  # capability sets have 64 bits; dropping an unknown one fails with EINVAL
CAPABILITY_VERSION_3 = 0x20080522

_int, _long, _str, _ptr = ctypes.c_int, ctypes.c_long, ctypes.c_char_p, ctypes.c_void_p


def system_call(number: int, *types: type) -> Callable[..., int]:
    """The system call ``number`` as a function. Pass its result to `check`."""
    function = _libc["syscall"]
    function.restype = _long
    function.argtypes = (_long, *types)
    return lambda *arguments: int(function(number, *arguments))


_raw_call = ctypes.PyDLL(None, use_errno=True)["syscall"]
_raw_call.restype = _long
_raw_call.argtypes = (_long,) * 7
_open_tree = system_call(_SYS_OPEN_TREE, _int, _str, ctypes.c_uint)
_move_mount = system_call(_SYS_MOVE_MOUNT, _int, _str, _int, _str, ctypes.c_uint)
_fsopen = system_call(_SYS_FSOPEN, _str, ctypes.c_uint)
_fsconfig = system_call(_SYS_FSCONFIG, _int, ctypes.c_uint, _str, _str, _int)
_fsmount = system_call(_SYS_FSMOUNT, _int, ctypes.c_uint, ctypes.c_uint)
_fspick = system_call(_SYS_FSPICK, _int, _str, ctypes.c_uint)
_mount_setattr = system_call(_SYS_MOUNT_SETATTR, _int, _str, ctypes.c_uint, _ptr, ctypes.c_size_t)
_pivot_root = system_call(_SYS_PIVOT_ROOT, _str, _str)
_clone = system_call(_SYS_CLONE, ctypes.c_ulong, _ptr, _ptr, _ptr, _ptr)
_close_range = system_call(_SYS_CLOSE_RANGE, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint)
_capset = system_call(_SYS_CAPSET, _ptr, _ptr)
_utimensat = system_call(_SYS_UTIMENSAT, _int, _str, _str, _int)
_setfsuid = system_call(_SYS_SETFSUID, _int)
_setfsgid = system_call(_SYS_SETFSGID, _int)
_seccomp = system_call(_SYS_SECCOMP, ctypes.c_ulong, ctypes.c_ulong, _ptr)
_mount = _libc["mount"]
_mount.argtypes = (_str, _str, _str, ctypes.c_ulong, _str)
_umount2 = _libc["umount2"]
_umount2.argtypes = (_str, _int)
_unshare = _libc["unshare"]
_unshare.argtypes = (_int,)
_setns = _libc["setns"]
_setns.argtypes = (_int, _int)
_prctl = _libc["prctl"]
_prctl.argtypes = (_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_madvise = _libc["madvise"]
_madvise.argtypes = (_ptr, ctypes.c_size_t, _int)
_signal = _libc["signal"]
_signal.argtypes = (_int, _ptr)
_signal.restype = _ptr


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", _ptr))


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def check(result: int, what: str) -> int:
    """Return ``result``, or raise ``OSError`` with the errno and ``what`` if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def raw_call(number: int, *arguments: int) -> int:
    """Make the system call ``number`` with integer arguments. Pass its result to `check`."""
    return int(_raw_call(number, *arguments, *[0] * (6 - len(arguments))))


def unshare(flags: int) -> None:
    """Enter new namespaces: unshare(2)."""
    check(_unshare(flags), "unshare")


def setns(namespace_fd: int, kind: int) -> None:
    """Enter a namespace of ``kind`` (``CLONE_NEW*``): setns(2)."""
    check(_setns(namespace_fd, kind), "setns")


def bare_clone(flags: int) -> int:
    """`clone` without Python's fork hooks, for a process without threads that forks again right away."""
    return check(_clone(flags | 17, None, None, None, None), "clone")


def clone(flags: int) -> int:
    """Fork into new namespaces. Returns the child's pid, or 0 in the child. The child sends SIGCHLD when it ends."""
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _clone(flags | 17, None, None, None, None)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    return check(pid, "clone")


def clone_owned(owner: int, do: Callable[[int], int], flags: int) -> int:
    """Call ``do`` (`clone` or `bare_clone`) so that ``owner`` owns the new user namespace and is charged for it. The
    caller must be real root with one thread. It keeps its capabilities during the call."""
    prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP)
    pid = -1
    try:
        os.seteuid(owner)
        pid = do(flags)
    finally:
        if pid:  # not in the child: it sets its own user, and its new user namespace clears the secure bits
            os.seteuid(0)
            prctl(_PR_SET_SECUREBITS, 0)
            prctl(PR_SET_PDEATHSIG, 9)  # changing the user clears it
    return pid


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    check(
        _mount(source.encode(), os.fsencode(target), kind.encode() if kind else None, flags, options.encode() or None),
        f"mount {target}",
    )


def unmount(target: str) -> None:
    """Detach the mount at ``target``; it is freed once unused."""
    check(_umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root_here() -> None:
    """Make the working directory the root, and detach the old one: pivot_root(2), "pivot_root(".", ".")"."""
    check(_pivot_root(b".", b"."), "pivot_root")
    check(_umount2(b".", MNT_DETACH), "umount old root")
    os.chdir("/")


def open_tree(path: str, *, recursive: bool = True, attributes: int = 0) -> int:
    """A detached copy of the mounts at ``path``, with ``attributes`` (``ATTR_*``), as a descriptor."""
    flags = _OPEN_TREE_CLONE | _CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    tree = check(_open_tree(AT_FDCWD, os.fsencode(path), flags), f"open_tree {path}")
    if attributes:
        try:
            set_attributes(tree, attributes, recursive=recursive)
        except BaseException:
            os.close(tree)
            raise
    return tree


def move_mount(mount_fd: int, target: str) -> None:
    """Attach the detached mount ``mount_fd`` at ``target``."""
    check(_move_mount(mount_fd, b"", AT_FDCWD, os.fsencode(target), MOVE_FROM_EMPTY), f"move_mount {target}")


def move_mount_onto(mount_fd: int, place_fd: int) -> None:
    """Attach the detached mount ``mount_fd`` over the file or folder that ``place_fd`` refers to."""
    check(_move_mount(mount_fd, b"", place_fd, b"", MOVE_FROM_EMPTY | _MOVE_TO_EMPTY), "move_mount")


def set_attributes(
    mount_fd: int, attributes: int, *, cleared: int = 0, userns_fd: int = 0, recursive: bool = True
) -> None:
    """Set ``attributes`` (``ATTR_*``) and clear ``cleared`` on a detached mount and everything below it."""
    attr = _MountAttr(attributes, cleared, 0, userns_fd)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    check(_mount_setattr(mount_fd, b"", flags, ctypes.addressof(attr), ctypes.sizeof(attr)), "mount_setattr")


def new_mount(kind: str, options: dict[str, str], attributes: int = 0) -> int:
    """A new, detached file system of ``kind``, as a descriptor. An option with an empty value is a flag."""
    context = check(_fsopen(kind.encode(), _FSOPEN_CLOEXEC), f"fsopen {kind}")
    try:
        for key, value in options.items():
            command = _CONFIG_STRING if value else _CONFIG_FLAG
            check(
                _fsconfig(context, command, key.encode(), os.fsencode(value) if value else None, 0),
                f"fsconfig {kind} {key}",
            )
        check(_fsconfig(context, _CONFIG_CREATE, None, None, 0), f"fsconfig {kind}")
        return check(_fsmount(context, _FSMOUNT_CLOEXEC, attributes), f"fsmount {kind}")
    finally:
        os.close(context)


def reconfigure(tree_fd: int, options: dict[str, str]) -> None:
    """Change ``options`` of the file system with the root ``tree_fd``, mounted or not."""
    context = check(_fspick(tree_fd, b"", _FSPICK_CLOEXEC | _FSPICK_EMPTY_PATH), "fspick")
    try:
        for key, value in options.items():
            check(_fsconfig(context, _CONFIG_STRING, key.encode(), os.fsencode(value), 0), f"fsconfig {key}")
        check(_fsconfig(context, _CONFIG_RECONFIGURE, None, None, 0), "fsconfig reconfigure")
    finally:
        os.close(context)


def copy_pages(ranges: list[tuple[int, int]]) -> None:
    """Copy the copy-on-write pages at ``ranges`` (address, length) before any write: madvise(2). Best effort."""
    for address, length in ranges:
        _madvise(address, length, _MADV_POPULATE_WRITE)


def write_file(path: str, text: str, folder: int | None = None) -> None:
    """Write to a file of /proc or of a cgroup in one call; ``path`` is relative to ``folder`` if given."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def set_file_ids(uid: int, gid: int) -> None:
    """Set the user for access to files and to processes' memory: setfsuid(2), which reports no error. For a user other
    than root, it also drops root's rights on files."""
    _setfsgid(gid)
    _setfsuid(uid)


def set_times(fd: int, times: bytes | None) -> None:
    """Set the times of ``fd``, which may be O_PATH, to two ``struct timespec``; None means now."""
    check(_utimensat(fd, b"", times, _AT_EMPTY_PATH), "utimensat")


def close_all(fds: Iterable[int]) -> None:
    """Close all descriptors."""
    for fd in fds:
        os.close(fd)


def close_from(first: int) -> None:
    """Close every descriptor from ``first`` on."""
    check(_close_range(first, 0x7FFFFFFF, 0), "close_range")  # gVisor's maximum


def prctl(option: int, argument: int = 0, second: int = 0) -> None:
    """prctl(2)."""
    check(_prctl(option, argument, second, 0, 0), f"prctl {option}")


def set_name(name: bytes) -> None:
    """Set the name in ``ps`` and ``top``; at most 15 bytes."""
    buffer = ctypes.create_string_buffer(name)
    _prctl(PR_SET_NAME, ctypes.addressof(buffer), 0, 0, 0)


def default_signal(number: int) -> None:
    """Reset signal ``number`` to its default action. Signals that Python ignores would stay ignored across exec."""
    _signal(number, None)


def default_signals() -> None:
    """Reset every signal."""
    for number in range(1, _SIGNALS):
        default_signal(number)


def last_capability() -> int:
    """The highest capability number of this kernel."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        return int(file.read())


def drop_bounding_set() -> None:
    """Empty the bounding set, so that no exec can gain a capability (capabilities(7)). Needs CAP_SETPCAP."""
    for capability in range(_LAST_CAPABILITY):
        if _prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break


def give_up_rights(ids: Sequence[int] | None) -> None:
    """Become the user and group ``ids``, if given, and drop every right for good, even across exec."""
    drop_bounding_set()
    if ids is not None:
        os.setgroups([])
        os.setresgid(ids[1], ids[1], ids[1])
        os.setresuid(ids[0], ids[0], ids[0])
    drop_capabilities()
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Empty every capability set of this process (capabilities(7))."""
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    check(_capset(ctypes.addressof(header), ctypes.addressof(data)), "capset")


def keep_capabilities(capabilities: tuple[int, ...], uid: int, gid: int) -> None:
    """Become another user and keep only ``capabilities``, even across exec (capabilities(7), ambient)."""
    for capability in range(_LAST_CAPABILITY):
        if capability not in capabilities and _prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break
    prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    mask = sum(1 << capability for capability in capabilities)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    check(_capset(ctypes.addressof(header), ctypes.addressof(data)), "capset")
    for capability in capabilities:
        prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def install_filter(program: bytes) -> None:
    """Install a filter for all threads of this process and its children, for good: seccomp(2). Sets no_new_privs, which
    an unprivileged process needs for that. Raises OSError: EINVAL for an invalid program, ENOSYS without seccomp, EBUSY
    if a thread already has its own filter."""
    thread = _install_filter(program, _SECCOMP_FILTER_FLAG_TSYNC)
    if thread:
        raise OSError(errno.EBUSY, f"thread {thread} has a filter of its own")


def install_notifying_filter(program: bytes) -> int:
    """Install a notifying filter in a process of one thread. Returns the listener: seccomp_unotify(2)."""
    return _install_filter(program, _SECCOMP_FILTER_FLAG_NEW_LISTENER | _SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)


def _install_filter(program: bytes, flags: int) -> int:
    buffer = ctypes.create_string_buffer(program, len(program))
    filter_ = _SockFprog(len(program) // _FILTER_INSTRUCTION_BYTES, ctypes.addressof(buffer))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    return check(_seccomp(_SECCOMP_SET_MODE_FILTER, flags, ctypes.addressof(filter_)), "seccomp")


def send_fds(socket: _socket.socket, message: bytes, fds: Iterable[int], flags: int = 0) -> None:
    """Send ``message`` with copies of ``fds``: SCM_RIGHTS of unix(7)."""
    rights = array.array("i", fds)
    socket.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else [], flags)


def receive_fds(socket: _socket.socket, size: int, most_fds: int) -> tuple[bytes, list[int]]:
    """A message of at most ``size`` bytes, and its descriptors. Raises ``OSError`` if not all of them arrived."""
    fds = array.array("i")
    message, ancillary, flags, _ = socket.recvmsg(size, _socket.CMSG_SPACE(most_fds * fds.itemsize))
    for _, _, payload in ancillary:
        fds.frombytes(payload)
    if flags & _socket.MSG_CTRUNC:
        close_all(fds)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "descriptors of a message")
    return message, list(fds)
