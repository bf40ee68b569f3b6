"""The calls that a program would make, found before they are allowed."""

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
    """A tool call that was not made.

    Attributes:
        arguments: Its arguments, without values of secrets.
    """

    server: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProgramPlan:
    """What a program did in a throwaway cell in which only calls that a rule allows were made.

    Attributes:
        calls: Calls not made, in order. Each returned an empty result, so later ones may differ in the real run.
        execution: The outcome of the throwaway run. Its changes to files are discarded.
    """

    calls: tuple[PlannedCall, ...]
    execution: Execution
    _run: Callable[[], Awaitable[Execution]] = field(repr=False)

    async def run(self) -> Execution:
        """Have the whole list decided at once (a request of kind "plan"), and run the program with exactly these calls
        allowed, each as often as it is in the list. Any other call asks, as usual.

        Raises:
            PlanDenied: The list was not allowed.
            CasemateError: As of :meth:`casemate.Sandbox.run`.
        """
        return await self._run()


@dataclass(frozen=True, slots=True)
class Listed:
    """A program and the calls that it would make."""

    calls: tuple[PlannedCall, ...]  # without values of secrets
    request: Request
    questions: tuple[Question, ...] = field(repr=False)  # the same calls, with all values
    size: int  # bytes of memory of both, about
    sandbox: SandboxParts = field(repr=False)

    async def run(self) -> Execution:
        """See :meth:`ProgramPlan.run`."""
        return await self._run_approved(replace(self.request, id=new_id()))

    def begin(self, within: Limits | None) -> Run:
        """Run it in the background. ``within``: narrows the limits of the request. Raises ``QueueFull``."""
        limits = self.request.limits
        narrow = within if limits is None else limits.narrowed(within)
        request = replace(self.request, id=new_id(), limits=narrow)
        return self.sandbox._start_run(request, partial(self._run_approved, request))

    async def _run_approved(self, request: Request, emitter: Emitter | None = None) -> Execution:
        if request.secrets:  # their current values: one may have changed, or been deleted
            request = replace(request, secrets=await self.sandbox.vault.resolve_async(request.secrets.names))
        await self._be_allowed(request, emitter)
        own = [replace(question, namespace=request.namespace, run=request.id) for question in self.questions]
        async with self.sandbox._slot(request):
            self.sandbox._check_open()
            self.sandbox.approvals.grant(own, "plan")
            return await pipeline.execute(request, self.sandbox._context, emitter)

    async def _be_allowed(self, request: Request, emitter: Emitter | None) -> None:
        calls = [{"server": one.server, "tool": one.tool, "arguments": one.arguments} for one in self.questions]
        summary = f"run a program that makes {len(calls)} calls of tools"
        question = Question("plan", summary, {"program": _describe(request), "calls": calls})
        redaction = await prepare(redaction_of(self.request.secrets))  # the calls may contain the old values
        async with open_requester(self.sandbox._context, request, emitter, redaction) as requester:
            verdict = await asyncio.wrap_future(requester.decide(question))
        if not verdict.allow:
            raise PlanDenied(verdict.reason or f"it was not approved ({verdict.by})")


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial of a program, in the background."""

    run: Run
    listed: Callable[[], Listed | None]  # the program and its calls, once the run has ended well
    size: int  # bytes of the inputs, which are kept as long as this


def _describe(request: Request) -> dict[str, Any]:
    """The program as an approver sees it: a hash, and what it gets."""
    extras = {
        "files": sorted(request.files),
        "secrets": sorted(request.secrets.names),
        "allowed_domains": list(request.allowed_domains or ()),
    }
    code = {"language": request.language, "sha256": hashlib.sha256(request.code).hexdigest()}
    return code | {name: one for name, one in extras.items() if one}


async def foresee(request: Request, sandbox: SandboxParts) -> ProgramPlan:
    """Find the calls of ``request``'s program. Raises as ``Sandbox.run``."""
    execution, listed = await _try_out(request, sandbox)
    return ProgramPlan(listed.calls, execution, listed.run)


def begin_trial(request: Request, sandbox: SandboxParts) -> Trial:
    """Find them in the background. Raises ``QueueFull``."""
    outcomes: list[Listed] = []

    async def try_it(emitter: Emitter) -> None:
        _, listed = await _try_out(request, sandbox, emitter)
        outcomes.append(listed)

    inputs = (request.code, request.stdin, *request.files.values())
    size = sum(len(content) for content in inputs if isinstance(content, bytes))
    size += held_by([request.arguments, request.env, request.metadata, request.allowed_domains, list(request.files)])
    return Trial(sandbox._start_run(request, try_it), lambda: outcomes[0] if outcomes else None, size)


async def _try_out(request: Request, sandbox: SandboxParts, emitter: Emitter | None = None) -> tuple[Execution, Listed]:
    """Run it in a context that asks for no approval, only notes calls, and keeps no changes."""
    foreseen, context = Foreseen(), sandbox._context
    offers = tuple(
        replace(offer, foreseen=foreseen) if isinstance(offer, Broker) else offer for offer in context.supplies.offers()
    )
    folder = replace(context.folder, mode="overlay", output=None, keeps=False)
    throwaway = replace(context, supplies=replace(context.supplies, offers=lambda: offers), folder=folder, asks=False)
    async with sandbox._slot(request):
        sandbox._check_open()
        execution = await pipeline.execute(request, throwaway, emitter)
    calls, size = await asyncio.to_thread(_shown_calls, foreseen.calls, redaction_of(request.secrets))
    return execution, Listed(calls, request, foreseen.calls, size, sandbox)


def _shown_calls(questions: Sequence[Question], redaction: Redaction | None) -> tuple[tuple[PlannedCall, ...], int]:
    """The calls without values of secrets, and the bytes that they and ``questions`` take."""
    shown: Callable[[dict[str, Any]], Any] = dict if redaction is None else redaction.value
    calls = tuple(PlannedCall(one.server, one.tool, shown(dict(one.arguments))) for one in questions)
    return calls, held_by([(one.summary, one.arguments) for one in questions], [one.arguments for one in calls])


def check_no_session(session: object) -> None:
    """Raises ``Unavailable`` for a session."""
    if session is not None:
        raise Unavailable(
            "session: a trial needs a copy of the session's state, which cannot be copied",
            remediation="Leave session out, and give the program its inputs as files.",
        )
