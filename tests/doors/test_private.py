"""A rule of the policy that names private addresses of a host lets a cell reach it there, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.doors.test_refused import TRY, new_visits
from tests.doors.visits import World

from casemate import Execution, InvalidArgument, sync


def rule(host: str, *addresses: str) -> dict[str, Any]:
    return {"allow": "egress", "host": host, "addresses": list(addresses)}


def attempt(audit: Path, name: str, *rules: dict[str, Any], port: int = 80, **arguments: Any) -> Execution:
    with sync.Sandbox(audit=audit, policy={"rules": list(rules), **arguments}) as sandbox:
        return sandbox.run(TRY.format("", name, port, name))


@pytest.mark.parametrize("addresses", [["10.77.0.0/16"], ["10.77.0.1"], ["192.168.0.0/16", "10.77.0.0/24"]])
def test_a_host_is_reached_at_the_private_address_that_its_rule_names(
    world: World, audit: Path, addresses: list[str]
) -> None:
    visits = world.visits()
    execution = attempt(audit, "private.test", rule("private.test", *addresses))
    assert "answered" in execution.stdout
    assert [visit.split()[0] for visit in new_visits(world, visits)] == ["10.77.0.1"]
    assert [(one.host, one.decision, one.is_reached) for one in execution.crossings] == [
        ("private.test", "allowed", True)
    ]


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("private.test", [rule("private.test", "10.78.0.0/16")]),
        ("private.test", [rule("good.test", "10.77.0.0/16"), {"allow": "egress", "host": "private.test"}]),
        ("private.test", [rule("private.test:8080", "10.77.0.0/16"), {"allow": "egress", "host": "private.test"}]),
        ("metadata.test", [rule("metadata.test", "10.0.0.0/8")]),
        ("loopback.test", [rule("loopback.test", "10.0.0.0/8")]),
        ("good.test", [rule("good.test", "10.77.0.0/16"), {"allow": "egress", "host": "good.test"}]),
    ],
    ids=["another network", "another host", "another port", "metadata", "loopback", "a public address"],
)
def test_eg_05_nothing_is_reached_where_the_rule_does_not_say(
    world: World, audit: Path, name: str, rules: list[dict[str, Any]]
) -> None:
    visits = world.visits()
    execution = attempt(audit, name, *rules)
    assert "answered HTTP/1.1 403" in execution.stdout.replace("b'", "") or "answered" not in execution.stdout
    assert "hello" not in execution.stdout
    assert new_visits(world, visits) == []
    assert [(one.host, one.decision) for one in execution.crossings] == [(name, "denied")]


def test_of_several_addresses_only_those_that_the_rule_names_are_dialled(world: World, audit: Path) -> None:
    visits = world.visits()
    assert "answered" in attempt(audit, "mixed.test", rule("mixed.test", "10.77.0.0/16")).stdout
    assert [visit.split()[0] for visit in new_visits(world, visits)] == ["10.77.0.1"]


def test_who_is_refused_a_private_address_is_told_what_would_permit_it(audit: Path) -> None:
    execution = attempt(audit, "private.test", {"allow": "egress", "host": "private.test"})
    assert "private" in execution.crossings[0].reason
    with sync.Sandbox(audit=audit, allowed_domains=["private.test"]) as sandbox:
        code = "import urllib.request as u, urllib.error as e\ntry: u.urlopen('http://private.test/')\n"
        told = sandbox.run(code + "except e.HTTPError as error: print(error.read().decode())").stdout
    assert "a rule of the policy names them for this host" in told


def test_a_runs_own_list_narrows_hosts_with_private_addresses_like_others(world: World, audit: Path) -> None:
    policy = {"rules": [rule("private.test", "10.77.0.0/16"), {"allow": "egress", "host": "good.test"}]}
    program = TRY.format("", "private.test", 80, "private.test")
    with sync.Sandbox(audit=audit, policy=policy) as sandbox:
        assert "hello" in sandbox.run(program, allowed_domains=["private.test"]).text
        visits = world.visits()
        assert "hello" not in sandbox.run(program, allowed_domains=["good.test"]).text
        assert new_visits(world, visits) == []


def test_no_argument_of_a_sandbox_names_private_addresses(audit: Path) -> None:
    for given in ("10.77.0.1", "10.77.0.0/16"):
        with pytest.raises(InvalidArgument, match="a rule of the policy"):
            sync.Sandbox(audit=audit, allowed_domains=[given])
