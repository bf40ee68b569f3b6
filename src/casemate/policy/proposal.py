"""What a program used outside its cell, and rules that would allow exactly that again. Pure.

A rule says exactly what the record contains, never a pattern. It is parsed like a policy file before it is proposed,
and must cover its use. Denied uses, and those that no rule can express, become comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from casemate.errors import InvalidArgument
from casemate.model.approval import Kind, Question
from casemate.policy.document import read_document
from casemate.policy.hosts import HTTPS, LOCAL_NAME
from casemate.policy.rules import Rule
from casemate.policy.shown import escape_text

_MOST_RULES = 200  # in one proposal; people read no more
_MOST_TEXT = 20_000  # characters of one rule
_MOST_NAME, _MOST_REASON = 300, 200  # characters
_MOST_SHOWN = 500  # characters of a rule in the reason of a denial
_CUT = {"begins", "bytes", "sha256"}  # the keys in the record for a text that was too long
_BY_ARGUMENTS = ("shell", "process", "files", "secret")  # kinds whose arguments say everything
Row = tuple[str, Mapping[str, Any]]  # the kind of a row of the record, and its detail


@dataclass(frozen=True, slots=True)
class Use:
    """Something that a program used, or was denied.

    Attributes:
        kind: As of an approval request: ``"egress"``, ``"tool"``, ``"package"``, ...
        name: The host and port, the tool, the package or the command, on one line.
        decision: What was decided.
        reason: The approver or rule and the reason, or what went wrong.
        times: How often the record has it.
    """

    kind: str
    name: str
    decision: Literal["allowed", "denied"]
    reason: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Proposal:
    """Rules for what a run did.

    Attributes:
        yaml: For a policy file. Rules for denied uses are comments.
        rules: Number of rules.
        refused: Number of rules in comments.
        unsaid: Uses that no rule can express, and why.
    """

    yaml: str
    rules: int
    refused: int
    unsaid: tuple[str, ...]


def uses_in(rows: Iterable[Row]) -> list[Use]:
    """Return each distinct use once, in the order of first occurrence."""
    found: dict[tuple[str, str, str], Use] = {}
    for use, _question in _uses(rows):
        key = (use.kind, use.name, use.decision)
        found[key] = replace(use, times=found[key].times + 1) if key in found else use
    return list(found.values())


def propose_rules(rows: Iterable[Row]) -> Proposal:
    """Return rules that would allow what these rows contain, and as comments rules for what they say was denied."""
    allowed: dict[str, Use] = {}
    refused: dict[str, Use] = {}
    ports: set[int] = set()
    unsaid: dict[str, None] = {}
    for use, question in _uses(rows):
        if question is None:
            continue  # the policy allows it without asking
        if question.kind == "egress" and question.arguments["host"] == LOCAL_NAME and use.decision == "allowed":
            ports.add(question.arguments["port"])
            continue
        text, problem = _rule_for(question)
        target = allowed if use.decision == "allowed" else refused
        if text and (text in target or len(allowed) + len(refused) < _MOST_RULES):
            target[text] = use
        else:
            problem = problem or f"more than {_MOST_RULES} rules"
            unsaid[f"{use.decision}: {use.kind} {use.name}: {problem}"] = None
    refused = {text: use for text, use in refused.items() if text not in allowed}
    lines = [f"allow_local: {sorted(ports)}"] if ports else []
    lines += ["rules:", *allowed]
    if refused:
        lines.append("# Denied. Remove the # before what you want to allow.")
    for text, use in refused.items():
        lines += [f"#  # {use.reason}", f"#{text}".replace("\n", "\n#")]
    lines += ["# No rule can express:"] * bool(unsaid) + [f"#   {one}" for one in unsaid]
    return Proposal("\n".join(lines) + "\n", len(allowed), len(refused), tuple(unsaid))


def rules_for(question: Question) -> str:
    """Return rules that allow exactly ``question``; empty if only an approver can, or no rule can express it."""
    texts = [_rule_for(part)[0] for part in _parts(question)]
    return "\n".join(["rules:", *texts, ""]) if texts and all(texts) else ""


def name_rule(written: Iterable[Rule], question: Question) -> str:
    """Return the rule that allows exactly this tool call, and the closest written rule that the program may see."""
    rule = json.dumps({"allow": question.kind, **(_about(question) or {})})
    if len(rule) > _MOST_SHOWN:
        rule = "casemate audit propose RUN writes it"
    allowing = (one for one in written if (one.effect, one.kind) == ("allow", "tool"))
    of_server = [one for one in allowing if one.server in ("", question.server) and one.holds_for(question)]
    near = max(of_server, key=lambda one: one.tool in ("", question.tool), default=None)
    if near is None:
        return rule
    is_other = near.covers(question) or not replace(near, arguments=None).covers(question)
    what = "not this call" if is_other else "not with these arguments"
    return f"{rule} ({near.where} allows {near.server or '*'}.{near.tool or '*'}, but {what})"


def _uses(rows: Iterable[Row]) -> Iterator[tuple[Use, Question | None]]:
    """Yield each use with the question that a rule for it must cover."""
    for kind, detail in rows:
        if kind == "crossing" and "host" in detail:
            host, port = str(detail["host"]), detail.get("port")  # none if the name was not resolved
            question = Question("egress", f"{host}:{port}" if port else host, {"host": host, "port": port or HTTPS})
            yield _use(question, detail), question
        elif kind == "crossing" and detail.get("kind") == "files":
            told = Question("files", f"{detail.get('action')} {detail.get('path')}", {})
            yield _use(told, {"decision": "allowed"}), None
        elif kind == "decision" and detail.get("kind") not in (None, "egress"):
            yield from ((_use(part, detail), part) for part in _parts(_question(detail)))


def _question(detail: Mapping[str, Any]) -> Question:
    kind: Kind = detail["kind"]
    arguments = detail.get("arguments", {})
    server, tool = str(detail.get("server", "")), str(detail.get("tool", ""))
    name = f"{server}.{tool}" if kind == "tool" else str(detail.get("summary", ""))
    return Question(kind, name, arguments if isinstance(arguments, Mapping) else {}, server=server, tool=tool)


def _parts(question: Question) -> Iterator[Question]:
    names, language = question.arguments.get("packages"), question.arguments.get("language", "python")
    if question.kind != "package" or not isinstance(names, list):
        yield question
        return
    for name in names:
        yield Question("package", f"{name} ({language})", {"packages": [name], "language": language})


def _use(question: Question, detail: Mapping[str, Any]) -> Use:
    is_allowed = detail.get("decision") == "allowed"
    by, why = (str(detail.get(one) or "") for one in ("by", "reason"))
    told = why if by in why else ": ".join(filter(None, (by, why)))
    name, reason = _on_a_line(question.summary, _MOST_NAME), _on_a_line(told, _MOST_REASON)
    return Use(question.kind, name, "allowed" if is_allowed else "denied", reason)


def _on_a_line(text: str, most: int) -> str:
    return escape_text(text[:most]).encode("ascii", "backslashreplace").decode()


def _rule_for(question: Question) -> tuple[str, str]:
    """Return the rule for exactly ``question`` as text for a policy file; or "" and the reason."""
    from casemate.policy.reading import rule  # imports the parser of policy files

    if _is_cut(question.arguments):
        return "", "the record has only its start"
    about = _about(question)
    if about is None:
        return "", "only an approver can allow it"
    if len(json.dumps(about)) > _MOST_TEXT:
        return "", "it would be too long to read"
    head = f"  - allow: {question.kind}"
    text = "\n".join([head, *(f"    {name}: {_in_yaml(value)}" for name, value in about.items())])
    try:
        read = read_document(f"rules:\n{text}\n".encode(), "the rule", "yaml")
        covers = rule(read.values["rules"][0], "the rule").covers(question)
    except InvalidArgument as error:
        return "", _on_a_line(error.problem, _MOST_REASON)
    return (text, "") if covers else ("", "no rule covers it")


def _about(question: Question) -> dict[str, Any] | None:
    """Return the keys of a rule for exactly this question, other than its kind; None if no rule can express it."""
    given = question.arguments
    match question.kind:
        case "egress":
            return {"host": f"{given.get('host')}:{given.get('port')}"}
        case "package" if given.get("packages"):
            named = {"package": given["packages"][0]}
            return named if given["language"] == "python" else {**named, "language": given["language"]}
        case "tool":
            return {"server": question.server, "tool": question.tool, "arguments": _exact_values(given)}
        case "host" if not any("*" in str(word) for word in given.get("argv", "*")):  # it would be a wildcard
            return {"command": given["argv"]}
        case "server":
            return {"server": question.server, "arguments": _exact_values(given)}
        case kind if kind in _BY_ARGUMENTS:
            return {"arguments": _exact_values(given)}
    return None


def _exact_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {"exact": value} if isinstance(value, Mapping) else value for name, value in arguments.items()}


def _is_cut(value: Any) -> bool:
    match value:
        case Mapping():
            return value.keys() == _CUT or "…" in value or any(map(_is_cut, value.values()))
        case list():
            return any(map(_is_cut, value))
    return isinstance(value, str) and value.startswith("… ")


def _in_yaml(value: Any) -> str:
    """A JSON value as ASCII YAML, in which no text can pass for another."""
    text = json.dumps(value, ensure_ascii=False)  # JSON escapes can be surrogate pairs, which YAML does not have
    return re.sub("[^ -~]", lambda one: f"\\U{ord(one[0]):08x}", text)
