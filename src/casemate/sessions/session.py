"""A session: one step after the other in an interpreter, which goes on with its files in a fresh one when it ends."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

from casemate.errors import InvalidArgument
from casemate.execution.context import ExecutionContext, Tally
from casemate.languages.session_program import json_of
from casemate.model.call_options import StepOptions
from casemate.model.events import Event
from casemate.model.execution import Execution
from casemate.model.operation import caller
from casemate.model.options import takes_options
from casemate.model.preview import Preview
from casemate.model.review import Applied, Diff
from casemate.model.shown import ShownSession
from casemate.sessions.files import SessionFiles
from casemate.sessions.previews import SessionPreviews
from casemate.sessions.protocol import Variable, parse_variable
from casemate.sessions.run import Run, StartedRuns
from casemate.sessions.steps import SessionSteps
from casemate.sessions.terms import Lifetime, SessionTerms, StepSlot

if TYPE_CHECKING:
    from casemate.execution.capture import Emitter


class Session(ShownSession):
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
        self.tally = Tally()  # of its steps
        self._context = context
        self._lifetime = Lifetime(terms.idle_timeout, terms.lifetime, self._expire)
        counted = replace(context, finished=self.tally.before(context.finished))
        self.steps = SessionSteps(terms, counted, self._lifetime, slot)
        self._cells = self.steps.cells
        cells = self._cells
        self.files = SessionFiles(
            self.steps.open_workspace, self.steps.redaction, cells.hides, cells.note_upload, cells.bounds
        )
        self._previews = SessionPreviews(terms, self._cells, context, self._lifetime)
        self.runs = StartedRuns()

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
        return await self.steps.run(self.steps.make_request("run", code, options), wait=wait)

    @takes_options(StepOptions)
    async def stream(
        self, code: str | bytes, *, wait: bool = True, **options: Unpack[StepOptions]
    ) -> AsyncGenerator[Event]:
        """Run ``code`` as :meth:`run` does, and follow its events. Leaving the stream early interrupts the step: close
        it where it has a name.

        Args:
            code: The program.
            **options: As of :meth:`run`.
            wait: False refuses instead of waiting for a step that runs.

        Yields:
            Events as they happen. ``Done(execution)`` is always the last.

        Raises:
            CasemateError: As of :meth:`run`.
        """
        request = self.steps.make_request("stream", code, options)
        async with contextlib.aclosing(self.steps.stream(request, wait=wait)) as emitted:
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
        request = self.steps.make_request("start", code, options)

        def interrupt(_emitter: Emitter | None) -> bool:
            return self.steps.interrupt(request.id)

        work, approvals = partial(self.steps.run, request, wait=True), self._context.approvals
        run = Run(request.id, work, interrupt, lambda asked: approvals().answer_function(asked), is_step=True)
        return self.runs.add(run)

    async def attach(self, run_id: str) -> Run:
        """Find a run of this session that was begun with :meth:`start`.

        Args:
            run_id: Its ``id``.

        Returns:
            The run.

        Raises:
            InvalidArgument: There is none with this id, or it is no longer kept.
        """
        run = self.runs.get(run_id)
        if run is None:
            raise InvalidArgument("run_id", f"this session has no run {run_id!r}")
        return run

    def interrupt(self) -> None:
        """Interrupt the step that runs; its state is kept unless its code ignores that. Harmless when none runs."""
        self.steps.interrupt(self.steps.running)

    async def reset(self) -> None:
        """Forget everything but the files: the next step has a fresh interpreter. Interrupts a step that runs."""
        self._lifetime.check_open()
        self.interrupt()
        await self.steps.end_interpreter(keep_files=True)

    async def variables(self) -> list[Variable]:
        """List the user's names.

        Returns:
            Each name with the type, size and beginning of its value, in the order in which they were bound.

        Raises:
            CasemateError: As of :meth:`run`.
        """
        reply = await self.steps.request_value(lambda interpreter: interpreter.list_variables())
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
        self.steps.terms.check_name(name)
        reply = await self.steps.request_value(lambda interpreter: interpreter.get(name))
        if reply.error is not None:
            raise InvalidArgument("name", reply.error if name in reply.error else f"{name!r}: {reply.error}")
        if reply.text is None:
            return reply.value
        import json

        try:
            value = json.loads(reply.text)
            return redaction.value(value) if (redaction := self.steps.redaction) else value
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
        self.steps.terms.check_name(name)
        text = json_of(value)
        reply = await self.steps.request_value(lambda interpreter: interpreter.set(name, text))
        if reply.error is not None:
            raise InvalidArgument("name", f"{name!r}: {reply.error}")
        self._cells.names.add(name)

    async def diff(self) -> Diff:
        """What it has changed in the folder and is kept back. A step that runs is waited for.

        Raises:
            InvalidArgument: The sandbox has no workspace whose changes are kept back (``workspace_mode="review"``).
        """
        async with self.steps.open_review() as review:
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
        async with self.steps.open_review() as review:
            applied = await review.apply(paths)
        self._note({"action": f"apply: {applied.status}", "written": applied.written[:100], "reason": applied.reason})
        return applied

    async def discard(self) -> None:
        """Give up what is kept back: the next step has a fresh interpreter, and sees the folder as it is."""
        async with self.steps.open_review() as review:
            await review.discard()

    async def show_packages(self, folder: str, place: str) -> None:
        """Have its programs see what was installed into ``folder``; see :attr:`casemate.Sandbox.packages`."""
        await self._cells.show_packages(folder, place)

    async def close(self) -> None:
        """End the session and everything in it. Harmless when repeated, and while a step runs: that is cancelled."""
        self._end("the session was closed")
        await self.runs.close()
        await self.steps.end_interpreter(keep_files=False)

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
        return self.steps.is_busy

    @property
    def is_closed(self) -> bool:
        """Whether it takes no more steps."""
        return bool(self._lifetime.close_reason)

    async def expose(
        self, port: int, *, expires: float = 3600.0, unix: bool = False, third_parties: bool = False
    ) -> Preview:
        """Show the server that listens at a port of the session's loopback, on this machine, until the session ends.

        Its URL has a host name of its own and a link: whoever has that may look until it ends. Repeated, it gives a
        further link. Pages see no cookie and no token of casemate's, and reach nothing but their own server.

        Args:
            port: At which a program of the session listens, or will.
            expires: Seconds after which the link ends, at most 30 days.
            unix: Show it at a Unix socket that this user alone can use instead; whatever speaks TCP can be shown there.
            third_parties: Let its pages load from other hosts, and send to them, with the browser of whoever looks.

        Returns:
            The preview, with the ``url`` or ``socket``.

        Raises:
            InvalidArgument: It names the argument.
            Denied: The policy has switched previews off.
            Unavailable: The wall has no network for each cell, or this machine no port or place for the preview.
            SandboxClosed: The session has ended.
        """
        return await self._previews.expose(port, expires, unix=unix, third_parties=third_parties)

    async def unexpose(self, port: int) -> None:
        """Show what listens at ``port`` no more: its links end, and so do connections to it.

        Args:
            port: As :meth:`expose` had it.

        Raises:
            InvalidArgument: It is not shown.
        """
        self._previews.unexpose(port)

    async def previews(self) -> list[Preview]:
        """List what is shown of it, without links.

        Returns:
            The previews, the oldest first.
        """
        return self._previews.list()

    # -- its end

    def _expire(self, what: str) -> None:
        self._end(f"the session ended by itself: its {what} was over")
        self._cells.abandon()

    def _end(self, why: str) -> None:
        """No more steps; what runs is ended."""
        if not self.is_closed:
            self._note({"action": "closed", "reason": why})
        self._lifetime.end(why)
        self._previews.close()
        self.steps.stop_asking(why)
        self._context.approvals().forget_session(self.steps.terms.namespace, self.id)
        if self._cells.current is not None:
            self._cells.current.cell.kill("closed")

    def _note(self, detail: Mapping[str, object]) -> None:
        detail = {name: value for name, value in detail.items() if value}
        self._context.log.append_if_possible("session", self.id, self.steps.terms.namespace, detail)
