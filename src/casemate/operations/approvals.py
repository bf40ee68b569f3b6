"""``approvals``: what waits to be allowed, and the answers of whoever may give them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Literal, Unpack, cast, get_args

from casemate.api.options import Name
from casemate.errors import Denied, NotFound
from casemate.model.approval import ApprovalRequest, Kind, Listed, Question
from casemate.model.call_options import DecisionOptions
from casemate.model.operation import Audience, Most, Principal, called_by, operation
from casemate.model.options import takes_options
from casemate.operations.lookup import FilterKey, Filters, apply_filters, match_handle
from casemate.operations.sessions import Group

Reason = Annotated[str, Most(2000)]
_MOST_LISTED = 4 << 20  # characters of arguments in one list
_MOST_KEYS, _EXCERPT = 50, 200  # of the arguments that are told in short, and characters of each


@dataclass(frozen=True, slots=True)
class ApprovalEvent:
    """``event``: "asked", with the ``request`` that waits now, or "over": it was answered, or needs no answer.
    ``id``: the request's."""

    event: Literal["asked", "over"]
    id: str
    request: ApprovalRequest | None


_KEYS: dict[str, FilterKey[ApprovalRequest]] = {
    "kind": FilterKey(lambda one: (one.kind,), known=get_args(Kind)),
    "session": FilterKey(lambda one: (one.session,), begins=True),
    "run": FilterKey(lambda one: (one.run,), begins=True),
    "server": FilterKey(lambda one: (one.server,)),
    "tool": FilterKey(lambda one: (one.tool,)),
    "state": FilterKey(lambda one: (one.state,), known=get_args(Listed)),
}


class ApprovalOperations(Group):
    """Operators see and answer all that waits. An agent that may approve, because a person does that through it, sees
    and answers what it has asked itself."""

    @operation(approver=True)
    async def pending(self, *, filters: Filters | None = None, principal: Principal) -> list[ApprovalRequest]:
        """What waits for an answer, the oldest first: at most sixteen of each session, the others follow. Where the
        ``state`` is "withdrawn", what asked is gone, and an answer is for when it asks again.

        ``filters``: only those with one of the values of each key: kind, server, tool, state, namespace, session and
        run, of which the beginning is enough.

        Beyond some MiB a request's arguments are told in short: "approvals.get" has all of them.
        """
        found = apply_filters(self._pending_for(principal), filters, _KEYS, self._shared.sandbox.namespace)
        return await asyncio.to_thread(_shorten_arguments, found)

    @operation(approver=True)
    async def get(self, request: Name, *, principal: Principal) -> ApprovalRequest:
        """One request that waits for an answer: exactly what would cross. ``request``: its id, or the only one's that
        begins so."""
        waiting = {one.id: one for one in self._pending_for(principal)}
        request_id = match_handle(request, waiting, "request_id", "requests that wait")
        if request_id is None:
            raise NotFound("request_id", f"no request that waits begins with {request[:100]!r}")
        return waiting[request_id]

    @operation(approver=True)
    async def propose(self, request: Name, *, principal: Principal) -> str:
        """The rule, as YAML for a policy file, that would allow exactly what a request asks without asking anybody.
        Nothing where only a person can answer it, or no rule can say it. Nothing is changed by this.

        ``request``: its id, or the only one's that begins so.
        """
        from casemate.policy.proposal import rules_for

        asked = await self.get(request, principal=principal)
        kind = cast("Kind", asked.kind)
        question = Question(kind, asked.summary, asked.arguments, server=asked.server, tool=asked.tool)
        return await asyncio.to_thread(rules_for, question)

    @operation(approver=True)
    async def events(
        self, *, told: Annotated[Sequence[str], Most(2000)] = (), principal: Principal
    ) -> AsyncGenerator[ApprovalEvent]:
        """What comes to wait for an answer, and what needs none any more, as it happens; first what waits already.

        ``told``: ids of requests that the caller knows of: they are not told again, and are over where they do not wait
        any more.
        """
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody listens
                loop.call_soon_threadsafe(news.set)

        known = set(told)
        with self._shared.sandbox.approvals.watch(tell):
            while True:
                news.clear()
                waiting = {one.id: one for one in self._pending_for(principal)}
                for request in sorted(known - waiting.keys()):
                    yield ApprovalEvent("over", request, None)
                for request in [one for one in waiting if one not in known]:
                    yield ApprovalEvent("asked", request, waiting[request])
                known = set(waiting)
                await news.wait()

    def _pending_for(self, principal: Principal) -> list[ApprovalRequest]:
        return [one for one in self._shared.sandbox.approvals.pending() if _may_answer(principal, one)]

    @operation(approver=True)
    @takes_options(DecisionOptions)
    async def decide(
        self, request: Name, allow: bool = False, *, principal: Principal, **options: Unpack[DecisionOptions]
    ) -> bool:
        """Answer what waits. False, and nothing changed, where there is no such request, or it is over.

        ``request``: its id. ``allow``: true lets exactly what is shown cross, anything else refuses it.
        """
        approvals = self._shared.sandbox.approvals
        found = next((one for one in self._pending_for(principal) if one.id == request), None)
        if found is None:
            with called_by(principal):
                approvals.ignore(request, allow=allow)
            await approvals.drain()
            return False
        if allow and not principal.may_run_commands and _runs_command(found):
            raise Denied(
                f"{principal.name!r} may not allow commands of this machine, which are as much as the user's account",
                remediation="It needs a token that may run commands: casemate service token add --may-run-commands.",
            )
        with called_by(principal):
            is_first = approvals.decide(request, allow, **options)
        await approvals.drain()  # the caller finds the row
        return is_first

    @operation()
    async def deny_all(self, reason: Reason = "", *, session: Name | None = None, principal: Principal) -> int:
        """Refuse all that waits, also what is not shown yet; the answer says how many that were.

        ``reason``: told to the programs that asked. ``session``: only what this session asks for, by its handle or
        name.
        """
        approvals = self._shared.sandbox.approvals
        with called_by(principal):
            denied = approvals.deny_all(reason, session=self._id_of(session, principal))
        await approvals.drain()
        return denied


def _runs_command(request: ApprovalRequest) -> bool:
    """Also behind a wall: a server's command writes in whichever folder it names."""
    return request.kind == "host" or (request.kind == "server" and "command" in request.arguments)


def _may_answer(principal: Principal, request: ApprovalRequest) -> bool:
    return principal.audience is Audience.OPERATOR or request.caller == principal.name


def _shorten_arguments(requests: list[ApprovalRequest]) -> list[ApprovalRequest]:
    """The same; arguments beyond what one answer should hold are told in short."""
    left, listed = _MOST_LISTED, []
    for one in requests:
        left -= len(json.dumps(dict(one.arguments)))
        short = {name[:_EXCERPT]: _excerpt(value) for name, value in islice(one.arguments.items(), _MOST_KEYS)}
        listed.append(one if left >= 0 else replace(one, arguments=short))
    return listed


def _excerpt(value: object) -> object:
    text = json.dumps(value)
    return value if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}… ({len(text):,} characters; approvals.get has all)"
