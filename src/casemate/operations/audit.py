"""``audit``: the record of what happened, as far as it is the caller's to read."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated

from casemate.api.options import Cursor, Name
from casemate.audit.chain import Verdict
from casemate.audit.reading import MOST_ROWS, AuditEvent, AuditRow
from casemate.model.operation import Audience, Between, Principal, operation
from casemate.operations.handles import meant

if TYPE_CHECKING:
    from casemate.operations.desk import Desk

Rows = Annotated[int, Between(1, MOST_ROWS)]
Time = Annotated[float, Between(0, 2**40)]


class Audit:
    """The record of the desk's namespace."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @operation(audience=Audience.AGENT)
    async def tail(
        self,
        limit: Rows = 50,
        *,
        since: Time | None = None,
        kind: Name | None = None,
        run: Name | None = None,
        principal: Principal,
    ) -> list[AuditRow]:
        """The newest rows of the record, the newest first: for an agent those of its own runs, among the newest 1000.

        ``limit``: how many. ``since``: only those from then on, in seconds since 1970. ``kind``: only these, such as
        "intent", "outcome", "decision" or "crossing". ``run``: only those about one run, by its handle.
        """
        audit = self._desk.sandbox.audit
        if run is not None:
            run = meant(run, (kept.run for kept in self._desk.kept.of(principal)), "run", "runs") or run
        if principal.audience is Audience.OPERATOR:
            return await audit.tail(limit, since=since, kind=kind, run=run)
        rows = await audit.tail(MOST_ROWS, since=since, run=run)
        own = {kept.run for kept in self._desk.kept.of(principal)}
        own |= {row.run for row in rows if row.detail.get("caller") == principal.name}
        own.discard("")  # what is about no run is not the caller's because another such row is
        return [row for row in rows if row.run in own and kind in (None, row.kind)][:limit]

    @operation()
    async def events(self, *, cursor: Cursor | None = None) -> AsyncGenerator[AuditEvent]:
        """What happens, as it comes to be on record: executions, sessions, packages, hosts, secrets, limits, the queue.

        ``cursor``: of the last event that was had, 0 for all that is on record; nothing for what happens from now on.
        """
        async with contextlib.aclosing(self._desk.sandbox.audit.events(after=cursor)) as events:
            async for event in events:
                yield event

    @operation()
    async def verify(self) -> Verdict:
        """Whether every row of the whole record, of all namespaces, is as it was written, and none is missing."""
        return await self._desk.sandbox.audit.verify()
