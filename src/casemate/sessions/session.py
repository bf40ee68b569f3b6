"""A session: one interpreter after the other in one workspace, and one step after the other in each."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from casemate.errors import Fault, InvalidArgument, SandboxClosed
from casemate.execution.asking import asking
from casemate.execution.house import House
from casemate.execution.network import noting
from casemate.execution.record import recording
from casemate.execution.redact import redacted_crossings, redaction_of
from casemate.execution.stream import events
from casemate.execution.tally import Tally
from casemate.model.caller import caller
from casemate.model.crossing import Crossing, since
from casemate.model.events import Done, Event
from casemate.model.execution import Execution
from casemate.model.request import Request
from casemate.sessions.capturing import capture_of
from casemate.sessions.commands import Commands
from casemate.sessions.files import SessionFiles
from casemate.sessions.inbox import Heard
from casemate.sessions.interpreter_cell import GRACE, InterpreterCell
from casemate.sessions.interpreters import json_of
from casemate.sessions.lifetime import Lifetime
from casemate.sessions.lives import Lives
from casemate.sessions.outcome import StepEnd, denied_end, outcome_of
from casemate.sessions.run import Run, StartedRuns
from casemate.sessions.terms import Terms
from casemate.sessions.variables import Variable, variable_of

if TYPE_CHECKING:
    from casemate.approvals.requester import Requester
    from casemate.execution.emitter import Emitter
    from casemate.model.approval import Decision
    from casemate.sessions.protocol import Reply


class Session:
    """A stateful interpreter in a cell of its own. See :meth:`casemate.Sandbox.session`.

    ``id`` is random; ``name`` what the caller calls it. It starts on first use; ``async with`` only makes sure of
    :meth:`close`. Steps of one session run one after the other, in the order in which they were asked for.
    """

    def __init__(self, terms: Terms, house: House, slot: Callable[[], asyncio.Semaphore]) -> None:
        """``slot``: lets so many steps and runs go on at once as the sandbox allows."""
        self.id = terms.admitted.request.id
        self.name = terms.name
        self.language = terms.admitted.request.language
        self._redaction = redaction_of(terms.admitted.request.secrets)
        self.tally = Tally()  # of its steps
        self._terms = terms
        self._house = replace(house, finished=self.tally.before(house.finished))
        self._slot = slot
        self._turn = asyncio.Lock()
        self._lives = Lives(terms.admitted, house, self._redaction)
        self.files = SessionFiles(self._workspace, self._redaction, self._lives.hides, self._lives.gave)
        self._lifetime = Lifetime(terms.idle_timeout, terms.lifetime, self._expire)
        self._runs = StartedRuns()
        self._running = ""  # the id of the step that runs
        self._interrupted = False  # somebody asked for its end
        self._asker: Requester | None = None  # of the step that runs
        self._closed = ""

    async def run(
        self,
        code: str | bytes,
        *,
        timeout: float | None = 60.0,  # noqa: ASYNC109 - the step's, not the call's
        stdin: str | bytes | None = None,
        metadata: Mapping[str, Any] | None = None,
        wait: bool = True,
    ) -> Execution:
        """Run ``code`` as the next step, and give its outcome.

        ``timeout``: seconds from the step's start, None for ``limits.wall``; then it is interrupted, and its cell ended
        two seconds later if that was of no use. ``stdin``: what it reads as standard input, ``input()`` too. ``wait``:
        False refuses instead of waiting for a step that runs. Cancelling interrupts the step.

        Raises ``InvalidArgument``, ``SandboxClosed``, ``RuntimeMissing``, ``RecordUnavailable`` and ``Fault``.
        """
        return await self._run(self._request(code, timeout, stdin, metadata), None, wait=wait)

    async def stream(
        self,
        code: str | bytes,
        *,
        timeout: float | None = 60.0,  # noqa: ASYNC109
        stdin: str | bytes | None = None,
        metadata: Mapping[str, Any] | None = None,
        wait: bool = True,
    ) -> AsyncGenerator[Event]:
        """Run ``code`` as :meth:`run` does, and give events as they happen; ``Done(execution)`` is always the last.

        Leaving the stream early interrupts the step.
        """
        request = self._request(code, timeout, stdin, metadata)
        async with contextlib.aclosing(events(partial(self._run, request, wait=wait))) as happened:
            async for event in happened:
                yield event

    def start(
        self,
        code: str | bytes,
        *,
        timeout: float | None = 60.0,
        stdin: str | bytes | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Run:
        """Run ``code`` as :meth:`run` does, but go on when the caller goes away: the run is there to attach to."""
        request = self._request(code, timeout, stdin, metadata)
        work, interrupt = partial(self._run, request, wait=True), partial(self._interrupt, request.id)

        def answer(asked: str) -> Callable[[Decision], bool]:
            return self._house.approvals().answer_function(asked)

        return self._runs.add(Run(request.id, work, interrupt, answer, is_step=True))

    async def attach(self, run_id: str) -> Run:
        """A run of this session that was begun with :meth:`start`. Raises ``InvalidArgument``."""
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
        async with self._turn:
            await self._lives.end(keep_files=True)

    async def variables(self) -> list[Variable]:
        """The user's names, in the order in which they were bound."""
        reply = await self._asked(lambda life: life.ask_variables())
        listed = reply.value if isinstance(reply.value, list) else []
        return [found for one in listed if (found := variable_of(one)) is not None]

    async def get(self, name: str) -> Any:
        """The JSON value of ``name``. Raises ``InvalidArgument`` where there is none, or it cannot travel."""
        self._terms.check_name(name)
        reply = await self._asked(lambda life: life.ask(name))
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
        """Bind ``name`` to a JSON value; in Shell to its JSON text. Raises ``InvalidArgument``."""
        self._terms.check_name(name)
        text = json_of(value)
        reply = await self._asked(lambda life: life.give(name, text))
        if reply.error is not None:
            raise InvalidArgument("name", f"{name!r}: {reply.error}")
        self._lives.names.add(name)

    async def show_packages(self, folder: str, place: str) -> None:
        """Have its programs see what was installed into ``folder``; see :attr:`casemate.Sandbox.packages`."""
        await self._lives.show_packages(folder, place)

    async def close(self) -> None:
        """End the session and everything in it. Harmless when repeated, and while a step runs: that is cancelled."""
        self._end("the session was closed")
        await self._runs.close()
        async with self._turn:
            await self._lives.end(keep_files=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    def opened(self) -> None:
        """Put on record that it is open."""
        self._note({"action": "opened", "language": self.language, "name": self.name, "caller": caller()})

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<Session{name} {self.language} {self.id}{' closed' if self._closed else ''}>"

    @property
    def is_busy(self) -> bool:
        """Whether a step runs, or something else has its turn."""
        return self._turn.locked()

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more steps."""
        return bool(self._closed)

    # -- one step

    def _request(
        self,
        code: str | bytes,
        timeout: float | None,
        stdin: str | bytes | None,
        metadata: Mapping[str, Any] | None,
    ) -> Request:
        self._check_open()
        return self._terms.step(code, timeout, stdin, metadata)

    async def _run(self, request: Request, emitter: Emitter | None, *, wait: bool) -> Execution:
        self._check_open()
        if not wait and self._turn.locked():
            raise InvalidArgument("wait", "this session is busy; leave wait out to queue behind what it does")
        with self._lifetime.in_use():
            async with self._turn, self._slot():
                self._check_open()
                execution = await self._step(request, emitter)
            if emitter:
                emitter.emit(Done(execution), 0)
            return execution

    async def _step(self, request: Request, emitter: Emitter | None) -> Execution:
        """One step, from its intent to its outcome."""
        life = await self._lives.living()
        self._check_open()  # it may have been closed meanwhile
        may_ask = self._house.may_ask(stream=emitter is not None)
        network = "listed" if may_ask and life.plan.network == "none" else life.plan.network
        plan = replace(life.plan, code=request.code, deadline=self._terms.deadline(request), network=network)
        life.doorway.note = noting(self._house.log, request, self._redaction)
        self._interrupted, self._running = False, request.id
        async with recording(self._house, request, plan, self._redaction) as record:
            heard = Heard(life.next_number(), capture_of(life, plan.limits, emitter, self._redaction), emitter)
            try:
                end = await self._asked_and_over(life, heard, request, plan.deadline)
            finally:
                life.doorway.attend(None)
                self._running = ""
            state = self._lives.names.state_after(end.finished)
            left = await self._lives.left_by(life, end.ending)
            if end.ending is not None:
                self._lives.bury(life)
            outcome = outcome_of(request, heard.capture, plan.limits, end, state, left, life.report)
            return record.noted(replace(outcome, crossings=self._crossed(life)))

    def _crossed(self, life: InterpreterCell) -> tuple[Crossing, ...]:
        """What has crossed since the last step told of it: also what was left running, and before the first step."""
        before, life.crossed = life.crossed, life.doorway.crossings()
        return redacted_crossings(since(before, life.crossed), self._redaction)

    async def _asked_and_over(self, life: InterpreterCell, heard: Heard, request: Request, deadline: float) -> StepEnd:
        """The step, with what it asks for meanwhile; in Shell somebody may have to allow it first."""
        async with asking(self._house, request, heard.emitter, self._redaction) as asker:
            self._asker = asker
            commands = Commands(asker, self._house.approvals().rules, life)
            denied = await commands.denied(request.code) if self.language == "shell" else None
            if denied is not None:
                return denied_end(deadline, denied, interrupted=self._interrupted, closed=bool(self._closed))
            asker.attach(life.cell)
            await self._house.open_step(life.doorway, asker, stream=heard.emitter is not None)
            if self.language == "python":
                commands.listen(heard)
            return await self._until_over(life, heard, request, deadline)

    async def _until_over(self, life: InterpreterCell, heard: Heard, request: Request, deadline: float) -> StepEnd:
        cwd = self._terms.cwd if self._terms.restore_cwd or life.is_fresh else None
        stdin = request.stdin if request.has_stdin else None
        began = time.monotonic()
        try:
            await life.begin(heard, request.code, stdin, cwd, deadline)
            if self._interrupted:  # before there was anything to interrupt
                life.cell.interrupt(GRACE)
            over = await life.over(heard)
        except asyncio.CancelledError:
            await self._interrupt_and_wait(life, heard)
            raise
        self._running = ""
        self._stop_asking("the step is over")
        seconds = time.monotonic() - began
        is_late = self._interrupted or heard.capture.was_too_much or seconds >= deadline
        failed = heard.finished is None or heard.finished.exit != 0
        heard.capture.finish(cut=is_late or failed)
        usage = await life.usage(heard, math.inf if is_late else seconds) if over else None
        if usage is None:
            await life.last_words(heard)
            return StepEnd(seconds, deadline, self._interrupted, ending=self._lives.ending(life))
        if usage.interrupted:
            await life.calm()
        return StepEnd(seconds, deadline, self._interrupted, heard.finished, usage)

    async def _interrupt_and_wait(self, life: InterpreterCell, heard: Heard) -> None:
        """The caller has gone: end the step, and see to it that the next one finds things in order."""
        if not heard.has_begun:
            return
        heard.leave()
        life.cell.resume()
        life.cell.interrupt(GRACE)
        self._stop_asking("the step was interrupted")
        waiting = asyncio.ensure_future(self._quiet(life, heard))  # noqa: TID251 - awaited here in every case
        while not waiting.done():
            with contextlib.suppress(asyncio.CancelledError):  # once more: the step's end is near either way
                await asyncio.wait([waiting])
        waiting.result()

    async def _quiet(self, life: InterpreterCell, heard: Heard) -> None:
        """Wait until a step that was interrupted is over, and so is the interrupt: it may come late."""
        if await life.over(heard) and heard.finished is not None:
            self._lives.names.bind(heard.finished)
            await life.usage(heard, math.inf)
            await life.calm()

    async def _asked(self, ask: Callable[[InterpreterCell], Awaitable[Reply | None]]) -> Reply:
        self._check_open()
        with self._lifetime.in_use():
            async with self._turn:
                self._check_open()
                life = await self._lives.living()
                reply = await ask(life)
                if reply is None:
                    await asyncio.wait([life.ended])
                    self._lives.ending(life)  # raises what kept it from starting
                    raise Fault("the session's interpreter ended before it answered")
                return reply

    @contextlib.asynccontextmanager
    async def _workspace(self) -> AsyncGenerator[int]:
        """A descriptor of the workspace."""
        self._check_open()
        with self._lifetime.in_use():
            life = await self._lives.present()
            if life is None:
                async with self._turn:  # a step has still to look at what it left there
                    self._check_open()
                    life = await self._lives.living()
            workspace = await life.open_workspace()
            try:
                yield workspace
            finally:
                os.close(workspace)

    def _interrupt(self, request_id: str) -> bool:
        """Interrupt this very step, if it runs."""
        life = self._lives.current
        if life is None or not request_id or self._running != request_id:
            return False
        self._interrupted = True
        life.cell.interrupt(GRACE)
        self._stop_asking("the step was interrupted")
        return True

    def _stop_asking(self, why: str) -> None:
        """Nothing of the step that runs crosses the wall any more."""
        if self._asker is not None:
            self._asker.close(why)

    # -- its end

    def _expire(self, what: str) -> None:
        self._end(f"the session ended by itself: its {what} was over")
        self._lives.abandon()

    def _end(self, why: str) -> None:
        """No more steps; what runs is ended."""
        self._lifetime.end()
        if not self._closed:
            self._note({"action": "closed", "reason": why})
        self._closed = self._closed or why
        self._stop_asking(why)
        self._house.approvals().forget_session(self._terms.admitted.request.namespace, self.id)
        if self._lives.current is not None:
            self._lives.current.cell.kill("closed")

    def _note(self, detail: Mapping[str, object]) -> None:
        told = {name: value for name, value in detail.items() if value}
        self._house.log.note_soon("session", self.id, self._terms.admitted.request.namespace, told)

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxClosed(self._closed)
