"""A tool call from a cell: resolve the tool, validate, get approval, send, and return the redacted answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from casemate.errors import CasemateError, InvalidArgument, ToolUnavailable
from casemate.model.approval import ApprovalVerdict, Question
from casemate.policy.canonical import MOST_BYTES, canonical, parse
from casemate.tools.connections.connection import CHANGED
from casemate.tools.connections.loop_work import result_of
from casemate.tools.requests import Read, Register, ToolCall
from casemate.tools.tool import parts_of
from casemate.visible import begin, shorten

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.files.beneath import HeldFolder
    from casemate.tools.connections.answers import CallProgress, Elicitation, Elicited
    from casemate.tools.tools import Known, Tools

    Hear = Callable[[CallProgress], None]

SMALL = 1 << 14  # bytes; larger values are processed outside the connections' thread, which all cells share
_READ = "resources/read"  # the name of the tool in approval requests to read a resource
_PLANNED = {"ok": True, "planned": True, "content": []}
_MOST_FORESEEN = 1000  # calls in a call plan
_SUMMARY = 300  # characters of arguments
Made = TypeVar("Made")
Refusal = Literal["denied", "tool", "invalid", "unknown", "unavailable", "timeout", "limit"]


class CallRefused(Exception):
    """A refused request. The cell gets ``kind`` and the message."""

    def __init__(self, kind: Refusal, message: str, content: list[Any] | None = None) -> None:
        super().__init__(message)
        self.kind, self.content = kind, content

    @property
    def answer(self) -> dict[str, Any]:
        told = {"ok": False, "kind": self.kind, "message": str(self)}
        return told if self.content is None else {**told, "content": self.content}


Note = Callable[[str, str, dict[str, Any]], object]  # gets the run, its namespace and the detail


class Foreseen:
    """The calls of a call plan, in order, up to a bound. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: list[Question] = []
        self._bytes = 0

    @property
    def calls(self) -> tuple[Question, ...]:
        with self._lock:
            return tuple(self._calls)

    def add(self, question: Question) -> None:
        """Add a call. Raises :class:`CallRefused` if there are too many to show to an approver."""
        with self._lock:
            self._bytes += len(canonical(question.arguments))
            if len(self._calls) >= _MOST_FORESEEN or self._bytes > MOST_BYTES // 2:
                raise CallRefused("limit", f"a plan has at most {_MOST_FORESEEN} calls and half a MiB of arguments")
            self._calls.append(question)


@dataclass(frozen=True, slots=True)
class Calls:
    tools: Tools
    requester: Requester
    note: Note  # records the outcome of each call
    turns: CallTurns
    foreseen: Foreseen | None = None  # collects the calls that need an approver, instead of making them

    async def call(self, request: ToolCall, hear: Hear | None = None) -> dict[str, Any]:
        """Call a tool. If it has changed since its last listing, list it and request approval again, once. ``hear``
        gets progress. Raises :class:`CallRefused`, ``CasemateError``."""
        if request.tool == _READ:
            raise CallRefused("unknown", f"no tool can be named {_READ}: that name stands for reading resources")
        known = await self._resolve(request.server, request.tool)
        try:
            return await self._call_known(request, known, hear)
        except ToolUnavailable as error:
            if error.reason != CHANGED:
                raise
        return await self._call_known(request, await self._resolve(request.server, request.tool, is_new=True), hear)

    async def _call_known(self, request: ToolCall, known: Known, hear: Hear | None) -> dict[str, Any]:
        is_slow = is_large(request.arguments) or not known.validator.is_quick(request.arguments)
        question = await self.turns.take(is_slow, _make_question, known, request.arguments, request.line)
        arguments, tool = question.arguments, known.tool
        if not tool.asks_itself and not await self._decide(question, is_slow):
            return _PLANNED
        answering = self.tools.send_call(known, arguments, on_progress=hear, elicit=self._elicit)
        return await self._await_answer(tool.server, tool.name, answering)

    async def read(self, request: Read) -> dict[str, Any]:
        """Read a resource. Raises as :meth:`call`."""
        summary = f"read {shorten(request.uri, _SUMMARY)} of {request.server}"
        question = Question("tool", summary, {"uri": request.uri}, server=request.server, tool=_READ)
        if not await self._decide(question):
            return _PLANNED
        return await self._await_answer(request.server, _READ, self.tools.servers.read(request.server, request.uri))

    async def register(self, request: Register) -> dict[str, Any]:
        """Add a server, if an approver allows exactly this definition. Raises as :meth:`call`."""
        self.tools.servers.check_free(request.name)
        shown = await self.turns.take(True, check_registration, request.name, request.definition)
        if "url" in shown:
            shown["addresses"] = await self._addresses(shown["url"])
        folder = await asyncio.to_thread(self._hold, shown["cwd"]) if "cwd" in shown else None
        summary = f"add the MCP server {request.name}{_inside(shown)}: {shorten(json.dumps(shown), _SUMMARY)}"
        await self._decide(Question("server", summary, shown, server=request.name), is_large(shown))
        if folder is not None:
            self._check_apart(shown["cwd"])  # again: other servers may have been added meanwhile
        await self.tools.add(request.name, shown, folder=folder)
        catalogue = await self.tools.catalogue(request.name)
        tools = [row for row in catalogue.list_rows() if row["server"] == request.name]
        return {"ok": True, "tools": tools, "text": f"added {request.name}, with {len(tools)} tools"}

    def _hold(self, path: str) -> HeldFolder:
        """Open the folder before it is shown, so that the command starts in the same one."""
        from casemate.files.beneath import HeldFolder

        self._check_apart(path)
        try:
            return HeldFolder(path)
        except OSError as error:
            raise CallRefused("invalid", f"{path}: a server cannot start in this folder: {error.strerror}") from None

    def _check_apart(self, path: str) -> None:
        """Raise :class:`CallRefused` if a program or another server could replace the folder."""
        through = self.tools.written_through
        if through is not None and os.path.commonpath((through, path)) in (through, path):
            raise CallRefused("invalid", f"{path}: programs of this sandbox write there directly (workspace_mode)")
        for server, other in self.tools.server_folders().items():
            if other != path and os.path.commonpath((other, path)) in (other, path):
                raise CallRefused("invalid", f"{path}: the server {server} writes in {other}")

    async def _addresses(self, url: str) -> str | list[str]:
        """The only addresses where a server at ``url`` may be, once it is allowed."""
        from casemate.tools.connections.remote import check_addresses

        host = urlsplit(url).hostname or ""
        async with self.turns.looking_up:
            found = await self.tools.addresses_of(host)
        return list(found) if check_addresses(host, found) else "public"

    async def _resolve(self, server: str, tool: str, *, is_new: bool = False) -> Known:
        try:
            return await self.tools.resolve_tool(server, tool, is_new=is_new, aside=partial(self.turns.take, True))
        except InvalidArgument as error:
            raise CallRefused("unknown", error.message) from None

    async def _decide(self, question: Question, is_slow: bool = False) -> bool:
        """Whether to make the call now; False if it is only noted in a call plan. Raises :class:`CallRefused`."""
        deciding = await self.turns.take(is_slow, partial(self.requester.decide, inline=not is_slow), question)
        verdict = await result_of(deciding)
        if verdict.by == "nobody" and self.foreseen is not None:
            if question.kind != "tool":  # an approver of a call plan allows calls only
                raise CallRefused("denied", "a call plan cannot add servers, only call tools")
            await self.turns.take(is_slow, self.foreseen.add, question)
            return False
        if not verdict.allow:
            raise CallRefused("denied", verdict.reason or "it was asked for and not approved")
        return True

    def _elicit(self, asked: Elicitation) -> Future[Elicited]:
        from casemate.tools.connections.answers import Elicited

        arguments: dict[str, Any] = {"message": asked.message}
        arguments |= {"url": asked.url} if asked.url else {"schema": dict(asked.schema or {})}
        summary = f"{asked.server} asks: {shorten(asked.message, _SUMMARY)}"
        question = Question("elicitation", summary, arguments, server=asked.server, tool=asked.tool)
        told: Future[Elicited] = Future()
        told.set_running_or_notify_cancel()

        def answer(decided: Future[ApprovalVerdict]) -> None:
            verdict = decided.result()
            told.set_result(Elicited("accept" if verdict.allow else "decline", verdict.content))

        self.requester.decide(question).add_done_callback(answer)
        return told

    async def _await_answer(self, server: str, tool: str, answering: Future[Any]) -> dict[str, Any]:
        """Wait for the answer, record the outcome and return the answer redacted."""
        began = time.monotonic()
        outcome = "cancelled"
        try:
            answer = await result_of(answering)
            is_error = getattr(answer, "is_error", False)
            outcome = "error" if is_error else "ok"
        except CasemateError as error:
            outcome = error.kind
            raise
        finally:
            self._record(server, tool, outcome, time.monotonic() - began)
        told = _content_for_cell(answer)
        made = await self.turns.take(is_large(told), self.requester.redact, told)
        if is_error:
            raise CallRefused("tool", _text_of(made["content"]), made["content"])
        return {"ok": True, **made}

    def _record(self, server: str, tool: str, outcome: str, seconds: float) -> None:
        requester = self.requester
        detail: dict[str, Any] = {"kind": "tool", "server": server, "tool": tool, "outcome": outcome}
        detail |= {"session": requester.session} if requester.session else {}
        detail["seconds"] = round(seconds, 6)

        def note() -> None:
            with contextlib.suppress(CasemateError):  # the decision is already on record
                self.note(requester.run, requester.namespace, detail)

        requester.defer(note)  # a row takes 0.2 ms; the answer does not wait for it


def kind_of(error: CasemateError) -> Refusal:
    """The kind of ``error`` for a cell."""
    if isinstance(error, ToolUnavailable) and error.reason == "timeout":
        return "timeout"  # the tool may have run
    return "invalid" if isinstance(error, InvalidArgument) else "unavailable"


def check_registration(name: str, definition: Mapping[str, Any]) -> dict[str, Any]:
    """A cell's definition as it is shown and used. The host fills in only the folder, and its command runs behind a
    wall. Raises :class:`CallRefused` and ``InvalidArgument``."""
    from casemate.tools.connections.definition import Program, has_placeholder, read_definition

    if "variables" in definition or has_placeholder(json.dumps(definition)):
        raise CallRefused("invalid", "a server added from a cell gets no variables or secrets of the host")
    if "addresses" in definition:
        raise CallRefused("invalid", "a server added from a cell cannot set its addresses; the host resolves them")
    if {"policy", "settings", "read", "copy"} & definition.keys():
        raise CallRefused("invalid", "a server added from a cell cannot name files of the host")
    read = read_definition(name, definition)
    if not isinstance(read.how, Program):
        return dict(definition)
    # The wall lets the command write in its working directory.
    return {**definition, "wall": True, "cwd": os.path.realpath(read.how.cwd)}


def _inside(shown: Mapping[str, Any]) -> str:
    """What an approver must know about a server's address and the folder that it may write to."""
    from casemate.model.addresses import place_of

    if "cwd" in shown:
        return f", which may write in {shown['cwd']}, also new files such as .git/hooks, .envrc and .vscode,"

    if (addresses := shown.get("addresses", "public")) == "public":
        return ""
    places = [f"{address}, {place}" for address in addresses if (place := place_of(address))]
    return f", which is not in the public network ({'; '.join(places)}),"


def _make_question(known: Known, given: Mapping[str, Any], line: int | None) -> Question:
    """The approval request for a call, with validated arguments in canonical form. Raises :class:`CallRefused`."""
    tool = known.tool
    arguments: dict[str, Any] = parse(canonical(given))
    if errors := known.validator.errors(arguments):
        raise CallRefused("invalid", f"{tool.server}.{tool.name}: " + "; ".join(errors))
    shown = begin(json.dumps(arguments, ensure_ascii=False), _SUMMARY)
    summary = f"call {tool.name} of {tool.server} with {shown}"
    return Question("tool", summary, arguments, server=tool.server, tool=tool.name, schema=known.hash, line=line)


def _content_for_cell(answer: Any) -> dict[str, Any]:
    from casemate.tools.connections.answers import ABSENT, Answer

    if not isinstance(answer, Answer):
        return {"content": answer}
    told: dict[str, Any] = {"content": answer.content}
    return told if answer.structured is ABSENT else {**told, "structured": answer.structured}


def _text_of(content: list[Any]) -> str:
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts) or "the tool reported an error and said nothing"


def is_large(value: Any) -> bool:
    """Whether processing a JSON value takes longer than other cells should wait."""
    left = SMALL
    for part, _ in parts_of(value):
        left -= len(part) if isinstance(part, str) else 8
        left -= sum(map(len, part)) if isinstance(part, dict) else 0
        if left <= 0:
            return True
    return False


class CallTurns:
    """Bounds one cell's use of the shared loop and threads, however many connections it has: one slow function at a
    time in a thread, and one quick request per iteration of the loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._beginning = asyncio.Lock()
        self._has_begun = False  # a request began in this iteration of the loop
        self.looking_up = asyncio.Lock()  # its holder resolves a name, which may be slow

    async def begin(self) -> None:
        """Wait until no other request of the cell has begun in this iteration of the loop."""
        if self._has_begun or self._beginning.locked():
            async with self._beginning:
                if self._has_begun:
                    await asyncio.sleep(0)  # until after `_end_turn`
        self._has_begun = True
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._has_begun = False

    async def take(self, is_slow: bool, step: Callable[..., Made], *given: Any) -> Made:
        """Call ``step``, in another thread if it is slow. Returns or raises what it does."""
        if not is_slow:
            return step(*given)
        await self._turn.acquire()
        working = asyncio.get_running_loop().run_in_executor(None, partial(step, *given))
        working.add_done_callback(lambda _done: self._turn.release())
        return await asyncio.shield(working)  # a thread cannot be cancelled
