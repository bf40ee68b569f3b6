"""Removes trees that a cell made, however deep and whatever their modes."""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import os
import stat

from casemate.supervisor.trees.walk import open_folder, opened

removing = _thread.allocate_lock()


def remove_entry(folder: int, name: bytes | str) -> None:
    """Remove ``name`` in ``folder`` (a descriptor) with everything in it. What cannot be removed stays. Inner folders
    are moved to the top one by one, so no path gets long and few descriptors are open."""
    with contextlib.suppress(OSError):
        if not _is_folder(folder, name):
            os.unlink(name, dir_fd=folder)
            return
        with opened(open_folder(folder, name, unlock=True)) as top:
            _empty(top)
        os.rmdir(name, dir_fd=folder)


def _empty(top: int) -> None:
    waiting = [os.fsencode(name) for name in os.listdir(top)]
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            if not _is_folder(top, name):
                os.unlink(name, dir_fd=top)
                continue
            with opened(open_folder(top, name, unlock=True)) as folder:
                waiting += _raise_folders(folder, top)
            os.rmdir(name, dir_fd=top)


def _raise_folders(folder: int, top: int) -> list[bytes]:
    """Remove all files in ``folder`` and move its folders to ``top``. Returns their names there."""
    raised = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if not _is_folder(folder, name):
                os.unlink(name, dir_fd=folder)
                continue
            os.close(open_folder(folder, name, unlock=True))  # moving a folder takes write permission on it
            new = os.urandom(8).hex().encode()
            os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
            raised.append(new)
    return raised


def _is_folder(folder: int, name: bytes | str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def remove_when_unused(path: str) -> None:
    """Remove a cell's folder in a thread, once no process uses it."""
    with contextlib.suppress(RuntimeError):  # no thread can start: the folder goes with its parent
        _thread.start_new_thread(remove_unused, (path,))


def remove_unused(path: str) -> None:
    """Remove a cell's folder once no process uses it. One at a time, because many threads would slow down the loop."""
    with contextlib.suppress(OSError):
        used = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(used, fcntl.LOCK_EX)
        with removing:
            os.close(used)
            remove_folder(path)


def remove_folder(path: str) -> None:
    """Remove a cell's folder ``path``. What cannot be removed stays."""
    above, name = os.path.split(path)
    with opened(os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as folder:
        remove_entry(folder, name)
