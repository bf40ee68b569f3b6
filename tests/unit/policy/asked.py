"""Questions and rules, short enough to be read in a table."""

from __future__ import annotations

from typing import Any

from casemate.model.approval import ApprovalVerdict, Kind, Question
from casemate.policy.reading import rule
from casemate.policy.rules import Rulebook, Rules


def question(kind: Kind = "tool", /, **about: Any) -> Question:
    """A question of the session "s1" of run "r1"; what is no field of its own is an argument."""
    fields = ("namespace", "session", "run", "server", "tool", "schema", "beyond", "line")
    named: dict[str, Any] = {"namespace": "default", "session": "s1", "run": "r1"}
    if kind == "tool":
        named |= {"server": "files", "tool": "read", "schema": "5" * 64}
    named |= {name: about.pop(name) for name in fields if name in about}
    return Question(kind=kind, summary="", arguments=about.pop("arguments", about), **named)


def book(*written: dict[str, Any]) -> Rulebook:
    """The rules as a policy file has them, in force from second 0 on."""
    return Rulebook(
        Rules(tuple(rule(one, f"p.yaml:{n}") for n, one in enumerate(written, 1))), began=0.0, today=lambda: 3599.5
    )


def effect(verdict: ApprovalVerdict | None) -> str:
    """The verdict in one word."""
    return "ask" if verdict is None else "allow" if verdict.allow else "deny"
