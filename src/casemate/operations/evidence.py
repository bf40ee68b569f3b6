"""``evidence``: what proves what ran, by the handle of a run or session."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from casemate.api.options import Name
from casemate.errors import NotFound
from casemate.execution.threads import to_thread_to_end
from casemate.model.execution import Execution
from casemate.model.operation import Audience, Principal, operation
from casemate.operations.sessions import Group


@dataclass(frozen=True, slots=True)
class EvidencePack:
    """A pack that was made. ``handle``: by which it is fetched, as an archive, for an hour; ``size``: its bytes;
    ``left_out``: files of runs that are not in it, but for their hashes."""

    handle: str
    size: int
    left_out: tuple[str, ...]


class EvidenceOperations(Group):
    """Signed by the key of whoever runs the service, which no program and no agent has."""

    @operation(audience=Audience.AGENT)
    async def statement(self, run: Name, *, principal: Principal) -> dict[str, Any]:
        """What a run was and what came of it, signed: a DSSE envelope with an in-toto statement of SLSA provenance.

        ``run``: its handle; for an operator also the id of one that only the record knows.
        """
        run, outcomes = await self._find(run, principal)
        return await to_thread_to_end(self._shared.sandbox.evidence.sign, run, *outcomes)

    @operation(audience=Audience.AGENT)
    async def pack(self, of: Name, *, principal: Principal) -> EvidencePack:
        """Make a zip of all that is known of a run, or of a session and its steps: programs, outputs, approvals, calls,
        connections, files and rows of the record, signed as a whole.

        ``of``: the handle of a run, or the handle or name of a session; for an operator also an id that only the record
        knows. Of a session an agent gets its own steps.
        """
        of, outcomes = await self._find(of, principal)
        own = {of, *(one.run for one in self._shared.kept.of(principal))}
        is_operator = principal.audience is Audience.OPERATOR
        async with self._shared.uploads.make_upload(principal) as (handle, target):
            left_out = await to_thread_to_end(
                self._shared.sandbox.evidence.write, of, target, outcomes, lambda run: is_operator or run in own
            )
        size = await asyncio.to_thread(lambda: target.stat().st_size)
        return EvidencePack(handle, size, tuple(left_out))

    async def _find(self, of: str, principal: Principal) -> tuple[str, list[Execution]]:
        """The id of a run or session, and what is kept of it. Raises ``NotFound``."""
        kept = self._shared.kept
        with suppress(NotFound):
            of = self._sessions.find(of, principal).session.id
        runs = [one for one in kept.of(principal) if one.head["session"] == of]
        if not runs:
            try:
                runs = [kept.find(of, principal)]
                of = runs[0].run
            except NotFound:
                if principal.audience is not Audience.OPERATOR:
                    raise
        return of, [found for one in runs if (found := await kept.execution(one)) is not None]
