"""The daemon's process: its lock and socket, its log, and the order in which it ends."""

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
from casemate.remote.places import LOG, RUNNING, SOCKET, Places, open_private, read_running
from casemate.surfaces.http.service import Service

if TYPE_CHECKING:
    from casemate.surfaces.http.server import Server

_BACKLOG = 1024
_RUNNING_MODE = 0o600


class ServiceLock:
    """That this process is the service of both folders of ``places``, until :meth:`close`: flock(2), which also ends
    with the process.

    Raises ``Unavailable`` where another process is, of either.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._locks: list[int] = []
        self._socket: tuple[int, int] | None = None  # device and inode of ours
        try:
            for folder in dict.fromkeys((places.state, places.sockets)):
                self._locks.append(_lock(folder))
        except BaseException:
            self.close()
            raise

    def bind_socket(self) -> socket.socket:
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
        with contextlib.suppress(OSError, Unavailable):
            self._remove_socket()
        while self._locks:
            os.close(self._locks.pop())

    def _remove_socket(self) -> None:
        ours, self._socket = self._socket, None
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
            "pid": os.getpid(), "version": __version__, "sockets": str(self._places.sockets),
            "state": str(self._places.state), "started": time.time(),
        }  # fmt: skip
        for lock in self._locks:
            os.ftruncate(lock, 0)
            os.pwrite(lock, json.dumps(said).encode(), 0)


def _lock(place: Path) -> int:
    folder = open_private(place, make=True)
    try:
        lock = os.open(RUNNING, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _RUNNING_MODE, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        said = read_running(place)
        raise Unavailable(
            f"a service runs already: process {said.get('pid')}, with the state folder {said.get('state')} and its "
            f"socket in {said.get('sockets')}",
            remediation="casemate service stop ends it. For a second service, XDG_RUNTIME_DIR has to differ, too.",
        ) from None
    return lock


MOST_BYTES = 5 * 2**20  # of the file; the one before it is kept, so it is at most twice that
_OLD = LOG + ".1"
_FACTS = ("event", "method", "path", "status", "seconds", "principal", "kind", "signal", "runs", "address")


class Logbook(logging.Handler):
    """Writes records into the folder's log. Facts are those named in ``extra`` that are known; nothing else of a record
    but its message is written, and of an exception its class and where it was raised."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._fd = -1

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; a log that cannot be written ends nobody."""
        told: dict[str, Any] = {"at": round(record.created, 3), "level": record.levelname.lower()}
        told |= {name: value for name in _FACTS if (value := getattr(record, name, None)) is not None}
        told["message"] = record.getMessage()[:500]
        if record.exc_info and record.exc_info[0]:
            told["error"], told["where"] = record.exc_info[0].__name__, _where(record.exc_info[2])
        with contextlib.suppress(OSError, Unavailable):
            os.write(self._open_file(), json.dumps(told).encode() + b"\n")

    def close(self) -> None:
        """Harmless when repeated."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        super().close()

    def _open_file(self) -> int:
        if self._fd >= 0 and os.fstat(self._fd).st_size < MOST_BYTES:
            return self._fd
        folder = open_private(self._folder, make=True)
        try:
            if self._fd >= 0:
                os.close(self._fd)  # which leaves a descriptor for the next one
                self._fd = -1
                os.replace(LOG, _OLD, src_dir_fd=folder, dst_dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(LOG, flags, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        return self._fd


def begin(folder: Path) -> logging.Logger:
    """The service's logger, which writes into ``folder``; libraries' warnings go there, too, and nothing elsewhere."""
    book = Logbook(folder)
    root = logging.getLogger()
    root.handlers[:] = [book]
    root.setLevel(logging.WARNING)
    logger = logging.getLogger("casemate.service")
    logger.setLevel(logging.INFO)
    return logger


def _where(traceback: Any) -> str:
    """File and line of where it was raised: never a line of source, which may hold what somebody gave."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback else ""


_log = logging.getLogger("casemate.service")


class Servers:
    """The places that are listened at; more may come while the service lives."""

    def __init__(self, serving: asyncio.TaskGroup) -> None:
        self._serving = serving
        self._all: list[tuple[Server, asyncio.Task[None]]] = []

    def add(self, server: Server) -> None:
        """Answer at one more."""
        self._all.append((server, self._serving.create_task(server.until_ended())))

    async def end(self) -> None:
        """Take no more connections; answers under way are finished."""
        for server, _ in self._all:
            server.end()
        await asyncio.wait([task for _, task in self._all])


async def live(service: Service, open_servers: Callable[[Servers], None], ready: Callable[[], None]) -> None:
    """Serve until told to end, or idle for long enough: SIGTERM and SIGINT drain it, a second one ends it at once.

    ``open_servers`` adds the places that are there from the beginning; ``ready`` is called when these are listened at.
    What it raises ends the service.
    """
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
