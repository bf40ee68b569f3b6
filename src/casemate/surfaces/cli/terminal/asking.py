"""Asking whoever sits at the terminal, before something crosses the wall.

What is shown comes from a hostile program, and what is typed must be an answer to it: everything is escaped, what was
typed before the question is thrown away, and only a line that says yes allows. Where standard input is no terminal of
casemate's own, nobody is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios

from casemate.model.approval import ApprovalRequest
from casemate.policy.shown import escape_text, request_text
from casemate.surfaces.cli.terminal.words import say

_LONGEST_LINE = 4096  # bytes of an answer; a terminal's line has no more (termios(3), MAX_CANON)
_YES = (b"y", b"yes")
_INPUT = 0


def somebody_is_there() -> bool:
    """Whether a person can be asked: standard input and standard error are terminals, and this process has the first
    for itself (it does not run in the background)."""
    try:
        return os.isatty(_INPUT) and os.isatty(sys.stderr.fileno()) and os.tcgetpgrp(_INPUT) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


class Terminal:
    """An approver at the terminal: asks one question after the other. ``screen`` is held while one is open, so that
    whoever writes to the terminal besides waits."""

    def __init__(self, screen: asyncio.Lock) -> None:
        self._screen = screen

    async def ask(self, request: ApprovalRequest) -> bool:
        """Show the request; True only where the person then types y or yes. Cancelling takes the question back."""
        if request.kind == "elicitation":
            say(
                f"{escape_text(request.server)} asks for something to be filled in, which cannot be done here: declined"
            )
            return False
        async with self._screen:
            sys.stderr.write(text_of(request))
            try:
                termios.tcflush(_INPUT, termios.TCIFLUSH)
                sys.stderr.write("casemate: Allow this once? [y/N] ")
                sys.stderr.flush()
                return (await _line()).strip().lower() in _YES
            except asyncio.CancelledError:
                sys.stderr.write("\n")
                say("the question is over: it was answered elsewhere, or withdrawn")
                raise


def text_of(request: ApprovalRequest) -> str:
    """The lines that show a request; no text in it can begin a line or look like one of casemate's."""
    lines = request_text(
        "casemate: the program", kind=request.kind, server=request.server, tool=request.tool, summary=request.summary,
        arguments=request.arguments,
    )  # fmt: skip
    return f"{lines}\n"


async def _line() -> bytes:
    """The next line that is typed; nothing at the end of the input."""
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
