"""A question on its way to a verdict, and what is on record of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from casemate.model.approval import Verdict

if TYPE_CHECKING:
    from concurrent.futures import Future

    from casemate.approvals.asker import Asker
    from casemate.approvals.channels import Channel
    from casemate.approvals.clockwork import Later
    from casemate.approvals.shown import Shown
    from casemate.model.approval import ApprovalRequest, Decision, Question


@dataclass(slots=True, eq=False)
class Case:
    """A question on its way to a verdict: rules match ``question``, people and the record are told ``told``, which is
    the same without secrets. ``id``: once somebody is asked."""

    asker: Asker
    question: Question
    told: Question
    shown: Shown
    future: Future[Verdict]
    id: str = ""
    request: ApprovalRequest | None = None
    holders: list[Channel] = field(default_factory=list)
    expiry: Later | None = None


def row_of(case: Case, verdict: Verdict, word: str, decision: Decision | None = None, note: str = "") -> dict[str, Any]:
    """What is on record of a decision."""
    note = case.asker.redacted(note)
    detail = {**asked_of(case), "decision": word, "by": verdict.by, "reason": verdict.reason, "note": note}
    if decision is not None and decision.scope != "once":
        detail |= {"scope": decision.scope, "uses": decision.uses, "expires": decision.expires}
    return {name: value for name, value in detail.items() if value}


def asked_of(case: Case) -> dict[str, Any]:
    """What is on record of a question."""
    question = case.told
    return {
        "session": question.session, "caller": case.asker.caller, "request": case.id,
        "kind": question.kind, "summary": question.summary,
        "server": question.server, "tool": question.tool, "arguments": question.arguments,
        "hash": case.shown.hash,
    }  # fmt: skip


def withdrawn(asker: Asker) -> Verdict:
    """What asked is over."""
    return Verdict(False, "withdrawn", asker.why_over)
