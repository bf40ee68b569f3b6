"""Starts the user's service on demand: only one, however many processes ask at once."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from casemate.errors import Unavailable
from casemate.remote.address import Address, connect
from casemate.remote.environment import environment_of_service
from casemate.remote.places import LOG, STARTING, Places, open_private, socket_folders

_START_WITHIN = 30.0  # seconds, enough for a busy machine
_LOOK_EVERY = 0.01  # seconds
_LAST_WORDS = 2000  # bytes of its log to quote in an error
_started: list[int] = []  # processes started by this one


def find_service(places: Places) -> Address | None:
    """Where a service answers now, or None. Raises ``Unavailable`` if another user's answers there."""
    for folder in socket_folders(places):
        address = Address(folder=folder)
        with contextlib.suppress(OSError):  # no process listens there
            connect(address, 5.0).close()
            return address
    return None


async def start_service(places: Places, environ: Mapping[str, str]) -> Address:
    """Where the service answers. Starts it if it is not running. Raises ``Unavailable`` if that fails."""
    if (address := find_service(places)) is not None:
        return address
    folder = open_private(places.state, make=True)
    try:
        async with _alone(folder):
            if (address := find_service(places)) is not None:  # another process has started it
                return address
            return await _wait_for_answer(places, _spawn(folder, environ), folder)
    finally:
        os.close(folder)


@contextlib.asynccontextmanager
async def _alone(folder: int) -> AsyncGenerator[None]:
    """Hold the lock for starting a service: a flock(2), which ends with the process that holds it."""
    lock = os.open(STARTING, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        deadline = time.monotonic() + 2 * _START_WITHIN
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise Unavailable("another process has been starting the service for a minute without success")
            await asyncio.sleep(_LOOK_EVERY)
        yield
    finally:
        os.close(lock)


def _spawn(folder: int, environ: Mapping[str, str]) -> int:
    """Start the process of a new service, in its own session, without a terminal, and with its output in its log."""
    _reap()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    log = os.open(LOG, flags, 0o600, dir_fd=folder)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "casemate", "service", "--on-demand"],
            environment_of_service(environ),
            file_actions=[(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)],
            setsid=True,
            setsigmask=(),
            setsigdef=(signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD),
        )
    finally:
        os.close(null)
        os.close(log)
    _started.append(pid)
    return pid


async def _wait_for_answer(places: Places, pid: int, folder: int) -> Address:
    deadline = time.monotonic() + _START_WITHIN
    while time.monotonic() < deadline:
        if (address := find_service(places)) is not None:
            return address
        _reap()
        if pid not in _started:
            raise _did_not_start("it exited at once", places.state, folder)
        await asyncio.sleep(_LOOK_EVERY)
    raise _did_not_start(f"it does not answer after {_START_WITHIN:g} s", places.state, folder)


def _did_not_start(why: str, state: Path, folder: int) -> Unavailable:
    words = ""
    with contextlib.suppress(OSError):
        fd = os.open(LOG, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        with os.fdopen(fd, "rb") as log:
            log.seek(max(0, os.fstat(fd).st_size - _LAST_WORDS))
            words = log.read(_LAST_WORDS).decode("utf-8", "backslashreplace").strip()
            words = " ".join(words.rpartition("casemate: ")[2].split())
    message = f"the service could not be started: {why}" + (f": {words}" if words else "")
    return Unavailable(message, remediation=f"Read {state / LOG}, or try: casemate service")


def _reap() -> None:
    """Reap services that have ended, so that they do not stay zombies."""
    for pid in [*_started]:
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # the application reaps all children itself
            ended = 0 if _lives(pid) else pid
        if ended:
            _started.remove(pid)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
