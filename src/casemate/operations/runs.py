"""``runs``: programs that run in the background, by handle."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack, get_args

from casemate.api.options import CellOptions, Language, ProgramOptions
from casemate.errors import Fault, InvalidArgument
from casemate.languages.catalogue import LANGUAGES
from casemate.model.approval import ApprovalRequest
from casemate.model.call_options import StepOptions
from casemate.model.execution import Execution
from casemate.model.execution import Status as Ending
from casemate.model.kinds import Code, Cursor, Name, Page, Wait
from casemate.model.operation import Audience, Most, Principal, operation
from casemate.model.options import complete, defaults_of, takes_options
from casemate.operations.documents import Document, document, error_document, error_from, known_fields
from casemate.operations.kept import StoredRun
from casemate.operations.lookup import FilterKey, Filters, apply_filters
from casemate.operations.sessions import Group

if TYPE_CHECKING:
    from casemate.sessions.run import Run

Status = Literal["queued", "running", "waiting", "done"]
_WAIT = 45.0  # seconds
_OF_STEP = defaults_of(StepOptions).keys()  # options of a program in a session
_OF_CELL = defaults_of(CellOptions).keys() - {"files"}  # options of a cell, which an open session already has
_OF_RUN = (
    defaults_of(ProgramOptions).keys() - _OF_STEP - defaults_of(CellOptions).keys()
)  # options of a program in its own cell
_PAGE = 20_000  # characters


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a run has no outcome: ``kind``, ``type`` (its class) and ``message`` of the error, its ``remediation``, and
    the attributes that its class has."""

    kind: str
    message: str
    remediation: str
    type: str = ""
    argument: str = ""
    problem: str = ""
    reason: str = ""
    language: str = ""
    server: str = ""
    retry_after: float | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class RunState:
    """A run. ``run`` and ``session`` are handles; ``cursor``: how many characters of text there are so far.

    ``execution``: its outcome once it is done; ``outcome``: the status of the execution; ``error``: why there is none.
    ``approvals``: the requests that it waits for. ``started`` and ``ended``: in seconds since 1970. ``installation``:
    the environment of the service that ran it, if not this one.
    """

    run: str
    session: str | None
    status: Status
    execution: Execution | None
    approvals: tuple[ApprovalRequest, ...]
    cursor: int
    language: str
    owner: str
    started: float
    ended: float | None
    outcome: str | None
    error: Failure | None
    installation: str = ""


@dataclass(frozen=True, slots=True)
class OutputPage:
    """Text of a run, in the order in which it was written. ``cursor``: where the next page starts; ``is_done``: this is
    the last page."""

    text: str
    cursor: int
    is_done: bool
    status: Status


_KEYS: dict[str, FilterKey[RunState]] = {
    "status": FilterKey(lambda one: (one.status, one.outcome), known=(*get_args(Status), *get_args(Ending))),
    "language": FilterKey(lambda one: (one.language,), known=LANGUAGES),
    "session": FilterKey(lambda one: (one.session,), begins=True),
    "run": FilterKey(lambda one: (one.run,), begins=True),
    "owner": FilterKey(lambda one: (one.owner,)),
}


class RunOperations(Group):
    """Unfinished runs, and finished ones that are still kept."""

    @operation(audience=Audience.AGENT)
    @takes_options(ProgramOptions)
    async def start(
        self,
        code: Code,
        *,
        language: Language | None = None,
        session: Name | None = None,
        wait: Wait = 0.0,
        principal: Principal,
        **options: Unpack[ProgramOptions],
    ) -> RunState:
        """Start a program in the background, and return its run.

        ``code``: the program. ``language``: the program's language; if left out, the session's, or python. ``session``:
        run it as the next step of this session; "new" for a new session; left out for a fresh cell. ``wait``: how long
        to wait, in seconds, for its end or an approval request.

        In an existing session, env, secrets, limits and allowed_domains are those that it was opened with. A step has
        no program_name and no arguments.
        """
        values = complete(ProgramOptions, options, "runs.start")
        if session is None:
            run = await self._start_alone(code, language or "python", values, principal)
        elif session == "new":
            run = await self._open_and_start(code, language or "python", values, principal)
        else:
            run = await self._start_step(code, session, language, values, principal)
        return await self._wait_for(run, wait, ())

    async def _open_and_start(
        self, code: str, language: str, options: dict[str, Any], principal: Principal
    ) -> StoredRun:
        _check_defaults(options, _OF_RUN)
        cell: Any = {name: options[name] for name in (*_OF_CELL, "files")}
        opened = await self._sessions.open(language, principal=principal, **cell)
        try:
            return await self._in_session(code, opened.session, options, principal)
        except BaseException:
            await self._sessions.close(opened.session, principal=principal)
            raise

    async def _start_step(
        self, code: str, session: str, language: str | None, options: dict[str, Any], principal: Principal
    ) -> StoredRun:
        _check_defaults(options, _OF_RUN | _OF_CELL)
        if language is not None:
            _check_language(self._sessions.find(session, principal).session.language, language)
        await self._sessions.give(session, options["files"] or {}, principal)
        return await self._in_session(code, session, options, principal)

    async def _start_alone(self, code: str, language: str, options: dict[str, Any], principal: Principal) -> StoredRun:
        sandbox, limits = self._shared.sandbox, self._shared.limits_for(principal, options["limits"])
        secrets = await self._shared.secrets_for(principal, options["secrets"])
        options |= {"language": language, "secrets": secrets, "limits": limits}

        def begin() -> Run:
            return sandbox.start(code, **options)

        return await self._shared.kept.add(begin, principal, None, language)

    async def _in_session(self, code: str, session: str, options: dict[str, Any], principal: Principal) -> StoredRun:
        opened, step = self._sessions.find(session, principal), {name: options[name] for name in _OF_STEP}
        kept = await self._shared.kept.add(
            lambda: opened.session.start(code, **step), principal, opened.session.id, opened.session.language
        )
        opened.steps += 1
        return kept

    @operation(audience=Audience.AGENT, while_draining=True)
    async def wait(
        self,
        run: Name,
        *,
        seconds: Wait = _WAIT,
        told: Annotated[Sequence[str], Most(2000)] = (),
        principal: Principal,
    ) -> RunState:
        """Wait until a run is over, or waits for an approval, and return its state.

        ``run``: its handle. ``seconds``: the longest wait. ``told``: ids of approval requests that the caller knows.
        They do not end the wait.
        """
        return await self._wait_for(self._shared.kept.find(run, principal), seconds, told)

    async def outcome(self, run: str, principal: Principal) -> Execution:
        """Wait for a run's outcome; cancelling this ends the run. Raises the error of a run that has no outcome."""
        kept = self._shared.kept.find(run, principal)
        try:
            while not kept.is_done:
                await kept.news.wait()
        except asyncio.CancelledError:
            await self._cancel_and_wait(kept)
            raise
        execution = await self._shared.kept.execution(kept)
        if execution is None:
            raise error_from(kept.head["error"] or error_document(Fault("the outcome is no longer kept")))
        return execution

    async def _wait_for(self, kept: StoredRun, seconds: float, told: Sequence[str]) -> RunState:
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds):
                    while not kept.is_done and not any(one.id not in told for one in self._asked_by(kept)):
                        await kept.news.wait()
            except TimeoutError:
                pass
        return await self._state(kept)

    @operation(audience=Audience.AGENT, while_draining=True)
    async def get(self, run: Name, *, principal: Principal) -> RunState:
        """The current state of a run. ``run``: its handle."""
        return await self._state(self._shared.kept.find(run, principal))

    @operation(audience=Audience.AGENT, while_draining=True)
    async def read(self, run: Name, *, cursor: Cursor = 0, limit: Page = _PAGE, principal: Principal) -> OutputPage:
        """A page of what a run has written, and of the text of what it displayed.

        ``run``: its handle. ``cursor``: the number of the first character, from the page before. ``limit``: the most
        characters.
        """
        kept = self._shared.kept.find(run, principal)
        status = self._status(kept)  # before its text, which may still grow
        log = await self._shared.kept.log_of(kept)
        text, reached = await asyncio.to_thread(log.read_text, cursor, limit)
        return OutputPage(text, reached, status == "done" and reached >= log.chars, status)

    @operation(audience=Audience.AGENT, while_draining=True)
    async def stream(self, run: Name, *, cursor: Cursor = 0, principal: Principal) -> AsyncGenerator[Document]:
        """Stream the events of a run; the last is ``done``. Leaving the stream does not affect the run.

        ``run``: its handle. ``cursor``: the one of the last event that the caller has; 0 for all.
        """
        kept = self._shared.kept.find(run, principal)
        log = await self._shared.kept.log_of(kept)
        while True:
            news, is_done = kept.news, kept.is_done
            while cursor < log.events:
                for event in log.read_recent(cursor) or await asyncio.to_thread(log.read, cursor):
                    cursor += 1
                    yield {"cursor": cursor, **event}
            if is_done:
                break
            await news.wait()
        if cursor == log.events:
            execution = await self._shared.kept.execution(kept)
            yield {"cursor": cursor + 1, "event": "done", "execution": document(execution), "error": kept.head["error"]}

    @operation(audience=Audience.AGENT, while_draining=True)
    async def cancel(self, run: Name, *, principal: Principal) -> RunState:
        """End a run, and return its state. Does nothing if it is over. A step is interrupted; its session stays open.

        ``run``: its handle.
        """
        kept = self._shared.kept.find(run, principal)
        await self._cancel_and_wait(kept)
        return await self._state(kept)

    async def _cancel_and_wait(self, kept: StoredRun) -> None:
        if kept.going is not None:
            await kept.going.cancel()
        while not kept.is_done:
            await kept.news.wait()

    @operation(audience=Audience.AGENT, while_draining=True)
    async def list(self, *, filters: Filters | None = None, principal: Principal) -> list[RunState]:
        """Unfinished and kept runs, oldest first, without their outcomes.

        ``filters``: the values to accept for each key: status ("queued", "running", "waiting", "done", or how the run
        ended, such as "timeout"), language, owner, namespace, session and run. The beginning of a session's or run's
        handle is enough.
        """
        states = [await self._state(kept, brief=True) for kept in self._shared.kept.of(principal)]
        return apply_filters(states, filters, _KEYS, self._shared.sandbox.namespace)

    async def _state(self, kept: StoredRun, *, brief: bool = False) -> RunState:
        status = self._status(kept)
        execution = await self._shared.kept.execution(kept) if status == "done" and not brief else None
        head = kept.head
        if "chars" not in head and kept.log is None:  # casemate ended before the run did
            await self._shared.kept.log_of(kept)
        return RunState(
            run=kept.run, session=head["session"], status=status, execution=execution,
            approvals=self._asked_by(kept) if status == "waiting" else (),
            cursor=kept.log.chars if kept.log else head["chars"],
            language=head["language"], owner=kept.owner, started=head["started"], ended=head["ended"],
            outcome=head["outcome"],
            error=Failure(**known_fields(Failure, head["error"])) if head["error"] else None,
            installation="" if head.get("installation") in (None, sys.prefix) else str(head["installation"]),
        )  # fmt: skip

    def _status(self, kept: StoredRun) -> Status:
        if kept.is_done:
            return "done"
        if self._asked_by(kept):
            return "waiting"
        return "running" if kept.going is None or kept.going.has_begun else "queued"

    def _asked_by(self, kept: StoredRun) -> tuple[ApprovalRequest, ...]:
        """The requests that it waits for now."""
        if not kept.asked or kept.is_done:
            return ()
        pending = {one.id: one for one in self._shared.sandbox.approvals.pending()}
        kept.asked = [one for one in kept.asked if one in pending]
        return tuple(pending[one] for one in kept.asked)


def _check_language(of_session: str, language: str) -> None:
    """Raises ``InvalidArgument`` for a program in another language than the session's."""
    if language != of_session:
        raise InvalidArgument(
            "language",
            f"the session runs {of_session}, not {language}",
            remediation=f"Leave language out for a program in {of_session}, or open another session for {language}.",
        )


def _check_defaults(options: Mapping[str, Any], names: Collection[str]) -> None:
    """Raises ``InvalidArgument`` if one of these options has another value than its default."""
    defaults = defaults_of(ProgramOptions)
    for name, value in options.items():
        if name not in names:
            continue
        is_default = value == defaults[name] or (value == [] and name != "allowed_domains")  # [] allows no host
        if not is_default:
            raise InvalidArgument(
                name,
                "is not for a step of this session",
                remediation="Leave it out. Some options can be set when a session is opened.",
            )
