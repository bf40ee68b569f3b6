"""A rule of the policy that names private addresses of a host lets a cell reach it there, and nowhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.network.test_clients import needs
from tests.network.test_refused import TRY, new_visits
from tests.network.visits import World

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
    assert "answered b'HTTP/1.1 200" not in execution.stdout
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


# A client that says what it wants in one of the ways there are, and tells what it gets.
_WAYS = """
import socket
PROXY = ("198.18.0.1", 3128)
def said(way, *lines):
    answers = []
    try:
        with socket.create_connection(way, 60) as s:
            s.settimeout(60)
            for line in lines:
                s.sendall(line)
                answers.append(s.recv(300))
    except OSError as error:
        answers.append(type(error).__name__)
    print(answers)
def get(target, host): return f"GET {target} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode()
def connect(host): return f"CONNECT {host} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode()
"""
_HERE = "get('/x', 'private.test')"


@pytest.mark.parametrize(
    ("way", "reached"),
    [
        (f"('PRIVATE.test.', 80), {_HERE}", ["10.77.0.1"]),
        ("PROXY, get('http://private.test/x', 'private.test')", ["10.77.0.1"]),
        ("PROXY, get('http://good.test/x', 'good.test'), get('http://private.test/x', 'private.test'), "
         "get('http://good.test/x', 'good.test')", ["93.184.216.34", "10.77.0.1", "93.184.216.34"]),
        ("PROXY, get('http://private.test/x', 'private.test'), get('http://10.77.0.1/x', '10.77.0.1')", ["10.77.0.1"]),
        (f"PROXY, connect('Private.TEST:80'), {_HERE}", ["10.77.0.1"]),
        (f"('good.test', 80), get('/x', 'good.test'), {_HERE}", ["93.184.216.34"]),
        (f"PROXY, connect('good.test:80'), {_HERE}", []),
        (f"PROXY, connect('10.77.0.1:80'), {_HERE}", []),
        (f"('10.77.0.1', 80), {_HERE}", []),
        (f"('private.test', 22), {_HERE}", []),
    ],
)  # fmt: skip
def test_a_private_host_is_reached_by_its_name_alone_whatever_way_is_taken(
    world: World, audit: Path, way: str, reached: list[str]
) -> None:
    visits = world.visits()
    rules = [rule("private.test", "10.77.0.0/16"), {"allow": "egress", "host": "good.test"}]
    with sync.Sandbox(audit=audit, policy={"rules": rules}) as sandbox:
        execution = sandbox.run(_WAYS + f"said({way})")
    assert execution.status == "ok", execution.stderr
    assert [visit.split()[0] for visit in new_visits(world, visits)] == reached, execution.stdout


@pytest.mark.parametrize(
    "more",
    [
        {"denied_domains": ["private.test"]},
        {"denied_domains": ["*"]},
        {"rules": [{"deny": "egress", "host": "*.test"}, {"deny": "egress", "host": "private.test:80"}]},
    ],
)
def test_what_denies_a_private_host_wins(world: World, audit: Path, more: dict[str, Any]) -> None:
    visits = world.visits()
    policy = {**more, "rules": [rule("private.test", "10.77.0.0/16"), *more.get("rules", ())]}
    with sync.Sandbox(audit=audit, policy=policy, approve=lambda _: True) as sandbox:
        assert "answered b'HTTP/1.1 200" not in sandbox.run(TRY.format("", "private.test", 80, "private.test")).stdout
    assert new_visits(world, visits) == []


@contextlib.contextmanager
def meaning(world: World, name: str, before: str, address: str) -> Iterator[None]:
    """``name``, which means ``before``, means ``address`` as long as this is entered."""
    hosts = world.folder / "hosts"
    text = hosts.read_text()
    assert f"\n{before} {name}\n" in text
    hosts.write_text(text.replace(f"\n{before} {name}\n", f"\n{address} {name}\n"))
    try:
        yield
    finally:
        hosts.write_text(text)


def test_a_private_name_that_comes_to_mean_something_else_leads_nowhere_on_the_next_connection(
    world: World, audit: Path
) -> None:
    visits, program = world.visits(), TRY.format("", "private.test", 80, "private.test")
    policy = {"rules": [rule("private.test", "10.77.0.0/16")]}
    with sync.Sandbox(audit=audit, policy=policy) as sandbox, sandbox.session() as session:
        assert "answered b'HTTP/1.1 200" in session.run(program).text
        for other in ("93.184.216.34", "192.168.77.1", "169.254.169.254", "93.184.215.1"):
            with meaning(world, "private.test", "10.77.0.1", other):
                assert "answered b'HTTP/1.1 403" in session.run(program).text
    assert [visit.split()[0] for visit in new_visits(world, visits)] == ["10.77.0.1"]


@needs("curl")
@pytest.mark.parametrize("port", [443, 8443])
def test_tls_that_ends_at_the_egress_proxy_goes_to_the_private_address_and_no_other(
    world: World, audit: Path, port: int
) -> None:
    name = f"good.test:{port}"
    with sync.Sandbox(
        audit=audit, policy={"rules": [rule(name, "10.77.0.0/16")]}, intercept=[name], trust=world.folder / "ca.pem"
    ) as sandbox:
        visits, program = world.visits(), f"curl -sS -m 60 https://{name}/x"
        assert "addresses that are not dialled" in sandbox.run(program, language="shell").stdout
        assert new_visits(world, visits) == []
        with meaning(world, "good.test", "93.184.216.34", "10.77.0.1"):
            assert "hello from GET /x" in sandbox.run(program, language="shell").stdout
    assert [visit.split()[:2] for visit in new_visits(world, visits)] == [["10.77.0.1", str(port)]]
