"""Landlock: restricts which files a process may use, whatever is mounted.

This layer holds even if the mounts are wrong: a path in none of the lists cannot be opened under any name. It does not
hide files (stat and chmod are not governed), and open descriptors stay usable. By default, TCP is left to the network
namespace.

Sources: landlock(7), landlock_add_rule(2), linux/landlock.h, and
Documentation/userspace-api/landlock.rst for the features of each ABI version.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from casemate.supervisor import kernel
from casemate.supervisor.calls import CallList, Reference, perform

TYPE_CHECKING = False  # importing typing would take longer than this module
if TYPE_CHECKING:
    from collections.abc import Sequence

# The same values on every machine.
_ASK_FOR_ABI = 1  # LANDLOCK_CREATE_RULESET_VERSION

# LANDLOCK_ACCESS_FS_*
_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_MAKE_CHAR = 1 << 6
_MAKE_BLOCK = 1 << 11
_REFER = 1 << 13  # rename and link between directories; without it: EXDEV
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15

_KNOWN_SINCE = ((1, (1 << 13) - 1), (2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV))
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

_READABLE = _READ_FILE | _READ_DIR | _EXECUTE
_WRITABLE = ((1 << 15) - 1) & ~(_MAKE_CHAR | _MAKE_BLOCK)
_DEVICE = _READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL_DEV  # /dev/pts is a directory

_SCOPES_SINCE = 6
_SCOPE_SIGNAL = 2  # LANDLOCK_SCOPE_SIGNAL
_SCOPES = 1 | _SCOPE_SIGNAL  # LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET

_NET_SINCE = 4
_NET = 1 | 2  # LANDLOCK_ACCESS_NET_BIND_TCP, LANDLOCK_ACCESS_NET_CONNECT_TCP

# From ABI 7 on the kernel logs refusals. A cell could fill the host's log with them, so they are turned off:
# LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF, made for interpreters.
_LOGS_SINCE = 7
_NO_LOG = 1

_NEWEST = 7  # the newest ABI version known here


_create_ruleset = kernel.system_call(444, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint)


def abi() -> int:
    """The kernel's Landlock ABI version; 0 if Landlock is missing or disabled."""
    try:
        return kernel.check(_create_ruleset(None, 0, _ASK_FOR_ABI), "landlock")
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP):
            return 0
        raise


def restrict(
    readable: Sequence[str],
    writable: Sequence[str],
    devices: Sequence[str],
    listable: Sequence[str] = (),
    *,
    network: bool = False,
) -> int:
    """Deny this thread and its children all files except these, for good.

    Beneath `readable` directories, files can be read and programs executed; beneath `writable` ones everything is
    allowed except making devices. `devices`, which may include a directory (`/dev/pts`), can be read, written and
    controlled. Beneath `listable` directories only names can be listed. With `network`, no TCP socket can be bound or
    connected (ABI 4). A missing path is skipped. A rule follows symbolic links and does not cover later mounts. From
    ABI 6 on, signals and abstract unix sockets reach only processes restricted together with this one.

    Sets no_new_privs. Needs no capability. Returns the ABI version used: before 2, renames between directories fail
    (EXDEV); before 3, any file can be truncated; before 5, ioctl is unrestricted. Raises OSError: ENOSYS or EOPNOTSUPP
    without Landlock (check `abi` first), E2BIG beyond 16 layers, and any error of opening an existing path."""
    restriction = CallList()
    version = add_restriction(restriction, readable, writable, devices, listable, network=network)
    perform(restriction.encode())
    return version


def add_restriction(
    calls: CallList,
    readable: Sequence[str],
    writable: Sequence[str],
    devices: Sequence[str],
    listable: Sequence[str] = (),
    *,
    network: bool = False,
) -> int:
    """Add the same restriction to ``calls``, for this kernel. Returns the ABI version."""
    version = min(abi(), _NEWEST)
    known = _known_rights(version)
    ruleset = _create(calls, known, version, _NET if network and version >= _NET_SINCE else 0, _SCOPES)
    for paths, rights in (
        (readable, _READABLE),
        (writable, _WRITABLE),
        (devices, _DEVICE),
        (listable, _READ_DIR),
    ):
        for path in paths:
            calls.add_rule(ruleset, path, rights & known, rights & known & _OF_FILES)
    _enforce(calls, ruleset, version)
    return version


def restrict_signals() -> bool:
    """Confine signals of this process and its children to these processes. False if the kernel cannot."""
    version = abi()
    if version < _SCOPES_SINCE:
        return False
    calls = CallList()
    ruleset = _create(calls, _REFER, version, 0, _SCOPE_SIGNAL)
    calls.add_rule(ruleset, "/", _REFER, 0)  # a domain refuses REFER unless it grants it
    _enforce(calls, ruleset, version)
    perform(calls.encode())
    return True


def _enforce(calls: CallList, ruleset: Reference, version: int) -> None:
    calls.call("prctl", kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    calls.call("landlock_restrict_self", ruleset, _NO_LOG if version >= _LOGS_SINCE else 0)
    calls.call("close", ruleset)


def _known_rights(version: int) -> int:
    return sum(rights for since, rights in _KNOWN_SINCE if version >= since)


def _create(calls: CallList, known: int, version: int, network: int, scopes: int) -> Reference:
    """Create a ruleset that denies everything."""
    # struct landlock_ruleset_attr: handled_access_fs, handled_access_net, scoped
    attributes = struct.pack("=QQQ", known, network, scopes)
    size = len(attributes) if version >= _SCOPES_SINCE else struct.calcsize("=QQ" if network else "=Q")
    return calls.call("landlock_create_ruleset", attributes, size, 0)
