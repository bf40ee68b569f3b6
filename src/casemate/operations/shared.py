"""What all operations of one namespace share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from casemate.errors import Denied, Unavailable
from casemate.execution.admit import Cap
from casemate.model.approval import Question
from casemate.model.limits import Limits
from casemate.model.operation import Audience
from casemate.operations.kept import KeptRuns
from casemate.operations.stores import TemporaryStore, Uploads
from casemate.policy.policy import NO_POLICY
from casemate.vault.names import check_asked

if TYPE_CHECKING:
    from casemate.api.sandbox import Sandbox
    from casemate.model.approval import ApprovalVerdict
    from casemate.model.operation import Principal
    from casemate.model.plan import Secrets
    from casemate.operations.stores import FolderStore

_MOST_CALLERS = 1000  # of one account with limits set


class Shared:
    """A namespace's sandbox, its runs and uploads, and the limits of its callers."""

    def __init__(self, sandbox: Sandbox, store: FolderStore | None, idle_timeout: float | None) -> None:
        self.sandbox = sandbox
        self.idle_timeout = idle_timeout  # seconds, for sessions that do not set their own
        self.kept = KeptRuns(store or TemporaryStore())
        self.uploads = Uploads()
        self._limits: dict[str, dict[str, Limits]] = {}  # by account and caller

    async def secrets_for(self, principal: Principal, names: object) -> Secrets:
        """The secrets of these names. An approver must allow each one that an agent's token does not name. Raises
        ``Denied``, and what the vault raises."""
        vault, given = self.sandbox.vault, frozenset(principal.secrets)
        if principal.audience is Audience.AGENT and (asked := sorted(set(check_asked(names)) - given)):
            await vault.check_names(asked)
            async with self.sandbox.approvals.open_requester(self.sandbox.namespace) as requester:
                text = f"give programs of {principal.name} the secret"
                questions = [Question("secret", f"{text} {name}", {"name": name}) for name in asked]
                verdicts = [requester.decide(question) for question in questions]
                for name, verdict in zip(asked, verdicts, strict=True):
                    decided = await asyncio.wrap_future(verdict)
                    if not decided.allow:
                        raise Denied(f"{principal.name!r} does not get the secret {name}: {_why_denied(decided)}")
        return await vault.resolve_async(names)

    def limits_for(self, principal: Principal, limits: Limits | None) -> Limits | None:
        """``limits``, narrowed by those set for the caller."""
        own = self._limits.get(principal.payer, {}).get(principal.name)
        return limits if own is None else own.narrowed(limits)

    def set_limits(self, principal: Principal, limits: Limits) -> Limits:
        """Change a caller's limits by those given in ``limits``, within the sandbox's. Returns those in force. Raises
        ``InvalidArgument`` beyond the sandbox's, and ``Unavailable``."""
        own, most = self._limits.setdefault(principal.payer, {}), self.sandbox.limits
        given = {name: getattr(limits, name) for name in limits.given}
        if principal.name not in own and len(own) >= _MOST_CALLERS:
            raise Unavailable(f"{_MOST_CALLERS} callers of {principal.payer!r} have set limits; no more can")
        own[principal.name] = Cap(most, NO_POLICY).change(own.get(principal.name, most), given)
        return own[principal.name]

    def reset_limits(self, caller: str) -> Limits:
        """Drop the limits set for callers of this name. Returns those in force."""
        for own in self._limits.values():
            own.pop(caller, None)
        return self.sandbox.limits


def _why_denied(verdict: ApprovalVerdict) -> str:
    by_person = "a person denied it" if verdict.scope else ""  # only a person's answer has a scope
    return ": ".join(part for part in (by_person, verdict.reason) if part) or "it was not allowed"
