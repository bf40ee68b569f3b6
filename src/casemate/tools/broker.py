"""The broker between cells and connections: a service in each cell that answers its requests for tools.

A cell sends only names and arguments. The host knows the servers, how to reach them and their lists of tools. Arguments
are parsed once; the same value is validated, shown and sent.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    Detail,
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
    from casemate.approvals.requester import Requester
    from casemate.tools.tools import Tools


_PAUSE = 0.1  # seconds between two lines of progress: people cannot read them faster


@asynccontextmanager
async def send_progress(
    client: LineClient, redacted: Callable[[Any], Awaitable[Any]]
) -> AsyncIterator[Callable[[CallProgress], None]]:
    """Yield a callback for progress, which never blocks. Use it in the connections' thread.

    ``client`` gets ``{"progress": n, "total": m or null, "message": "..."}`` at once, then at most every tenth of a
    second. Newer progress replaces progress that is not yet sent; the last is always sent while the client is there.
    """
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
    """The latest progress that is not yet sent."""

    def __init__(self) -> None:
        self._said: CallProgress | None = None
        self._wake = asyncio.Event()
        self.over = asyncio.Event()

    def hear(self, progress: CallProgress) -> None:
        self._said = progress
        self._wake.set()

    def end(self) -> None:
        self.over.set()
        self._wake.set()

    async def take_latest(self) -> CallProgress | None:
        """Wait for progress and return the latest; None at the end."""
        await self._wake.wait()
        if not self.over.is_set():
            self._wake.clear()
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
_MOST_ASKED = 16 << 20  # bytes of one cell's incomplete and unanswered requests
_MOST_UNSENT = 128 << 20  # bytes of answers to one cell; they use the host's memory until the cell reads them


@dataclass(frozen=True, slots=True)
class Broker:
    """Offers the tools of a sandbox to its cells."""

    tools: Tools
    note: Note  # see `Calls`
    foreseen: Foreseen | None = None  # see `Calls`

    def begin(self, whose: Callable[[], Requester | None]) -> ToolService:
        """Make the service of one cell. ``whose`` returns the requester of the current run or step."""
        return ToolService(self, whose)


def _refused_line(error: InvalidArgument) -> bytes:
    return line_of(CallRefused("invalid", str(error)).answer)


@dataclass(frozen=True, slots=True)
class ToolService:
    """The service in one cell. Each connection has one call at a time; closing the connection cancels it."""

    broker: Broker
    whose: Callable[[], Requester | None]
    name: str = "tools.casemate.internal"
    port: int = 7
    turns: CallTurns = field(default_factory=CallTurns)
    budget: LineBudget = field(default_factory=lambda: LineBudget(_MOST_ASKED))
    unsent: list[int] = field(default_factory=list)  # sizes of the answers that are not yet read

    async def serve(self, client: LineClient) -> None:
        """Serve ``client`` until it leaves, in the connections' thread, so that a call needs no change of thread."""
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
            except InvalidArgument as error:  # the start of the next line is unknown
                await client.send(_refused_line(error))
                return
            if line is None:
                return
            await self.turns.begin()
            if not await while_there(client, self._handle(line, client)):
                return

    async def _handle(self, line: bytes, client: LineClient) -> bool:
        """Answer a request. Returns whether another may follow."""
        data, is_text = await self._answer(line, client)
        await self._send(client, data, is_text)
        return not is_text

    async def _send(self, client: LineClient, data: bytes, is_text: bool) -> None:
        """Send an answer as fast as the cell reads it. If too many bytes wait already, send a short error instead."""
        if self.unsent and sum(self.unsent) + len(data) > _MOST_UNSENT:
            made = CallRefused("limit", f"answers of more than {_MOST_UNSENT >> 20} MiB wait to be read").answer
            data = shell.text_of(made).encode() if is_text else line_of(made)
        self.unsent.append(len(data))
        try:
            await client.send(data)
        finally:
            self.unsent.remove(len(data))

    async def _answer(self, line: bytes, client: LineClient) -> tuple[bytes, bool]:
        """The answer, and whether it is text (the last on its connection) and not a line of JSON."""
        try:
            request = await self.turns.take(len(line) > SMALL, read_request, line)
        except InvalidArgument as error:
            return _refused_line(error), False
        requester = self.whose()
        try:
            if requester is None:
                raise CallRefused("denied", "nothing runs in this cell now, so its requests are refused")
            with called_from_cell(requester), within(requester.run):
                made = await self._dispatch(request, requester, client)
        except CallRefused as refused:
            made = refused.answer
        except CasemateError as error:
            made = CallRefused(kind_of(error), error.message).answer
        if requester is not None and not made["ok"]:
            made = await self._redact(requester, made)
        if isinstance(request, ShellCall):
            return (await self.turns.take(is_large(made), shell.text_of, made)).encode(), True
        return await self.turns.take(is_large(made), line_of, made), False

    async def _redact(self, requester: Requester, value: Any) -> Any:
        return await self.turns.take(is_large(value), requester.redact, value)

    async def _dispatch(self, request: Request, requester: Requester, client: LineClient) -> dict[str, Any]:
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
            case Search():
                return await self._search(request.query, request.detail, requester)
            case ShellCall():
                return await self._run_command(request, calls)
            case Source():
                if (found := await tools.module(request.module, aside=self._run_aside)) is None:
                    raise CallRefused("unknown", await tools.explain_missing(request.module))
                return {"ok": True, "source": found[0], "package": found[1]}

    async def _search(self, query: str, detail: Detail, requester: Requester) -> dict[str, Any]:
        found = await self.broker.tools.search_all(query, detail, aside=self._run_aside)
        missing = f"\n{requester.redact(found.missing)}" if found.missing else ""
        return {"ok": True, "text": found.text + missing, "tools": found.rows}

    async def _run_aside(self, step: Callable[..., Made], *given: Any) -> Made:
        return await self.turns.take(True, step, *given)

    async def _run_command(self, request: ShellCall, calls: Calls) -> dict[str, Any]:
        try:
            wanted = await shell.resolve_words(request.words, self.broker.tools, self._run_aside)
            if isinstance(wanted, Search):
                return await self._search(wanted.query, wanted.detail, calls.requester)
        except BadWords as error:
            raise CallRefused("invalid", str(error)) from None
        if isinstance(wanted, str):
            return {"ok": True, "text": wanted}
        return await (calls.read(wanted) if isinstance(wanted, Read) else calls.call(wanted))
