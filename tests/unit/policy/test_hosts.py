"""Which names a rule covers, and which texts are no rule."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.errors import InvalidArgument
from casemate.policy.hosts import LOCAL_NAME, HostRule, HostRules, canonical, denied_rule, host_rule, may_be_public

GOOD = HostRules((host_rule("good.test"),))


def reaches(rules: HostRules, written: str, port: int = 443) -> bool:
    name = canonical(written)
    return name is not None and rules.allows(name, port)


@pytest.mark.parametrize("written", ["good.test", "GOOD.test", "good.test.", "gOoD.TeSt."])
def test_a_rule_covers_its_name_in_any_case_and_with_one_dot_at_the_end(written: str) -> None:
    assert reaches(GOOD, written)


@pytest.mark.parametrize(
    "written",
    [
        "evilgood.test",
        "good.test.evil.test",
        "good.test\0.evil.test",
        "good.test\0",
        "good.test..",
        ".good.test",
        "good。test",
        "g\u043eod.test",
        "xn--god-sed.test",
        "a.good.test",
        "good.test:443",
        "good.test\n",
        " good.test",
        "user@good.test",
        "good.test/",
        "",
        "test",
    ],
)
def test_a_rule_covers_no_look_alike(written: str) -> None:
    assert not reaches(GOOD, written)


@pytest.mark.parametrize(
    ("written", "covered"),
    [
        ("x.good.test", True),
        ("a.b.good.test", True),
        ("good.test", False),
        (".good.test", False),
        ("agood.test", False),
        ("*.good.test", False),
        ("x.good.test.evil.test", False),
    ],
)
def test_a_star_stands_for_one_or_more_whole_labels(written: str, covered: bool) -> None:
    assert reaches(HostRules((host_rule("*.good.test"),)), written) is covered


NO_RULES = [
    "*",
    "*.com",
    "*.co.uk",
    "*.test",
    "http://x",
    "https://example.org",
    "x/y",
    "user@x",
    "x:99999",
    "example.org:0",
    "example.org:",
    "example.org:080",
    "127.0.0.1",
    "127.1",
    "0x7f.1",
    "2130706433",
    "localhost",
    "a.localhost",
    "*.localhost",
    "localhost.localdomain",
    "*.localdomain",
    "host.casemate.internal",
    "host.casemate.internal:8000",
    "*.casemate.internal",
    "*.casemate.internal:8000",
    "casemate.internal",
    "x.casemate.internal:80",
    "[::1]",
    "::1",
    "10.0.0.0/8",
    "169.254.169.254",
    "",
    " ",
    "example.org ",
    "*example.org",
    "a.*.org",
    "**.example.org",
    "intranet",
    "пример.рф",
    "-a.example.org",
    None,
    7,
]


@pytest.mark.parametrize("text", NO_RULES)
def test_what_is_no_host_name_or_too_wide_is_refused_as_a_rule(text: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^allowed_domains: "):
        host_rule(text)


@pytest.mark.parametrize(("text", "why", "instead"), [
    ("https://good.test/x", "address of a page", "name of the host alone"),
    ("me@good.test", "credentials", "host alone"),
    ("10.0.0.0/8", "it is an address", "allow_local"), ("[::1]:80", "it is an address", "allow_local"),
    ("2001:db8::1", "it is an address", "'example.org'"), ("127.0.0.1", "it is an address", "allow_local"),
    ("good.test:99999", "its port", "'example.org:5432'"), ("good.test:443:1", "its port", "'example.org:5432'"),
    ("a.*.test", "whole labels", "'*.example.org'"), ("localhost", "this machine", "allow_local"),
    ("b\u00fccher.test", "in the DNS", "'xn--bcher-kva.test'"),
    ("*.b\u00fccher.test", "in the DNS", "'*.xn--bcher-kva.test'"),
    ("\u0430" * 70, "in the DNS", "'example.org'"), ("a..test", "it is not a valid name", "'example.org'"),
])  # fmt: skip
def test_a_text_that_is_no_rule_is_told_why_and_what_to_write_instead(text: str, why: str, instead: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        host_rule(text)
    assert why in refused.value.message
    assert instead in refused.value.remediation


def test_a_long_text_that_is_no_rule_is_refused_as_fast_as_it_is_read() -> None:
    """Where time grew with the square of the length, this would take hours."""
    with pytest.raises(InvalidArgument, match="it is an address"):
        host_rule(":" * 1_000_000 + "/8")


def test_who_writes_the_name_of_local_services_as_a_rule_is_told_of_allow_local() -> None:
    with pytest.raises(InvalidArgument, match="8000 as allow_local"):
        host_rule("host.casemate.internal:8000")


@pytest.mark.parametrize("text", ["*.example.org", "*.github.io", "*.githubusercontent.com", "*.good.test", "co.uk"])
def test_a_star_below_a_name_that_somebody_owns_is_a_rule(text: str) -> None:
    assert str(host_rule(text)) == text


@pytest.mark.parametrize("text", ["*", "*.com", "localhost"])
def test_a_rule_that_denies_may_be_wide(text: str) -> None:
    rules = HostRules((host_rule("example.com"),), (denied_rule(text),))
    assert reaches(rules, "example.com") is (text == "localhost")


@pytest.mark.parametrize("port", [22, 25, 6379, 8080])
def test_a_rule_without_a_port_is_for_80_and_443_only(port: int) -> None:
    assert not reaches(GOOD, "good.test", port)
    assert reaches(GOOD, "good.test", 80)
    assert GOOD.ports("good.test") == (80, 443)


def test_a_rule_with_a_port_is_for_that_port_only() -> None:
    rules = HostRules((host_rule("db.test.example:5432"),))
    assert rules.ports("db.test.example") == (5432,)
    assert not rules.allows("db.test.example", 443)


def test_what_is_denied_is_not_allowed_by_another_rule() -> None:
    rules = HostRules(
        (host_rule("*.good.test"),), (denied_rule("bad.good.test"), denied_rule("half.good.test:80")), True
    )
    assert rules.ports("bad.good.test") == ()
    assert rules.ports("half.good.test") == (443,)


def test_private_networks_are_of_the_hosts_and_ports_of_their_rules() -> None:
    ten, other = (IPv4Network("10.0.0.0/8"),), (IPv4Network("172.16.0.0/12"),)
    private = ((host_rule("db.test.example:5432"), ten), (host_rule("*.test.example"), other))
    rules = HostRules(private=private)
    assert rules.networks("db.test.example", 5432) == ten
    assert rules.networks("db.test.example", 443) == other
    assert rules.networks("db.example", 443) == ()
    assert not rules.allows("db.test.example", 5432)


def test_the_narrower_lists_that_do_not_name_a_host_are_told_as_written() -> None:
    wide, narrow = (
        (host_rule("*.good.test"), host_rule("good.test")),
        (host_rule("good.test:8443"), host_rule("good.test")),
    )
    rules = HostRules(within=(wide, narrow))
    assert rules.beyond("good.test", 443) == ()
    assert rules.beyond("good.test", 8443) == ("*.good.test good.test",)
    assert rules.beyond("x.good.test", 443) == ("good.test:8443 good.test",)
    assert rules.beyond("evil.test", 443) == ("*.good.test good.test", "good.test:8443 good.test")
    assert HostRules(within=((),)).beyond("good.test", 443) == ("",)
    assert HostRules().beyond("good.test", 443) == ()


def test_no_rules_allow_nothing() -> None:
    assert HostRules().ports("good.test") == ()


@pytest.mark.parametrize("name", ["localhost", "a.localhost", "printer.local", "metadata.google.internal", "intranet"])
def test_names_of_no_public_host_are_not_among_all_public_ones(name: str) -> None:
    assert not may_be_public(name)
    assert HostRules(everything=True).ports(name) == ()


def test_all_public_hosts_are_reached_at_the_usual_ports() -> None:
    assert HostRules(everything=True).ports("example.org") == (80, 443)


@given(st.text(max_size=300))
def test_a_canonical_name_is_its_own_canonical_name(written: str) -> None:
    name = canonical(written)
    assert name is None or (canonical(name) == name and name.isascii() and len(name) <= 253)


@given(st.text(max_size=80))
def test_a_text_is_a_rule_that_says_the_same_again_or_is_refused(text: str) -> None:
    try:
        rule = host_rule(text)
    except InvalidArgument:
        return
    assert host_rule(str(rule)) == rule


def test_a_denial_holds_for_services_of_the_host_too() -> None:
    allowed = (HostRule(LOCAL_NAME, 5432), HostRule(LOCAL_NAME, 8000))
    assert HostRules(allowed).local_ports == (5432, 8000)
    assert HostRules(allowed, denied=(HostRule(LOCAL_NAME, 5432),)).local_ports == (8000,)
    assert HostRules(allowed, denied=(denied_rule("*"),)).local_ports == ()
