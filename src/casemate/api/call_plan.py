"""What a program would call, found out before anybody allows it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from casemate.errors import PlanDenied, Unavailable
from casemate.execution import pipeline
from casemate.execution.request import new_id, prepare, redaction_of
from casemate.execution.run import open_requester
from casemate.model.approval import Question
from casemate.model.limits import held_by
from casemate.sessions.run import Run
from casemate.tools.broker import Broker
from casemate.tools.calls import Foreseen

if TYPE_CHECKING:
    from casemate.api.wiring import SandboxParts
    from casemate.execution.capture import Emitter
    from casemate.model.execution import Execution
    from casemate.model.limits import Limits
    from casemate.model.plan import Request
    from casemate.redaction.redaction import Redaction
    from casemate.sessions.run import Run


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a tool that was not made.

    Attributes:
        arguments: Those that it would have had, without values of secrets.
    """

    server: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """What a program did in a throwaway cell in which only calls that a rule allows were made.

    Attributes:
        calls: Those that it would have made besides, in order; each gave it an empty answer, so what it did after the
            first may differ from what it will do.
        execution: The outcome of that; what it changed in files is thrown away.
    """

    calls: tuple[PlannedCall, ...]
    execution: Execution
    _run: Callable[[], Awaitable[Execution]] = field(repr=False)

    async def run(self) -> Execution:
        """Have the whole list decided once (a request of kind "plan"), and run the program with exactly these calls
        allowed, each as often as it is in the list; any other asks, as ever.

        Raises:
            PlanDenied: It is not allowed.
            CasemateError: As of :meth:`casemate.Sandbox.run`.
        """
        return await self._run()


@dataclass(frozen=True, slots=True)
class Listed:
    """A program with what it would call: all that is needed to have that decided, and to run it. ``calls``: as they are
    told, ``questions`` as they would be made; ``size``: bytes of memory that both take, about."""

    calls: tuple[PlannedCall, ...]
    request: Request
    questions: tuple[Question, ...] = field(repr=False)
    size: int
    parts: SandboxParts = field(repr=False)

    async def run(self) -> Execution:
        """See :meth:`ProgramPlan.run`."""
        return await self._run_approved(replace(self.request, id=new_id()))

    def begin(self, within: Limits | None) -> Run:
        """The same, going on by itself. ``within``: limits that narrow those of the request, None for no more than
        these. Raises ``QueueFull``."""
        limits = self.request.limits
        narrow = within if limits is None else limits.narrowed(within)
        request = replace(self.request, id=new_id(), limits=narrow)
        return self.parts.start_run(request, partial(self._run_approved, request))

    async def _run_approved(self, request: Request, emitter: Emitter | None = None) -> Execution:
        if request.secrets:  # as they are now: one may be another, or none any more
            request = replace(request, secrets=await self.parts.vault.resolve_async(request.secrets.names))
        await self._be_allowed(request, emitter)
        own = [replace(question, namespace=request.namespace, run=request.id) for question in self.questions]
        async with self.parts.slot(request):
            self.parts.check_open()
            self.parts.approvals.grant(own, "plan")
            return await pipeline.execute(request, self.parts.context, emitter)

    async def _be_allowed(self, request: Request, emitter: Emitter | None) -> None:
        """Raises :class:`PlanDenied`."""
        calls = [{"server": one.server, "tool": one.tool, "arguments": one.arguments} for one in self.questions]
        summary = f"run a program that makes {len(calls)} calls of tools"
        question = Question("plan", summary, {"program": _describe(request), "calls": calls})
        redaction = await prepare(redaction_of(self.request.secrets))  # of those that the calls may hold
        async with open_requester(self.parts.context, request, emitter, redaction) as requester:
            verdict = await asyncio.wrap_future(requester.decide(question))
        if not verdict.allow:
            raise PlanDenied(verdict.reason or f"nobody allowed it ({verdict.by})")


@dataclass(frozen=True, slots=True)
class Trial:
    """A program that is tried out as ``run``, which goes on by itself. ``listed``: what there is to be planned, once
    that has come to its end. ``size``: bytes that were given, and are held as long as it is."""

    run: Run
    listed: Callable[[], Listed | None]
    size: int


def _describe(request: Request) -> dict[str, Any]:
    """The program as it is shown: what it is, and what it is given besides."""
    extras = {
        "files": sorted(request.files),
        "secrets": sorted(request.secrets.names),
        "allowed_domains": list(request.allowed_domains or ()),
    }
    code = {"language": request.language, "sha256": hashlib.sha256(request.code).hexdigest()}
    return code | {name: one for name, one in extras.items() if one}


async def foresee(request: Request, parts: SandboxParts) -> ProgramPlan:
    """What ``request``'s program would call. Raises as ``Sandbox.run``."""
    execution, listed = await _try_out(request, parts)
    return ProgramPlan(listed.calls, execution, listed.run)


def begin_trial(request: Request, parts: SandboxParts) -> Trial:
    """The same, going on by itself. Raises ``QueueFull``."""
    outcomes: list[Listed] = []

    async def try_it(emitter: Emitter) -> None:
        _, listed = await _try_out(request, parts, emitter)
        outcomes.append(listed)

    inputs = (request.code, request.stdin, *request.files.values())
    size = sum(len(content) for content in inputs if isinstance(content, bytes))
    size += held_by([request.arguments, request.env, request.metadata, request.allowed_domains, list(request.files)])
    return Trial(parts.start_run(request, try_it), lambda: outcomes[0] if outcomes else None, size)


async def _try_out(request: Request, parts: SandboxParts, emitter: Emitter | None = None) -> tuple[Execution, Listed]:
    """In a context in which nobody is asked, calls are only foreseen, and nothing is kept."""
    foreseen, context = Foreseen(), parts.context
    offers = tuple(
        replace(offer, foreseen=foreseen) if isinstance(offer, Broker) else offer for offer in context.offers()
    )
    workspace_mode = "overlay" if context.workspace else context.workspace_mode
    throwaway = replace(
        context, offers=lambda: offers, asks=False, keeps=False, workspace_mode=workspace_mode, output_dir=None
    )
    async with parts.slot(request):
        parts.check_open()
        execution = await pipeline.execute(request, throwaway, emitter)
    calls, size = await asyncio.to_thread(_shown_calls, foreseen.calls, redaction_of(request.secrets))
    return execution, Listed(calls, request, foreseen.calls, size, parts)


def _shown_calls(questions: Sequence[Question], redaction: Redaction | None) -> tuple[tuple[PlannedCall, ...], int]:
    """Calls without secrets, and the bytes that they take together with ``questions``."""
    shown: Callable[[dict[str, Any]], Any] = dict if redaction is None else redaction.value
    calls = tuple(PlannedCall(one.server, one.tool, shown(dict(one.arguments))) for one in questions)
    return calls, held_by([(one.summary, one.arguments) for one in questions], [one.arguments for one in calls])


def check_no_session(session: object) -> None:
    """Raises ``Unavailable`` for one."""
    if session is not None:
        raise Unavailable(
            "session: the state of a session that lives cannot be copied, so nothing can be tried out in it",
            remediation="Leave session out, and give the program what it needs as files.",
        )
