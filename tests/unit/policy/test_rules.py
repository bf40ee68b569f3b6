"""Rules decide: narrowly where they allow, widely where they deny, within their budgets and nobody else's session."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.policy.asked import book, effect, question

from casemate.errors import InvalidArgument
from casemate.model.approval import Decision
from casemate.policy.reading import rule
from casemate.policy.rules import DEFAULTS, Rulebook, Rules, rule_from

READ: dict[str, Any] = {"allow": "tool", "server": "files", "tool": "read"}
PROJECT = {**READ, "arguments": {"path": {"path": "/project/**"}}}


def said(rules: list[dict[str, Any]], *arguments: Any, **about: Any) -> str:
    return effect(book(*rules).verdict(question(*arguments, **about), now=0.0))


@pytest.mark.parametrize("path", [
    "/project/../etc/passwd", "//etc/passwd", "/PROJECT/a", "/project/*", "/project/a\0/etc", "/project", "/project/",
    "/project//a", "/project/./a", "/project/a/..", "project/a", "/projects/a", "/project/\u202ea", "/project/a\n",
    "/project/\u200ba", "/project/a\\..\\b", "/project/.env", "/project/a/.git/config", "/project/e\u0301", "",
    "/project/$HOME", "/project/~root", 5, None, ["/project/a"], {"path": "/project/a"}, True])  # fmt: skip
def test_ap_15_a_rule_for_a_folder_allows_nothing_that_is_not_plainly_in_it(path: object) -> None:
    assert said([PROJECT], path=path) == "ask"


@pytest.mark.parametrize("path", ["/project/a", "/project/a/b.txt", "/project/é", "/project/..a".replace("..", "a.")])
def test_a_rule_for_a_folder_allows_what_is_in_it(path: str) -> None:
    assert said([PROJECT], path=path) == "allow"


def test_ap_15_a_link_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "plain").write_text("")
    (tmp_path / "project" / "link").symlink_to("/etc")
    folder = os.path.realpath(tmp_path / "project")
    rules = [{**READ, "arguments": {"path": {"path": f"{folder}/**"}}}]
    asked = [os.path.realpath(f"{folder}/{name}") for name in ("plain", "link/passwd")]
    assert [said(rules, path=path) for path in asked] == ["allow", "ask"]


@pytest.mark.parametrize("path", [
    "/project/../etc/passwd", "/etc/passwd", "//etc/passwd", "/etc", "/etc/.pwd.lock", "/etc/a\0", 5,
    "/etc/a\\b"])  # fmt: skip
def test_a_rule_that_denies_a_folder_also_denies_what_cannot_be_told_from_it(path: object) -> None:
    denial = {"deny": "tool", "server": "files", "arguments": {"path": {"path": "/etc/**"}}}
    anything = {**READ, "arguments": "any"}
    assert said([anything, denial], path=path) == "deny"
    assert said([anything, denial], path="/project/a", also="this") == "allow"


@pytest.mark.parametrize("other", [
    {"tool": "X"}, {"tool": "read "}, {"tool": "READ"}, {"tool": "re\u0430d"}, {"server": "Files"},
    {"server": "files2"}, {"schema": "6" * 64}])  # fmt: skip
def test_ap_16_a_rule_is_for_one_tool_of_one_server_as_it_was_defined(other: dict[str, str]) -> None:
    rules = book({**READ, "arguments": "any", "schema": "5" * 64})
    assert effect(rules.verdict(question(), 0)) == "allow"
    assert effect(rules.verdict(question(**other), 0)) == "ask"


def test_ap_16_a_rule_without_a_definition_is_for_the_one_that_it_first_allowed() -> None:
    rules = book({**READ, "arguments": "any"})
    first, changed = question(schema="a" * 64), question(schema="b" * 64)
    assert [effect(rules.verdict(one, 0)) for one in (first, changed, first)] == ["allow", "ask", "allow"]


def test_ap_16_a_rule_that_names_the_changed_definition_allows_it_beside_one_that_names_none() -> None:
    rules = book({**READ, "arguments": "any"}, {**READ, "arguments": "any", "schema": "b" * 64})
    first, changed, another = (question(schema=one * 64) for one in "abc")
    assert [effect(rules.verdict(one, 0)) for one in (first, changed, another)] == ["allow", "allow", "ask"]


def test_ap_16_an_answer_is_for_the_tool_as_it_was_defined() -> None:
    rules = book()
    rules.remember(Decision(allow=True, scope="session"), question(path="a"), 0)
    assert effect(rules.verdict(question(path="a"), 1)) == "allow"
    assert effect(rules.verdict(question(path="a", schema="6" * 64), 1)) == "ask"


@pytest.mark.parametrize(("rules", "expected"), [
    (["allow"], "allow"), (["allow", "ask"], "ask"), (["ask", "allow"], "ask"), (["deny", "allow"], "deny"),
    (["allow", "deny", "ask"], "deny"), ([], "ask")])  # fmt: skip
def test_deny_wins_over_ask_and_ask_over_allow_in_whatever_order(rules: list[str], expected: str) -> None:
    about = {"server": "files", "tool": "read", "arguments": "any"}
    assert said([{one: "tool", **about} for one in rules]) == expected


@pytest.mark.parametrize(("written", "given_", "expected"), [
    ("any", {}, "allow"), ("any", {"a": 1}, "allow"), ({}, {}, "allow"), ({}, {"a": 1}, "ask"),
    ({"a": 1}, {"a": 1}, "allow"), ({"a": 1}, {"a": 1.0}, "allow"), ({"a": 1}, {"a": True}, "ask"),
    ({"a": 1}, {"a": "1"}, "ask"), ({"a": 1}, {}, "ask"), ({"a": 1}, {"a": 1, "b": 2}, "ask"),
    ({"a": None}, {}, "ask"), ({"a": [1, {"exact": 2}]}, {"a": [1, {"exact": 2}]}, "allow"),
    ({"a": {"exact": {"like": "x"}}}, {"a": {"like": "x"}}, "allow"), ({"a": {"any": True}}, {}, "allow"),
    ({"a": {"one_of": [1, "b"]}}, {"a": "b"}, "allow"), ({"a": {"one_of": [1, "b"]}}, {"a": "c"}, "ask"),
    ({"a": {"between": [1, 5]}}, {"a": 5}, "allow"), ({"a": {"between": [1, 5]}}, {"a": 5.1}, "ask"),
    ({"a": {"between": [0, 5]}}, {"a": True}, "ask"), ({"a": {"like": "issue-*"}}, {"a": "issue-12"}, "allow"),
    ({"a": {"like": "issue-*"}}, {"a": "issue-"}, "ask"), ({"a": {"like": "issue-*"}}, {"a": "issue-1/../x"}, "ask"),
    ({"a": {"like": "issue-*"}}, {"a": "issue-1\n"}, "ask"), ({"a": {"like": "v*"}}, {"a": "v1..2"}, "ask"),
    ({"a": {"like": "a.c"}}, {"a": "abc"}, "ask"), ({"a": {"path": "src/*.py"}}, {"a": "src/a.py"}, "allow"),
    ({"a": {"path": "src/*.py"}}, {"a": "src/a/b.py"}, "ask"), ({"a": {"path": "/a/**/z"}}, {"a": "/a/z"}, "allow"),
    ({"a": {"path": "/a/**/z"}}, {"a": "/a/b/c/z"}, "allow"), ({"a": {"path": "/a/**/z"}}, {"a": "/a/b/c"}, "ask"),
    ({"a": {"path": "/a/.*"}}, {"a": "/a/.env"}, "allow")])  # fmt: skip
def test_no_arguments_given_is_not_any_arguments(written: Any, given_: dict[str, Any], expected: str) -> None:
    assert said([{**READ, "arguments": written}], arguments=given_) == expected


@given(st.text(max_size=30))
def test_a_wildcard_never_allows_a_path_that_leaves_its_folder(rest: str) -> None:
    path = f"/project/{rest}"
    if said([PROJECT], path=path) == "allow":
        assert os.path.normpath(path) == path
        assert "\0" not in path


@pytest.mark.parametrize(
    "rules", [[{"allow": "egress", "host": "a.test"}], [{"allow": "egress", "host": "a.test", "uses": 9}]]
)
def test_beyond_a_narrower_list_no_rule_allows_a_host_and_an_answer_does(rules: list[dict[str, Any]]) -> None:
    rulebook, inside = book(*rules), question("egress", host="a.test", port=443)
    beyond = question("egress", host="a.test", port=443, beyond=("b.test",))
    assert effect(rulebook.verdict(inside, now=0.0)) == "allow"
    assert effect(rulebook.verdict(beyond, now=0.0)) == "ask"
    rulebook.remember(Decision(True, scope="run"), beyond, 0.0)
    assert effect(rulebook.verdict(beyond, now=0.0)) == "allow"
    assert (
        said([*rules, {"deny": "egress", "host": "a.test"}], "egress", host="a.test", port=443, beyond=("b.test",))
        == "deny"
    )


@pytest.mark.parametrize(
    ("answered", "asked", "expected"),
    [
        ((), (), "allow"), ((), ("b.test",), "ask"), (("b.test",), ("b.test",), "allow"),
        (("b.test",), ("c.test",), "ask"), (("b.test",), ("b.test", "c.test"), "ask"), (("",), ("",), "allow"),
    ],
)  # fmt: skip
def test_an_answer_lifts_the_lists_that_its_question_was_beyond_and_no_others(
    answered: tuple[str, ...], asked: tuple[str, ...], expected: str
) -> None:
    rules = book()
    about = {"host": "a.test", "port": 443, "session": None}
    rules.promise(Decision(True, scope="session"), question("egress", beyond=answered, **about), 0)
    assert effect(rules.verdict(question("egress", beyond=asked, run="r2", **about), 1)) == expected


def test_a_budget_is_spent_and_then_a_person_is_asked() -> None:
    rules = book({**READ, "arguments": "any", "uses": 2})
    assert [effect(rules.verdict(question(), 0)) for _ in range(4)] == ["allow", "allow", "ask", "ask"]


def test_twenty_times_for_ten_minutes_ends_with_whichever_is_first() -> None:
    rules = book({**READ, "arguments": "any", "uses": 20, "lasts": "10m"})
    assert effect(rules.verdict(question(), 599.9)) == "allow"
    assert effect(rules.verdict(question(), 600.0)) == "ask"


def test_a_rule_that_has_expired_allows_nothing() -> None:
    written = rule({**READ, "arguments": "any", "expires": "1970-01-01T01:00:00Z"}, "p")
    time = [3599.9]
    rules = Rulebook(Rules((written,)), 0, lambda: time[0])
    before = rules.judge(question(), 0)[0]
    time[0] = 3600.0
    assert (before, rules.judge(question(), 0)[0]) == ("allow", "ask")


def test_judging_spends_nothing() -> None:
    rules = book({**READ, "arguments": "any", "uses": 1})
    assert [rules.judge(question(), 0)[0] for _ in range(3)] == ["allow"] * 3


def test_a_verdict_names_the_rule_and_where_it_is_written() -> None:
    verdict = book({"deny": "tool", "tool": "read", "reason": "not this one"}).verdict(question(), 0)
    assert verdict is not None
    assert (verdict.allow, verdict.by, verdict.reason) == (False, "p.yaml:1", "not this one")


@pytest.mark.parametrize("kind", DEFAULTS)
def test_without_a_rule_everything_asks_but_what_stays_in_the_cell(kind: Any) -> None:
    assert said([], kind) == ("allow" if kind in ("shell", "process") else "ask")


def test_a_default_may_be_no() -> None:
    rules = Rulebook(Rules(defaults={"tool": ("deny", "p.yaml:9")}), 0, lambda: 0)
    verdict = rules.verdict(question(), 0)
    assert verdict is not None
    assert (verdict.allow, verdict.by) == (False, "p.yaml:9")


@pytest.mark.parametrize(("written", "expected"), [([], False), ([{"ask": "shell"}], True), ([{"ask": "tool"}], False)])
def test_whoever_is_never_refused_need_not_ask(written: list[dict[str, Any]], expected: bool) -> None:
    assert book(*written).asks("shell") is expected


# -- hosts


@pytest.mark.parametrize(("host", "port", "expected"), [
    ("good.test", 443, "allow"), ("GOOD.test.", 80, "allow"), ("good.test", 22, "ask"), ("evilgood.test", 443, "ask"),
    ("good.test.evil.test", 443, "ask"), ("good\uff0etest", 443, "ask"), ("good.test\0.evil.test", 443, "ask"),
    ("g\u043eod.test", 443, "ask"), ("good.test", True, "ask"), ("good.test", "443", "ask"), (None, 443, "ask"),
    ("127.0.0.1", 443, "ask"), ("no.test", 22, "deny"), ("NO.test", 443, "deny"), ("no.test.", 1, "deny")])  # fmt: skip
def test_eg_02_eg_07_a_rule_for_a_host_is_for_exactly_that_name_at_the_usual_ports(
    host: object, port: object, expected: str
) -> None:
    rules = [{"allow": "egress", "host": "good.test"}, {"deny": "egress", "host": "no.test"}]
    if (
        host is None
        or not isinstance(port, int)
        or isinstance(port, bool)
        or not str(host).isascii()
        or "\0" in str(host)
    ):
        expected = "deny"  # what is no host at all cannot be told from the denied one
    if host == "127.0.0.1":
        expected = "deny"
    assert said(rules, "egress", host=host, port=port) == expected


@pytest.mark.parametrize(("host", "expected"), [
    ("good.test", "ask"), ("a.b.good.test", "allow"), (".good.test", "ask"), ("agood.test", "ask"),
    ("*.good.test", "ask")])  # fmt: skip
def test_eg_03_a_wildcard_is_for_whole_labels(host: str, expected: str) -> None:
    assert said([{"allow": "egress", "host": "*.good.test"}], "egress", host=host, port=443) == expected


def test_eg_09_an_answer_for_one_session_or_run_is_for_no_other() -> None:
    about: dict[str, Any] = {"host": "api.good.test", "port": 443}
    rules = book()
    rules.remember(Decision(allow=True, scope="session"), question("egress", **about), 0)
    rules.remember(Decision(allow=True, scope="run"), question("egress", session=None, run="r7", **about), 0)
    asked = {
        "the session again": question("egress", run="r2", **about),
        "another session": question("egress", session="s2", **about),
        "another namespace": question("egress", namespace="n", **about),
        "another port": question("egress", **{**about, "port": 22}),
        "another host": question("egress", **{**about, "host": "api2.good.test"}),
        "the run": question("egress", session=None, run="r7", **about),
        "another run": question("egress", session=None, run="r8", **about),
    }
    said_ = {name: effect(rules.verdict(one, 1)) for name, one in asked.items()}
    assert [name for name, one in said_.items() if one == "allow"] == ["the session again", "the run"]
    rules.forget("default", "s1", "")
    rules.forget("default", None, "r7")
    assert {effect(rules.verdict(one, 1)) for one in asked.values()} == {"ask"}
    assert rules.answers == ()


# -- answers


@pytest.mark.parametrize("change", [{"path": "b"}, {"path": "a", "more": 1}, {"tool": "write"}, {"server": "other"}])
def test_an_answer_is_for_exactly_the_same_question(change: dict[str, Any]) -> None:
    rules = book()
    rules.remember(Decision(allow=True, scope="session"), question(path="a"), 0)
    assert effect(rules.verdict(question(**{"path": "a", **change}), 0)) == "ask"


def test_the_rule_that_an_answer_makes_is_about_no_other_question() -> None:
    made = rule_from(Decision(allow=True, scope="session"), question(path="a"), 0)
    assert made is not None
    assert [made.covers(question(path=path)) for path in ("a", "b")] == [True, False]


def test_the_crossing_that_was_answered_is_the_first_of_its_uses() -> None:
    rules = book()
    rules.remember(Decision(allow=True, scope="session", uses=3), question(), 0)
    assert [effect(rules.verdict(question(), 0)) for _ in range(3)] == ["allow", "allow", "ask"]


def test_an_answer_expires() -> None:
    rules = book()
    rules.remember(Decision(allow=True, scope="session", expires=10), question(), 100)
    assert [effect(rules.verdict(question(), now)) for now in (109.9, 110)] == ["allow", "ask"]


def test_an_answer_is_what_a_rule_asked_for_but_never_over_a_denial() -> None:
    rules = book({"ask": "tool"})
    rules.remember(Decision(allow=True, scope="run"), question(), 0)
    assert effect(rules.verdict(question(), 0)) == "allow"
    denying = book({"deny": "tool", "tool": "read"})
    denying.remember(Decision(allow=True, scope="run"), question(), 0)
    assert effect(denying.verdict(question(), 0)) == "deny"


def test_a_no_for_the_session_is_remembered_as_well() -> None:
    rules = book({**READ, "arguments": "any"})
    rules.remember(Decision(allow=False, scope="session", reason="no"), question(path="a"), 0, by="the callback")
    verdict = rules.verdict(question(path="a"), 0)
    assert verdict is not None
    assert (verdict.allow, verdict.by, verdict.reason) == (False, "the callback", "no")
    assert effect(rules.verdict(question(path="b"), 0)) == "allow"


def test_an_answer_that_holds_once_makes_no_rule() -> None:
    assert rule_from(Decision(allow=True), question(), 0) is None


@pytest.mark.parametrize("allow", [1, "true", "yes", [True], None])
def test_only_true_allows(allow: Any) -> None:
    made = rule_from(Decision(allow=allow, scope="run"), question(), 0)
    assert made is not None
    assert made.effect == "deny"


@pytest.mark.parametrize("wrong", [
    {"scope": "ever"}, {"uses": 0}, {"uses": -1}, {"uses": True}, {"uses": 1.5}, {"expires": 0}, {"expires": -1},
    {"expires": float("nan")}, {"expires": float("inf")}, {"expires": True}])  # fmt: skip
def test_an_answer_with_a_budget_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        rule_from(Decision(**{"allow": True, "scope": "run", **wrong}), question(), 0)


def test_what_is_remembered_is_bounded() -> None:
    rules = book()
    for n in range(10_050):
        rules.remember(Decision(allow=True, scope="run"), question(n=n), 0)
    assert len(rules.answers) == 10_000
    assert [effect(rules.verdict(question(n=n), 0)) for n in (0, 49, 50, 10_049)] == ["ask", "ask", "allow", "allow"]


# -- packages and commands


@pytest.mark.parametrize(("packages", "expected"), [
    (["numpy"], "allow"), (["NumPy"], "allow"), (["numpy==2.1.0"], "allow"), (["pandas==2.2.3"], "allow"),
    (["pandas"], "ask"), (["pandas==2.2.4"], "ask"), (["numpy", "pandas==2.2.3"], "allow"), (["numpy", "x"], "ask"),
    (["numpy", "bad"], "deny"), (["numpy[extra]"], "deny"), (["numpy @ https://x.test/a.whl"], "deny"),
    (["numpy", "--index-url=https://x.test"], "deny"), (["./numpy"], "deny"), ([], "deny"), ("numpy", "deny"),
    (["numpy>=2"], "deny")])  # fmt: skip
def test_each_package_needs_a_rule_and_what_is_no_plain_name_counts_as_the_denied_one(
    packages: object, expected: str
) -> None:
    rules = [
        {"allow": "package", "package": "numpy"},
        {"allow": "package", "package": "pandas==2.2.3"},
        {"deny": "package", "package": "bad"},
    ]
    assert said(rules, "package", language="python", packages=packages) == expected
    assert said(rules[:2], "package", language="python", packages=packages) == expected.replace("deny", "ask")


def test_a_package_is_of_its_own_language() -> None:
    rules = [{"allow": "package", "package": "left-pad", "language": "node"}]
    assert said(rules, "package", language="node", packages=["left-pad"]) == "allow"
    assert said(rules, "package", language="python", packages=["left-pad"]) == "ask"


def test_a_budget_counts_each_package() -> None:
    rules = book({"allow": "package", "package": "numpy", "uses": 1})
    twice = question("package", language="python", packages=["numpy", "numpy==2.1.0"])
    assert effect(rules.verdict(twice, 0)) == "ask"


@pytest.mark.parametrize(("argv", "expected"), [
    (["wc", "-l", "a.txt"], "allow"), (["wc", "-l", "-x"], "ask"), (["wc", "-l"], "ask"),
    (["wc", "-l", "a", "b"], "ask"),
    (["wc", "-l", "../a"], "ask"), (["wc", "-l", "a/../../b"], "ask"), (["wc", "-l", "a\nb"], "ask"),
    (["wc", "-l a"], "ask"), (["/tmp/wc", "-l", "a"], "ask"), (["wc", "-l", "a; rm b"], "allow"),
    (["WC", "-l", "a"], "ask"),
    ("wc -l a", "ask"), ([], "ask"), (None, "ask"), (["wc", "-l", 5], "ask"), (["wc", "-l", ""], "ask")])  # fmt: skip
def test_a_command_is_matched_word_by_word(argv: object, expected: str) -> None:
    assert said([{"allow": "host", "command": ["wc", "-l", "*"]}], "host", argv=argv) == expected


@pytest.mark.parametrize(
    "argv", [["docker", "run", "-v", "/:/x"], ["docker"], "docker run", ["docker", "--x", "../y\n"]]
)
def test_a_denied_command_is_denied_whatever_follows(argv: object) -> None:
    assert said([{"deny": "host", "command": "docker **"}], "host", argv=argv) == "deny"


@pytest.mark.parametrize("wrong", [{"like": "*"}, {"path": "/**"}, "any"])
def test_a_rule_that_denies_may_be_as_wide_as_it_likes(wrong: Any) -> None:
    arguments = wrong if wrong == "any" else {"path": wrong}
    assert rule({"deny": "tool", "server": "files", "arguments": arguments}, "p").effect == "deny"


def test_what_an_agent_asked_ahead_is_allowed_to_that_agent_alone() -> None:
    rules, asked = book(), question("egress", host="a.test", port=443, session=None)
    rules.promise(Decision(True, scope="session"), replace(asked, agent="agent:one"), 0)
    effects = [effect(rules.verdict(replace(asked, agent=agent), 1)) for agent in ("agent:one", "agent:two", "")]
    assert effects == ["allow", "ask", "ask"]
