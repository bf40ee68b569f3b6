"""Runs and jobs that a call waits for, and that go on after it was answered.

The operation behind it goes on while calls come and go, in a task of the server's own; its result is kept until it was
read, or pushed out by later ones.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio

from casemate.errors import CasemateError, Fault
from casemate.surfaces.mcp.callers import Call, Caller, Document, Refused, Resumed, State, Work
from casemate.surfaces.mcp.elicitation import answer_asked, ask_now, questions

if TYPE_CHECKING:
    from mcp_types import CallToolResult, InputRequiredResult

    from casemate.surfaces.mcp.callers import Callers


@dataclass(slots=True, eq=False)
class Run:
    """A run of a program, by its handle."""

    caller: Caller
    handle: str

    async def wait(self, seconds: float, seen: frozenset[str]) -> State:
        order = {"run": self.handle, "seconds": seconds, "told": sorted(seen)}
        return state_of(await self.caller.invoke("runs.wait", order))

    async def cancel(self) -> None:
        await self.caller.invoke("runs.cancel", {"run": self.handle})


def state_of(document: Mapping[str, Any]) -> State:
    """The state of a run."""
    held = dict(document)
    return State(str(held["status"]), tuple(held.get("approvals") or ()), held)


_PREFIX = "job-"
_MOST = 64  # jobs of one caller that are kept
_LOOK_EVERY = 0.2  # seconds between two looks at who is asked what
Concerns = Callable[[Document], bool]
Answered: TypeAlias = "CallToolResult | InputRequiredResult"
JobAnswer = Callable[[Call, Any], Awaitable[Answered]]  # from the result of its operation


class Job:
    """``operation`` with ``arguments``, of one caller. ``concerns``: whether a question is one of this job's;
    ``answer``: what its result means."""

    def __init__(
        self, caller: Caller, operation: str, arguments: Mapping[str, Any], concerns: Concerns, answer: JobAnswer
    ) -> None:
        self.handle = f"{_PREFIX}{secrets.token_hex(12)}"
        self.answer = answer
        self.result: Any = None
        self.error: CasemateError | None = None
        self._caller = caller
        self._order = (operation, dict(arguments))
        self._concerns = concerns
        self._over = anyio.Event()
        self._scope = anyio.CancelScope()

    async def carry_out(self) -> None:
        """Do it, to the end or until it is cancelled. Never raises."""
        try:
            with self._scope:
                self.result = await self._caller.invoke(*self._order)
            if self._scope.cancelled_caught:
                self.error = Refused("it was cancelled")
        except CasemateError as error:
            self.error = error
        except anyio.get_cancelled_exc_class():
            self.error = Refused("the server ended meanwhile")
            raise
        except Exception as error:  # noqa: BLE001 - told to whoever waits for it, and no other job ends with it
            self.error = Fault(f"{type(error).__name__}: {error}")
        finally:
            self._over.set()

    async def wait(self, seconds: float, seen: frozenset[str]) -> State:
        end = anyio.current_time() + seconds
        while True:
            if self._over.is_set():
                return State("done", (), {})
            asked = await self._list_questions()
            state = State("waiting" if asked else "running", asked, {})
            left = end - anyio.current_time()
            if state.awaited_ids - seen or left <= 0:
                return state
            with anyio.move_on_after(min(_LOOK_EVERY, left)):
                await self._over.wait()

    async def cancel(self) -> None:
        self._scope.cancel()

    async def _list_questions(self) -> tuple[Document, ...]:
        """The person's list of questions is the only place where those of a job can be seen."""
        if self._caller.person is None:
            return ()
        with contextlib.suppress(CasemateError):
            return tuple(one for one in await self._caller.person("approvals.pending", {}) if self._concerns(one))
        return ()


def begin(callers: Callers, caller: Caller, job: Job) -> Job:
    """Start a job. Raises :class:`Refused` where too many are going on."""
    kept = caller.jobs
    if len(kept) >= _MOST:
        over = next((handle for handle, one in kept.items() if isinstance(one, Job) and one._over.is_set()), None)
        if over is None:
            raise Refused(f"{_MOST} jobs of yours are going on: wait for one, or cancel it with cancel_run")
        del kept[over]
    kept[job.handle] = job
    assert callers.tasks is not None
    callers.tasks.start_soon(job.carry_out)
    return job


def is_job(handle: str) -> bool:
    """Whether a handle is that of a job, rather than of a run."""
    return handle.startswith(_PREFIX)


def job_of(caller: Caller, handle: str) -> Job:
    """The caller's own job with this handle. Raises :class:`Refused`."""
    job = caller.jobs.get(handle)
    if not isinstance(job, Job):
        raise Refused(f"there is no run {handle!r}: it is not yours, or was over too long ago")
    return job


_EACH = 1.0  # seconds between two reports of progress


Answer = Callable[[State], Awaitable[Answered]]


async def follow(
    call: Call,
    work: Work,
    answer: Answer,
    first: State | None = None,
    *,
    ends: bool = True,
) -> Answered:
    """The ``answer`` when ``work`` is done, when the client's user must be asked between two calls, or when the call's
    time is over; the work goes on in the two latter cases. ``first``: a state that is known already. ``ends``: the
    work is ended if this call is cancelled.
    """
    try:
        if call.resumed is not None:
            await answer_asked(call)
        return await _follow(call, work, answer, first)
    except anyio.get_cancelled_exc_class():
        if ends:
            with anyio.CancelScope(shield=True):
                await work.cancel()
        raise


async def _follow(call: Call, work: Work, answer: Answer, first: State | None) -> Answered:
    seen: frozenset[str] = frozenset()
    state = first if first is not None else await work.wait(min(_EACH, call.seconds_left), seen)
    while not state.is_done:
        await call.tell("waits for an approval" if state.status == "waiting" else state.status)
        can_ask = call.can_ask() or call.can_ask("url")
        fresh = await questions(call, state.awaited_ids - seen) if can_ask else []
        seen = state.awaited_ids
        if call.callers.is_alone and not can_ask:
            await call.callers.deny_unanswerable(call.caller, seen)
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
    return await answer(state)
