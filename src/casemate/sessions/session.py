"""A session: one step after the other in an interpreter, which goes on with its files in a fresh one when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from casemate.approvals.requester import Origin
from casemate.errors import Fault, InvalidArgument, SandboxClosed
from casemate.execution.capture import stream_events
from casemate.execution.context import ExecutionContext, Tally
from casemate.execution.network import make_recorder
from casemate.execution.record import record_execution
from casemate.execution.request import redacted_crossings, redaction_of
from casemate.execution.run import open_requester
from casemate.languages.session_program import json_of
from casemate.model.call_options import StepOptions
from casemate.model.events import Done, Event
from casemate.model.execution import Crossing, Execution, since
from casemate.model.operation import caller
from casemate.model.options import complete, takes_options
from casemate.model.plan import Request
from casemate.model.review import Applied, Diff
from casemate.model.shown import ShownSession
from casemate.sessions.cells import SessionCells
from casemate.sessions.commands import Commands
from casemate.sessions.files import SessionFiles
from casemate.sessions.inbox import RunningStep
from casemate.sessions.interpreter_cell import GRACE, InterpreterCell
from casemate.sessions.outcome import StepEnd, denied_end, outcome_of
from casemate.sessions.previews import PreviewedSession, SessionPreviews
from casemate.sessions.protocol import Variable, parse_variable
from casemate.sessions.run import Run, StartedRuns
from casemate.sessions.terms import Lifetime, SessionTerms, StepSlot

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.execution.capture import Emitter
    from casemate.model.plan import Plan
    from casemate.sessions.protocol import Reply
    from casemate.sessions.review import SessionReview


class Session(PreviewedSession, ShownSession):
    """A stateful interpreter in a cell of its own. See :meth:`casemate.Sandbox.session`.

    It starts on first use; ``async with`` only makes sure of :meth:`close`. Steps run one after the other, in the order
    in which they were asked for.

    Attributes:
        id: Random.
        name: What the caller calls it, or None.
        language: as :attr:`casemate.RuntimeInfo.language` has it.
        files: The files of its workspace.
    """

    def __init__(self, terms: SessionTerms, context: ExecutionContext, slot: StepSlot) -> None:
        """``slot`` lets as many steps and runs go on at once as the sandbox allows."""
        self.id = terms.admitted.request.id
        self.name = terms.name
        self.language = terms.admitted.request.language
        self._redaction = redaction_of(terms.admitted.request.secrets)
        self.tally = Tally()  # of its steps
        self._terms = terms
        self._context = replace(context, finished=self.tally.before(context.finished))
        self._slot = slot
        self._lock = asyncio.Lock()  # of the interpreter: steps and requests for values hold it one after the other
        self._cells = SessionCells(terms.admitted, context, self._redaction)
        self.files = SessionFiles(self._workspace, self._redaction, self._cells.hides, self._cells.note_upload)
        self._lifetime = Lifetime(terms.idle_timeout, terms.lifetime, self._expire)
        self._previews = SessionPreviews(terms, self._cells, context, self._lifetime)
        self._runs = StartedRuns()
        self._running = ""  # the id of the step that runs
        self._interrupted = False  # somebody asked for its end
        self._requester: Requester | None = None  # of the step that runs
        self._close_reason = ""

    @takes_options(StepOptions)
    async def run(self, code: str | bytes, *, wait: bool = True, **options: Unpack[StepOptions]) -> Execution:
        """Run ``code`` as the next step. Cancelling interrupts it.

        Args:
            code: The program, in the session's language.
            **options: See :class:`casemate.model.call_options.StepOptions`. At the timeout the step is interrupted, and
                its cell ended two seconds later if that was of no use.
            wait: False refuses instead of waiting for a step that runs.

        Returns:
            The outcome. What the program or a limit did is in it, and raises nothing.

        Raises:
            InvalidArgument: An argument is wrong, or the session is busy and ``wait`` is False.
            SandboxClosed: The session has ended.
            RuntimeMissing: The language's interpreter cannot be started here.
            RecordUnavailable: The step cannot be put on record.
            Fault: casemate itself failed.
        """
        return await self._run(self._make_request("run", code, options), None, wait=wait)

    @takes_options(StepOptions)
    async def stream(
        self, code: str | bytes, *, wait: bool = True, **options: Unpack[StepOptions]
    ) -> AsyncGenerator[Event]:
        """Run ``code`` as :meth:`run` does, and follow its events. Leaving the stream early interrupts the step.

        Args:
            code: The program.
            **options: As of :meth:`run`.
            wait: False refuses instead of waiting for a step that runs.

        Yields:
            Events as they happen. ``Done(execution)`` is always the last.

        Raises:
            CasemateError: As of :meth:`run`.
        """
        request = self._make_request("stream", code, options)
        async with contextlib.aclosing(stream_events(partial(self._run, request, wait=wait))) as emitted:
            async for event in emitted:
                yield event

    @takes_options(StepOptions)
    def start(self, code: str | bytes, **options: Unpack[StepOptions]) -> Run:
        """Start ``code`` as the next step, which goes on when the caller goes away.

        Args:
            code: The program.
            **options: As of :meth:`run`.

        Returns:
            The run, which can be followed, waited for and cancelled.

        Raises:
            InvalidArgument: An argument is wrong.
            SandboxClosed: The session has ended.
        """
        request = self._make_request("start", code, options)

        def interrupt(_emitter: Emitter | None) -> bool:
            return self._interrupt(request.id)

        work, approvals = partial(self._run, request, wait=True), self._context.approvals
        run = Run(request.id, work, interrupt, lambda asked: approvals().answer_function(asked), is_step=True)
        return self._runs.add(run)

    async def attach(self, run_id: str) -> Run:
        """Find a run of this session that was begun with :meth:`start`.

        Args:
            run_id: Its ``id``.

        Returns:
            The run.

        Raises:
            InvalidArgument: There is none with this id, or it is no longer kept.
        """
        run = self._runs.get(run_id)
        if run is None:
            raise InvalidArgument("run_id", f"this session has no run {run_id!r}")
        return run

    def interrupt(self) -> None:
        """Interrupt the step that runs; its state is kept unless its code ignores that. Harmless when none runs."""
        self._interrupt(self._running)

    async def reset(self) -> None:
        """Forget everything but the files: the next step has a fresh interpreter. Interrupts a step that runs."""
        self._check_open()
        self.interrupt()
        async with self._lock:
            await self._cells.end(keep_files=True)

    async def variables(self) -> list[Variable]:
        """List the user's names.

        Returns:
            Each name with the type, size and beginning of its value, in the order in which they were bound.

        Raises:
            CasemateError: As of :meth:`run`.
        """
        reply = await self._request_value(lambda interpreter: interpreter.list_variables())
        entries = reply.value if isinstance(reply.value, list) else []
        return [variable for entry in entries if (variable := parse_variable(entry)) is not None]

    async def get(self, name: str) -> Any:
        """Read the value of a name.

        Args:
            name: The name of a variable.

        Returns:
            Its value as JSON has it. In Shell it is the value that the variable holds as JSON text.

        Raises:
            InvalidArgument: There is no such name, or its value cannot travel as JSON.
        """
        self._terms.check_name(name)
        reply = await self._request_value(lambda interpreter: interpreter.get(name))
        if reply.error is not None:
            raise InvalidArgument("name", reply.error if name in reply.error else f"{name!r}: {reply.error}")
        if reply.text is None:
            return reply.value
        import json

        try:
            value = json.loads(reply.text)
            return self._redaction.value(value) if self._redaction else value
        except (ValueError, RecursionError):
            raise InvalidArgument("name", f"{name!r} does not hold JSON text that can be read here") from None

    async def set(self, name: str, value: Any) -> None:
        """Bind a name to a value; in Shell to its JSON text.

        Args:
            name: The name of a variable.
            value: What JSON has: None, bool, int, float, str, lists and mappings of these.

        Raises:
            InvalidArgument: The name or the value cannot be used.
        """
        self._terms.check_name(name)
        text = json_of(value)
        reply = await self._request_value(lambda interpreter: interpreter.set(name, text))
        if reply.error is not None:
            raise InvalidArgument("name", f"{name!r}: {reply.error}")
        self._cells.names.add(name)

    async def diff(self) -> Diff:
        """What it has changed in the folder and is kept back. A step that runs is waited for.

        Raises:
            InvalidArgument: The sandbox has no workspace whose changes are kept back (``workspace_mode="review"``).
        """
        async with self._review() as review:
            return await review.diff()

    async def apply(self, paths: Sequence[str] | None = None) -> Applied:
        """Ask whether what is kept back may be applied to the folder, and apply it as it was shown: all, or nothing.

        Args:
            paths: Only what is changed at these, and in folders there.

        Returns:
            What was written, or why nothing was.

        Raises:
            InvalidArgument: As of :meth:`diff`, or nothing is changed at a path.
        """
        async with self._review() as review:
            applied = await review.apply(paths)
        self._note({"action": f"apply: {applied.status}", "written": applied.written[:100], "reason": applied.reason})
        return applied

    async def discard(self) -> None:
        """Give up what is kept back: the next step has a fresh interpreter, and sees the folder as it is."""
        async with self._review() as review:
            await review.discard()

    async def show_packages(self, folder: str, place: str) -> None:
        """Have its programs see what was installed into ``folder``; see :attr:`casemate.Sandbox.packages`."""
        await self._cells.show_packages(folder, place)

    async def close(self) -> None:
        """End the session and everything in it. Harmless when repeated, and while a step runs: that is cancelled."""
        self._end("the session was closed")
        await self._runs.close()
        async with self._lock:
            await self._cells.end(keep_files=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    def record_open(self) -> None:
        """Put on record that it is open."""
        self._note({"action": "opened", "language": self.language, "name": self.name, "caller": caller()})

    @property
    def is_busy(self) -> bool:
        """Whether a step runs, or something else uses the interpreter."""
        return self._lock.locked()

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more steps."""
        return bool(self._close_reason)

    # -- one step

    def _make_request(self, call: str, code: str | bytes, options: Mapping[str, Any]) -> Request:
        self._check_open()
        return self._terms.make_request(code, **complete(StepOptions, options, call))

    async def _run(self, request: Request, emitter: Emitter | None, *, wait: bool) -> Execution:
        self._check_open()
        if not wait and self._lock.locked():
            raise InvalidArgument("wait", "this session is busy; leave wait out to queue behind what it does")
        with self._lifetime.in_use():
            async with self._slot(request, self._lock, self._cells.is_alive):
                self._check_open()
                execution = await self._step(request, emitter)
            if emitter:
                emitter.emit(Done(execution), 0)
            return execution

    async def _step(self, request: Request, emitter: Emitter | None) -> Execution:
        """One step, from its intent to its outcome."""
        interpreter = await self._cells.get_alive()
        self._check_open()  # it may have been closed meanwhile
        plan = self._plan(interpreter, request, stream=emitter is not None)
        interpreter.cell_network.note = make_recorder(self._context.log, request, self._redaction)
        self._interrupted, self._running = False, request.id
        async with record_execution(self._context, request, plan, self._redaction) as record:
            capture = interpreter.make_capture(plan.limits, emitter, self._redaction)
            step = RunningStep(interpreter.next_number(), capture, emitter)
            try:
                end = await self._run_if_allowed(interpreter, step, request, plan.deadline)
            finally:
                interpreter.cell_network.attend(None)
                self._running = ""
            record.note_end(interpreter.report.start if step.number == 1 else "")
            state = self._cells.names.state_after(end.done)
            files = await self._cells.collect_files(interpreter, end.ending)
            if end.ending is not None:
                self._cells.discard(interpreter)
            outcome = outcome_of(request, capture, plan.limits, end, state, files, interpreter.report)
            return record.note_execution(replace(outcome, crossings=self._new_crossings(interpreter)))

    def _plan(self, interpreter: InterpreterCell, request: Request, *, stream: bool) -> Plan:
        plan = interpreter.plan
        network = "listed" if plan.network == "none" and self._context.may_ask(stream=stream) else plan.network
        return replace(plan, code=request.code, deadline=self._terms.deadline(request), network=network)

    def _new_crossings(self, interpreter: InterpreterCell) -> tuple[Crossing, ...]:
        """What has crossed since the last step's report: also by what was left running, and before the first step."""
        before, interpreter.reported_crossings = interpreter.reported_crossings, interpreter.cell_network.crossings()
        return redacted_crossings(since(before, interpreter.reported_crossings), self._redaction)

    async def _run_if_allowed(
        self, interpreter: InterpreterCell, step: RunningStep, request: Request, deadline: float
    ) -> StepEnd:
        """Run a step, with what it asks for meanwhile. In Shell somebody may have to allow it first."""
        async with open_requester(self._context, request, step.emitter, self._redaction) as requester:
            self._requester = requester
            asks_for = self._context.runtime_for(self.language).asks_for
            commands = Commands(requester, self._context.approvals().rules, interpreter)
            denial = await commands.check(request.code) if asks_for == "each step" else None
            if denial is not None:
                is_closed = bool(self._close_reason)
                return denied_end(deadline, denial, interrupted=self._interrupted, closed=is_closed)
            requester.attach(interpreter.cell)
            await self._context.open_step(interpreter.cell_network, requester, stream=step.emitter is not None)
            if asks_for == "each command":
                commands.watch(step)
            return await self._run_to_end(interpreter, step, request, deadline)

    async def _run_to_end(
        self, interpreter: InterpreterCell, step: RunningStep, request: Request, deadline: float
    ) -> StepEnd:
        cwd = self._terms.cwd if self._terms.restore_cwd or interpreter.is_fresh else None
        stdin = request.stdin if request.has_stdin else None
        began = time.monotonic()
        try:
            await interpreter.begin(step, request.code, stdin, cwd, deadline)
            if self._interrupted:  # before there was anything to interrupt
                interpreter.cell.interrupt(GRACE)
            is_over = await interpreter.wait_over(step)
        except asyncio.CancelledError:
            await self._interrupt_and_wait(interpreter, step)
            raise
        self._running = ""
        self._stop_asking("the step is over")
        seconds = time.monotonic() - began
        is_late = self._interrupted or step.capture.was_too_much or seconds >= deadline
        step.capture.finish(cut=is_late or step.done is None or step.done.exit != 0)
        usage = await interpreter.usage_of(step, math.inf if is_late else seconds) if is_over else None
        if usage is None:
            await interpreter.wait_ended(step)
            return StepEnd(seconds, deadline, self._interrupted, ending=self._cells.ending_of(interpreter))
        if usage.interrupted:
            await interpreter.settle()
        return StepEnd(seconds, deadline, self._interrupted, step.done, usage)

    async def _interrupt_and_wait(self, interpreter: InterpreterCell, step: RunningStep) -> None:
        """The caller has gone: end the step, and see to it that the next one finds things in order."""
        if not step.has_begun:
            return
        step.leave()
        interpreter.cell.read_on()
        interpreter.cell.interrupt(GRACE)
        self._stop_asking("the step was interrupted")
        waiting = asyncio.ensure_future(self._wait_quiet(interpreter, step))  # noqa: TID251 - awaited here in every case
        while not waiting.done():
            with contextlib.suppress(asyncio.CancelledError):  # once more: the step's end is near either way
                await asyncio.wait([waiting])
        waiting.result()

    async def _wait_quiet(self, interpreter: InterpreterCell, step: RunningStep) -> None:
        """Wait until a step that was interrupted is over, and so is the interrupt: it may come late."""
        if await interpreter.wait_over(step) and step.done is not None:
            self._cells.names.update(step.done)
            await interpreter.usage_of(step, math.inf)
            await interpreter.settle()

    async def _request_value(self, request: Callable[[InterpreterCell], Awaitable[Reply | None]]) -> Reply:
        self._check_open()
        with self._lifetime.in_use():
            async with self._lock:
                self._check_open()
                interpreter = await self._cells.get_alive()
                reply = await request(interpreter)
                if reply is None:
                    await asyncio.wait([interpreter.ended])
                    self._cells.ending_of(interpreter)  # raises what kept it from starting
                    raise Fault("the session's interpreter ended before it answered")
                return reply

    @contextlib.asynccontextmanager
    async def _review(self) -> AsyncGenerator[SessionReview]:
        from casemate.sessions.review import open_review

        with self._lifetime.in_use():
            async with self._lock:
                self._check_open()
                origin = Origin(self._terms.admitted.request.namespace, self.id, os.urandom(16).hex())
                async with open_review(self._cells, self._context, origin, self._redaction) as review:
                    self._requester = review.requester
                    yield review

    @contextlib.asynccontextmanager
    async def _workspace(self) -> AsyncGenerator[int]:
        """A descriptor of the workspace."""
        self._check_open()
        with self._lifetime.in_use():
            interpreter = await self._cells.get_current()
            if interpreter is None:
                async with self._lock:  # a step has still to collect what it left there
                    self._check_open()
                    interpreter = await self._cells.get_alive()
            workspace = await interpreter.open_workspace()
            try:
                yield workspace
            finally:
                os.close(workspace)

    def _interrupt(self, request_id: str) -> bool:
        """Interrupt this very step, if it runs."""
        interpreter = self._cells.current
        if interpreter is None or not request_id or self._running != request_id:
            return False
        self._interrupted = True
        interpreter.cell.interrupt(GRACE)
        self._stop_asking("the step was interrupted")
        return True

    def _stop_asking(self, why: str) -> None:
        """Nothing of the step that runs crosses the wall any more."""
        if self._requester is not None:
            self._requester.close(why)

    # -- its end

    def _expire(self, what: str) -> None:
        self._end(f"the session ended by itself: its {what} was over")
        self._cells.abandon()

    def _end(self, why: str) -> None:
        """No more steps; what runs is ended."""
        self._lifetime.end()
        if not self._close_reason:
            self._note({"action": "closed", "reason": why})
        self._close_reason = self._close_reason or why
        self._previews.close()
        self._stop_asking(why)
        self._context.approvals().forget_session(self._terms.admitted.request.namespace, self.id)
        if self._cells.current is not None:
            self._cells.current.cell.kill("closed")

    def _note(self, detail: Mapping[str, object]) -> None:
        detail = {name: value for name, value in detail.items() if value}
        self._context.log.append_if_possible("session", self.id, self._terms.admitted.request.namespace, detail)

    def _check_open(self) -> None:
        if self._close_reason:
            raise SandboxClosed(self._close_reason)
