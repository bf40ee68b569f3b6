"""Approvers that remember what they are asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from casemate import ApprovalRequest


def answering(asked: list[ApprovalRequest], answer: Any = True) -> Callable[[ApprovalRequest], Any]:
    """An approver that always gives ``answer``, and adds to ``asked`` what it is asked."""

    def approve(request: ApprovalRequest) -> Any:
        asked.append(request)
        return answer

    return approve
