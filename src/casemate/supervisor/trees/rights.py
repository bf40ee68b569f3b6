"""File access with the rights of a folder's owner, for root (capabilities(7), setfsuid(2))."""

from __future__ import annotations

import ctypes
import errno
import os

_SETFSUID, _SETFSGID, _SETGROUPS, _CAPGET, _CAPSET = {
    "x86_64": (122, 123, 116, 125, 126),
    "aarch64": (151, 152, 159, 90, 91),
}.get(os.uname().machine, (-1,) * 5)
_CAPABILITY_VERSION_3 = 0x20080522
_FILES_OF_OTHERS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_UNMAPPED = 65534  # an owner not mapped in this user namespace; root has others' rights on its files
_QUERY = -1  # sets nothing and returns the current id
_libc = ctypes.CDLL(None, use_errno=True)
_Sets = ctypes.c_uint32 * 6  # effective, permitted and inheritable capabilities, the lower half and then the upper


class OwnersRights:
    """A block in which this thread, if root, accesses files with the rights of the owner and group of ``folder`` (a
    descriptor). Can be entered repeatedly. Raises ``PermissionError`` if root cannot do that here."""

    def __init__(self, folder: int) -> None:
        status = os.fstat(folder)
        self._uid, self._gid = status.st_uid, status.st_gid
        self._is_root = os.geteuid() == 0
        if self._is_root:
            self._groups, self._all = _groups_to_set(), _capabilities()
            self._reduced = _Sets(self._all[0] & ~_FILES_OF_OTHERS, *self._all[1:])
            _call(_SETFSUID, self._uid)
            self._stays_root = _call(_SETFSUID, _QUERY) == 0
            _call(_SETFSUID, 0)
            if self._stays_root and self._uid not in (0, _UNMAPPED):
                raise PermissionError(errno.EPERM, f"root cannot reach files here as {self._uid} does")

    def __enter__(self) -> None:
        if self._is_root:
            self._set(self._uid, self._gid, [], self._reduced)

    def __exit__(self, *failure: object) -> None:
        if self._is_root:
            self._set(0, 0, self._groups, self._all)

    def _set(self, uid: int, gid: int, groups: list[int], capabilities: ctypes.Array[ctypes.c_uint32]) -> None:
        if self._groups:
            _set_groups(groups)
        _call(_SETFSGID, gid)
        _call(_SETFSUID, uid)  # leaving root clears the file capabilities; returning restores them
        if self._stays_root:
            _call(_CAPSET, _header(), capabilities)


def _groups_to_set() -> list[int]:
    """This thread's groups; none if it cannot change them, as in some user namespaces (user_namespaces(7))."""
    groups = os.getgroups()
    try:
        _set_groups(groups)
    except OSError:
        return []
    return groups


def _set_groups(groups: list[int]) -> None:
    _call(_SETGROUPS, len(groups), (ctypes.c_uint32 * len(groups))(*groups))


def _call(number: int, *arguments: object) -> int:
    """Make a system call for this thread alone: glibc's setgroups(3) affects all threads."""
    result = _libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def _header() -> ctypes.Array[ctypes.c_uint32]:
    return (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)


def _capabilities() -> ctypes.Array[ctypes.c_uint32]:
    sets = _Sets()
    _call(_CAPGET, _header(), sets)
    return sets
