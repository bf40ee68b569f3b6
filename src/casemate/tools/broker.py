"""The broker between cells and connections: a service in each cell, which answers what code asks for.

A cell sends names and arguments. Everything else is here: which servers there are, how they are reached, what they have
said of their tools. Arguments are parsed once, and what was validated and shown is what is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from casemate.errors import CasemateError, InvalidArgument
from casemate.files.lines import Crowded, LineBudget, LineClient, LineShare, line_of, read_line, while_there
from casemate.telemetry.rows import within
from casemate.tools import shell
from casemate.tools.calls import SMALL, CallRefused, Calls, CallTurns, Foreseen, Note, is_large, kind_of
from casemate.tools.connections.answers import CallProgress
from casemate.tools.connections.own import called_from_cell
from casemate.tools.requests import (
    CallRequester,
    Describe,
    Detail,
    ListTools,
    Read,
    Register,
    Request,
    Search,
    ShellCall,
    Source,
    ToolCall,
    read_request,
)
from casemate.tools.shell import BadWords

if TYPE_CHECKING:
    from casemate.tools.tools import Tools


_PAUSE = 0.1  # seconds between two lines: as often as people can read them


@asynccontextmanager
async def send_progress(
    client: LineClient, redacted: Callable[[Any], Awaitable[Any]]
) -> AsyncIterator[Callable[[CallProgress], None]]:
    """What hears of progress, in any thread, and never blocks. ``client`` is sent ``{"progress": n, "total": m or null,
    "message": "..."}`` at once, then at most every tenth of a second; what it did not hear before is dropped for what
    came later, and the last is always sent. Where the client is gone, nobody is told."""
    latest = _Latest()
    sending = asyncio.ensure_future(_send(client, latest, redacted))  # noqa: TID251 - ended here in every case
    try:
        yield latest.hear
    except asyncio.CancelledError:
        sending.cancel()
        raise
    finally:
        latest.end()
        with contextlib.suppress(OSError):
            await sending


class _Latest:
    """The latest that was said and not sent."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._said: CallProgress | None = None
        self._wake = asyncio.Event()
        self.over = asyncio.Event()

    def hear(self, progress: CallProgress) -> None:
        """The server says this. In any thread."""
        with self._lock:
            is_known, self._said = self._said is not None, progress
        if not is_known:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and so is who listened
                self._loop.call_soon_threadsafe(self._wake.set)

    def end(self) -> None:
        """Nothing more will be said."""
        self.over.set()
        self._wake.set()

    async def take_latest(self) -> CallProgress | None:
        """The latest, when there is one; None at the end."""
        await self._wake.wait()
        if not self.over.is_set():
            self._wake.clear()
        with self._lock:
            said, self._said = self._said, None
        return said


async def _send(client: LineClient, latest: _Latest, redacted: Callable[[Any], Awaitable[Any]]) -> None:
    while (said := await latest.take_latest()) is not None or not latest.over.is_set():
        if said is None:
            continue
        told = {"progress": said.progress, "total": said.total, "message": said.message}
        await client.send(line_of(await redacted(told)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE):
                await latest.over.wait()


Made = TypeVar("Made")
NAME, PORT = "tools.casemate.internal", 7
_MOST_ASKED = 16 << 20  # bytes of requests of one cell that are begun, or not yet answered
_MOST_UNSENT = 128 << 20  # bytes of several answers to one cell: they take the host's memory until they are read


@dataclass(frozen=True, slots=True)
class Broker:
    """The tools of a sandbox, as each of its cells is offered them. ``note`` and ``foreseen`` as of
    :class:`casemate.tools.calls.Calls`."""

    tools: Tools
    note: Note
    foreseen: Foreseen | None = None

    def begin(self, whose: Callable[[], CallRequester | None]) -> ToolService:
        """The service of one cell. ``whose``: what runs there now."""
        return ToolService(self, whose)


@dataclass(frozen=True, slots=True)
class Said:
    """An answer as it is sent: a line of JSON, or a text, which ends with its connection."""

    data: bytes
    is_text: bool = False


def _refused_line(error: InvalidArgument) -> bytes:
    return line_of(CallRefused("invalid", str(error)).answer)


@dataclass(frozen=True, slots=True)
class ToolService:
    """Of one cell. It answers one request after the other on each connection; when that is closed, its call ends."""

    broker: Broker
    whose: Callable[[], CallRequester | None]
    name: str = NAME
    port: int = PORT
    turns: CallTurns = field(default_factory=CallTurns)
    budget: LineBudget = field(default_factory=lambda: LineBudget(_MOST_ASKED))
    unsent: list[int] = field(default_factory=list)  # bytes of each answer that is not read to its end

    async def serve(self, client: LineClient) -> None:
        """Until the client goes. In the thread of the connections to servers: a call goes to no other and back."""
        await self.broker.tools.servers.beside(lambda: self._serve_within_bounds(client))

    async def _serve_within_bounds(self, client: LineClient) -> None:
        with self.budget.share() as share:
            try:
                await self._serve(client, share)
            except Crowded as crowded:
                await client.send(line_of(CallRefused("limit", str(crowded)).answer))

    async def _serve(self, client: LineClient, share: LineShare) -> None:
        while True:
            try:
                line = await read_line(client, share=share)
            except InvalidArgument as error:  # where the next line begins is not known
                await client.send(_refused_line(error))
                return
            if line is None:
                return
            await self.turns.begin()
            if not await while_there(client, self._handle(line, client)):
                return

    async def _handle(self, line: bytes, client: LineClient) -> bool:
        """Answer it; whether another may follow. Sent by who has it, as each turn of the loop takes its time."""
        answer = await self._answer(line, client)
        await self._send(client, answer)
        return not answer.is_text

    async def _send(self, client: LineClient, answer: Said) -> None:
        """Send it as fast as it is read; something short in its place where the cell lets too much wait already."""
        data = answer.data
        if self.unsent and sum(self.unsent) + len(data) > _MOST_UNSENT:
            made = CallRefused("limit", f"answers of more than {_MOST_UNSENT >> 20} MiB wait to be read").answer
            data = shell.text_of(made).encode() if answer.is_text else line_of(made)
        self.unsent.append(len(data))
        try:
            await client.send(data)
        finally:
            self.unsent.remove(len(data))

    async def _answer(self, line: bytes, client: LineClient) -> Said:
        try:
            request = await self.turns.take(len(line) > SMALL, read_request, line)
        except InvalidArgument as error:
            return Said(_refused_line(error))
        requester = self.whose()
        try:
            if requester is None:
                raise CallRefused("denied", "nothing runs in this cell now, so nothing is done for it")
            with called_from_cell(requester), within(requester.run):
                made = await self._dispatch(request, requester, client)
        except CallRefused as refused:
            made = refused.answer
        except CasemateError as error:
            made = CallRefused(kind_of(error), error.message).answer
        if requester is not None and not made["ok"]:
            made = await self._redact(requester, made)
        if isinstance(request, ShellCall):
            return Said((await self.turns.take(is_large(made), shell.text_of, made)).encode(), is_text=True)
        return Said(await self.turns.take(is_large(made), line_of, made))

    async def _redact(self, requester: CallRequester, value: Any) -> Any:
        return await self.turns.take(is_large(value), requester.redact, value)

    async def _dispatch(self, request: Request, requester: CallRequester, client: LineClient) -> dict[str, Any]:
        broker, tools = self.broker, self.broker.tools
        calls = Calls(tools, requester, broker.note, self.turns, broker.foreseen)
        match request:
            case ToolCall(progress=True):
                async with send_progress(client, partial(self._redact, requester)) as hear:
                    return await calls.call(request, hear)
            case ToolCall():
                return await calls.call(request)
            case Read():
                return await calls.read(request)
            case Register():
                return await calls.register(request)
            case ListTools():
                return await self._search("", request.detail, requester)
            case Search():
                return await self._search(request.query, request.detail, requester)
            case Describe():
                return {"ok": True, "text": await tools.describe(request.server, request.tool, aside=self._run_aside)}
            case ShellCall():
                return await self._run_command(request, calls)
            case Source():
                if (found := await tools.module(request.module, aside=self._run_aside)) is None:
                    raise CallRefused("unknown", await tools.explain_missing(request.module))
                return {"ok": True, "source": found[0], "package": found[1]}

    async def _search(self, query: str, detail: Detail, requester: CallRequester) -> dict[str, Any]:
        found = await self.broker.tools.search_all(query, detail, aside=self._run_aside)
        missing = f"\n{requester.redact(found.missing)}" if found.missing else ""
        return {"ok": True, "text": found.text + missing, "tools": found.rows}

    async def _run_aside(self, step: Callable[..., Made], *given: Any) -> Made:
        return await self.turns.take(True, step, *given)

    async def _run_command(self, request: ShellCall, calls: Calls) -> dict[str, Any]:
        """What the words of ``tool`` in a Shell cell ask for."""
        try:
            wanted = await shell.resolve_words(request.words, self.broker.tools, self._run_aside)
            if isinstance(wanted, Search):
                return await self._search(wanted.query, wanted.detail, calls.requester)
        except BadWords as error:
            raise CallRefused("invalid", str(error)) from None
        if isinstance(wanted, str):
            return {"ok": True, "text": wanted}
        return await (calls.read(wanted) if isinstance(wanted, Read) else calls.call(wanted))
