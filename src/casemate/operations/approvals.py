"""``approvals``: pending requests, and the answers of approvers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Literal, Unpack, cast, get_args

from casemate.errors import Denied, NotFound
from casemate.model.approval import ApprovalRequest, Kind, Listed, Question
from casemate.model.call_options import DecisionOptions
from casemate.model.kinds import Name
from casemate.model.operation import Audience, Most, Principal, operation
from casemate.model.options import takes_options
from casemate.operations.lookup import FilterKey, Filters, apply_filters, match_handle
from casemate.operations.sessions import Group
from casemate.visible import begin

Reason = Annotated[str, Most(2000)]
_MOST_LISTED = 4 << 20  # characters of arguments in one list
_MOST_KEYS, _EXCERPT = 50, 200  # of shortened arguments: entries, and characters of each


@dataclass(frozen=True, slots=True)
class ApprovalEvent:
    """``event``: "asked", with the pending ``request``, or "over": it was answered, or needs no answer. ``id``: the
    request's."""

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
    """Operators see and answer all pending requests. An agent that may approve sees and answers its own."""

    @operation(approver=True, while_draining=True)
    async def pending(self, *, filters: Filters | None = None, principal: Principal) -> list[ApprovalRequest]:
        """Pending requests, oldest first. A session shows at most sixteen at once. ``state`` "withdrawn" means that the
        program no longer waits: an answer then applies when it asks again.

        ``filters``: the values to accept for each key: kind, server, tool, state, namespace, session and run. The
        beginning of a session's or run's handle is enough.

        Arguments beyond some MiB in total are shortened: "approvals.get" has all of them.
        """
        found = apply_filters(self._pending_for(principal), filters, _KEYS, self._shared.sandbox.namespace)
        return await asyncio.to_thread(_shorten_arguments, found)

    @operation(approver=True, while_draining=True)
    async def get(self, request: Name, *, principal: Principal) -> ApprovalRequest:
        """One pending request: exactly what would cross the wall. ``request``: its id, or a unique beginning of it."""
        waiting = {one.id: one for one in self._pending_for(principal)}
        request_id = match_handle(request, waiting, "request_id", "pending requests")
        if request_id is None:
            raise NotFound("request_id", f"no pending request begins with {request[:100]!r}")
        return waiting[request_id]

    @operation(approver=True, while_draining=True)
    async def propose(self, request: Name, *, principal: Principal) -> str:
        """The rule, as YAML for a policy file, that would allow exactly what a request asks for. Empty if only a person
        can answer it, or no rule can express it. It changes nothing.

        ``request``: its id, or a unique beginning of it.
        """
        from casemate.policy.proposal import rules_for

        asked = await self.get(request, principal=principal)
        kind = cast("Kind", asked.kind)
        question = Question(kind, asked.summary, asked.arguments, server=asked.server, tool=asked.tool)
        return await asyncio.to_thread(rules_for, question)

    @operation(approver=True, while_draining=True)
    async def events(
        self, *, told: Annotated[Sequence[str], Most(2000)] = (), principal: Principal
    ) -> AsyncGenerator[ApprovalEvent]:
        """Stream requests when they become pending, and when they no longer need an answer. Those already pending come
        first.

        ``told``: ids of requests that the caller already knows. They are not sent again. Those that are no longer
        pending get an "over" event.
        """
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
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
        is_operator, pending = principal.audience is Audience.OPERATOR, self._shared.sandbox.approvals.pending()
        return [one for one in pending if is_operator or one.caller == principal.name]

    @operation(approver=True, while_draining=True)
    @takes_options(DecisionOptions)
    async def decide(
        self, request: Name, allow: bool = False, *, principal: Principal, **options: Unpack[DecisionOptions]
    ) -> bool:
        """Answer a pending request. False, with nothing changed, if it does not exist or is over.

        ``request``: its id. ``allow``: true allows exactly what the request shows; false denies it.
        """
        approvals = self._shared.sandbox.approvals
        found = next((one for one in self._pending_for(principal) if one.id == request), None)
        if found is None:
            approvals.ignore(request, allow=allow)
            await approvals.drain()
            return False
        if allow and not principal.may_run_commands and _runs_command(found):
            raise Denied(
                f"{principal.name!r} may not allow host commands, which have the rights of the user's account",
                remediation="Use a token that may run commands: casemate service token add --may-run-commands.",
            )
        is_first = approvals.decide(request, allow, **options)
        await approvals.drain()  # so that the record has the decision before this returns
        return is_first

    @operation(while_draining=True)
    async def deny_all(self, reason: Reason = "", *, session: Name | None = None, principal: Principal) -> int:
        """Deny all pending requests, including those not shown yet. Returns how many.

        ``reason``: sent to the programs that asked. ``session``: only requests of this session, by its handle or name.
        """
        approvals = self._shared.sandbox.approvals
        denied = approvals.deny_all(reason, session=self._id_of(session, principal))
        await approvals.drain()
        return denied


def _runs_command(request: ApprovalRequest) -> bool:
    """Whether it starts a command. A server counts even behind a wall: its definition names folders to write."""
    return request.kind == "host" or (request.kind == "server" and "command" in request.arguments)


def _shorten_arguments(requests: list[ApprovalRequest]) -> list[ApprovalRequest]:
    """The requests. From the one that exceeds the size of an answer, their arguments are shortened."""
    left, listed = _MOST_LISTED, []
    for one in requests:
        left -= len(json.dumps(dict(one.arguments)))
        short = {name[:_EXCERPT]: _excerpt(value) for name, value in islice(one.arguments.items(), _MOST_KEYS)}
        listed.append(one if left >= 0 else replace(one, arguments=short))
    return listed


def _excerpt(value: object) -> object:
    text = json.dumps(value)
    return value if len(text) <= _EXCERPT else begin(text, _EXCERPT, "; approvals.get has all")
