"""Policy files: read strictly, and every value and every mistake with its line."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.policy.asked import effect, question
from tests.unit.policy.files import read, read_json, refusal

from casemate.errors import InvalidArgument
from casemate.policy.document import PolicyDocument, read_document
from casemate.policy.keys import SANDBOX_KINDS
from casemate.policy.reading import policy_of
from casemate.policy.rules import Rulebook

YAML = """\
# what our agents may do
network: listed
allowed_domains:
  - pypi.org
  - "*.pythonhosted.org"
denied_domains: [bad.pythonhosted.org]
allow_local: [8080]
limits:
  memory: 1GiB
  wall: 120
workspace: work
rules:
  - allow: tool
    server: files
    tool: read
    arguments: {path: {path: /project/**}}
    uses: 20
    lasts: 10m
  - deny: tool
    tool: drop_table
defaults:
  package: deny
"""
TOML = """\
# what our agents may do
network = "listed"
allowed_domains = [
  "pypi.org",
  "*.pythonhosted.org",
]
denied_domains = ["bad.pythonhosted.org"]
allow_local = [8080]
workspace = "work"

[limits]
memory = "1GiB"
wall = 120

[[rules]]
allow = "tool"
server = "files"
tool = "read"
uses = 20
lasts = "10m"
[rules.arguments]
path.path = "/project/**"

[[rules]]
deny = "tool"
tool = "drop_table"

[defaults]
package = "deny"
"""


@pytest.mark.parametrize(("text", "form"), [(YAML, "yaml"), (TOML, "toml")])
def test_the_same_policy_in_each_format(text: str, form: str) -> None:
    policy = read(text, form)
    assert policy.network == "listed"
    assert [str(one) for one in policy.hosts.allowed] == ["pypi.org", "*.pythonhosted.org"]
    assert not policy.hosts.allows("bad.pythonhosted.org", 443)
    assert policy.hosts.allows("files.pythonhosted.org", 443)
    assert policy.local_ports == (8080,)
    assert dict(policy.limits) == {"memory": 1 << 30, "wall": 120.0}
    assert policy.workspace == "/here/work"
    rules = Rulebook(policy.rules, 0, lambda: 0)
    assert effect(rules.verdict(question(path="/project/a"), 0)) == "allow"
    assert effect(rules.verdict(question(path="/project/a"), 600)) == "ask"
    assert effect(rules.verdict(question(tool="drop_table"), 0)) == "deny"
    assert effect(rules.verdict(question("package", packages=["x"]), 0)) == "deny"


@pytest.mark.parametrize(("text", "form", "lines"), [
    (YAML, "yaml", {"allowed_domains": [4, 5], "denied_domains": [6], "limits.memory": [9], "workspace": [11]}),
    (TOML, "toml", {"allowed_domains": [3, 3], "denied_domains": [7], "limits.memory": [12],
    "workspace": [9]})])  # fmt: skip
def test_each_setting_has_the_line_on_which_it_is_written(text: str, form: str, lines: dict[str, list[int]]) -> None:
    policy = read(text, form)
    for name, expected in lines.items():
        assert [one.where for one in policy.settings if one.name == name] == [f"p.{form}:{n}" for n in expected]


@pytest.mark.parametrize(("text", "form", "lines"), [(YAML, "yaml", (13, 19, 22)), (TOML, "toml", (15, 24, 29))])
def test_each_rule_and_default_has_its_line(text: str, form: str, lines: tuple[int, int, int]) -> None:
    rules = read(text, form).rules
    assert [one.where for one in rules.written] == [f"p.{form}:{n}" for n in lines[:2]]
    assert rules.default("package") == ("deny", f"p.{form}:{lines[2]}")


def test_json_has_lines_too_even_with_tabs() -> None:
    policy = read('{\n\t"network": "listed",\n\t"allowed_domains": [\n\t\t"a.test"\n\t]\n}', "json")
    assert [one.where for one in policy.settings] == ["p.json:2", "p.json:4"]


@pytest.mark.parametrize(("text", "form", "said"), [
    ("network: listed\nnetwork: public\n", "yaml", "p.yaml:2: the key 'network' stands twice"),
    ("limits:\n  wall: 1\n  wall: 2\n", "yaml", "p.yaml:3: the key 'wall' stands twice"),
    ("network = 'none'\nnetwork = 'none'\n", "toml", "p.toml:2: is not TOML"),
    ('{"network": "none",\n"network": "public"}', "json", "p.json: the key 'network' stands twice"),
    ("a: &a [x]\n<<: *a\n", "yaml", "p.yaml:2: merge keys"), ("network: [a\n", "yaml", "p.yaml:2: is not YAML"),
    ("network: !!python/object:os.system x\n", "yaml", "p.yaml:1: the tag"), ("x: !y z", "yaml", "p.yaml:1: the tag"),
    ("a: 1\n---\nb: 2\n", "yaml", "p.yaml:2: is not YAML"), ("- a\n", "yaml", "p.yaml: is not a mapping"),
    ("5", "json", "p.json: is not a mapping"), ("{", "json", "p.json:1: is not JSON"),
    ("1: 2", "yaml", "p.yaml:1: the key 1"),
    ("a: \x00", "yaml", "p.yaml: is not YAML"), ("\udcff", "yaml", "p.yaml:1: is not UTF-8"),
    ("a: &a [*a]\n", "yaml", "p.yaml:1: is too large"),
    ("network: NaN", "yaml", "p.yaml:1: network: 'NaN'")])  # fmt: skip
def test_what_is_ambiguous_or_no_document_is_refused(text: str, form: str, said: str) -> None:
    assert refusal(text, form).startswith(said)


def test_aliases_do_not_multiply_without_bound() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "too large" in refusal("\n".join(lines))


@pytest.mark.parametrize(("text", "form"), [("[" * 100_000, "yaml"), ("[" * 100_000, "json"),
("a = " + "[" * 100_000, "toml"),
    ("x" * (300 << 10), "yaml")])  # fmt: skip
def test_what_is_too_deep_or_too_long_is_refused(text: str, form: str) -> None:
    assert refusal(text, form).startswith(f"p.{form}")


@pytest.mark.parametrize(("text", "said"), [
    ("networks: none\n",
    "p.yaml:1: networks: is not a known key; did you mean network? the keys here are network, "),
    ("limits:\n  memory: 1GiB\n  ram: 1GiB\n",
    "p.yaml:3: limits.ram: is not a known key; the keys here are memory"),
    ("\nnetwork: some\n", "p.yaml:2: network: 'some' is not known; choose one of none, listed, public"),
    ("network: no\n", "p.yaml:1: network: 'no'"), ("limits:\n  processes: 2.5\n", "p.yaml:2: limits.processes: 2.5"),
    ("limits:\n  processes: '5'\n", "p.yaml:2: limits.processes"),
    ("limits: {memory: lots}", "p.yaml:1: limits.memory"),
    ("limits:\n  wall: -1\n", "p.yaml:2: limits.wall"), ("allow_local: [0]", "p.yaml:1: allow_local.0"),
    ("allow_local: [true]", "p.yaml:1: allow_local.0"), ("allow_local: [70000]", "p.yaml:1: allow_local.0"),
    ("allowed_domains: a.test", "p.yaml:1: allowed_domains"),
    ("allowed_domains:\n - a.test\n - 5", "p.yaml:3: allowed_domains.1"),
    ("allowed_domains:\n - a.test\n - '*'", "p.yaml:3: allowed_domains.1: '*'"), ("rules: {}", "p.yaml:1: rules"),
    ("rules:\n - allow: tool\n", "p.yaml:2: too wide"), ("rules:\n - 5\n", "p.yaml:2: rules.0"),
    ("rules:\n - allow: host\n   command: '*'\n", "p.yaml:2: command"), ("workspace: ''", "p.yaml:1: workspace"),
    ("defaults:\n  tools: deny\n", "p.yaml:2: defaults.tools"),
    ("defaults:\n  tool: allow\n", "p.yaml:2: defaults.tool: allow"),
    ("network: none\nallowed_domains: [a.test]", "p.yaml:1: network: none allows no hosts"),
    ("network: none\nrules: [{allow: egress, host: a.test, uses: 1}]", "p.yaml:1: network: none allows no hosts"),
    ("allowed_domains: [a.test]\nrules:\n- {ask: egress, host: a.test}", "p.yaml:3: ask: egress"),
    ("allowed_domains: ['*.b.test']\nrules:\n- {ask: egress, host: a.b.test}", "p.yaml:3: ask: egress"),
    ("network: public\nrules:\n- {ask: egress, host: a.test}", "p.yaml:3: ask: egress"),
    ("allowed_domains: [a.test]\nrules:\n- {deny: egress, host: a.test, namespace: n}", "p.yaml:3: deny: egress"),
    ("allow_local: [8000]\nrules:\n- {deny: egress, host: '*', namespace: n}", "p.yaml:3: deny: egress"),
    ("allow_local: [8000]\nrules:\n- {ask: egress, host: host.casemate.internal}", "p.yaml:3: ask: egress"),
    ("requests:\n- {}", "p.yaml:2: requests.0.host: is missing"),
    ("isolation: 5", "p.yaml:1: isolation: 5 must be a text or a mapping"),
    ("isolation:\n  at_last: x", "p.yaml:2: isolation.at_last: is not a known key; did you mean"),
    ("host: {timeout: 0}", "p.yaml:1: host.timeout: 0 is out of range; give 0.001 to 3600"),
    ("host: {path: []}", "p.yaml:1: host.path: is empty"),
    ("host:\n  roots: [{write: true}]", "p.yaml:2: host.roots.0.path: is missing"),
    ("web: {engines: [bing]}", "p.yaml:1: web.engines.0: 'bing' is not known; choose one of brave, "),
    ("intercept: [" + "a.test, " * 101 + "]", "p.yaml:1: intercept: ['a.test', "),
    ("namespace: team\n", "p.yaml:1: namespace: is an option of a sandbox, not of a policy")])  # fmt: skip
def test_a_mistake_is_named_with_its_line_its_key_and_what_would_be_right(text: str, said: str) -> None:
    assert refusal(text).startswith(said)


@pytest.mark.parametrize(("text", "form", "line"), [
    ('a = """\nnetwork = 1\n"""\n', "toml", 1), ("[limits]\n\n# x\n[limits.deep]\ny = 1\n", "toml", 4),
    ("[[rules]]\nallow = 'host'\ncommand = ['a']\n\n[[rules]]\nallow = 'nothing'\n", "toml", 5),
    ("rules = [\n  {allow = 'host', command = ['a']},\n  {allow = 'nothing'},\n]\n", "toml", 1)])  # fmt: skip
def test_a_mistake_in_toml_has_the_line_of_its_statement(text: str, form: str, line: int) -> None:
    assert refusal(text, form).startswith(f"p.toml:{line}: ")


def test_a_rule_about_a_host_that_always_holds_needs_nobody_to_ask() -> None:
    rules = "[{allow: egress, host: a.test}, {deny: egress, host: b.test}, {allow: egress, host: c.test, uses: 1}]"
    hosts = read(f"network: listed\nrules: {rules}").hosts
    assert [hosts.allows(f"{name}.test", 443) for name in "abc"] == [True, False, False]
    assert hosts.denies("b.test", 22)


def test_a_word_is_what_it_says() -> None:
    text = "namespace: no\nworkspace: ~/x\naudit: 2026-01-01\nconcurrency: 010\n"
    said = {one.name: one.value for one in read(text, kinds=SANDBOX_KINDS).settings}
    assert said == {"namespace": "no", "workspace": "/home/me/x", "audit": "/here/2026-01-01", "concurrency": 10}


def test_eg_08_a_list_that_is_there_and_empty_allows_nothing() -> None:
    assert read("allowed_domains: []").allowed == ()
    assert read("network: listed").allowed is None


@given(st.text(max_size=80), st.sampled_from(["yaml", "toml", "json"]))
def test_whatever_a_file_holds_it_is_read_or_refused(text: str, form: Any) -> None:
    with contextlib.suppress(InvalidArgument):
        read_document(text.encode("utf-8", "surrogatepass"), "f", form)


INNER = ("path", "write", "env", "timeout", "output", "roots", "folder", "host", "methods", "at_least", "searxng")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.sampled_from(["a.test", "none"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER) | st.text(max_size=2), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*SANDBOX_KINDS]), VALUES, max_size=3))
def test_whatever_value_a_key_has_it_is_read_or_refused(values: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidArgument):
        policy_of(PolicyDocument("f", values, {}), "/here", "/home/me", SANDBOX_KINDS)


def test_a_mapping_needs_no_file() -> None:
    assert read_json({"limits": {"wall": 5}}).limits == {"wall": 5.0}


def test_rules_for_requests_are_read_and_shown() -> None:
    policy = read("allowed_domains: [a.test]\nrequests:\n- {host: a.test, methods: [], path: /v1}\n- {host: b.test}\n")
    assert policy.requests.allows("a.test", 80, "POST", "/v1/x?q")
    assert not policy.requests.allows("a.test", 80, "POST", "/v2")
    assert not policy.requests.allows("b.test", 80, "POST", "/")
    assert policy.requests.allows("c.test", 80, "POST", "/")
    assert [one.value for one in policy.settings if one.name == "requests"] == [
        "a.test: every method /v1", "b.test: GET HEAD /"
    ]  # fmt: skip


@pytest.mark.parametrize("one", ["{}", "{host: 10.0.0.1}", "{host: a.test, methods: [get]}", "{host: a.test, path: x}",
                                 "{host: a.test, verbs: [GET]}"])  # fmt: skip
def test_a_rule_for_requests_that_is_wrong_is_named_with_its_line(one: str) -> None:
    with pytest.raises(InvalidArgument, match=r"p\.yaml:2: requests\.0"):
        read(f"requests:\n- {one}\n")
