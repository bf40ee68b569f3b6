"""Rules that are proposed from the record: they are read as policy files are, and allow what was used and no more."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.unit.policy.asked import question
from tests.unit.policy.files import read

from casemate.model.approval import Kind, Question
from casemate.policy.proposal import Proposal, name_rule, propose_rules, uses_in
from casemate.policy.rules import Rule

HOSTILE = (
    "no", "1:30", "1e5", "~", "", "a\n- allow: egress", "# x", "\u202e\u2066", "\x00\x1b[2J", "😀\ud83d", '"\\', "*",
    "{any: true}", "<<", "&a", "!!python/object:os.system", "é" * 50, " ",
)  # fmt: skip


def decision(kind: Kind, word: str = "allowed", /, **about: Any) -> tuple[str, dict[str, Any]]:
    return "decision", {"kind": kind, "decision": word, "summary": "", **about}


def connection(host: str, port: int, word: str = "allowed", reason: str = "") -> tuple[str, dict[str, Any]]:
    return "crossing", {"host": host, "port": port, "decision": word, "reason": reason}


def allows(proposal: Proposal, asked: Question) -> bool:
    return any(rule.effect == "allow" and rule.covers(asked) for rule in rules_of(proposal))


def rules_of(proposal: Proposal) -> tuple[Rule, ...]:
    return rules_in(proposal.yaml)


def rules_in(text: str) -> tuple[Rule, ...]:
    rules = read(text).written
    assert rules is not None
    return rules.written


def uncommented(text: str) -> str:
    before, _, refused = text.partition("# Denied.")
    return before + "\n".join(line.removeprefix("#") for line in refused.splitlines()[1:])


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("", ""),
        ("{allow: tool, server: other, tool: note, arguments: any}", ""),
        ("{allow: tool, server: w, tool: note, arguments: {text: y}}", "p.yaml:2 allows w.note, but not with these"),
        ("{allow: tool, server: w, tool: read, arguments: any}", "p.yaml:2 allows w.read, but not this call"),
        ("{allow: tool, server: w, tool: note, arguments: any, uses: 1}", "p.yaml:2 allows w.note, but not this call"),
        ("{allow: tool, server: w, tool: wipe, arguments: any, namespace: other}", ""),
    ],
)
def test_a_call_that_nobody_can_allow_is_told_its_rule_and_the_nearest_one(written: str, named: str) -> None:
    asked = question("tool", text="x", server="w", tool="note")
    said = name_rule(rules_in(f"rules:\n  - {written}") if written else (), asked)
    assert (named in said, "p.yaml" in said) == (True, bool(named))
    rule = said.partition(" (p.yaml")[0]
    others = [asked, question("tool", text="y", server="w", tool="note")]
    assert [one.covers(call) for one in rules_in(f"rules: [{rule}]") for call in others] == [True, False]


def test_a_rule_that_is_too_long_for_a_denial_is_left_to_the_proposal() -> None:
    asked = question("tool", text="x" * 600, server="w", tool="note")
    assert name_rule((), asked) == "casemate audit propose RUN writes it"


def test_what_was_used_becomes_rules_and_what_was_refused_comments() -> None:
    proposal = propose_rules(
        [
            ("intent", {"code": "..."}),
            connection("pypi.org", 443),
            connection("pypi.org", 443),
            connection("bad.test", 80, "denied", "no rule\n- allow: tool"),
            connection("host.casemate.internal", 8080),
            decision("package", arguments={"packages": ["numpy==2.1.0", "left.pad"], "language": "python"}),
            decision("host", arguments={"argv": ["wc", "-l", "a b"], "program": "/bin/wc", "folder": "/"}),
            decision("tool", "denied", server="w", tool="note", arguments={"text": "x"}),
            ("outcome", {"status": "ok"}),
        ]
    )
    policy = read(proposal.yaml)
    assert [(str(host.host), host.port) for host in policy.allowed or ()] == [("pypi.org", 443)]
    assert policy.local_ports == (8080,)
    assert (proposal.rules, proposal.refused, proposal.unsaid) == (4, 2, ())
    assert allows(proposal, question("package", packages=["left-pad"], language="python"))
    assert allows(proposal, question("host", argv=["wc", "-l", "a b"], program="/bin/wc", folder="/"))
    assert not allows(proposal, question("host", argv=["wc", "-l", "b"], program="/bin/wc", folder="/"))
    assert not allows(proposal, question("egress", host="bad.test", port=80))
    assert not allows(proposal, question(server="w", tool="note", arguments={"text": "x"}))
    wider = Proposal(uncommented(proposal.yaml), 0, 0, ())
    assert allows(wider, question("egress", host="bad.test", port=80))
    assert allows(wider, question(server="w", tool="note", arguments={"text": "x"}))
    assert not allows(wider, question(server="w", tool="note", arguments={"text": "y"}))


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_rule_says_a_hostile_value_exactly_or_not_at_all(text: str) -> None:
    given: dict[str, Any] = {"a": text, "b": [text, {"c": text}], "d": {"like": text}, text or "e": 1.5}
    proposal = propose_rules([decision("tool", server="w", tool="note", arguments=given)])
    assert proposal.yaml.isascii()
    assert proposal.rules + len(proposal.unsaid) == 1
    asked = question(server="w", tool="note", arguments=given)
    assert allows(proposal, asked) is bool(proposal.rules)
    for other in ({**given, "a": text + "x"}, {**given, "d": {"like": "a"}}, {**given, "more": 1}):
        assert not allows(proposal, question(server="w", tool="note", arguments=other))


def test_random_calls_are_allowed_again_and_their_neighbours_are_not() -> None:
    dice = random.Random(1)
    for _ in range(300):
        given = {"".join(dice.choices("aé\n\"\\:{}#-'* 0\U0001f600", k=dice.randrange(1, 8))): dice.choice(HOSTILE)}
        proposal = propose_rules([decision("tool", server="w", tool="note", arguments=given)])
        name, value = next(iter(given.items()))
        assert allows(proposal, question(server="w", tool="note", arguments=given)) is bool(proposal.rules)
        assert not allows(proposal, question(server="w", tool="note", arguments={name: f"{value}."}))


@pytest.mark.parametrize(
    "row",
    [
        decision("host", arguments={"argv": ["wc", "*"]}),  # a wildcard in a rule
        decision("host", arguments={"argv": ["wc", "-l"], "secrets": ["KEY"]}),
        decision("plan", arguments={"program": {}, "calls": []}),
        decision("files", arguments={"change": "… 3 deeper"}),
        decision("tool", server="w", tool="note", arguments={"a": {"begins": "x", "bytes": 9999, "sha256": "0" * 64}}),
        decision("tool", server="w*", tool="note", arguments={}),
        decision("package", arguments={"packages": ["https://evil.test/a.whl"], "language": "python"}),
        connection("not a host", 443),
        connection("1.2.3.4", 443),
    ],
    ids=str,
)
def test_what_no_rule_can_say_is_told(row: tuple[str, dict[str, Any]]) -> None:
    proposal = propose_rules([row])
    assert (proposal.rules, proposal.refused, len(proposal.unsaid)) == (0, 0, 1)
    assert rules_of(proposal) == ()


def test_a_loop_makes_no_more_rules_than_anybody_reads() -> None:
    proposal = propose_rules(decision("tool", server="w", tool="note", arguments={"n": n}) for n in range(1000))
    assert proposal.rules == 200
    assert "more than 200 rules" in proposal.yaml
    assert len(proposal.unsaid) == 1


def test_a_use_says_who_has_decided_and_why() -> None:
    said = [
        {"by": "approver", "reason": ""},
        {"by": "approver", "reason": "once more"},
        {"by": "rule 1", "reason": "allowed by rule 1"},
        {"reason": "late"},
    ]
    rows = [decision("host", arguments={"argv": ["wc", str(n)]}, summary=str(n), **one) for n, one in enumerate(said)]
    assert [one.reason for one in uses_in(rows)] == ["approver", "approver: once more", "allowed by rule 1", "late"]


def test_uses_are_counted_by_what_was_decided() -> None:
    rows = [connection("a.test", 443), connection("a.test", 443), connection("a.test", 443, "denied", "late\u202e")]
    uses = [(one.name, one.decision, one.reason, one.times) for one in uses_in(rows)]
    assert uses == [("a.test:443", "allowed", "", 2), ("a.test:443", "denied", "late\\u202e", 1)]
