"""The program's output on casemate's own stdout and stderr."""

from __future__ import annotations

import asyncio
import errno
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from casemate.model.events import Output
    from casemate.model.execution import ProgramError, Result
    from casemate.surfaces.cli.terminal.inert import Inert

_PIECE = 4096  # bytes that a pipe which is writable takes at once (PIPE_BUF)
_FILES = {"stdout": 1, "stderr": 2}


class ReaderGone(BrokenPipeError):
    """Nobody reads what casemate writes any more."""


class _Stream:
    """One of the two: bytes as they are, or inert where a terminal shows them."""

    def __init__(self, fd: int, raw: bool) -> None:
        self._fd = fd
        self._inert = None if raw or not os.isatty(fd) else _inert()
        self._in_line = False

    async def write(self, data: bytes) -> None:
        """Write ``data``; other tasks go on while the reader is slow. Raises ``ReaderGone`` and ``OSError``."""
        if data:
            self._in_line = not data.endswith(b"\n")
            await self._put(self._inert.feed(data) if self._inert else data)

    async def write_line(self, text: str) -> None:
        """Write ``text`` on lines of its own."""
        start = "\n" if self._in_line else ""
        await self.write(f"{start}{text}\n".encode("utf-8", "replace"))

    async def end(self) -> None:
        """Show what was held back."""
        if self._inert:
            await self._put(self._inert.end())

    async def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            await _writable(self._fd)
            try:
                view = view[os.write(self._fd, view[:_PIECE]) :]
            except BrokenPipeError:
                raise ReaderGone from None
            except BlockingIOError:  # the other end made the pipe non-blocking
                continue


def _inert() -> Inert:
    from casemate.surfaces.cli.terminal.inert import Inert

    return Inert()


class Streams:
    """Both streams of one run. ``raw``: a terminal, too, gets the program's bytes as they are."""

    def __init__(self, *, raw: bool) -> None:
        self._streams = {name: _Stream(fd, raw) for name, fd in _FILES.items()}

    async def output(self, event: Output) -> None:
        """Pass on what the program wrote."""
        await self._streams[event.stream].write(event.data)

    async def result(self, result: Result) -> None:
        """Print the text of something the program displayed, unless it is something to look at."""
        if result.text is not None and not is_picture(result):
            await self._streams["stdout"].write_line(result.text)

    async def error(self, error: ProgramError) -> None:
        """Print the traceback of a session's step on stderr."""
        await self._streams["stderr"].write_line(error.traceback.rstrip("\n"))

    async def end(self) -> None:
        """Show what was held back of either."""
        for stream in self._streams.values():
            await stream.end()


def is_picture(result: Result) -> bool:
    """Whether a displayed object is for the eyes: its text, if any, only stands for it."""
    return any(media_type.startswith("image/") or media_type == "application/pdf" for media_type in result)


async def _writable(fd: int) -> None:
    """Wait until a piece can be written without blocking. Files always can."""
    if select.select([], [fd], [], 0)[1]:
        return
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_writer(fd, ready.set)
    except OSError as error:
        if error.errno != errno.EPERM:  # what epoll does not know is a file or a device, and does not block for long
            raise
        return
    try:
        await ready.wait()
    finally:
        loop.remove_writer(fd)
