"""Whatever a permitted name resolves to, only public addresses are dialled, and exactly the one that was looked at."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from tests.egress.stage import Stage

from casemate.egress.terms import EgressTerms
from casemate.policy.hosts import HostRules, host_rule

ECHO = 7


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "168.63.129.16",
        "0.0.0.0",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "fd00::1",
        "fe80::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::1",
        "localhost",
        "good.test",
    ],
)
def test_a_permitted_name_that_resolves_to_no_public_address_is_refused(
    stage: Stage, echo_port: int, address: str
) -> None:
    stage.allow(f"good.test:{ECHO}")
    stage.internet.add("good.test", ECHO, echo_port, address)
    assert stage.is_reset("good.test", ECHO)
    assert stage.internet.dialled == []
    ((decision, reason),) = stage.crossing("good.test", ECHO)
    assert decision == "denied"
    assert "not dialled" in reason
    assert address not in reason


def test_the_hosts_own_public_address_is_refused(stage: Stage, echo_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casemate.egress.dial.is_own", lambda address: address == "93.184.7.7")
    stage.allow(f"good.test:{ECHO}")
    stage.internet.add("good.test", ECHO, echo_port, "93.184.7.7")
    assert stage.is_reset("good.test", ECHO)
    assert stage.internet.dialled == []


def test_the_hosts_own_private_address_is_refused_also_where_a_rule_names_its_network(
    stage: Stage, echo_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services of this machine are reached by ``allow_local`` alone."""
    monkeypatch.setattr("casemate.egress.dial.is_own", lambda address: address == "10.20.0.1")
    rule = host_rule(f"good.test:{ECHO}")
    stage.open(EgressTerms(HostRules((rule,), private=((rule, (IPv4Network("10.20.0.0/16"),)),))))
    stage.internet.add("good.test", ECHO, echo_port, "10.20.0.1")
    assert stage.is_reset("good.test", ECHO)
    assert stage.internet.dialled == []
    stage.internet.addresses["good.test"] = ["10.20.0.2"]
    stage.internet.servers["10.20.0.2", ECHO] = echo_port
    with stage.connect("good.test", ECHO) as one:
        one.sendall(b"x")
        assert one.recv(1) == b"x"
    assert stage.internet.dialled == [("10.20.0.2", ECHO)]


def test_among_several_addresses_only_public_ones_are_dialled_in_turn(stage: Stage, echo_port: int) -> None:
    stage.allow(f"good.test:{ECHO}")
    stage.internet.add("good.test", ECHO, echo_port, "93.184.2.2")
    stage.internet.addresses["good.test"] = ["10.0.0.1", "93.184.2.1", "169.254.169.254", "93.184.2.2"]
    with stage.connect("good.test", ECHO) as one:
        one.sendall(b"x")
        assert one.recv(1) == b"x"
    assert stage.internet.dialled == [("93.184.2.1", ECHO), ("93.184.2.2", ECHO)]


def test_a_name_that_resolves_to_something_else_a_moment_later_is_dialled_where_it_was_vetted(
    stage: Stage, echo_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([["93.184.3.1"], ["127.0.0.1"], ["127.0.0.1"]])

    async def rebinding(name: str) -> list[str]:
        stage.internet.resolved.append(name)
        return next(answers)

    monkeypatch.setattr(stage.egress_proxy, "_resolve", rebinding)
    stage.allow(f"good.test:{ECHO}")
    stage.internet.servers["93.184.3.1", ECHO] = stage.internet.servers["127.0.0.1", ECHO] = echo_port
    with stage.connect("good.test", ECHO) as one:
        one.sendall(b"x")
        assert one.recv(1) == b"x"
    assert stage.is_reset("good.test", ECHO)
    assert stage.internet.resolved == ["good.test"] * 2  # once for each connection
    assert stage.internet.dialled == [("93.184.3.1", ECHO)]


def test_what_cannot_be_resolved_or_reached_is_no_refusal_but_said(stage: Stage) -> None:
    stage.allow("good.test", "gone.test")
    stage.internet.addresses["good.test"] = ["93.184.4.1"]
    for name in ("good.test", "gone.test"):
        with stage.connect(name, 80) as one:
            one.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            assert one.recv(100).startswith(b"HTTP/1.1 502 ")
    told = [(one.host, one.decision, one.is_reached, one.reason) for one in stage.cell_proxy.crossings()]
    assert told == [
        ("good.test", "allowed", False, "connection refused"),
        ("gone.test", "allowed", False, "its name does not resolve"),
    ]
