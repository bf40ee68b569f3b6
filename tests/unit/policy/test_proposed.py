"""The rule that a request would become: it decides exactly that, and a policy file takes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.policy.asked import effect as effect_of

from casemate.model.approval import Kind, Question
from casemate.policy.document import read_document
from casemate.policy.proposal import rules_for
from casemate.policy.reading import policy_of
from casemate.policy.rules import Rulebook

TOOL = {"server": "files", "tool": "read"}
# What is asked, and something that is nearly the same.
ASKED: list[tuple[Kind, dict[str, Any], dict[str, Any], dict[str, str]]] = [
    ("egress", {"host": "example.org", "port": 443}, {"host": "www.example.org", "port": 443}, {}),
    ("egress", {"host": "db.example.org", "port": 5432}, {"host": "db.example.org", "port": 443}, {}),
    ("tool", {"path": "/a/*", "deep": {"path": "x"}, "n": 1}, {"path": "/a/b", "deep": {"path": "x"}, "n": 1}, TOOL),
    ("tool", {"no": "no", "list": [1, None]}, {"no": False, "list": [1, None]}, TOOL),
    ("tool", {}, {"x": 1}, TOOL),
    ("shell", {"command": "echo '\u202e' no: 1:30 #\n*"}, {"command": "echo '' no: 1:30 #\n*"}, {}),
    ("process", {"command": ["fc-list", "1:30"]}, {"command": ["fc-list", 90]}, {}),
    ("host", {"argv": ["wc", "-l", "a b"], "folder": "/"}, {"argv": ["wc", "-l", "a", "b"], "folder": "/"}, {}),
    (
        "package",
        {"packages": ["numpy==2.1.0"], "language": "python"},
        {"packages": ["numpy"], "language": "python"},
        {},
    ),
    (
        "package",
        {"packages": ["a@1.3.0", "b@3.0.1"], "language": "node"},
        {"packages": ["c@1"], "language": "node"},
        {},
    ),
    ("secret", {"name": "API"}, {"name": "OTHER"}, {}),
    ("server", {"command": ["python", "-m", "server"]}, {"command": ["python", "-m", "other"]}, {"server": "files"}),
]


def decided(text: str, question: Question) -> str:
    """What a policy file of this text says of a question, where whatever it does not name asks."""
    whole = f"{text}\ndefaults: {{shell: ask, process: ask}}\n"
    rules = policy_of(read_document(whole.encode(), "p.yaml", "yaml"), "/", "/").rules
    return effect_of(Rulebook(rules, began=0.0, today=lambda: 0.0).verdict(question, 0.0))


@pytest.mark.parametrize(("kind", "arguments", "other", "about"), ASKED)
def test_it_allows_what_was_asked_and_nothing_else(
    kind: Kind, arguments: dict[str, Any], other: dict[str, Any], about: dict[str, str]
) -> None:
    question = Question(kind, "for a test", arguments, **about)  # type: ignore[arg-type]  # about: texts alone
    text = rules_for(question)
    assert text.isascii()
    assert decided(text, question) == "allow"
    assert decided(text, replace(question, arguments=other)) == "ask"


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("plan", {"program": "x", "calls": []}),
        ("elicitation", {"message": "x"}),
        ("host", {"argv": ["wc", "*"], "folder": "/"}),
        ("host", {"argv": [], "folder": "/"}),
        ("egress", {"host": "not a name", "port": 443}),
        ("egress", {"host": "10.0.0.1", "port": 443}),
        ("package", {"packages": ["numpy @ https://evil.test/x"], "language": "python"}),
        ("package", {"packages": [], "language": "python"}),
        ("tool", {"text": "x" * 30_000}),
    ],
)
def test_there_is_none_where_no_rule_could_say_it(kind: Kind, arguments: dict[str, Any]) -> None:
    assert rules_for(Question(kind, "for a test", arguments, server="s", tool="t")) == ""
