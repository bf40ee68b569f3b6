"""What all operations of one namespace share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from casemate.errors import Denied, Unavailable
from casemate.execution.admit import Cap
from casemate.model.approval import Question
from casemate.model.limits import Limits
from casemate.model.operation import Audience, called_by
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

_MOST_CALLERS = 1000  # of one account, whose limits are known


class Shared:
    """The sandbox of a namespace, its runs and uploads, and the limits of its callers. ``idle_timeout``: seconds
    without use after which a session ends that was opened without one."""

    def __init__(self, sandbox: Sandbox, store: FolderStore | None, idle_timeout: float | None) -> None:
        self.sandbox = sandbox
        self.idle_timeout = idle_timeout
        self.kept = KeptRuns(store or TemporaryStore())
        self.uploads = Uploads()
        self._limits: dict[str, dict[str, Limits]] = {}  # by account, and by name

    async def secrets_for(self, principal: Principal, names: object) -> Secrets:
        """Those of these names. Somebody has to allow an agent each that its token does not name. Raises ``Denied``,
        and as the vault does."""
        vault, given = self.sandbox.vault, frozenset(principal.secrets)
        if principal.audience is Audience.AGENT and (asked := sorted(set(check_asked(names)) - given)):
            await vault.check_names(asked)
            with called_by(principal):
                async with self.sandbox.approvals.open_requester(self.sandbox.namespace) as requester:
                    verdicts = [requester.decide(_about_secret(name, principal)) for name in asked]
                    for name, verdict in zip(asked, verdicts, strict=True):
                        decided = await asyncio.wrap_future(verdict)
                        if not decided.allow:
                            raise Denied(f"{principal.name!r} does not get the secret {name}: {_why_denied(decided)}")
        return await vault.resolve_async(names)

    def limits_for(self, principal: Principal, limits: Limits | None) -> Limits | None:
        """What of ``limits`` a caller may have."""
        own = self._limits.get(principal.payer, {}).get(principal.name)
        return limits if own is None else own.narrowed(limits)

    def set_limits(self, principal: Principal, limits: Limits) -> Limits:
        """Change the limits of a caller by those that ``limits`` was given; those in force. The sandbox's are the most.
        Raises ``InvalidArgument`` beyond the most, and ``Unavailable``."""
        own, most = self._limits.setdefault(principal.payer, {}), self.sandbox.limits
        given = {name: getattr(limits, name) for name in limits.given}
        if principal.name not in own and len(own) >= _MOST_CALLERS:
            raise Unavailable(f"the limits of {_MOST_CALLERS} callers of {principal.payer!r} are known already")
        own[principal.name] = Cap(most, NO_POLICY).change(own.get(principal.name, most), given)
        return own[principal.name]

    def reset_limits(self, caller: str) -> Limits:
        """Undo what was narrowed for the callers of that name; those in force."""
        for own in self._limits.values():
            own.pop(caller, None)
        return self.sandbox.limits


def _why_denied(verdict: ApprovalVerdict) -> str:
    """Only somebody's answer has a scope."""
    by_person = "a person denied it" if verdict.scope else ""
    return ": ".join(part for part in (by_person, verdict.reason) if part) or "nobody has allowed it"


def _about_secret(name: str, principal: Principal) -> Question:
    return Question("secret", f"give programs of {principal.name} the secret {name}", {"name": name})
