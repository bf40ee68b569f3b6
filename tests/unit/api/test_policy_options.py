"""A policy is an upper bound. Arguments, files and variables can only narrow it, and errors name what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from casemate import InvalidArgument, Limits, Sandbox, sync
from casemate.api.policy_options import Bounded, bound_by_policy
from casemate.policy.hosts import HostRules


def in_force(policy: Any, **given: Any) -> Bounded:
    return bound_by_policy({"policy": policy, **given})


def hosts(found: Bounded) -> HostRules:
    assert found.hosts is not None
    return found.hosts


def names(found: Bounded) -> list[str]:
    return [str(one) for one in hosts(found).allowed]


def test_without_a_policy_the_arguments_are_in_force() -> None:
    plain = in_force(None)
    assert (plain.network, names(plain), plain.limits, plain.workspace_mode) == ("listed", [], Limits(), "overlay")
    given = in_force(None, network="public", allowed_domains=["a.test:22"], limits=Limits(wall=9))
    assert (hosts(given).everything, names(given), given.limits.wall) == (True, ["a.test:22"], 9)


def test_what_no_argument_says_is_the_policys() -> None:
    found = in_force({
        "network": "public", "denied_domains": ["b.test"], "limits": {"memory": "1GiB", "wall": 120},
        "workspace_mode": "direct", "isolation": "native",
    })  # fmt: skip
    assert (found.network, hosts(found).everything, hosts(found).denies("b.test", 1)) == ("public", True, True)
    assert (found.limits.memory, found.limits.wall, found.limits.processes) == (1 << 30, 120, 64)
    assert (found.workspace_mode, found.isolation) == ("direct", "native")


def test_of_a_limit_that_both_name_the_tighter_holds_and_others_are_the_arguments() -> None:
    found = in_force({"limits": {"memory": "1GiB", "cpu_time": 5}}, limits=Limits(memory="2GiB", wall=600))
    assert (found.limits.memory, found.limits.cpu_time, found.limits.wall) == (1 << 30, 5, 600)
    assert in_force({"limits": {"wall": 600}}, limits=Limits(wall=5)).limits.wall == 5


@pytest.mark.parametrize(("policy", "given", "expected"), [
    (["*.a.test"], ["x.a.test"], ["x.a.test"]), (["*.a.test"], ["*.x.a.test"], ["*.x.a.test"]),
    (["x.a.test"], ["*.a.test"], ["x.a.test"]), (["a.test:443"], ["a.test"], ["a.test:443"]),
    (["a.test"], ["a.test:443"], ["a.test:443"]), (["a.test:22"], ["a.test:22"], ["a.test:22"]),
    (["a.test", "b.test"], None, ["a.test", "b.test"]), (["a.test", "b.test"], [], [])])  # fmt: skip
def test_domains_narrow(policy: list[str], given: list[str] | None, expected: list[str]) -> None:
    assert names(in_force({"allowed_domains": policy}, allowed_domains=given)) == expected


@pytest.mark.parametrize("policy", [{"network": "public"}, {"allowed_domains": ["a.test"]}, None])
def test_an_empty_list_allows_nothing(policy: dict[str, Any] | None) -> None:
    found = in_force(policy, allowed_domains=[])
    assert (found.network, hosts(found).everything, names(found)) == ("listed", False, [])
    assert hosts(found).beyond("a.test", 443), "and no rule does"


BUDGET = {"allow": "egress", "host": "*.b.test", "uses": 5}


def test_a_list_names_hosts_that_rules_allow_at_times_and_leaves_them_to_the_rules() -> None:
    found = in_force({"allowed_domains": ["a.test"], "rules": [BUDGET]}, allowed_domains=["a.test", "x.b.test"])
    assert names(found) == ["a.test"]
    assert (hosts(found).beyond("x.b.test", 443), hosts(found).beyond("y.b.test", 443)) == ((), ("a.test x.b.test",))


@pytest.mark.parametrize(
    "policy", [{"rules": [BUDGET]}, {"rules": [{**BUDGET, "namespace": "n"}]}, {"defaults": {"egress": "deny"}}]
)
@pytest.mark.parametrize("given", [{"allowed_domains": ["a.test"]}, {"network": "public"}])
def test_a_policy_that_says_in_rules_which_hosts_there_are_is_a_bound_as_with_a_list(policy: Any, given: Any) -> None:
    with pytest.raises(InvalidArgument, match="beyond the policy"):
        in_force(policy, **given)


@pytest.mark.parametrize(
    "rule",
    [
        {"ask": "egress"}, {"ask": "egress", "host": "x.a.test"}, {"ask": "egress", "host": "*"},
        {"deny": "egress", "host": "x.a.test", "namespace": "n"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("given", [{"allowed_domains": ["*.a.test"]}, {"network": "public"}])
def test_no_argument_allows_without_asking_what_a_rule_asks_about(rule: dict[str, str], given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"{next(iter(given))}: .*asks about"):
        in_force({"rules": [rule]}, **given)
    assert names(in_force({"rules": [rule]})) == []


def test_a_rule_that_asks_about_another_host_leaves_an_argument_alone() -> None:
    policy = {"rules": [{"ask": "egress", "host": "b.test"}, {"deny": "egress", "host": "x.a.test"}]}
    assert names(in_force(policy, allowed_domains=["*.a.test"])) == ["*.a.test"]
    assert in_force({"rules": [{"ask": "egress"}], "allow_local": [8080]}, allow_local=[8080]).hosts


def test_a_list_narrows_every_public_host_to_itself() -> None:
    found = in_force({"network": "public", "denied_domains": ["b.a.test"]}, allowed_domains=["*.a.test"])
    assert (found.network, hosts(found).everything, names(found)) == ("listed", False, ["*.a.test"])
    assert not hosts(found).allows("b.a.test", 443)


def test_ports_of_this_machine_are_the_policys_and_none_without_a_network() -> None:
    assert hosts(in_force({"allow_local": [8080]})).local_ports == (8080,)
    assert hosts(in_force({"allow_local": [8080]}, allow_local=[])).local_ports == ()
    assert in_force({"allow_local": [8080]}, network="none").hosts is None


@pytest.mark.parametrize(("policy", "given"), [
    ({"allowed_domains": ["a.test"]}, {"allowed_domains": ["b.test"]}),
    ({"allowed_domains": ["*.a.test"]}, {"allowed_domains": ["a.test"]}),
    ({"allowed_domains": ["a.test"]}, {"allowed_domains": ["a.test:22"]}),
    ({"allowed_domains": []}, {"allowed_domains": ["a.test"]}),
    ({"allowed_domains": ["a.test"]}, {"network": "public"}),
    ({"network": "listed"}, {"network": "public"}), ({"network": "listed"}, {"allowed_domains": ["a.test"]}),
    ({"network": "none"}, {"network": "listed"}), ({"network": "none"}, {"allowed_domains": ["a.test"]}),
    ({"network": "public"}, {"allowed_domains": ["a.test:22"]}),
    ({"workspace_mode": "overlay"}, {"workspace_mode": "direct"}),
    ({"isolation": "native"}, {"isolation": "docker"})])  # fmt: skip
def test_an_argument_beyond_the_policy_is_an_error_that_names_it(policy: dict[str, Any], given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as raised:
        in_force(policy, **given)
    assert raised.value.argument in given


@pytest.mark.parametrize(("policy", "given", "inside"), [
    (".", "sub", True), ("sub", ".", False), ("sub", "link", False), ("sub", "sub", True),
    ("sub", "../sub", False)])  # fmt: skip
def test_a_workspace_lies_in_the_policys(tmp_path: Path, policy: str, given: str, inside: bool) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("/")
    file = tmp_path / "p.yaml"
    file.write_text(f"workspace: {policy}")
    if inside:
        assert in_force(file, workspace=tmp_path / given).workspace == tmp_path / given
        return
    with pytest.raises(InvalidArgument, match="beyond the policy"):
        in_force(file, workspace=tmp_path / given)


def test_a_policy_without_a_network_is_named_where_a_host_is_given(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("network: none")
    with pytest.raises(InvalidArgument, match=r"network is none \(.*p\.yaml:1\)"):
        in_force(file, allowed_domains=["a.test"])


def test_what_is_to_be_hidden_may_lie_in_the_workspace(tmp_path: Path) -> None:
    found = in_force({"filesystem": {"denyRead": [str(tmp_path / "key.pem")]}}, workspace=tmp_path)
    assert [path for path, _ in found.policy.hidden] == [str(tmp_path / "key.pem")]


@pytest.mark.parametrize("policy", [None, {"allow_read": ["W/.env"]}, {"filesystem": {"allowRead": ["W/.env"]}}])
def test_a_hidden_file_in_the_workspace_can_be_named_as_to_be_seen(tmp_path: Path, policy: Any) -> None:
    file = str(tmp_path / ".env")
    if policy is not None:
        policy = json.loads(json.dumps(policy).replace("W", str(tmp_path)))
        assert in_force(policy, workspace=tmp_path).seen == (file,)
    assert set(in_force(policy, workspace=tmp_path, allow_read=[file]).seen) == {file}


def test_of_what_a_policy_lets_be_seen_an_argument_may_name_a_part(tmp_path: Path) -> None:
    both = [str(tmp_path / ".env"), str(tmp_path / "sub/.env")]
    policy = {"workspace": str(tmp_path), "allow_read": both}
    assert set(in_force(policy).seen) == {*both}
    assert in_force(policy, allow_read=both[:1]).seen == (both[0],)
    assert in_force(policy, allow_read=[]).seen == ()


@pytest.mark.parametrize(("path", "policy", "told"), [
    ("../other", None, "outside the workspace"), ("*.env", None, "pattern"),
    ("sub/.env", {"allow_read": [".env"]}, "beyond"),
    (5, None, "is not a path"), ("", None, "is not a path"),
])  # fmt: skip
def test_what_cannot_be_shown_to_a_program_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, policy: Any, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=told):
        in_force(policy, workspace=tmp_path, allow_read=[path])
    with pytest.raises(InvalidArgument, match="not a list"):
        in_force(None, workspace=tmp_path, allow_read=".env")
    with pytest.raises(InvalidArgument, match="outside"):
        in_force(None, workspace=None, allow_read=[tmp_path / ".env"])


def test_direct_is_refused_where_a_policy_keeps_a_file(tmp_path: Path) -> None:
    settings = {"filesystem": {"denyWrite": [str(tmp_path / "kept")]}}
    in_force(settings, workspace=tmp_path)
    with pytest.raises(InvalidArgument, match="protects no file"):
        in_force(settings, workspace=tmp_path, workspace_mode="direct")


@pytest.mark.parametrize("wrong", [5, "", "/nowhere/p.yaml", "/etc/passwd", "a\0.yaml", b"x", [], "/dev/null", "/tmp"])
def test_what_is_no_policy_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidArgument) as raised:
        Sandbox(policy=wrong)
    assert raised.value.argument == "policy"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p.yaml")
    with pytest.raises(InvalidArgument, match="not a regular file"):
        in_force(tmp_path / "p.yaml")


def test_a_file_holds_the_arguments_of_a_sandbox_and_a_run_is_within_its_policy(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("hello")
    file = tmp_path / "casemate.yaml"
    file.write_text("workspace: work\naudit: audit.db\nconcurrency: 2\npreload: []\nlimits: {wall: 7, processes: 9}\n")
    with sync.Sandbox.from_file(file, limits=Limits(processes=5)) as sandbox:
        plan = sandbox.explain("1", timeout=None)
        assert (plan.limits.wall, plan.limits.processes) == (7, 5)
        assert sandbox.run("print(open('a.txt').read())").stdout == "hello\n"
    assert (tmp_path / "audit.db").exists()


def test_a_file_of_arguments_is_the_policy_and_no_other_takes_its_place(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('network = "none"\n')
    for other in ({"network": "public"}, tmp_path / "other.yaml"):
        with pytest.raises(InvalidArgument, match="only narrow"):
            Sandbox.from_file(file, policy=other)
    Sandbox.from_file(file, policy=None)  # as if it were not given


def test_ports_of_the_hosts_loopback_are_narrowed_and_never_widened() -> None:
    assert hosts(in_force(None, allow_local=[80, 81])).local_ports == (80, 81)
    assert hosts(in_force({"allow_local": [80, 81]}, allow_local=[81])).local_ports == (81,)
    with pytest.raises(InvalidArgument, match=r"allow_local.*82"):
        in_force({"allow_local": [80, 81]}, allow_local=[82])


@pytest.mark.parametrize("ports", ["80", 80, [0], [65536], [True], ["80"], [1.0]])
def test_what_is_no_port_is_named(ports: Any) -> None:
    with pytest.raises(InvalidArgument, match="allow_local"):
        in_force(None, allow_local=ports)
