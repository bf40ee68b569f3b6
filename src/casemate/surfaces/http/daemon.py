"""The daemon's process: its lock, socket and log, and the order in which it ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate import __version__
from casemate.errors import Unavailable
from casemate.files.beneath import hold
from casemate.remote.places import LOG, RUNNING, SOCKET, Places, open_private, read_running
from casemate.surfaces.http.service import Service

if TYPE_CHECKING:
    from casemate.surfaces.http.server import Server

_BACKLOG = 1024
_RUNNING_MODE = 0o600


class ServiceLock:
    """Makes this process the service of both folders of ``places`` until :meth:`close`. Its locks (flock(2)) also end
    with the process. Raises ``Unavailable`` if another process is the service of either."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._locks: list[int] = []
        self._socket: tuple[int, int] | None = None  # its device and inode
        try:
            for folder in dict.fromkeys((places.state, places.sockets)):
                self._locks.append(_lock(folder))
        except BaseException:
            self.close()
            raise

    def bind_socket(self) -> socket.socket:
        """Bind a Unix socket that only this user can reach, in place of an earlier service's socket.

        It is bound under another name, then renamed with its mode set: no other user reaches it earlier, and a client
        always finds the old socket or this one. Raises ``Unavailable`` and ``OSError``.
        """
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        beginning = f".{SOCKET}.{os.getpid()}"
        try:
            with hold(open_private(self._places.sockets, make=True)) as folder:
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
        self._tell()
        return made

    def close(self) -> None:
        """Let another process be the service. May be called again."""
        with contextlib.suppress(OSError, Unavailable):
            self._remove_socket()
        while self._locks:
            os.close(self._locks.pop())

    def _remove_socket(self) -> None:
        ours, self._socket = self._socket, None
        if ours is None:
            return
        with hold(open_private(self._places.sockets)) as folder:
            status = os.stat(SOCKET, dir_fd=folder, follow_symlinks=False)
            if (status.st_dev, status.st_ino) == ours:
                os.unlink(SOCKET, dir_fd=folder)

    def _tell(self) -> None:
        said = {
            "pid": os.getpid(), "version": __version__, "sockets": str(self._places.sockets),
            "state": str(self._places.state), "started": time.time(),
        }  # fmt: skip
        for lock in self._locks:
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps(said).encode(), 0)


def _lock(place: Path) -> int:
    with hold(open_private(place, make=True)) as folder:
        lock = os.open(RUNNING, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _RUNNING_MODE, dir_fd=folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        said = read_running(place)
        raise Unavailable(
            f"a service is already running: process {said.get('pid')}, with the state folder {said.get('state')} and "
            f"its socket in {said.get('sockets')}",
            remediation="casemate service stop ends it. A second service also needs another XDG_RUNTIME_DIR.",
        ) from None
    return lock


MOST_BYTES = 5 * 2**20  # of the log; one older log is kept
_OLD = LOG + ".1"
_FACTS = ("event", "method", "path", "status", "seconds", "principal", "kind", "signal", "runs", "address")


class Logbook(logging.Handler):
    """Writes each record's message and known facts into the folder's log. An exception adds its class and place."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._fd = -1

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; errors are ignored, so that a full disk does not end the service."""
        told: dict[str, Any] = {"at": round(record.created, 3), "level": record.levelname.lower()}
        told |= {name: value for name in _FACTS if (value := getattr(record, name, None)) is not None}
        told["message"] = record.getMessage()[:500]
        if record.exc_info and record.exc_info[0]:
            told["error"], told["where"] = record.exc_info[0].__name__, _where(record.exc_info[2])
        with contextlib.suppress(OSError, Unavailable):
            os.write(self._open_file(), json.dumps(told).encode() + b"\n")

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        super().close()

    def _open_file(self) -> int:
        if self._fd >= 0 and os.fstat(self._fd).st_size < MOST_BYTES:
            return self._fd
        with hold(open_private(self._folder, make=True)) as folder:
            if self._fd >= 0:
                os.close(self._fd)  # first, so that a descriptor is free for the next file
                self._fd = -1
                os.replace(LOG, _OLD, src_dir_fd=folder, dst_dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(LOG, flags, 0o600, dir_fd=folder)
        return self._fd


def begin(folder: Path) -> logging.Logger:
    """The service's logger, which writes into ``folder``. Warnings of libraries go there too, and nowhere else."""
    book = Logbook(folder)
    root = logging.getLogger()
    root.handlers[:] = [book]
    root.setLevel(logging.WARNING)
    logger = logging.getLogger("casemate.service")
    logger.setLevel(logging.INFO)
    return logger


def _where(traceback: Any) -> str:
    """File and line of where it was raised, but no source line, which may hold a user's data."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else ""


_log = logging.getLogger("casemate.service")


class Servers:
    """The servers of all listeners; more may be added while the service runs."""

    def __init__(self, serving: asyncio.TaskGroup) -> None:
        self._serving = serving
        self._all: list[tuple[Server, asyncio.Task[None]]] = []

    def add(self, server: Server) -> None:
        """Start one more server."""
        self._all.append((server, self._serving.create_task(server.until_ended())))

    async def end(self) -> None:
        """Take no more connections, and finish answers under way."""
        for server, _ in self._all:
            server.end()
        await asyncio.wait([task for _, task in self._all])


async def live(service: Service, open_servers: Callable[[Servers], None], ready: Callable[[], None]) -> None:
    """Serve until stopped or idle for long enough. SIGTERM and SIGINT drain; a second one ends at once.
    ``open_servers`` adds the first servers; then ``ready`` is called. What either raises ends the service."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_on_signal, service, number)
    async with asyncio.TaskGroup() as serving:
        servers = Servers(serving)
        open_servers(servers)
        try:
            ready()
            why = await service.until_stopped()
            _log.info("ending", extra={"event": "ending", "kind": why, "runs": service.activity()["runs"]})
            await service.drain()
        finally:
            await service.close()
            await servers.end()
    _log.info("ended", extra={"event": "ended"})


def _stop_on_signal(service: Service, number: int) -> None:
    _log.info("signal", extra={"event": "signal", "signal": signal.Signals(number).name})
    service.stop()
