"""What the resolver in a cell says: permitted names have an address, others do not exist, nobody outside is asked."""

from __future__ import annotations

import contextlib
import socket

import pytest
from tests.egress.stage import DNS, Stage, allowing, everything_from

from casemate.egress.terms import EgressTerms, ProxyLimits
from casemate.policy.hosts import LOCAL_NAME, HostRule, HostRules, denied_rule

NO_SUCH_NAME, SERVER_FAILURE = 3, 2


def test_without_rules_no_name_resolves_and_nothing_is_asked_outside(stage: Stage) -> None:
    stage.open()
    assert [stage.ask(name) for name in ("good.test", "localhost", "1.0.18.198.in-addr.arpa", LOCAL_NAME)] == [
        (NO_SUCH_NAME, None)
    ] * 4
    assert stage.internet.resolved == []


@pytest.mark.parametrize("name", ["good.test", "GOOD.test", "gOoD.tEsT"])
def test_a_permitted_name_has_an_address_in_the_cells_own_network(stage: Stage, name: str) -> None:
    stage.allow("good.test")
    code, address = stage.ask(name)
    assert code == 0
    assert address is not None
    assert address.startswith("198.18.")
    assert stage.internet.resolved == []  # not before somebody connects


@pytest.mark.parametrize(
    "name",
    [
        "evilgood.test",
        "good.test.evil.test",
        "a.good.test",
        "xn--god-sed.test",
        "good\0.test",
        "g\u00f6od.test",
        "test",
    ],
)
def test_a_name_that_no_rule_covers_is_refused_before_any_query(stage: Stage, name: str) -> None:
    stage.allow("good.test")
    assert stage.ask(name) == (NO_SUCH_NAME, None)
    assert stage.internet.resolved == []
    assert [one.decision for one in stage.cell_proxy.crossings()] == ["denied"]


def test_a_star_covers_names_below_and_not_the_name_itself(stage: Stage) -> None:
    stage.allow("*.good.test")
    asked = {name: stage.ask(name)[0] for name in ("x.good.test", "a.b.good.test", "good.test", "agood.test")}
    assert asked == {"x.good.test": 0, "a.b.good.test": 0, "good.test": NO_SUCH_NAME, "agood.test": NO_SUCH_NAME}


@pytest.mark.parametrize("kind", [28, 16, 15, 65, 33])
def test_a_permitted_name_has_no_records_but_an_address(stage: Stage, kind: int) -> None:
    stage.allow("good.test")
    assert stage.ask("good.test", kind) == (0, None)
    assert stage.ask("evil.test", kind) == (NO_SUCH_NAME, None)


def test_a_name_keeps_its_address_and_no_two_names_share_one(stage: Stage) -> None:
    stage.allow("*.good.test")
    first = {name: stage.ask(name)[1] for name in ("a.good.test", "b.good.test")}
    assert len(set(first.values())) == 2
    assert {name: stage.ask(name)[1] for name in first} == first


def test_a_name_is_listened_for_at_its_permitted_ports_only(stage: Stage, echo_port: int) -> None:
    stage.allow("good.test:5432", "other.test")
    stage.internet.add("good.test", 5432, echo_port)
    with stage.connect("good.test", 5432) as one:
        one.sendall(b"hello")
        assert one.recv(5) == b"hello"
    _, address = stage.ask("good.test")
    assert address is not None
    for port in (22, 25, 80, 443, 6379):
        with pytest.raises(ConnectionRefusedError):
            stage.inside.connect(address, port)
    assert stage.internet.dialled == [(stage.internet.addresses["good.test"][0], 5432)]


def test_what_is_denied_does_not_resolve_though_everything_else_does(stage: Stage) -> None:
    stage.open(EgressTerms(HostRules(everything=True, denied=(denied_rule("*.evil.test"),))))
    asked = [stage.ask(name)[0] for name in ("good.test", "x.evil.test", "localhost", "metadata.google.internal")]
    assert asked == [0, NO_SUCH_NAME, NO_SUCH_NAME, NO_SUCH_NAME]


def test_other_terms_hold_at_once(stage: Stage, echo_port: int) -> None:
    opening = stage.allow("good.test:7")
    stage.internet.add("good.test", 7, echo_port)
    _, address = stage.ask("good.test")
    assert address is not None
    opening.change(EgressTerms(allowing("other.test")))
    assert stage.ask("good.test")[0] == NO_SUCH_NAME
    assert stage.ask("other.test")[0] == 0
    with contextlib.suppress(ConnectionResetError), stage.inside.connect(address, 7) as one:  # it is still known
        assert everything_from(one) == b""
    assert stage.internet.dialled == []


def test_malformed_queries_are_answered_with_an_error_and_do_no_harm(stage: Stage) -> None:
    stage.allow("good.test")
    assert stage.exchange(b"\0\7\1\0\0\2\0\0\0\0\0\0")[0] == 1
    assert stage.exchange(b"\0\7\x28\0\0\1\0\0\0\0\0\0")[0] == 4
    assert stage.ask("good.test")[0] == 0


def test_a_name_beyond_the_bound_gets_no_address(stage: Stage) -> None:
    stage.open(EgressTerms(allowing("*.good.test"), limits=ProxyLimits(names=3)))
    assert [stage.ask(f"n{number}.good.test")[0] for number in range(5)] == [0, 0, 0, SERVER_FAILURE, SERVER_FAILURE]
    assert stage.ask("n0.good.test")[0] == 0


def test_more_names_than_listeners_are_reached_one_after_the_other(stage: Stage, echo_port: int) -> None:
    stage.open(
        EgressTerms(allowing(*(f"n{number}.good.test:7" for number in range(6))), limits=ProxyLimits(listeners=2))
    )
    for number in (0, 1, 2, 3, 4, 5, 0, 5):
        stage.internet.add(f"n{number}.good.test", 7, echo_port, f"93.184.9.{number + 1}")
        with stage.connect(f"n{number}.good.test", 7) as one:
            one.sendall(b"x")
            assert one.recv(1) == b"x"
    assert len(stage.inside.listened) == 1 + 7


def test_names_that_a_cell_invents_do_not_grow_what_is_told(stage: Stage) -> None:
    stage.open(EgressTerms(limits=ProxyLimits(queries=10_000)))
    for number in range(300):
        stage.ask(f"n{number}.evil.test")
    crossings = stage.cell_proxy.crossings()
    assert len(crossings) <= 258
    assert sum(one.connections for one in crossings) == 300


@pytest.mark.parametrize("rule", ["good.test", "*.invented.test"])
def test_names_that_a_cell_invents_do_not_hide_what_it_reached(stage: Stage, http_port: int, rule: str) -> None:
    """Neither denied ones nor allowed ones that lead nowhere."""
    stage.open(EgressTerms(allowing("good.test", rule), limits=ProxyLimits(queries=10_000)))
    stage.internet.add("good.test", 80, http_port)
    with stage.proxy() as one:
        for number in range(300):
            name = f"n{number}.invented.test"
            if rule == "good.test":
                stage.ask(name)
            else:
                with stage.proxy() as other:
                    other.sendall(f"CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n".encode())
                    everything_from(other)
        one.sendall(b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert one.recv(12) == b"HTTP/1.1 200"
        assert stage.crossing("good.test", 80) == [("allowed", "a rule allows it")]
    assert len(stage.cell_proxy.crossings()) <= 258


def test_a_name_is_told_as_long_as_it_is(stage: Stage) -> None:
    name = f"{'a' * 63}.{'b' * 63}.{'c' * 63}.evil.test"
    stage.allow("good.test")
    assert stage.ask(name)[0] == NO_SUCH_NAME
    with stage.proxy() as one:
        one.sendall(f"CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n".encode())
        assert everything_from(one).startswith(b"HTTP/1.1 403 ")
    assert [one.host for one in stage.cell_proxy.crossings()] == [name, name]


def test_a_flood_of_queries_is_dropped_and_the_resolver_goes_on(stage: Stage) -> None:
    stage.open(EgressTerms(allowing("good.test"), limits=ProxyLimits(queries=10)))
    query = b"\0\7\1\0\0\1\0\0\0\0\0\0\4good\4test\0\0\1\0\1"
    with socket.socket(fileno=stage.inside.datagrams("198.18.0.8", 0)) as one:
        for _ in range(150):
            one.sendto(query.replace(b"good", b"evil"), DNS)
        one.settimeout(0.1)
        answered = False
        for _ in range(200):  # as a client asks again; credit comes back with time
            one.sendto(query, DNS)
            with contextlib.suppress(TimeoutError):
                answered = one.recv(600)[3] & 15 == 0
            if answered:
                break
    assert answered
    assert sum(one.connections for one in stage.cell_proxy.crossings()) < 150


def test_a_service_of_the_host_is_reached_at_the_listed_ports_only(stage: Stage, echo_port: int) -> None:
    stage.open(EgressTerms(HostRules((HostRule(LOCAL_NAME, 8000),))))
    stage.internet.servers["127.0.0.1", 8000] = echo_port
    with stage.connect(LOCAL_NAME, 8000) as one:
        one.sendall(b"local")
        assert one.recv(5) == b"local"
    with stage.proxy() as one:
        one.sendall(f"CONNECT {LOCAL_NAME}:8001 HTTP/1.1\r\nHost: {LOCAL_NAME}:8001\r\n\r\n".encode())
        answer = everything_from(one)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"8001 as allow_local" in answer
    assert stage.internet.dialled == [("127.0.0.1", 8000)]
    assert stage.internet.resolved == []
