"""Removing a tree that a cell has made, however deep it is and whatever its modes are."""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import os
import stat

from casemate.supervisor.trees.walk import open_folder

removing = _thread.allocate_lock()


def remove_entry(folder: int, name: bytes | str) -> None:
    """Remove what is at ``name`` in ``folder`` (a descriptor), with all in it. What cannot be removed stays.

    Folders within are moved to the top one after the other: no path gets long, and few descriptors are open.
    """
    with contextlib.suppress(OSError):
        if not _is_folder(folder, name):
            os.unlink(name, dir_fd=folder)
            return
        top = open_folder(folder, name, unlock=True)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(name, dir_fd=folder)


def _empty(top: int) -> None:
    waiting = [os.fsencode(name) for name in os.listdir(top)]
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            if not _is_folder(top, name):
                os.unlink(name, dir_fd=top)
                continue
            folder = open_folder(top, name, unlock=True)
            try:
                waiting += _raise_folders(folder, top)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)


def _raise_folders(folder: int, top: int) -> list[bytes]:
    """Remove all files in ``folder``, and move its folders to ``top``: their names there."""
    raised = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if not _is_folder(folder, name):
                os.unlink(name, dir_fd=folder)
                continue
            os.close(open_folder(folder, name, unlock=True))  # only who may write to a folder may move it elsewhere
            new = os.urandom(8).hex().encode()
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
            raised.append(new)
    return raised


def _is_folder(folder: int, name: bytes | str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def remove_when_unused(path: str) -> None:
    """Have a thread remove the folder of a cell when no process uses it."""
    with contextlib.suppress(RuntimeError):  # no thread is left: it goes with the folder that it is in
        _thread.start_new_thread(remove_unused, (path,))


def remove_unused(path: str) -> None:
    """Remove the folder of a cell when no process uses it. One at a time: many threads take the loop's time."""
    with contextlib.suppress(OSError):
        used = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(used, fcntl.LOCK_EX)
        with removing:
            os.close(used)
            remove_folder(path)


def remove_folder(path: str) -> None:
    """Remove the folder ``path``, which is a cell's. What cannot be removed stays."""
    above, name = os.path.split(path)
    folder = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        remove_entry(folder, name)
    finally:
        os.close(folder)
