"""Which hosts are told as not reached."""

from __future__ import annotations

from casemate.model.execution import Crossing, not_reached

NO_NAME = "its name does not resolve"


def test_what_was_denied_and_what_was_allowed_and_never_reached_is_told_with_the_reason() -> None:
    assert not_reached(
        [
            Crossing("good.test", 443, "allowed", "a rule allows it", is_reached=True),
            Crossing("gone.test", 443, "allowed", NO_NAME),
            Crossing("evil.test", 80, "denied", "no rule allows it"),
            Crossing("nowhere.test", 0, "denied", "no rule allows it"),
        ]
    ) == [("gone.test:443", NO_NAME), ("evil.test:80", "no rule allows it"), ("nowhere.test", "no rule allows it")]


def test_a_name_that_was_tried_at_several_ports_is_told_once() -> None:
    tried = [Crossing("gone.test", port, "allowed", NO_NAME, connections=9) for port in (80, 443)]
    assert not_reached(tried) == [("gone.test:80,443", NO_NAME)]


def test_what_was_reached_in_the_end_is_not_told() -> None:
    late = Crossing("slow.test", 443, "allowed", "it does not answer")
    assert not_reached([late, Crossing("slow.test", 443, "allowed", "a rule allows it", is_reached=True)]) == []
    assert not_reached([late, Crossing("slow.test", 80, "allowed", "a rule allows it", is_reached=True)]) == [
        ("slow.test:443", "it does not answer")
    ]


def test_what_was_denied_is_told_even_where_other_connections_were_made() -> None:
    told = [Crossing("a.test", 443, "allowed", "a rule allows it", is_reached=True)]
    told.append(Crossing("a.test", 443, "denied", "its TLS ClientHello names another server"))
    assert not_reached(told) == [("a.test:443", "its TLS ClientHello names another server")]
