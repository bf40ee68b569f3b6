"""Runs host commands, each in its own process namespace, with limits on time and output.

A small process (:mod:`casemate.supervisor.commands`) forks them. It starts with the first and ends with this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import select
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from casemate.errors import Fault, InvalidArgument, Unavailable
from casemate.files.beneath import hold
from casemate.walls.isolated_python import spawn

_CHUNK = 1 << 16
_MOST_STATUS = 1000  # bytes of an init's report
_MOST_AT_ONCE = 64  # commands, four times what one caller may have; further ones queue
_END_WITHIN = 5.0  # seconds for all processes to die once the leash is let go
_MOST_ORDER = 100 << 10  # bytes of a command with its variables; the kernel takes messages of twice that


@dataclass(frozen=True, slots=True)
class HostCommand:
    program: str  # absolute path
    argv: tuple[str, ...]  # all words, the name first
    env: Mapping[str, str] = field(repr=False)
    folder: str  # where it starts
    timeout: float  # seconds
    output: int  # bytes kept of each stream


@dataclass(frozen=True, slots=True)
class CommandEnd:
    wait_status: int | None  # see wait(2); None after a timeout
    stdout: bytes
    stderr: bytes
    is_truncated: bool  # if so, `stdout` and `stderr` have only the beginning
    seconds: float


class CommandRunner:
    """Starts commands. Usable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._leashes: WeakSet[socket.socket] = WeakSet()
        self._readers = ThreadPoolExecutor(_MOST_AT_ONCE, "casemate-host")  # threads start when they are used

    async def run(self, command: HostCommand) -> CommandEnd:
        """Run a command to its end. A timeout or a cancellation ends everything that it started. Raises
        ``InvalidArgument``, and ``Unavailable`` if this machine refuses process namespaces."""
        leash, of_init = socket.socketpair()  # letting go of our end ends everything
        self._leashes.add(leash)
        reading = asyncio.get_running_loop().run_in_executor(self._readers, self._run, command, leash, of_init)
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            _let_go(leash)
            await asyncio.wait([reading], timeout=_END_WITHIN)
            raise

    def _run(self, command: HostCommand, leash: socket.socket, of_init: socket.socket) -> CommandEnd:
        began = time.monotonic()
        ours, theirs = list[int](), list[int]()
        try:
            try:
                for _ in range(3):  # stdout, stderr, and the init's report
                    read, write = os.pipe2(os.O_CLOEXEC)
                    ours.append(read)
                    theirs.append(write)
                self._send(command, [*theirs, of_init.fileno()])
            except OSError as error:
                raise Unavailable(f"the host cannot start a command now: {error.strerror}") from None
            finally:
                of_init.close()
                for fd in theirs:
                    os.close(fd)
            return _read_to_end(command, ours, leash, began)
        finally:
            _let_go(leash)
            for fd in ours:
                os.close(fd)

    def _send(self, command: HostCommand, fds: list[int]) -> None:
        order = {"program": command.program, "argv": command.argv, "env": dict(command.env)}
        message = json.dumps(order).encode()
        if len(message) > _MOST_ORDER:
            raise InvalidArgument(
                "command", f"takes {len(message):,} bytes with its variables; the limit is {_MOST_ORDER:,}"
            )
        try:
            folder = os.open(command.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"commands run in {command.folder}, which cannot be entered: {error.strerror}") from None
        try:
            with hold(folder), self._lock:
                try:
                    socket.send_fds(self._connect(), [message], [folder, *fds])
                except ConnectionError:  # the process was killed: start another
                    self._end()
                    socket.send_fds(self._connect(), [message], [folder, *fds])
        except ConnectionError:
            raise Fault("the process that runs commands of the host does not stay alive") from None

    def _connect(self) -> socket.socket:
        """Return the socket of the process that forks commands; start it if needed."""
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, open(os.devnull, "w") as null:
                self._pid = spawn("commands", "casemate-commands", theirs.fileno(), null.fileno())
        return self._socket

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with contextlib.suppress(ChildProcessError):  # the application reaps all children itself
                os.waitpid(self._pid, 0)

    def close(self) -> None:
        """End the process and all commands. Idempotent."""
        for leash in list(self._leashes):
            _let_go(leash)
        self._readers.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._end()


def _let_go(leash: socket.socket) -> None:
    """End a command. Usable from any thread; idempotent."""
    with contextlib.suppress(OSError):  # the init is gone, or the leash is closed
        leash.send(b"\0")  # closing is not enough: a fork of the application may hold our end
    leash.close()


def _read_to_end(command: HostCommand, fds: list[int], leash: socket.socket, began: float) -> CommandEnd:
    """Read all streams until every process is gone. Let go of the leash at the deadline."""
    stdout, stderr, status = fds
    kept: dict[int, bytearray] = {fd: bytearray() for fd in fds}
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    left, deadline, is_over, is_truncated = set(fds), began + command.timeout, False, False
    while left:
        if time.monotonic() >= deadline:  # even if there is always more to read
            if is_over:
                raise Fault("a command of the host did not end when it was killed")
            is_over, deadline = True, time.monotonic() + _END_WITHIN
            _let_go(leash)
        for fd, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            piece = os.read(fd, _CHUNK)
            if not piece:
                poll.unregister(fd)
                left.discard(fd)
            room = (_MOST_STATUS if fd == status else command.output) - len(kept[fd])
            kept[fd] += piece[:room]
            is_truncated |= len(piece) > room
    said = _read_status(bytes(kept[status]))
    if "errno" in said:
        _raise_for(command, said["at"], said["errno"])
    if "status" not in said and leash.fileno() >= 0:
        raise Fault("a command of the host ended without an exit status")
    wait_status = None if is_over else said.get("status")
    return CommandEnd(wait_status, bytes(kept[stdout]), bytes(kept[stderr]), is_truncated, time.monotonic() - began)


def _read_status(status: bytes) -> dict[str, Any]:
    """Parse an init's report; empty if it ended without one."""
    try:
        return dict(json.loads(status or b"{}"))
    except ValueError:
        return {}


def _raise_for(command: HostCommand, at: str, number: int) -> None:
    if at == "namespace":
        raise Unavailable(
            f"commands of the host need process namespaces, which this machine refuses: {os.strerror(number)}",
            remediation="casemate doctor says what would help.",
        )
    if number == errno.ENOEXEC:
        raise InvalidArgument("command", f"{command.program} is not a program that the kernel can start")
    raise InvalidArgument("command", f"{command.program} cannot be started: {os.strerror(number)}")
