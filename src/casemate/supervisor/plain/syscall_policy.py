"""The system call policy of cells without namespaces. It is `syscall_policy` without the calls that only namespaces
make harmless, and the supervisor answers some calls.

Landlock confines signals and ptrace (ABI 6), and files by path. It does not govern changes of files that are merely
readable (chmod, utime, chown, setxattr), watching them, or calls on processes by number: with the same user, these
would reach outside. Such a call's arguments are in registers, or the supervisor reads them (`notify`).
"""

from __future__ import annotations

import errno
from types import SimpleNamespace

from casemate.supervisor import syscall_policy
from casemate.supervisor.syscall_policy import ALLOW, NOTIFY, Condition, among, any_bit, not_among

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from typing import Any

NOTIFIED = "connect bind listen chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utimensat"
_REFUSED = """
    utime utimes futimesat
    """
_ABSENT = "inotify_init inotify_init1 inotify_add_watch inotify_rm_watch"  # ENOSYS: libraries then poll
_COUNTED = (("files without a name", "memfd_create"),)  # and nothing that is shared by all processes of the machine

_UNIX, _INET, _INET6 = 1, 2, 10
_PAIRS = (1, 5)  # SOCK_STREAM, SOCK_SEQPACKET
_KIND_OF_SOCKET = 0xFFFFFFFF & ~(0o4000 | 0o2000000)  # less SOCK_NONBLOCK, SOCK_CLOEXEC
_FASTOPEN = 0x20000000  # MSG_FASTOPEN: connects like connect(2)
_IP, _IPV6, _SOL_SOCKET = 0, 41, 1  # levels of options
_DEVICES = (25, 62)  # SO_BINDTODEVICE, SO_BINDTOIFINDEX: would let packets for the loopback leave the machine
_SET_OWNER = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: set the process that a file signals
# FIOSETOWN, SIOCSPGRP; and SIOC*, which reveal the machine's interfaces.
_OUTSIDE_IOCTLS = frozenset((0x8901, 0x8902, *range(0x8910, 0x8950)))
_PROCESS = 0  # PRIO_PROCESS
_IO_PROCESS = 1  # IOPRIO_WHO_PROCESS

_CHANGED: dict[str, tuple[Condition, ...]] = {
    "chmod fchmod creat": (),  # notified or checked below
    "fchmodat fchmodat2": (),
    "socket socketpair": (),
    "inotify_add_watch": (),
    "setsockopt": (
        among(1, (_IP, _IPV6), NOTIFY),
        *next(conditions for _, names, conditions in syscall_policy.CHECKED if names == "setsockopt"),
        not_among(1, (_SOL_SOCKET,), ALLOW),
        among(2, _DEVICES, errno.EPERM),
    ),
    "fcntl": (among(1, (*_SET_OWNER, 1024, 1026), errno.EPERM),),  # and F_SETLEASE, F_NOTIFY
}
_SET_ID = 0o6000  # S_ISUID | S_ISGID
_MORE = (
    ("a setuid file would be one on the host", "creat", (any_bit(1, _SET_ID, errno.EPERM),)),
    (
        "EOPNOTSUPP, as of a file system without them: programs that copy files then go on",
        "setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr setxattrat removexattrat",
        (not_among(0, (), errno.EOPNOTSUPP),),
    ),
    ("the supervisor looks at what they name, and does it", NOTIFIED, (not_among(0, (), NOTIFY),)),
    (
        "the supervisor makes them",
        "socket",
        (not_among(0, (_UNIX, _INET, _INET6), errno.EAFNOSUPPORT), not_among(0, (), NOTIFY)),
    ),
    (
        "not with datagrams, which name any socket of a path",
        "socketpair",
        (not_among(0, (_UNIX,), errno.EOPNOTSUPP), not_among(1, _PAIRS, errno.EPERM, keep=_KIND_OF_SOCKET)),
    ),
    ("no connection is made by sending", "sendto sendmmsg", (any_bit(3, _FASTOPEN, errno.EPERM),)),
    ("the same", "sendmsg", (any_bit(2, _FASTOPEN, errno.EPERM),)),
    (
        "of the calling process alone: the supervisor checks the number",
        "prlimit64 sched_setparam sched_setscheduler sched_setattr sched_setaffinity",
        (not_among(0, (0,), NOTIFY),),
    ),
    ("the same", "setpriority", (not_among(0, (_PROCESS,), errno.EPERM), not_among(1, (0,), NOTIFY))),
    ("the same", "ioprio_set", (not_among(0, (_IO_PROCESS,), errno.EPERM), not_among(1, (0,), NOTIFY))),
)  # fmt: skip


def policy() -> Any:
    """An object with the names of `syscall_policy`."""
    forbidden = (*syscall_policy.FORBIDDEN, ("what would reach files that are merely readable", _REFUSED))
    checked = [
        (reason, names, _conditions(names, conditions))
        for reason, names, conditions in syscall_policy.CHECKED
        if _CHANGED.get(names, (1,))
    ]
    elsewhere = {name for _, names, _ in _MORE for name in names.split()} | {*_REFUSED.split(), *_ABSENT.split()}
    allowed = tuple(
        (reason, " ".join(name for name in names.split() if name not in elsewhere))
        for reason, names in syscall_policy.ALLOWED
    )
    return SimpleNamespace(
        ALLOWED=allowed, ALLOWED_WHEN_COUNTED=_COUNTED, FORBIDDEN=forbidden, CHECKED=(*checked, *_MORE)
    )


def _conditions(names: str, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
    if names == "ioctl":
        return tuple(_less(condition) for condition in conditions)
    return _CHANGED.get(names, conditions)


def _less(condition: Condition) -> Condition:
    """The condition without ioctls that reveal the machine's interfaces or send signals."""
    values = tuple(value for value in condition.values if value not in _OUTSIDE_IOCTLS)
    return Condition(condition.kind, condition.argument, values, condition.outcome, condition.keep)
