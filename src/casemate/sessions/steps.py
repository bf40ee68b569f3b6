"""A session's steps and the other requests to its interpreter, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from casemate.errors import Fault, InvalidArgument
from casemate.execution.capture import Capture, stream_events
from casemate.execution.context import Planned
from casemate.execution.record import record_execution
from casemate.execution.request import redacted_crossings, redaction_of
from casemate.execution.run import open_requester
from casemate.languages.catalogue import runtime_for
from casemate.model.call_options import StepOptions
from casemate.model.events import Done, Event
from casemate.model.execution import Crossing, Execution, since
from casemate.model.options import complete
from casemate.sessions.cells import SessionCells
from casemate.sessions.commands import Commands
from casemate.sessions.inbox import RunningStep
from casemate.sessions.interpreter_cell import GRACE, InterpreterCell
from casemate.sessions.outcome import StepEnd, denied_end, outcome_of

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.execution.capture import Emitter
    from casemate.execution.context import ExecutionContext
    from casemate.model.front_end import StepTerms
    from casemate.model.plan import Request
    from casemate.sessions.protocol import Reply
    from casemate.sessions.review import SessionReview
    from casemate.sessions.terms import Lifetime, SessionTerms, StepSlot


class SessionSteps:
    def __init__(self, terms: SessionTerms, context: ExecutionContext, lifetime: Lifetime, slot: StepSlot) -> None:
        self.terms, self.lifetime = terms, lifetime
        self.redaction = redaction_of(terms.admitted.request.secrets)
        self.cells = SessionCells(terms.admitted, context, self.redaction)
        self.running = ""  # the id of the running step
        self._context, self._slot = context, slot  # `slot` limits how many steps and runs go on at once in the sandbox
        self._lock = asyncio.Lock()  # of the interpreter: each step and each request for a value holds it
        self._interrupted = False  # the running step was interrupted
        self._requester: Requester | None = None  # of the running step

    @property
    def is_busy(self) -> bool:
        return self._lock.locked()

    def make_request(self, call: str, code: str | bytes, options: Mapping[str, Any]) -> Request:
        """Return the request for a step. Raises ``InvalidArgument`` and ``SandboxClosed``."""
        self.lifetime.check_open()
        return self.terms.make_request(code, **complete(StepOptions, options, call))

    async def run(self, request: Request, emitter: Emitter | None = None, *, wait: bool) -> Execution:
        """Run a step. With ``wait`` False, refuse when the session is busy. Raises ``CasemateError``."""
        with self.lifetime.in_use():
            if not wait and self.is_busy:
                raise InvalidArgument("wait", "this session is busy; omit wait to queue behind the running step")
            async with self._slot(request, self._lock, self.cells.is_alive):
                self.lifetime.check_open()
                execution = await self._step(request, emitter)
            if emitter:
                emitter.emit(Done(execution), 0)
            return execution

    def stream(self, request: Request, *, wait: bool, terms: StepTerms | None = None) -> AsyncGenerator[Event]:
        """Run a step and follow its events. ``terms`` adds a front end's events; these cannot answer requests."""

        async def work(emitter: Emitter) -> None:
            if terms is not None:
                emitter.terms = terms
                emitter.set_followed(False)
            await self.run(request, emitter, wait=wait)

        return stream_events(work)

    async def run_off_record(self, code: str, terms: StepTerms, seconds: float) -> Capture:
        """Run a step without a record row and return its output. It is interrupted after ``seconds``."""
        request = self.make_request("stream", code, {"timeout": seconds})
        async with self._hold_interpreter() as interpreter:
            capture = interpreter.make_capture(interpreter.plan.limits, None, self.redaction)
            step = RunningStep(interpreter.next_number(), capture)
            step.terms, step.takes_background, self._interrupted = terms, False, False
            end = await self._run_to_end(interpreter, step, request, seconds)
            if end.done is not None:
                self.cells.names.update(end.done)
            else:
                self.cells.discard(interpreter)
                self.cells.names.lose()
            return capture

    async def request_value(self, request: Callable[[InterpreterCell], Awaitable[Reply | None]]) -> Reply:
        """Ask the interpreter between steps and return its reply. Raises ``CasemateError``."""
        async with self._hold_interpreter() as interpreter:
            reply = await request(interpreter)
            if reply is None:
                await asyncio.wait([interpreter.ended])
                self.cells.ending_of(interpreter)  # raises what kept it from starting
                raise Fault("the session's interpreter ended before it answered")
            return reply

    @contextlib.asynccontextmanager
    async def open_review(self) -> AsyncGenerator[SessionReview]:
        """Review the pending changes. No step runs meanwhile. Raises ``CasemateError``."""
        from casemate.sessions.review import SessionReview

        folder, session = self._context.folder, self.terms.admitted.request.id
        async with self._hold():
            if folder.path is None or folder.mode != "review":
                raise InvalidArgument(
                    "session", "its changes are not under review",
                    remediation="Give the sandbox, or the service's configuration, a folder as workspace and "
                    "workspace_mode review.",
                )  # fmt: skip
            approvals = self._context.approvals()
            async with approvals.open_requester(self.terms.namespace, session, self.redaction) as self._requester:
                yield SessionReview(self.cells, str(folder.path), self._requester, self.redaction)

    @contextlib.asynccontextmanager
    async def open_workspace(self) -> AsyncGenerator[int]:
        """Open a descriptor of the workspace. Raises ``CasemateError``."""
        with self.lifetime.in_use():
            interpreter = await self.cells.get_current()
            if interpreter is None:
                async with self._hold_interpreter() as interpreter:  # a step has yet to collect its files
                    pass
            workspace = await interpreter.open_workspace()
            try:
                yield workspace
            finally:
                os.close(workspace)

    def interrupt(self, request_id: str) -> bool:
        """Interrupt the step with this id. Returns False if it is not running."""
        interpreter = self.cells.current
        if interpreter is None or not request_id or self.running != request_id:
            return False
        self._interrupted = True
        interpreter.cell.interrupt(GRACE)
        self.stop_asking("the step was interrupted")
        return True

    def stop_asking(self, why: str) -> None:
        """Close the approval requester of the running step."""
        if self._requester is not None:
            self._requester.close(why)

    async def end_interpreter(self, *, keep_files: bool) -> None:
        """End the interpreter once it is idle. Without ``keep_files`` the session is over."""
        async with self._lock:
            await self.cells.end(keep_files=keep_files)

    @contextlib.asynccontextmanager
    async def _hold(self) -> AsyncGenerator[None]:
        with self.lifetime.in_use():
            async with self._lock:
                self.lifetime.check_open()
                yield

    @contextlib.asynccontextmanager
    async def _hold_interpreter(self) -> AsyncGenerator[InterpreterCell]:
        async with self._hold():
            interpreter = await self.cells.get_alive()
            self.lifetime.check_open()  # it may have been closed meanwhile
            yield interpreter

    async def _step(self, request: Request, emitter: Emitter | None) -> Execution:
        interpreter = await self.cells.get_alive()
        self.lifetime.check_open()  # it may have been closed meanwhile
        plan = replace(interpreter.plan, code=request.code, deadline=self.terms.deadline(request))
        if plan.network == "none" and self._context.may_ask(stream=emitter is not None):
            plan = replace(plan, network="listed")
        planned = Planned(
            self._context, request, self.terms.admitted, plan, interpreter.report,
            redaction=self.redaction, emitter=emitter,
        )  # fmt: skip
        interpreter.cell_network.note = planned.note_crossing
        self._interrupted, self.running = False, request.id
        async with record_execution(planned) as record:
            capture = interpreter.make_capture(plan.limits, emitter, self.redaction)
            step = RunningStep(interpreter.next_number(), capture)
            try:
                end = await self._run_if_allowed(interpreter, step, request, plan.deadline)
            finally:
                interpreter.cell_network.attend(None)
                self.running = ""
            record.note_end(interpreter.report.start if step.number == 1 else "")
            state = self.cells.names.state_after(end.done)
            files = await self.cells.collect_files(interpreter, end.ending)
            if end.ending is not None:
                self.cells.discard(interpreter)
            crossings = self._new_crossings(interpreter)
            outcome = outcome_of(request, capture, plan.limits, end, state, files, interpreter.report, crossings)
            return record.note_execution(outcome)

    def _new_crossings(self, interpreter: InterpreterCell) -> tuple[Crossing, ...]:
        """The crossings since the last step's report, including those of background processes."""
        before, interpreter.reported_crossings = interpreter.reported_crossings, interpreter.cell_network.crossings()
        return redacted_crossings(since(before, interpreter.reported_crossings), self.redaction)

    async def _run_if_allowed(
        self, interpreter: InterpreterCell, step: RunningStep, request: Request, deadline: float
    ) -> StepEnd:
        """Run a step and answer its requests. A Shell step may need approval first."""
        async with open_requester(self._context, request, step.capture.emitter, self.redaction) as requester:
            self._requester = requester
            asks_for = runtime_for(self.terms.language).asks_for
            commands = Commands(requester, self._context.approvals().rules, interpreter)
            denial = await commands.check(request.code) if asks_for == "each step" else None
            if denial is not None:
                is_closed = bool(self.lifetime.close_reason)
                return denied_end(deadline, denial, interrupted=self._interrupted, closed=is_closed)
            requester.attach(interpreter.cell)
            is_followed, supplies = step.capture.emitter is not None, self._context.supplies
            offers = (*supplies.offers(), *supplies.step_offers(is_followed))
            asks = self._context.may_ask(stream=is_followed)
            await interpreter.cell_network.step(requester, offers, asks=asks)
            if asks_for == "each command":
                commands.watch(step)
            return await self._run_to_end(interpreter, step, request, deadline)

    async def _run_to_end(
        self, interpreter: InterpreterCell, step: RunningStep, request: Request, deadline: float
    ) -> StepEnd:
        cwd = self.terms.cwd if self.terms.restore_cwd or interpreter.is_fresh else None
        stdin = request.stdin if request.has_stdin else None
        began = time.monotonic()
        try:
            await interpreter.begin(step, request.code, stdin, cwd, deadline)
            if self._interrupted:  # the request came before the step began
                interpreter.cell.interrupt(GRACE)
            is_over = await interpreter.wait_over(step)
        except asyncio.CancelledError:
            await self._interrupt_and_wait(interpreter, step)
            raise
        self.running = ""
        self.stop_asking("the step is over")
        seconds = time.monotonic() - began
        is_late = self._interrupted or step.capture.was_too_much or seconds >= deadline
        step.capture.finish(cut=is_late or step.done is None or step.done.exit != 0)
        usage = await interpreter.usage_of(step, math.inf if is_late else seconds) if is_over else None
        if usage is None:
            await interpreter.wait_ended(step)
            return StepEnd(seconds, deadline, self._interrupted, ending=self.cells.ending_of(interpreter))
        if usage.interrupted:
            await interpreter.settle()
        return StepEnd(seconds, deadline, self._interrupted, step.done, usage)

    async def _interrupt_and_wait(self, interpreter: InterpreterCell, step: RunningStep) -> None:
        """End the step after its caller was cancelled, so that the next step finds the interpreter ready."""
        if not step.has_begun:
            return
        step.capture.emitter = None
        interpreter.cell.read_on()
        interpreter.cell.interrupt(GRACE)
        self.stop_asking("the step was interrupted")
        waiting = asyncio.ensure_future(self._wait_quiet(interpreter, step))  # noqa: TID251 - awaited here in every case
        while not waiting.done():
            with contextlib.suppress(asyncio.CancelledError):  # cancelled again: the step ends soon either way
                await asyncio.wait([waiting])
        waiting.result()

    async def _wait_quiet(self, interpreter: InterpreterCell, step: RunningStep) -> None:
        """Wait until an interrupted step is over, and also its interrupt, which may arrive late."""
        if await interpreter.wait_over(step) and step.done is not None:
            self.cells.names.update(step.done)
            await interpreter.usage_of(step, math.inf)
            await interpreter.settle()
