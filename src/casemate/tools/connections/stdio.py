"""Runs a server as a local program that sends messages over its standard streams, one JSON text on each line.

Its output is bounded. All its processes end with it (`casemate.tools.connections.reaper`).
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
_MOST_RUBBISH = 16 << 20  # bytes of lines that are not messages, before the server is cut off
_RUBBISH_COST = 256  # bytes of rubbish that count as one message
_ID = re.compile(rb'"id": ?([0-9]{1,15})[,}]')
_YIELD_EVERY = 16  # lines, so that many lines at once do not block the loop
_NEAR = 200  # bytes at either end in which an answer names its request
_SOON = 1.0  # seconds to wait for the exit code after the output ended
_NOISE = 8 << 20  # bytes a second that are read from standard error; a server that writes more blocks
_NOT_STARTED = 127  # as in reaper.py and in shells
_REAPER_SECONDS = 8.0  # longer than the reaper's own delays
# The host's variables that every server gets.
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")


@dataclass(frozen=True, slots=True)
class ServerCommand:
    words: Sequence[str]
    env: Mapping[str, str]  # all of its variables
    cwd: str = ""  # "" is this process's


class Broken(Exception):
    """The server violated the protocol; the message says how."""


class Processes:
    """The processes of one server. The constructor starts them, or raises ``OSError``."""

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
                start_new_session=True,  # Ctrl+C in a terminal goes to the application only
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
        """End all processes, if needed by force. Returns the exit code, or None if even force took too long."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        code = await self.wait(_REAPER_SECONDS)
        if code is None:
            self._reaper.kill()
            await self.wait(1.0)
        return code

    async def wait(self, seconds: float) -> int | None:
        """Wait at most ``seconds`` for the exit code."""
        deadline = time.monotonic() + seconds
        while (code := self._reaper.poll()) is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return code


@asynccontextmanager
async def stdio(command: ServerCommand, words: OutputTail) -> AsyncGenerator[Streams]:
    """Run the server for the block, as a transport of the MCP SDK. Raises ``OSError`` if it cannot be started.

    ``words`` gets its other output and how it ended. The streams end with the server, and also when it sends a message
    of more than 64 MiB or too much rubbish.
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
                    writer.close()  # asks the server to exit
                    await processes.end()
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await processes.end()
        ends.close()
        for pipe_end in (processes.stdin, processes.stdout, processes.stderr):
            with contextlib.suppress(OSError):
                pipe_end.close()


class StdioReader:
    """The server's messages as a stream for the SDK. The consumer's task reads them."""

    def __init__(
        self, said: asyncio.StreamReader, processes: Processes, words: OutputTail, is_quiet: asyncio.Event
    ) -> None:
        self._said, self._processes, self._words, self._is_quiet = said, processes, words, is_quiet
        self._pieces: list[bytes] = []  # of an incomplete line; they outlive a cancelled read
        self._size, self._count = 0, 0
        self._budget, self._rubbish = MessageBudget(time.monotonic()), 0
        self.over = asyncio.Event()  # the messages have ended, and the reason is noted

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
        """Stop reading."""
        self.over.set()

    async def _next(self) -> SessionMessage | None:
        from mcp.shared.message import SessionMessage

        while line := await self._line():
            if (message := _message(line)) is not None:
                return SessionMessage(message)
            self._heard_rubbish(line)
        return None

    async def _line(self) -> bytes:
        """Read a line; empty after the last. Raises ``Broken`` beyond 64 MiB."""
        self._count += 1
        if self._count % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
        while self._size <= MOST_MESSAGE:
            try:
                line = b"".join((*self._pieces, await self._said.readuntil()))
            except asyncio.LimitOverrunError as begun:
                self._pieces.append(await self._said.readexactly(begun.consumed))
                self._size += begun.consumed
            except asyncio.IncompleteReadError:
                return b""
            else:
                self._pieces, self._size = [], 0
                return line
        raise Broken(f"it sent a message of more than {MOST_MESSAGE >> 20} MiB")

    def _heard_rubbish(self, line: bytes) -> None:
        self._rubbish += len(line)
        if line.strip():
            self._words.add(line[:1000] + b"\n")
        is_borne = self._budget.spend(time.monotonic(), 1 + len(line) / _RUBBISH_COST)
        if self._rubbish > _MOST_RUBBISH or not is_borne:
            raise Broken("it writes too much that is not an MCP message to its standard output")


class StdioWriter:
    """Messages to the server as a stream for the SDK. The producer's task writes them, one at a time."""

    def __init__(self, writer: asyncio.StreamWriter, reader: StdioReader) -> None:
        self._writer, self._reader = writer, reader
        self._turn = asyncio.Lock()

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message once the server has read the earlier ones. Raises ``anyio.BrokenResourceError``."""
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
        """Fail because the server does not read. It has usually ended, so wait until the reader has noted how."""
        import anyio

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * _SOON):
                await self._reader.over.wait()
        raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        """Do nothing; `stdio` closes the standard input at the end."""


def _message(line: bytes) -> JSONRPCMessage | None:
    """Parse a line. An answer that cannot be parsed becomes an error; rubbish becomes None."""
    from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

    with contextlib.suppress(ValueError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    with contextlib.suppress(ValueError, RecursionError):
        # This parser reads deeper JSON than the other: one tool's deep schema must not make all tools fail.
        return jsonrpc_message_adapter.validate_python(json.loads(line), by_name=False)
    named = {*_ID.findall(line[:_NEAR]), *_ID.findall(line[-_NEAR:])} if line.startswith(b"{") else set()
    if len(named) != 1:
        return None
    error = ErrorData(code=PARSE_ERROR, message="the server's answer is not JSON that can be parsed")
    return JSONRPCError(jsonrpc="2.0", id=int(named.pop()), error=error)


async def _read_stderr(noise: asyncio.StreamReader, words: OutputTail, is_quiet: asyncio.Event) -> None:
    while chunk := await noise.read(_CHUNK):
        words.add(chunk)
        await asyncio.sleep(len(chunk) / _NOISE)
    is_quiet.set()


async def _note_exit(processes: Processes, words: OutputTail, is_quiet: asyncio.Event) -> None:
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
