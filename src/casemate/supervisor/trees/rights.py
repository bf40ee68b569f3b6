"""Reaching files as the owner of a folder does, where root would reach everybody's (capabilities(7), setfsuid(2))."""

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
_UNMAPPED = 65534  # who is nobody in this user namespace, so that root has others' rights over the files
_QUERY = -1  # sets nothing, and returns the id that is set
_libc = ctypes.CDLL(None, use_errno=True)
_Sets = ctypes.c_uint32 * 6  # effective, permitted and inheritable capabilities, the lower half and then the upper


class OwnersRights:
    """A block in which this thread, where it is root's, reaches files as the owner and the group of ``folder`` (a
    descriptor) do, with no right over files of others. For one thread; it may be entered many times.

    Raises ``PermissionError`` where the machine does not let root do that.
    """

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
        _call(_SETFSUID, uid)  # the kernel takes the rights over files from whom is not root, and gives them back
        if self._stays_root:
            _call(_CAPSET, _header(), capabilities)


def _groups_to_set() -> list[int]:
    """The groups of this thread; none where it cannot change them: a user namespace may keep those that it was made
    with, or not know them (user_namespaces(7))."""
    groups = os.getgroups()
    try:
        _set_groups(groups)
    except OSError:
        return []
    return groups


def _set_groups(groups: list[int]) -> None:
    _call(_SETGROUPS, len(groups), (ctypes.c_uint32 * len(groups))(*groups))


def _call(number: int, *arguments: object) -> int:
    """A system call for this thread alone: glibc's setgroups(3) is for all threads of the process."""
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
