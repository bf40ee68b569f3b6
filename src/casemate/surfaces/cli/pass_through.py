"""Standard streams that go through casemate: its caller's on one side, pipes of a command in a cell on the other.

Three threads carry bytes, each in one direction, and each holds one piece at most: whoever does not read makes the
other side wait, and holds up no other direction. The end of a stream is passed on in both directions, also a reader's.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Protocol

from casemate.walls.wall import Standard

_PIECE = 1 << 16  # bytes; a pipe's usual capacity
_ENDED = select.POLLERR | select.POLLHUP | select.POLLNVAL


class Cleaning(Protocol):
    """What is done to what a command writes: to take secrets out of it, or what a terminal would obey."""

    def feed(self, data: bytes) -> bytes:
        """What of ``data``, and of what was held back before, can be shown now."""
        ...

    def end(self) -> bytes:
        """What was held back."""
        ...


class PassThrough:
    """From `open` to `finish`. ``cleaning``: of stdout and of stderr, in turn."""

    def __init__(self, cleaning: dict[int, list[Cleaning]]) -> None:
        self._cleaning = cleaning
        self._over = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stdin, self._to_stdin = os.pipe2(os.O_CLOEXEC)
        self._from_stdout, self._stdout = os.pipe2(os.O_CLOEXEC)
        self._from_stderr, self._stderr = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._to_stdin, False)
        os.set_blocking(self._from_stdout, False)
        os.set_blocking(self._from_stderr, False)
        self._inward = threading.Thread(target=self._carry_in, name="casemate-stdin", daemon=True)
        carry_out: Callable[[int, int], None] = self._carry_out
        self._outward = [
            threading.Thread(target=carry_out, args=ends, name=f"casemate-out-{ends[1]}", daemon=True)
            for ends in ((self._from_stdout, 1), (self._from_stderr, 2))
        ]

    def theirs(self) -> Standard:
        """The ends for the command, until `begin`."""
        return Standard(self._stdin, self._stdout, self._stderr)

    def begin(self) -> None:
        """The command has its ends: let go of ours of them, and carry."""
        for fd in (self._stdin, self._stdout, self._stderr):
            os.close(fd)
        for thread in (self._inward, *self._outward):
            thread.start()

    def end_input(self) -> None:
        """Everything in the cell is dead: read no more for it, and pass on what it has written."""
        self._over.set()
        os.eventfd_write(self._wake, 1)

    def finish(self, given_up: Callable[[], bool]) -> None:
        """Wait until all that it wrote is passed on: as long as its readers take, unless that is ``given_up``."""
        for thread in (self._inward, *self._outward):
            while thread.is_alive() and not given_up():
                thread.join(0.1)

    # -- in threads of their own

    def _carry_in(self) -> None:
        """From our standard input to the command's, until either ends."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(0, select.POLLIN)
        poll.register(self._to_stdin, 0)  # which tells when nobody reads there any more
        try:
            while not self._over.is_set():
                events = dict(poll.poll())
                if self._wake in events or events.get(self._to_stdin, 0) & _ENDED:
                    break
                data = _read(0)
                if data is None:
                    continue
                if not data or not self._put_in(data):
                    break
        finally:
            os.close(self._to_stdin)
            _replace(0)  # who writes to us is told, as if we were the command

    def _put_in(self, data: bytes) -> bool:
        """Write all of ``data``; False when nobody reads it any more."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(self._to_stdin, select.POLLOUT)
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._to_stdin, view) :]
            except BlockingIOError:
                if self._wake in dict(poll.poll()):
                    return False
            except OSError:
                return False
        return True

    def _carry_out(self, source: int, target: int) -> None:
        """From the command's standard output, or error, to ours, until either ends."""
        cleaning = self._cleaning.get(target, [])
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        poll.register(source, select.POLLIN)
        try:
            while True:
                data = _read(source)
                if data is None:
                    if self._over.is_set():
                        break  # nothing is in it, and nobody is left to write
                    poll.poll()
                elif not data or not _put_out(target, _clean(cleaning, data)):
                    break
            _put_out(target, _rest(cleaning))
        finally:
            os.close(source)
            if target == 1:
                _replace(1)  # who reads learns that it has ended; on stderr casemate itself may have something to say


def _clean(cleaning: list[Cleaning], data: bytes) -> bytes:
    for one in cleaning:
        data = one.feed(data)
    return data


def _rest(cleaning: list[Cleaning]) -> bytes:
    rest = b""
    for one in cleaning:
        rest = one.feed(rest) + one.end()
    return rest


def _read(fd: int) -> bytes | None:
    """What is there to be read, empty at its end, None where there is nothing now."""
    try:
        return os.read(fd, _PIECE)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _put_out(fd: int, data: bytes) -> bool:
    """Write all of ``data``, as long as that takes; False when nobody reads it any more."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # the other end made it so
            select.select([], [fd], [])
        except OSError:
            return False
    return True


def _replace(fd: int) -> None:
    """Put /dev/null in the place of a standard stream, which ends it for its other end."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, fd)
    os.close(null)
