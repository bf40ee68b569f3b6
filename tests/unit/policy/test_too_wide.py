"""A rule that allows and is too wide to be meant is refused when it is written, and says what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from casemate.errors import InvalidArgument
from casemate.policy.reading import rule

WIDE = ["*", "**", "* *", "?*", "[!x]*", "", " "]
READ = {"allow": "tool", "server": "files", "tool": "read"}


def refusal(written: dict[str, Any]) -> str:
    with pytest.raises(InvalidArgument) as raised:
        rule(written, "p.yaml:3")
    assert raised.value.message.startswith("policy: p.yaml:3: ")
    return raised.value.message.removeprefix("policy: p.yaml:3: ")


@pytest.mark.parametrize(
    "text", [*WIDE, "docker *", "* run", "git add *", "python **", "find . -name *", "/usr/bin/env *"]
)
@pytest.mark.parametrize("as_words", [False, True], ids=["text", "words"])
def test_ht_13_a_command_that_allows_anything_is_refused(text: str, as_words: bool) -> None:
    assert refusal({"allow": "host", "command": text.split(" ") if as_words else text}).startswith("command: ")


@pytest.mark.parametrize("program", [
    "ls", "tar", "find", "awk", "sed", "env", "xargs", "ssh", "rsync", "man", "less", "vim", "python", "python3",
    "python3.11", "/usr/bin/python3.11", "npm", "make", "docker", "sudo", "git", "bash", "Bash", "perl5.36",
    "gcc-12/sh",
    "busybox", "node-22", "pip3"])  # fmt: skip
def test_ht_13_ht_06_a_program_that_runs_programs_takes_no_wildcard(program: str) -> None:
    assert "too wide" in refusal({"allow": "host", "command": [program, "x", "*"]})
    assert rule({"allow": "host", "command": [program, "x", "-y"]}, "p").command is not None
    assert rule({"deny": "host", "command": [program, "**"]}, "p").command is not None


@pytest.mark.parametrize(
    "words", [["wc", "a*"], ["wc", "**", "a"], ["wc", "***"], ["-wc"], ["a\nb"], [5], "wc; rm", "wc 'a'", 5]
)
def test_a_command_is_whole_words(words: object) -> None:
    assert refusal({"allow": "host", "command": words}).startswith("command: ")


@pytest.mark.parametrize("text", WIDE)
@pytest.mark.parametrize("form", ["like", "path"])
def test_ht_13_a_pattern_that_allows_anything_is_refused(form: str, text: str) -> None:
    assert refusal({**READ, "arguments": {"path": {form: text}}}).startswith("arguments: path: ")


@pytest.mark.parametrize(
    "path", ["/*", "/**", "/*/a", "**/a", "*/a", "/", "/a//b", "/a/../b", "a/./b", "/a/b**", "/e\u0301", "/a/"]
)
def test_a_path_begins_with_a_name_and_is_canonical(path: str) -> None:
    assert refusal({**READ, "arguments": {"path": {"path": path}}}).startswith("arguments: path: ")


@pytest.mark.parametrize("name", [*WIDE, "files*", " files", "files ", "a\0b", "fi\u200bles", 5, None, ["files"]])
@pytest.mark.parametrize("key", ["server", "tool"])
def test_a_server_and_a_tool_are_exact_names(key: str, name: object) -> None:
    assert refusal({**READ, "arguments": "any", key: name}).startswith(f"{key}: ")


@pytest.mark.parametrize("host", [
    "*", "http://x", "x/y", "user@x.test", "x.test:99999", "127.0.0.1", "[::1]", "10.0.0.0/8", "169.254.169.254", "",
    " ", "x.test:0", "x.test:", "*x.test", "a.*.test", 5])  # fmt: skip
def test_eg_04_what_is_no_host_is_refused(host: object) -> None:
    assert refusal({"allow": "egress", "host": host}).startswith("host: ")


@pytest.mark.parametrize("addresses", [
    [], "10.0.0.0/8", ["0.0.0.0/0"], ["10.0.0.0/7"], ["127.0.0.1"], ["127.0.0.0/8"], ["169.254.169.254"],
    ["192.0.0.192"], ["198.18.0.0/15"], ["224.0.0.0/4"], ["fd00::/8"], ["::ffff:10.0.0.1"], ["10.0.0.1/8"],
    ["93.184.216.34"], ["10.0.0.0/8", "0.0.0.0/0"], ["10.1"], [167772161], [None], ["10.0.0.1"] * 33, {"a": 1}, None,
    ["x" * 10_000]])  # fmt: skip
def test_eg_05_no_rule_names_other_than_private_networks_of_a_host(addresses: object) -> None:
    said = refusal({"allow": "egress", "host": "db.test.example", "addresses": addresses})
    assert said.startswith("addresses: ")
    assert len(said) < 400


@pytest.mark.parametrize("more", [
    {"deny": "egress"}, {"ask": "egress"}, {"uses": 3}, {"lasts": 60}, {"expires": "2030-01-01T00:00:00Z"},
    {"namespace": "team"}])  # fmt: skip
def test_only_a_rule_that_always_allows_a_host_says_where_it_is(more: dict[str, Any]) -> None:
    written = {"host": "db.test.example", "addresses": ["10.0.0.0/8"], **more}
    if not {"deny", "ask"} & more.keys():
        written["allow"] = "egress"
    assert "addresses" in refusal(written)
    del written["addresses"]
    assert rule(written, "p").host is not None


@pytest.mark.parametrize("written", [
    {"allow": "tool"}, {"allow": "tool", "server": "files", "arguments": "any"}, {"allow": "tool", "tool": "read"},
    READ, {"allow": "egress"}, {"allow": "package"}, {"allow": "host"}, {"allow": "files"}, {"allow": "server"},
    {"allow": "server", "server": "x"}])  # fmt: skip
def test_a_rule_that_allows_says_what(written: dict[str, Any]) -> None:
    assert refusal(written).startswith("too wide: ")


@pytest.mark.parametrize("kind", ["files", "shell", "server"])
def test_any_is_too_wide_for_what_changes_the_machine(kind: str) -> None:
    server = {"server": "x"} if kind == "server" else {}
    assert "too wide" in refusal({"allow": kind, "arguments": "any", **server})


@pytest.mark.parametrize(("written", "problem"), [
    ({}, "one of allow, deny and ask"), ({"allow": "tool", "deny": "tool"}, "one of"),
    ({"allow": "everything"}, "choose"),
    ({"allow": ["tool"]}, "choose"),
    ({**READ, "arguments": "any", "hosts": "x"}, "'hosts' is not for rules of kind tool"),
    ({"allow": "egress", "host": "x.test", "tool": "y"}, "'tool' is not"), ({**READ, "arguments": None}, "arguments: "),
    ({**READ, "arguments": []}, "arguments: "), ({**READ, "arguments": {"a": {"likes": "x"}}}, "arguments: a: "),
    ({**READ, "arguments": {"a": {"like": "x", "path": "y"}}}, "arguments: a: "), ({"allow": "plan"}, "only a person"),
    ({**READ, "arguments": {"a": {"between": [2, 1]}}}, "arguments: a: "), ({"allow": "elicitation"}, "only a person"),
    ({**READ, "arguments": {"a": {"any": "yes"}}}, "arguments: a: "), ({"deny": "egress"}, "network: none"),
    ({**READ, "arguments": {"a": {"one_of": []}}}, "arguments: a: "), ({"deny": "tool", "uses": 3}, "uses: only"),
    ({**READ, "arguments": {"a": float("nan")}}, "arguments: a: "), ({"ask": "tool", "expires": "x"}, "expires: only"),
    ({**READ, "arguments": "any", "uses": 0}, "uses: "), ({**READ, "arguments": "any", "uses": True}, "uses: "),
    ({**READ, "arguments": "any", "lasts": "soon"}, "lasts: "), ({**READ, "arguments": "any", "lasts": -1}, "lasts: "),
    ({**READ, "arguments": "any", "expires": "2026-01-01"}, "expires: "),
    ({**READ, "arguments": "any", "expires": 5}, "exp"),
    ({**READ, "arguments": "any", "schema": "abc"}, "schema: "),
    ({"allow": "package", "package": "numpy>=1"}, "package: "),
    ({"allow": "package", "package": "*"}, "package: "), ({"allow": "package", "package": "types-*"}, "package: "),
    ({"allow": "package", "package": "x", "language": "ruby"}, "package: language"),
    ({**READ, "arguments": "any", "reason": 5}, "reason: ")])  # fmt: skip
def test_what_is_wrong_with_a_rule_is_named(written: dict[str, Any], problem: str) -> None:
    assert problem in refusal(written)
