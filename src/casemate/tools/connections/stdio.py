"""A server that is a program here: its processes, and messages over its standard streams, one JSON text on each line.

What it says is bounded, what it says besides messages is kept for its last words, and everything that it started ends
with it (`casemate.tools.connections.reaper`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from casemate.tools.connections.reports import OutputTail
from casemate.tools.connections.streams import MessageBudget, Streams

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage
    from mcp_types import JSONRPCMessage

REAPER = Path(__file__).with_name("reaper.py")
MOST_MESSAGE = 64 << 20  # bytes of one message
_CHUNK = 1 << 18
_MOST_RUBBISH = 16 << 20  # bytes that are no messages, after which it is no server
_RUBBISH_COST = 256  # bytes of rubbish count as one message that nobody asked for
_ID = re.compile(rb'"id": ?([0-9]{1,15})[,}]')
_NEAR = 200  # bytes from either end in which an answer names its request
_SOON = 1.0  # seconds for an end to be known whose sign was seen
_NOISE = 8 << 20  # bytes a second that are read of what it says besides: a server that says more waits
_NOT_STARTED = 127  # as reaper.py and shells have it
_REAPER_SECONDS = 8.0  # the reaper's own delays, and some
# What every server gets of the host's environment: who and where it is, and how to find programs and speak.
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """What is started: its words, all of its variables, its folder ("" is this process's)."""

    words: Sequence[str]
    env: Mapping[str, str]
    cwd: str = ""


class Broken(Exception):
    """The server does what none may; the message says what."""


class Processes:
    """The processes of one server, started when this is made. Raises ``OSError`` where they cannot be."""

    def __init__(self, command: ServerCommand) -> None:
        held, self._lifeline = os.pipe()
        try:
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(REAPER), str(held), *command.words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(held,),
                env=dict(command.env),
                cwd=command.cwd or None,
                start_new_session=True,  # a terminal's Ctrl+C is the application's
                bufsize=0,
            )
        except BaseException:
            os.close(self._lifeline)
            raise
        finally:
            os.close(held)
        assert self._reaper.stdin
        assert self._reaper.stdout
        assert self._reaper.stderr
        self.stdin, self.stdout, self.stderr = self._reaper.stdin, self._reaper.stdout, self._reaper.stderr

    async def end(self) -> int | None:
        """End everything, bounded: politely, then by force. Its exit code, None where even force took too long."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        code = await self.wait(_REAPER_SECONDS)
        if code is None:
            self._reaper.kill()
            await self.wait(1.0)
        return code

    async def wait(self, seconds: float) -> int | None:
        """The exit code, when it has one within so many seconds."""
        deadline = time.monotonic() + seconds
        while (code := self._reaper.poll()) is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return code


@asynccontextmanager
async def stdio(command: ServerCommand, words: OutputTail) -> AsyncGenerator[Streams]:
    """The server as a transport of the MCP SDK: it is started, and with the block it is ended.

    Raises ``OSError`` where it cannot be started. ``words`` hears what it says besides, and how it ended. Its streams
    end when it does, and when it sends a message of more than 64 MiB or nothing but rubbish.
    """
    import anyio

    processes = Processes(command)
    ends = contextlib.ExitStack()
    try:
        loop = asyncio.get_running_loop()
        said = asyncio.StreamReader(limit=_CHUNK)
        out, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(said), processes.stdout)
        ends.callback(out.close)
        noise = asyncio.StreamReader(limit=_CHUNK)
        err, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(noise), processes.stderr)
        ends.callback(err.close)
        told = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        pipe, _ = await loop.connect_write_pipe(lambda: told, processes.stdin)
        writer = asyncio.StreamWriter(pipe, told, None, loop)
        ends.callback(lambda: None if pipe.is_closing() else pipe.abort())
        is_quiet = asyncio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(_read_stderr, noise, words, is_quiet)
            try:
                reader = StdioReader(said, processes, words, is_quiet)
                yield reader, StdioWriter(writer, reader)
            finally:
                with anyio.CancelScope(shield=True):
                    await _close(processes, writer)
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await processes.end()
        ends.close()
        for pipe_end in (processes.stdin, processes.stdout, processes.stderr):
            with contextlib.suppress(OSError):
                pipe_end.close()


async def _close(processes: Processes, writer: asyncio.StreamWriter) -> None:
    """Its standard input ends, which asks it to leave; then it is made to."""
    writer.close()
    await processes.end()


class StdioReader:
    """What the server says, as a stream of the SDK's: read by who wants it, in no task of its own."""

    def __init__(
        self, said: asyncio.StreamReader, processes: Processes, words: OutputTail, is_quiet: asyncio.Event
    ) -> None:
        self._said, self._processes, self._words, self._is_quiet = said, processes, words, is_quiet
        self._lines = Lines()
        self._budget, self._rubbish = MessageBudget(time.monotonic()), 0
        self.over = asyncio.Event()  # no more is said, and why is noted

    async def receive(self) -> SessionMessage:
        """The next message. Raises ``anyio.EndOfStream`` after the last."""
        import anyio

        if not self.over.is_set():
            try:
                if (item := await self._next()) is not None:
                    return item
                await _note_exit(self._processes, self._words, self._is_quiet)
            except Broken as broken:
                self._words.note(str(broken))
            self.over.set()
        raise anyio.EndOfStream

    async def aclose(self) -> None:
        """Listen no more."""
        self.over.set()

    async def _next(self) -> SessionMessage | None:
        """The next message; None where it says no more. Raises ``Broken`` for what no server may say."""
        from mcp.shared.message import SessionMessage

        if self._lines.are_there:
            await asyncio.sleep(0)  # many lines that come at once are everybody's time
        while True:
            while (line := self._lines.take()) is not None:
                if (message := _message(line)) is not None:
                    return SessionMessage(message)
                self._heard_rubbish(line)
            chunk = await self._said.read(_CHUNK)
            if not chunk:
                return None
            self._lines.add(chunk)

    def _heard_rubbish(self, line: bytes) -> None:
        self._rubbish += len(line)
        self._words.add(line[:1000] + b"\n")
        is_borne = self._budget.spend(time.monotonic(), 1 + len(line) / _RUBBISH_COST)
        if self._rubbish > _MOST_RUBBISH or not is_borne:
            raise Broken("it says too much that is no message of MCP")


class StdioWriter:
    """What is said to the server, as a stream of the SDK's: written by who says it, one after the other."""

    def __init__(self, writer: asyncio.StreamWriter, reader: StdioReader) -> None:
        self._writer, self._reader = writer, reader
        self._turn = asyncio.Lock()

    async def send(self, item: SessionMessage, /) -> None:
        """Say it, once the server has taken what was said before. Raises ``anyio.BrokenResourceError``."""
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        async with self._turn:
            try:
                await self._writer.drain()
            except OSError:
                await self._give_up()
            if self._writer.is_closing():
                await self._give_up()
            self._writer.write(text)

    async def _give_up(self) -> NoReturn:
        """Nobody listens: most often the server has ended, and how is about to be noted by who reads."""
        import anyio

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * _SOON):
                await self._reader.over.wait()
        raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Say no more; its standard input ends when the server is ended."""


def _message(line: bytes) -> JSONRPCMessage | None:
    """The message that a line is; of an answer that cannot be read, an error in its place; None for rubbish."""
    from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

    with contextlib.suppress(ValueError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    with contextlib.suppress(ValueError, RecursionError):
        # Deeper than the other parser reads: one tool's schema, that must not cost the others.
        return jsonrpc_message_adapter.validate_python(json.loads(line), by_name=False)
    named = {*_ID.findall(line[:_NEAR]), *_ID.findall(line[-_NEAR:])} if line.startswith(b"{") else set()
    if len(named) != 1:
        return None
    error = ErrorData(code=PARSE_ERROR, message="the server's answer is no JSON that can be read")
    return JSONRPCError(jsonrpc="2.0", id=int(named.pop()), error=error)


class Lines:
    """Bytes as they come, and the lines that they are, but empty ones."""

    def __init__(self) -> None:
        self._whole: deque[bytes] = deque()
        self._pieces: list[bytes] = []  # of the line that has not ended
        self._size = 0

    @property
    def are_there(self) -> bool:
        """Whether one may be taken."""
        return bool(self._whole)

    def take(self) -> bytes | None:
        """The next one; None where none has come to its end."""
        while self._whole:
            if (line := self._whole.popleft()).strip():
                return line
        return None

    def add(self, chunk: bytes) -> None:
        """More of them. Raises ``Broken`` beyond 64 MiB without an end."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            self._whole.append(b"".join([*self._pieces, lines[0]]))
            self._whole.extend(lines[1:])
            self._pieces.clear()
            self._size = 0
        self._pieces.append(rest)
        self._size += len(rest)
        if self._size > MOST_MESSAGE:
            raise Broken(f"it sent a message of more than {MOST_MESSAGE >> 20} MiB")


async def _read_stderr(noise: asyncio.StreamReader, words: OutputTail, is_quiet: asyncio.Event) -> None:
    while chunk := await noise.read(_CHUNK):
        words.add(chunk)
        await asyncio.sleep(len(chunk) / _NOISE)
    is_quiet.set()


async def _note_exit(processes: Processes, words: OutputTail, is_quiet: asyncio.Event) -> None:
    """Note how it ended, or that it closed its standard output, and what it said last."""
    code = await processes.wait(_SOON)
    if code is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SOON):
                await is_quiet.wait()
    if code is None:
        words.note("it closed its standard output")
    elif code > 128:
        words.note(f"it was ended by signal {code - 128}")
    elif code == _NOT_STARTED:
        words.note("its command cannot be started: there is no such program here")
    else:
        words.note(f"it ended with exit code {code}")
