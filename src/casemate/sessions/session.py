"""A session: steps that share one interpreter. When it ends, a fresh one continues with the same files."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

from casemate.errors import InvalidArgument
from casemate.execution.context import ExecutionContext, Tally
from casemate.languages.session_program import json_of
from casemate.model.call_options import StepOptions
from casemate.model.events import Event
from casemate.model.execution import Execution
from casemate.model.kinds import Name, Names, Port
from casemate.model.operation import Audience, Between, caller, operation
from casemate.model.options import takes_options
from casemate.model.preview import Preview
from casemate.model.review import Applied, Diff
from casemate.model.shown import ShownSession
from casemate.sessions.files import SessionFiles
from casemate.sessions.previews import MOST_SECONDS, SessionPreviews
from casemate.sessions.protocol import Variable, parse_variable
from casemate.sessions.run import Run, StartedRuns
from casemate.sessions.steps import SessionSteps
from casemate.sessions.terms import Lifetime, SessionTerms, StepSlot

if TYPE_CHECKING:
    from casemate.execution.capture import Emitter


class Session(ShownSession):
    """A stateful interpreter in its own cell. See :meth:`casemate.Sandbox.session`.

    It starts on first use; ``async with`` only guarantees :meth:`close`. Steps run one at a time, in call order.

    Attributes:
        id: A random identifier.
        name: The name that the caller gave it, or None.
        language: As in :attr:`casemate.RuntimeInfo.language`.
        files: The files of its workspace.
    """

    def __init__(self, terms: SessionTerms, context: ExecutionContext, slot: StepSlot) -> None:
        # `slot` limits how many steps and runs go on at once in the sandbox.
        self.id = terms.admitted.request.id
        self.name = terms.name
        self.language = terms.admitted.request.language
        self.tally = Tally()  # of its steps
        self._context = context
        self._lifetime = Lifetime(terms.idle_timeout, terms.lifetime, self._expire)
        self.steps = SessionSteps(terms, replace(context, finished=self._count), self._lifetime, slot)
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
            **options: See :class:`casemate.model.call_options.StepOptions`. The timeout interrupts the step; if
                the step ignores that, its cell ends two seconds later.
            wait: False refuses the call while another step runs, instead of waiting for it.

        Returns:
            The outcome. It includes what the program or a limit did; neither raises.

        Raises:
            InvalidArgument: An argument is wrong, or the session is busy and ``wait`` is False.
            SandboxClosed: The session has ended.
            RuntimeMissing: The language's interpreter cannot start on this machine.
            RecordUnavailable: The record cannot take the step.
            Fault: casemate itself failed.
        """
        return await self.steps.run(self.steps.make_request("run", code, options), wait=wait)

    @takes_options(StepOptions)
    async def stream(
        self, code: str | bytes, *, wait: bool = True, **options: Unpack[StepOptions]
    ) -> AsyncGenerator[Event]:
        """Run ``code`` like :meth:`run`, and follow its events. Leaving the stream early interrupts the step; close a
        stream that is stored in a variable.

        Args:
            code: The program.
            **options: See :meth:`run`.
            wait: False refuses the call while another step runs, instead of waiting for it.

        Yields:
            Events as they happen. ``Done(execution)`` is always the last.

        Raises:
            CasemateError: See :meth:`run`.
        """
        request = self.steps.make_request("stream", code, options)
        async with contextlib.aclosing(self.steps.stream(request, wait=wait)) as emitted:
            async for event in emitted:
                yield event

    @takes_options(StepOptions)
    def start(self, code: str | bytes, **options: Unpack[StepOptions]) -> Run:
        """Start ``code`` as the next step, which continues after the caller leaves.

        Args:
            code: The program.
            **options: See :meth:`run`.

        Returns:
            The run, which can be followed, awaited and cancelled.

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
        """Find a run that :meth:`start` began in this session.

        Args:
            run_id: Its ``id``.

        Returns:
            The run.

        Raises:
            InvalidArgument: No run has this id, or it is no longer kept.
        """
        run = self.runs.get(run_id)
        if run is None:
            raise InvalidArgument("run_id", f"this session has no run {run_id!r}")
        return run

    @operation(audience=Audience.AGENT, while_draining=True)
    def interrupt(self) -> None:
        """Interrupt the running step, if any. The session keeps its state unless the code ignores the interrupt."""
        self.steps.interrupt(self.steps.running)

    @operation(audience=Audience.AGENT)
    async def reset(self) -> None:
        """Discard everything except the files; the next step has a fresh interpreter. Interrupts a running step."""
        self._lifetime.check_open()
        self.interrupt()
        await self.steps.end_interpreter(keep_files=True)

    @operation(audience=Audience.AGENT, while_draining=True)
    async def variables(self) -> list[Variable]:
        """List the variables that the session's programs have bound.

        Returns:
            The name of each variable, with the type, the size and the start of its value, in the order of binding.

        Raises:
            CasemateError: See :meth:`run`.
        """
        reply = await self.steps.request_value(lambda interpreter: interpreter.list_variables())
        entries = reply.value if isinstance(reply.value, list) else []
        return [variable for entry in entries if (variable := parse_variable(entry)) is not None]

    @operation(audience=Audience.AGENT, while_draining=True)
    async def get(self, name: Name) -> Any:
        """Read the value of a variable.

        Args:
            name: The name of a variable.

        Returns:
            Its value as JSON. In Shell, the parsed value of a variable that holds JSON text.

        Raises:
            InvalidArgument: The name does not exist, or its value is not representable in JSON.
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

    @operation(audience=Audience.AGENT)
    async def set(self, name: Name, value: Any) -> None:
        """Bind a variable to a value; in Shell, to its JSON text.

        Args:
            name: The name of a variable.
            value: A JSON value: None, bool, int, float, str, and lists and mappings of these.

        Raises:
            InvalidArgument: The name or the value is unusable.
        """
        self.steps.terms.check_name(name)
        text = json_of(value)
        reply = await self.steps.request_value(lambda interpreter: interpreter.set(name, text))
        if reply.error is not None:
            raise InvalidArgument("name", f"{name!r}: {reply.error}")
        self._cells.names.add(name)

    @operation(audience=Audience.AGENT)
    async def diff(self) -> Diff:
        """List the session's changes to the folder that await review. Waits for a running step.

        Raises:
            InvalidArgument: The sandbox has no workspace with ``workspace_mode="review"``.
        """
        async with self.steps.open_review() as review:
            return await review.diff()

    @operation(audience=Audience.AGENT)
    async def apply(self, paths: Names | None = None) -> Applied:
        """Ask for approval to apply the changes under review to the folder. Apply all of them as shown, or none.

        Args:
            paths: Apply only the changes at these paths and in folders there.

        Returns:
            What was written, or why nothing was.

        Raises:
            InvalidArgument: See :meth:`diff`; or nothing changed at a path.
        """
        async with self.steps.open_review() as review:
            applied = await review.apply(paths)
        self._note({"action": f"apply: {applied.status}", "written": applied.written[:100], "reason": applied.reason})
        return applied

    @operation(audience=Audience.AGENT)
    async def discard(self) -> None:
        """Discard the changes under review. The next step has a fresh interpreter and the original folder."""
        async with self.steps.open_review():
            await self._cells.discard_layer()

    async def show_packages(self, folder: str, place: str) -> None:
        """Make the packages in ``folder`` available to its programs; see :attr:`casemate.Sandbox.packages`."""
        await self._cells.show_packages(folder, place)

    async def close(self) -> None:
        """End the session and everything in it. Cancels a running step. Safe to call again."""
        self._end("the session was closed")
        await self.runs.close()
        await self.steps.end_interpreter(keep_files=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.close()

    def record_open(self) -> None:
        """Record that the session opened."""
        self._note({"action": "opened", "language": self.language, "name": self.name, "caller": caller()})

    @property
    def is_busy(self) -> bool:
        return self.steps.is_busy

    @property
    def is_closed(self) -> bool:
        return bool(self._lifetime.close_reason)

    @operation()
    async def expose(
        self,
        port: Port,
        *,
        expires: Annotated[float, Between(1.0, MOST_SECONDS)] = 3600.0,
        unix: bool = False,
        third_parties: bool = False,
    ) -> Preview:
        """Expose a server of the session on this machine until the session ends.

        The server listens on a port of the cell's loopback. The preview has its own host name and a link; anyone with
        the link can open it until the link expires. Each further call returns another link. Pages see no cookies or
        tokens of casemate and reach only their own server.

        Args:
            port: A port on which a program of the session listens, or will listen.
            expires: Seconds until the link expires, at most 30 days.
            unix: Expose it at a Unix socket that only this user can open. This works for any protocol over TCP.
            third_parties: Let its pages load from other hosts, and send to them, through the viewer's browser.

        Returns:
            The preview, with its ``url`` or ``socket``.

        Raises:
            InvalidArgument: An argument is wrong; the error names it.
            Denied: The policy disables previews.
            Unavailable: The wall has no network for each cell, or the machine has no port or place for the preview.
            SandboxClosed: The session has ended.
        """
        return await self._previews.expose(port, expires, unix=unix, third_parties=third_parties)

    @operation()
    async def unexpose(self, port: Port) -> None:
        """Stop exposing a port. Its links and connections end.

        Args:
            port: An exposed port.

        Raises:
            InvalidArgument: The port is not exposed.
        """
        self._previews.unexpose(port)

    async def previews(self) -> list[Preview]:
        """List the previews of the session, without links.

        Returns:
            The previews, oldest first.
        """
        return self._previews.list()

    def _expire(self, what: str) -> None:
        self._end(f"the session reached its {what}")
        self._cells.abandon()

    def _end(self, why: str) -> None:
        if not self.is_closed:
            self._note({"action": "closed", "reason": why})
        self._lifetime.end(why)
        self._previews.close()
        self.steps.stop_asking(why)
        self._context.approvals().forget_session(self.steps.terms.namespace, self.id)
        if self._cells.current is not None:
            self._cells.current.cell.kill("closed")

    def _count(self, step: Execution) -> None:
        self.tally.add(step)
        self._context.finished(step)

    def _note(self, detail: Mapping[str, object]) -> None:
        detail = {name: value for name, value in detail.items() if value}
        self._context.log.append_if_possible("session", self.id, self.steps.terms.namespace, detail)
