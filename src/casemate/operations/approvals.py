"""``approvals``: what waits to be allowed, and the answers of whoever may give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from casemate.model.approval import ApprovalRequest, Scope
from casemate.model.caller import called_by
from casemate.model.operation import Audience, Between, Most, Principal, operation
from casemate.operations.terms import Name, Seconds

if TYPE_CHECKING:
    from casemate.operations.desk import Desk

Reason = Annotated[str, Most(2000)]


class Approvals:
    """Operators see and answer all that waits. An agent that may approve, because a person does that through it, sees
    and answers what it has asked itself."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @operation(approver=True)
    async def pending(self, *, principal: Principal) -> list[ApprovalRequest]:
        """What waits for an answer, the oldest first: at most sixteen of each session, the others follow."""
        return [one for one in self._desk.sandbox.approvals.pending() if _may_answer(principal, one)]

    @operation(approver=True)
    async def decide(
        self,
        request: Name,
        allow: bool = False,
        *,
        scope: Scope = "once",
        uses: Annotated[int, Between(1, 1_000_000)] | None = None,
        expires: Seconds | None = None,
        reason: Reason = "",
        content: Mapping[str, Any] | None = None,
        principal: Principal,
    ) -> bool:
        """Answer what waits. False, and nothing changed, where there is no such request, or it is over.

        ``request``: its id. ``allow``: true lets exactly what is shown cross, anything else refuses it. ``scope``: for
        how long the same may cross again without asking. ``uses``: how often it may, this time among them.
        ``expires``: seconds until that ends. ``reason``: told to the program that asked, and recorded. ``content``:
        what was filled in, where the request asks for that.
        """
        approvals = self._desk.sandbox.approvals
        if request not in {one.id for one in await self.pending(principal=principal)}:
            return False
        with called_by(principal.name):
            return approvals.decide(
                request, allow, scope=scope, uses=uses, expires=expires, reason=reason, content=content
            )

    @operation()
    async def deny_all(self, reason: Reason = "", *, session: Name | None = None, principal: Principal) -> int:
        """Refuse all that waits, also what is not shown yet; the answer says how many that were.

        ``reason``: told to the programs that asked. ``session``: only what this session asks for, by its handle or
        name.
        """
        of = None if session is None else self._desk.sessions.find(session, principal).session.id
        with called_by(principal.name):
            return self._desk.sandbox.approvals.deny_all(reason, session=of)


def _may_answer(principal: Principal, request: ApprovalRequest) -> bool:
    return principal.audience is Audience.OPERATOR or request.caller == principal.name
