"""The one service of a state folder, and its sockets: held as long as it lives."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time

from casemate import __version__
from casemate.errors import Unavailable
from casemate.remote.places import RUNNING, SOCKET, Places, open_private, read_running

_BACKLOG = 1024
_RUNNING_MODE = 0o600


class Held:
    """That this process is the service of ``places``, until :meth:`close`: flock(2), which also ends with the process.

    Raises ``Unavailable`` where another process is.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._folder = open_private(places.state, make=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._lock = os.open(RUNNING, flags, _RUNNING_MODE, dir_fd=self._folder)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise Unavailable(
                f"a service runs already: process {read_running(places).get('pid')}",
                remediation="casemate service stop ends it.",
            ) from None
        self._socket: tuple[int, int] | None = None  # device and inode of ours

    def listening(self) -> socket.socket:
        """A Unix socket that this user alone can reach, in place of what an earlier service has left there.

        It is bound under another name and put into its place in one step, with its mode: nobody reaches it earlier, and
        whoever connects meanwhile finds the old one or this. Raises ``Unavailable`` and ``OSError``.
        """
        folder = open_private(self._places.sockets, make=True)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        beginning = f".{SOCKET}.{os.getpid()}"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beginning, dir_fd=folder)
            made.bind(f"/proc/self/fd/{folder}/{beginning}")
            os.chmod(beginning, 0o600, dir_fd=folder)
            made.listen(_BACKLOG)
            made.setblocking(False)
            os.replace(beginning, SOCKET, src_dir_fd=folder, dst_dir_fd=folder)
            status = os.stat(SOCKET, dir_fd=folder, follow_symlinks=False)
            self._socket = (status.st_dev, status.st_ino)
        except BaseException:
            made.close()
            raise
        finally:
            os.close(folder)
        self._tell()
        return made

    def close(self) -> None:
        """Somebody else may be the service. Harmless when repeated."""
        if self._lock < 0:
            return
        with contextlib.suppress(OSError, Unavailable):
            self._remove_socket()
        os.close(self._lock)
        os.close(self._folder)
        self._lock = self._folder = -1

    def _remove_socket(self) -> None:
        ours = getattr(self, "_socket", None)
        if ours is None:
            return
        folder = open_private(self._places.sockets)
        try:
            status = os.stat(SOCKET, dir_fd=folder, follow_symlinks=False)
            if (status.st_dev, status.st_ino) == ours:
                os.unlink(SOCKET, dir_fd=folder)
        finally:
            os.close(folder)

    def _tell(self) -> None:
        said = {
            "pid": os.getpid(), "version": __version__, "sockets": str(self._places.sockets), "started": time.time(),
        }  # fmt: skip
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, json.dumps(said).encode(), 0)
