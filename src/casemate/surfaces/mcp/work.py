"""Work that a call waits for and that continues after the call was answered: runs of programs, and jobs.

A job is one operation that may need an approval. It runs in a task of the server across calls. Its result is kept until
later jobs push it out.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from casemate.errors import CasemateError, Fault
from casemate.model.approval import BY_RULE
from casemate.surfaces.mcp import answers
from casemate.surfaces.mcp.answers import Page
from casemate.surfaces.mcp.callers import Call, Caller, Document, Refused, Resumed, Work, questions_in
from casemate.surfaces.mcp.elicitation import answer_asked, ask_now, questions

if TYPE_CHECKING:
    from mcp_types import CallToolResult, InputRequiredResult

Answered: TypeAlias = "CallToolResult | InputRequiredResult"
Tell = Callable[[Call, Any], Awaitable[Answered]]  # makes the answer from an operation's result
_PREFIX = "job-"
_MOST = 64  # jobs of one caller that are kept
_LOOK_EVERY = 0.2  # seconds between two polls for pending requests
_EACH = 1.0  # seconds between two reports of progress
_UNANSWERABLE = (
    f"no approver can be asked: this client does not ask its user, and this server has no other approver; {BY_RULE}"
)


@dataclass(slots=True, eq=False)
class Run(Work):
    """A run of a program. Its answer has at most ``most`` characters of output from ``cursor`` on."""

    caller: Caller
    handle: str
    cursor: int = 0
    most: int = answers.OUTPUT

    async def wait(self, seconds: float, seen: frozenset[str]) -> Document:
        order = {"run": self.handle, "seconds": seconds, "told": sorted(seen)}
        state: Document = await self.caller.invoke("runs.wait", order)
        return state

    async def cancel(self) -> None:
        await self.caller.invoke("runs.cancel", {"run": self.handle})

    async def answer(self, call: Call, state: Document) -> CallToolResult:
        if state["status"] != "done":
            return _tell_unfinished(call, self, state, await self.read_page())
        execution = state["execution"]
        if execution is None:
            why = (state["error"] or {}).get("message") or f"no outcome of run {self.handle} is known"
            raise Refused(str(why))
        whole = _whole_text(execution, is_step=state["session"] is not None)
        if self.cursor == 0 and len(whole) <= self.most and not execution.get("truncated"):
            return answers.end_answer(state, Page(whole, len(whole), True))
        return answers.end_answer(state, await self.read_page())

    async def read_page(self) -> Page:
        """The output from the cursor on."""
        order = {"run": self.handle, "cursor": self.cursor, "limit": self.most}
        page = await self.caller.invoke("runs.read", order)
        return Page(page["text"], page["cursor"], len(page["text"]) < self.most or page["is_done"])


def _whole_text(execution: Mapping[str, Any], *, is_step: bool) -> str:
    """A run's output as ``runs.read`` gives it: with a step's traceback, which was not printed."""
    text = str(execution.get("text") or "")
    traceback = str((execution.get("error") or {}).get("traceback") or "") if is_step else ""
    if not traceback:
        return text
    text = text.removesuffix(traceback.strip()).rstrip()
    start = "\n" if text else ""
    return text + start + traceback + ("" if traceback.endswith("\n") else "\n")


@dataclass(slots=True, eq=False)
class Job(Work):
    """An operation on behalf of one caller, run as a task."""

    caller: Caller
    operation: str
    order: Mapping[str, Any]  # its arguments
    asks: str  # the kind of its approval requests
    tell: Tell
    server: str | None = None  # only requests about this server belong to it; None for all of that kind
    handle: str = field(default_factory=lambda: f"{_PREFIX}{secrets.token_hex(12)}")
    is_over: anyio.Event = field(default_factory=anyio.Event)
    _result: Any = None
    _error: CasemateError | None = None
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    async def carry_out(self) -> None:
        """Run to the end or until cancelled. Raises only the cancellation of the server."""
        try:
            with self._scope:
                self._result = await self.caller.invoke(self.operation, self.order)
            if self._scope.cancelled_caught:
                self._error = Refused("it was cancelled")
        except CasemateError as error:
            self._error = error
        except anyio.get_cancelled_exc_class():
            self._error = Refused("the server ended")
            raise
        except Exception as error:  # noqa: BLE001 - reported in this job's answer; other jobs go on
            self._error = Fault(f"{type(error).__name__}: {error}")
        finally:
            self.is_over.set()

    async def wait(self, seconds: float, seen: frozenset[str]) -> Document:
        end = anyio.current_time() + seconds
        while not self.is_over.is_set():
            asked = await self._list_questions()
            state = {"status": "waiting" if asked else "running", "approvals": asked}
            left = end - anyio.current_time()
            if questions_in(state) - seen or left <= 0:
                return state
            with anyio.move_on_after(min(_LOOK_EVERY, left)):
                await self.is_over.wait()
        return {"status": "done", "approvals": []}

    async def cancel(self) -> None:
        self._scope.cancel()

    async def answer(self, call: Call, state: Document) -> Answered:
        if state["status"] != "done":
            return _tell_unfinished(call, self, state, Page("", 0, True))
        return answers.failure(self._error) if self._error else await self.tell(call, self._result)

    async def _list_questions(self) -> list[Document]:
        """The job's pending requests, found in the person's list, the only place that shows them."""
        with contextlib.suppress(CasemateError):
            return [
                one
                for one in await self.caller.pending()
                if one["kind"] == self.asks and self.server in (None, one["server"])
            ]
        return []


def _tell_unfinished(call: Call, work: Work, state: Document, page: Page) -> CallToolResult:
    is_alone = call.callers.is_alone
    return answers.unfinished_answer(state, work.handle, page, can_answer=call.can_ask(), is_alone=is_alone)


def work_of(caller: Caller, handle: str, cursor: int = 0, most: int = answers.OUTPUT) -> Work:
    """The caller's run or job with this handle. Raises :class:`Refused` for an unknown job."""
    if not handle.startswith(_PREFIX):
        return Run(caller, handle, cursor, most)
    if handle not in caller.jobs:
        raise Refused(f"there is no run {handle!r}: it is not yours, or ended too long ago")
    return caller.jobs[handle]


@dataclass(frozen=True, slots=True)
class OneOperation:
    """The handler of a tool that calls one operation with the tool's arguments."""

    operation: str
    tell: Tell | None = None
    asks: str = ""  # the kind of approval requests that it may make
    names: Mapping[str, str | None] = field(default_factory=dict)  # the operation's names; None drops an argument
    defaults: Mapping[str, Any] = field(default_factory=dict)  # arguments unless the call has them

    async def __call__(self, call: Call) -> Answered:
        given = {self.names.get(name, name): value for name, value in call.arguments.items()}
        order = {**self.defaults, **{name: value for name, value in given.items() if name is not None}}
        tell = self.tell or tell_document
        if self.asks:
            return await follow_job(call, self.operation, order, self.asks, tell)
        return await tell(call, await call.caller.invoke(self.operation, order))


async def tell_document(_call: Call, document: Any) -> CallToolResult:
    """A result as JSON text, and as structured content."""
    structured = document if isinstance(document, Mapping) else {"items": document}
    return answers.text_answer(json.dumps(document, ensure_ascii=False, indent=1), structured)


async def follow_job(
    call: Call, operation: str, order: Mapping[str, Any], asks: str, tell: Tell, server: str | None = None
) -> Answered:
    """Start a job, or resume that of a call that comes back, and follow it. Raises :class:`Refused` for too many."""
    if call.resumed is not None:
        return await follow(call, work_of(call.caller, call.resumed.work))
    kept = call.caller.jobs
    if len(kept) >= _MOST:
        over = next((handle for handle, one in kept.items() if isinstance(one, Job) and one.is_over.is_set()), None)
        if over is None:
            raise Refused(f"{_MOST} jobs of yours are running: wait for one, or cancel it with cancel_run")
        del kept[over]
    job = Job(call.caller, operation, order, asks, tell, server)
    kept[job.handle] = job
    assert call.callers.tasks is not None
    call.callers.tasks.start_soon(job.carry_out)
    return await follow(call, job)


async def follow(call: Call, work: Work, state: Document | None = None, *, ends: bool = True) -> Answered:
    """The answer once ``work`` is done, the client's user must be asked between two calls, or the call's time is over;
    in the last two cases the work continues. ``state``: the work's, if known. ``ends``: end the work if this call is
    cancelled."""
    try:
        if call.resumed is not None:
            await answer_asked(call)
        return await _follow(call, work, state)
    except anyio.get_cancelled_exc_class():
        if ends:
            with anyio.CancelScope(shield=True):
                await work.cancel()
        raise


async def _follow(call: Call, work: Work, state: Document | None) -> Answered:
    seen: frozenset[str] = frozenset()
    state = state or await work.wait(min(_EACH, call.seconds_left), seen)
    while state["status"] != "done":
        await call.tell("waits for an approval" if state["status"] == "waiting" else state["status"])
        fresh = questions(call, [one for one in state["approvals"] if one["id"] not in seen])
        seen = questions_in(state)
        if call.callers.is_alone and not (call.can_ask() or call.can_ask("url")):
            for request in seen:
                await call.caller.decide({"request": request, "reason": _UNANSWERABLE})
        if fresh and call.is_modern:
            from mcp_types import InputRequiredResult

            resumed = Resumed(work.handle, {one.id: one.hash for one in fresh}, call.progress)
            return InputRequiredResult(
                input_requests={one.id: one.request() for one in fresh}, request_state=resumed.as_text()
            )
        for question in fresh:
            await ask_now(call, question, work, seen)
        if call.seconds_left <= 0:
            break
        state = await work.wait(min(_EACH, call.seconds_left), seen)
    return await work.answer(call, state)
