"""The person at the terminal: shows a program's output, and asks approval requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import termios
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from casemate.surfaces.cli.failures import say

if TYPE_CHECKING:
    from casemate.model.approval import ApprovalRequest
    from casemate.model.events import Output
    from casemate.model.execution import ProgramError, Result
    from casemate.surfaces.cli.inert import Inert


_PIECE = 4096  # bytes that a writable pipe takes at once (PIPE_BUF)
_FILES = {"stdout": 1, "stderr": 2}


class ReaderGone(BrokenPipeError):
    """The reader of casemate's output is gone."""


class _StandardStream:
    """stdout or stderr: bytes unchanged, or inert on a terminal."""

    def __init__(self, fd: int, raw: bool) -> None:
        self._fd = fd
        self._inert = None if raw or not os.isatty(fd) else _inert()
        self._in_line = False

    async def write(self, data: bytes) -> None:
        """Write ``data``. Other tasks run while the reader is slow. Raises ``ReaderGone`` and ``OSError``."""
        if data:
            self._in_line = not data.endswith(b"\n")
            await self._write_all(self._inert.feed(data) if self._inert else data)

    async def write_line(self, text: str) -> None:
        start = "\n" if self._in_line else ""
        await self.write(f"{start}{text}\n".encode("utf-8", "replace"))

    async def draw(self, result: Result) -> None:
        from casemate.model.pictures import picture_of
        from casemate.surfaces.cli.pictures import END, draw, protocol_of

        if not (protocol := protocol_of(self._fd)) or (picture := picture_of(result)) is None:
            return
        await self.write(b"\n" if self._in_line else b"")
        try:
            await self._write_all(draw(picture, protocol, self._fd))
        except BaseException:
            with contextlib.suppress(OSError):
                os.write(self._fd, END)
            raise

    async def end(self) -> None:
        if self._inert:
            await self._write_all(self._inert.end())

    async def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            await _writable(self._fd)
            try:
                view = view[os.write(self._fd, view[:_PIECE]) :]
            except BrokenPipeError:
                raise ReaderGone from None
            except BlockingIOError:  # the other end set O_NONBLOCK
                continue


def _inert() -> Inert:
    from casemate.surfaces.cli.inert import Inert

    return Inert()


class Streams:
    """stdout and stderr of one run. ``raw``: a terminal also gets the program's bytes unchanged."""

    def __init__(self, *, raw: bool) -> None:
        self._streams = {name: _StandardStream(fd, raw) for name, fd in _FILES.items()}

    async def output(self, event: Output) -> None:
        await self._streams[event.stream].write(event.data)

    async def result(self, result: Result) -> None:
        """Show a displayed object: a picture if the terminal can, otherwise its text."""
        if is_picture(result):
            await self._streams["stdout"].draw(result)
        elif result.text is not None:
            await self._streams["stdout"].write_line(result.text)

    async def error(self, error: ProgramError) -> None:
        """Print the traceback of a session's step on stderr."""
        await self._streams["stderr"].write_line(error.traceback.rstrip("\n"))

    async def end(self) -> None:
        """Write what the streams still hold back."""
        for stream in self._streams.values():
            await stream.end()


def is_picture(result: Result) -> bool:
    """Whether a displayed object is a picture. Its text is then only a substitute."""
    return any(media_type.startswith("image/") or media_type == "application/pdf" for media_type in result)


async def _writable(fd: int) -> None:
    """Wait until a piece can be written without blocking. Files are always ready."""
    if select.select([], [fd], [], 0)[1]:
        return
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(fd)


_LONGEST_LINE = 4096  # bytes of an answer; a terminal's line is not longer (termios(3), MAX_CANON)
_MOST_FLUSHES, _NEXT_PIECE = 100, 0.02  # at least 400 kB; seconds
_YES = (b"y", b"yes")
_INPUT = 0


def somebody_is_there() -> bool:
    """Whether a person can be asked: stdin and stderr are terminals, and this process is in the foreground."""
    try:
        return os.isatty(_INPUT) and os.isatty(sys.stderr.fileno()) and os.tcgetpgrp(_INPUT) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


def confirm(question: str) -> bool:
    """Ask the person at the terminal. True only if the person then types y or yes."""
    _prompt(question)
    select.select([_INPUT], [], [])  # os.read fails at once if another program set O_NONBLOCK
    return os.read(_INPUT, _LONGEST_LINE).strip().lower() in _YES


def _prompt(question: str) -> None:
    for _ in range(_MOST_FLUSHES):  # earlier typing is not an answer; a long paste comes in pieces
        termios.tcflush(_INPUT, termios.TCIFLUSH)
        if not select.select([_INPUT], [], [], _NEXT_PIECE)[0]:
            break
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()


class Terminal:
    """An approver at the terminal: asks one question at a time, and holds ``screen`` so that other output waits."""

    def __init__(self, screen: asyncio.Lock) -> None:
        self._screen = screen

    async def ask(self, request: ApprovalRequest) -> bool:
        """Show the request. True only if the person then types y or yes. Cancelling withdraws the question."""
        if request.kind == "elicitation":
            from casemate.policy.shown import escape_text

            say(f"{escape_text(request.server)} asks for a form to be filled in, which cannot be done here: declined")
            return False
        async with self._screen:
            sys.stderr.write(request_lines(request))
            try:
                _prompt("casemate: Allow this once?")
                return (await _line()).strip().lower() in _YES
            except asyncio.CancelledError:
                sys.stderr.write("\n")
                say("this question was answered elsewhere, or withdrawn")
                raise


def request_lines(request: ApprovalRequest) -> str:
    """The lines that show a request. No text in it can begin a line or look like casemate's."""
    from casemate.policy.shown import escape_text, request_text

    if request.kind == "files" and "changes" in request.arguments:
        shown = request.arguments
        rest = [f"{shown[name]} {what}" for name, what in _NOT_SHOWN if shown.get(name)]
        review = review_lines([*shown["changes"], *rest], shown["diff"], has_colours=sys.stderr.isatty())
        return "\n".join((f"casemate: files: {escape_text(request.summary)}", *review, ""))
    lines = request_text(
        "casemate: the program", kind=request.kind, server=request.server, tool=request.tool, summary=request.summary,
        arguments=request.arguments,
    )  # fmt: skip
    return f"{lines}\n"


_NOT_SHOWN = (("changes_not_listed", "more changes"), ("diffs_not_shown", "differences are not shown"))
_COLOURS = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
_PLAIN = "\x1b[0m"


def review_lines(changes: Sequence[str], diff: str, *, has_colours: bool) -> Iterator[str]:
    """Changes of a folder, then the diff. Nothing in it acts upon a terminal, and every line is indented."""
    from casemate.surfaces.cli.inert import inert, visible

    yield from (f"    {visible(change)}" for change in changes)
    for line in diff.removesuffix("\n").split("\n") if diff else ():
        colour = _COLOURS.get(line[:1], "") if has_colours else ""
        yield f"    {colour}{inert(line)}{_PLAIN if colour else ''}"


async def _line() -> bytes:
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            try:
                typed.set_result(os.read(_INPUT, _LONGEST_LINE))
            except OSError:
                typed.set_result(b"")

    loop.add_reader(_INPUT, read)
    try:
        return await typed
    finally:
        loop.remove_reader(_INPUT)
