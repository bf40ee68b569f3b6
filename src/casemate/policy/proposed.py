"""Rules that would decide as somebody has: exactly what was asked, as a policy file says it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from casemate.errors import InvalidArgument
from casemate.model.approval import Question
from casemate.policy.hosts import USUAL_PORTS
from casemate.policy.reading import rule

_MOST_TEXT = 20_000  # characters: nobody reads a longer rule
_BY_ARGUMENTS = ("shell", "process", "files", "secret")


def proposed_rules(question: Question, effect: Literal["allow", "deny"] = "allow") -> list[dict[str, Any]]:
    """Rules that decide ``question`` without asking, as narrow as a rule of its kind can be: none where only a person
    can answer, and where no rule can say it."""
    proposed = [{effect: question.kind, **about} for about in _about(question)]
    try:
        decide = bool(proposed) and all(_covers(one, question) for one in proposed)
    except InvalidArgument:
        return []
    return proposed if decide and len(rules_text(proposed)) <= _MOST_TEXT else []


def rules_text(rules: Sequence[Mapping[str, Any]]) -> str:
    """The rules as YAML that can be added to a policy file; empty for none."""
    import yaml

    written = [dict(one) for one in rules]
    return yaml.safe_dump({"rules": written}, sort_keys=False, width=100) if written else ""


def _about(question: Question) -> Iterator[dict[str, Any]]:
    given = question.arguments
    match question.kind:
        case "tool":
            yield {"server": question.server, "tool": question.tool, "arguments": _exactly(given)}
        case "egress":
            host, port = given.get("host"), given.get("port")
            yield {"host": host if port in USUAL_PORTS else f"{host}:{port}"}
        case "package":
            for name in given.get("packages", ()):
                yield {"package": name, "language": given.get("language", "python")}
        case "host" if not any("*" in str(word) for word in given.get("argv", ())):
            yield {"command": given.get("argv", [])}
        case "server":
            yield {"server": question.server, "arguments": _exactly(given)}
        case kind if kind in _BY_ARGUMENTS:
            yield {"arguments": _exactly(given)}


def _exactly(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"exact": value} if isinstance(value, Mapping) else value for name, value in arguments.items()}


def _covers(proposed: Mapping[str, Any], question: Question) -> bool:
    """Whether it is a sound rule about ``question``: of several packages, each has a rule of its own."""
    read = rule(proposed, "the proposed rule")
    return read.package is not None or read.covers(question)
