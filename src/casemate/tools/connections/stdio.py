"""A server that is a program here: its processes, and messages over its standard streams, one JSON text on each line.

What it says is bounded, what it says besides messages is kept for its last words, and everything that it started ends
with it (`casemate.tools.connections.keeper`).
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
from typing import TYPE_CHECKING, cast

from casemate.tools.connections.flood import Flood
from casemate.tools.connections.last_words import LastWords

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp_types import JSONRPCMessage

KEEPER = Path(__file__).with_name("keeper.py")
MOST_MESSAGE = 64 << 20  # bytes of one message
_CHUNK = 1 << 18
_MOST_RUBBISH = 16 << 20  # bytes that are no messages, after which it is no server
_RUBBISH_COST = 256  # bytes of rubbish count as one message that nobody asked for
_ID = re.compile(rb'"id": ?([0-9]{1,15})[,}]')
_NEAR = 200  # bytes from either end in which an answer names its request
_SOON = 1.0  # seconds for an end to be known whose sign was seen
_NOISE = 8 << 20  # bytes a second that are read of what it says besides: a server that says more waits
_KEEPER_SECONDS = 8.0  # the keeper's own delays, and some
# What every server gets of the host's environment: who and where it is, and how to find programs and speak.
INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")


@dataclass(frozen=True, slots=True)
class Command:
    """What is started: its words, all of its variables, its folder ("" is this process's)."""

    words: Sequence[str]
    env: Mapping[str, str]
    cwd: str = ""


class Broken(Exception):
    """The server does what none may; the message says what."""


class Processes:
    """The processes of one server, started when this is made. Raises ``OSError`` where they cannot be."""

    def __init__(self, command: Command) -> None:
        held, self._lifeline = os.pipe()
        try:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), str(held), *command.words],
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
        assert self._keeper.stdin
        assert self._keeper.stdout
        assert self._keeper.stderr
        self.stdin, self.stdout, self.stderr = self._keeper.stdin, self._keeper.stdout, self._keeper.stderr

    async def end(self) -> int | None:
        """End everything, bounded: politely, then by force. Its exit code, None where even force took too long."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        code = await self.ended(_KEEPER_SECONDS)
        if code is None:
            self._keeper.kill()
            await self.ended(1.0)
        return code

    async def ended(self, seconds: float) -> int | None:
        """The exit code, when it has one within so many seconds."""
        deadline = time.monotonic() + seconds
        while (code := self._keeper.poll()) is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return code


@asynccontextmanager
async def stdio(command: Command, words: LastWords) -> AsyncGenerator[TransportStreams]:
    """The server as a transport of the MCP SDK: it is started, and with the block it is ended.

    Raises ``OSError`` where it cannot be started. ``words`` hears what it says besides, and how it ended. Its streams
    end when it does, and when it sends a message of more than 64 MiB or nothing but rubbish.
    """
    import anyio
    from mcp.shared.message import SessionMessage

    processes = Processes(command)
    inbox, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outbox = anyio.create_memory_object_stream[SessionMessage](0)
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

            async def hear() -> None:
                async with inbox:
                    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
                        try:
                            await _hear(said, inbox, words)
                        except Broken as broken:
                            words.note(str(broken))
                        else:
                            await _overhear_rest(processes, words, is_quiet)

            async def tell() -> None:
                with contextlib.suppress(OSError):
                    async with outbox:
                        async for item in outbox:
                            writer.write(
                                item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                            )
                            await writer.drain()

            group.start_soon(hear)
            group.start_soon(tell)
            group.start_soon(_overhear, noise, words, is_quiet)
            try:
                yield cast("TransportStreams", (read, write))
            finally:
                with anyio.CancelScope(shield=True):
                    await _closed(processes, writer)
                group.cancel_scope.cancel()
    finally:
        for stream in (inbox, read, write, outbox):
            stream.close()
        with anyio.CancelScope(shield=True):
            await processes.end()
        ends.close()
        for pipe_end in (processes.stdin, processes.stdout, processes.stderr):
            with contextlib.suppress(OSError):
                pipe_end.close()


async def _closed(processes: Processes, writer: asyncio.StreamWriter) -> None:
    """Its standard input ends, which asks it to leave; then it is made to."""
    writer.close()
    await processes.end()


async def _hear(said: asyncio.StreamReader, inbox: object, words: LastWords) -> None:
    """Give messages on, until it has said all. Raises ``Broken`` for what no server may say."""
    from mcp.shared.message import SessionMessage

    send = inbox.send  # type: ignore[attr-defined]
    flood, rubbish = Flood(time.monotonic()), 0
    async for line in _lines(said):
        message = _message(line)
        if message is not None:
            await send(SessionMessage(message))
            continue
        rubbish += len(line)
        words.heard(line[:1000] + b"\n")
        if rubbish > _MOST_RUBBISH or not flood.takes(time.monotonic(), 1 + len(line) / _RUBBISH_COST):
            raise Broken("it says too much that is no message of MCP")


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


async def _lines(said: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """Its lines, but empty ones; what follows the last is none."""
    pieces: list[bytes] = []
    size = 0
    while chunk := await said.read(_CHUNK):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            line = b"".join([*pieces, part])
            pieces.clear()
            size = 0
            if line.strip():
                yield line
        pieces.append(rest)
        size += len(rest)
        if size > MOST_MESSAGE:
            raise Broken(f"it sent a message of more than {MOST_MESSAGE >> 20} MiB")


async def _overhear(noise: asyncio.StreamReader, words: LastWords, is_quiet: asyncio.Event) -> None:
    while chunk := await noise.read(_CHUNK):
        words.heard(chunk)
        await asyncio.sleep(len(chunk) / _NOISE)
    is_quiet.set()


async def _overhear_rest(processes: Processes, words: LastWords, is_quiet: asyncio.Event) -> None:
    """It has ended, or closed its standard output: how, and what it said last."""
    code = await processes.ended(_SOON)
    if code is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SOON):
                await is_quiet.wait()
    if code is None:
        words.note("it closed its standard output")
    elif code > 128:
        words.note(f"it was ended by signal {code - 128}")
    else:
        words.note(f"it ended with exit code {code}")
