"""A run's own list of hosts: within the sandbox's, never beyond."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate import InvalidArgument
from casemate.policy.hosts import LOCAL_NAME, HostRule, HostRules, host_rule, narrow_hosts


def rules(*texts: str, everything: bool = False) -> HostRules:
    return HostRules(tuple(map(host_rule, texts)), everything=everything)


@pytest.mark.parametrize(("sandbox", "wanted", "left"), [
    (["api.good.test"], ["api.good.test"], ["api.good.test"]),
    (["*.good.test"], ["api.good.test"], ["api.good.test"]),
    (["api.good.test"], ["*.good.test"], ["api.good.test"]),
    (["*.good.test"], ["*.api.good.test"], ["*.api.good.test"]),
    (["*.api.good.test"], ["*.good.test"], ["*.api.good.test"]),
    (["api.good.test"], ["api.good.test:443"], ["api.good.test:443"]),
    (["api.good.test:443"], ["api.good.test"], ["api.good.test:443"]),
    (["api.good.test:5432"], ["api.good.test:5432"], ["api.good.test:5432"]),
    (["one.good.test", "two.good.test"], ["two.good.test"], ["two.good.test"]),
    (["one.good.test", "two.good.test"], [], []),
])  # fmt: skip
def test_what_is_in_both_lists_is_left(sandbox: list[str], wanted: list[str], left: list[str]) -> None:
    assert [str(rule) for rule in narrow_hosts(rules(*sandbox), wanted, can_ask=False).allowed] == left


@pytest.mark.parametrize(("sandbox", "wanted"), [
    ([], "api.good.test"), (["api.good.test"], "evil.test"), (["*.good.test"], "good.test"),
    (["good.test"], "*.good.test"), (["api.good.test"], "api.good.test:22"), (["good.test"], "evilgood.test"),
    (["api.good.test:443"], "api.good.test:80"), (["api.good.test:22"], "api.good.test"),
])  # fmt: skip
def test_what_the_sandbox_does_not_allow_is_an_error_that_names_it(sandbox: list[str], wanted: str) -> None:
    with pytest.raises(InvalidArgument, match=wanted.replace("*", r"\*")):
        narrow_hosts(rules(*sandbox), [wanted], can_ask=False)


def test_where_somebody_can_be_asked_it_is_not_allowed_and_no_error() -> None:
    assert narrow_hosts(rules("good.test"), ["evil.test"], can_ask=True).allowed == ()


def test_a_list_within_every_public_host_is_that_list_and_no_more() -> None:
    left = narrow_hosts(rules(everything=True), ["api.good.test", "*.other.test:443"], can_ask=False)
    assert [str(rule) for rule in left.allowed] == ["api.good.test", "*.other.test:443"]
    assert not left.everything


@pytest.mark.parametrize("end", ["localdomain", "local", "internal", "home.arpa", "onion", "invalid"])
@pytest.mark.parametrize("wanted", ["db.{}", "*.{}", "*.x.{}", "db.{}:443"])
def test_a_name_of_no_public_host_is_not_among_every_public_host(wanted: str, end: str) -> None:
    with pytest.raises(InvalidArgument):
        narrow_hosts(rules(everything=True), [wanted.format(end)], can_ask=False)


def test_services_of_this_machine_are_named_by_their_ports_to_keep_them() -> None:
    local = tuple(HostRule(LOCAL_NAME, port) for port in (8000, 9000))
    hosts = HostRules((*rules("good.test").allowed, *local), everything=True)
    assert narrow_hosts(hosts, [f"{LOCAL_NAME}:9000"], can_ask=False).local_ports == (9000,)
    assert narrow_hosts(hosts, ["good.test"], can_ask=False).local_ports == ()
    for wanted in (f"{LOCAL_NAME}:7000", LOCAL_NAME, "*.casemate.internal:8000"):
        with pytest.raises(InvalidArgument, match="allow_local"):
            narrow_hosts(hosts, [wanted], can_ask=True)


def test_what_is_denied_stays_denied() -> None:
    hosts = HostRules(rules("*.good.test").allowed, denied=(HostRule("api.good.test"),))
    assert not narrow_hosts(hosts, ["api.good.test"], can_ask=False).allows("api.good.test", 443)


LABELS = st.sampled_from(["good.test", "api.good.test", "a.api.good.test", "other.test", "api.other.test"])
RULES = st.builds(
    lambda host, wild, port: HostRule(f"*.{host}" if wild else host, port),
    LABELS, st.booleans(), st.sampled_from([None, 80, 443, 22]),
)  # fmt: skip


@given(st.lists(RULES, max_size=4), st.lists(RULES, max_size=4), LABELS, st.sampled_from([80, 443, 22, 5432]))
def test_a_host_is_left_when_both_lists_have_it(
    sandbox: list[HostRule], wanted: list[HostRule], name: str, port: int
) -> None:
    left = narrow_hosts(HostRules(tuple(sandbox)), [str(rule) for rule in wanted], can_ask=True)
    both = HostRules(tuple(sandbox)).allows(name, port) and HostRules(tuple(wanted)).allows(name, port)
    assert left.allows(name, port) == both
