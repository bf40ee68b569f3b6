"""Where a secret may be put: hosts that are named, a field that can hold one, a format with one place for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from casemate import Inject, InvalidArgument
from casemate.policy.inject import Injected


def test_a_rule_keeps_canonical_names_and_says_where_they_are() -> None:
    rule = Inject(["API.Example.org.", "api.example.org", "x.example.org:8443"])
    assert rule.hosts == ("api.example.org", "x.example.org:8443")
    assert rule.places == {("api.example.org", 443), ("x.example.org", 8443)}
    assert (rule.header, rule.format) == ("Authorization", "Bearer {}")
    assert rule == Inject(["api.example.org", "x.example.org:8443"])


@pytest.mark.parametrize(
    "hosts",
    [
        "api.example.org", b"api.example.org", [], None, 7, {"api.example.org": 1}, [None], [7], [""], ["*"],
        ["*.example.org"], ["api.*.org"], ["127.0.0.1"], ["[::1]"], ["::1"], ["2130706433"], ["0x7f.1"], ["localhost"],
        ["https://api.example.org"], ["api.example.org/x"], ["a@api.example.org"], ["api.example.org:0"],
        ["api.example.org:x"], ["api.example.org:65536"], ["api.example.org\0"], ["api.exämple.org"],
        ["host.casemate.internal:80"], ["org"], ["good.example.org", "*.example.org"], ["a b.example.org"],
        [f"h{n}.example.org" for n in range(65)],
    ],
)  # fmt: skip
def test_what_is_no_list_of_named_hosts_is_refused(hosts: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Inject(hosts)
    assert refused.value.argument == "hosts"


@pytest.mark.parametrize(
    "header", ["X-Api-Key", "authorization", "PRIVATE-TOKEN", "api_key", "DD-API-KEY", "X-Goog-Api-Key"]
)
def test_a_field_of_its_own_may_hold_a_secret(header: str) -> None:
    assert Inject(["api.example.org"], header).header == header


@pytest.mark.parametrize(
    "header",
    [
        "Host", "HOST", "Content-Length", "Transfer-Encoding", "transfer-encoding", "TE", "Trailer", "Connection",
        "Keep-Alive", "Upgrade", "Proxy-Authorization", "Proxy-Anything", "Cookie", "Set-Cookie", "Expect",
        "Content-Type", "Range", "Sec-WebSocket-Protocol", "X-Forwarded-For", "Referer", "", ":path", ":authority",
        "A B", "A:", "A\r\nB", "A\n", "Ä", "x" * 101, None, 7, b"X-Api-Key",
    ],
)  # fmt: skip
def test_a_field_that_can_hold_none_is_refused(header: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Inject(["api.example.org"], header)
    assert refused.value.argument == "header"


@pytest.mark.parametrize(
    "form",
    ["", "Bearer", "{} {}", "{}{}", "Bearer {}\r\nX: y", "Bearer\t{}", "{}\n", "{}\0", " {}", "{} ", "é {}", "{0}",
     None, 7, b"{}", "x" * 199 + "{}"],
)  # fmt: skip
def test_a_format_without_exactly_one_place_or_with_more_than_text_is_refused(form: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        Inject(["api.example.org"], format=form)
    assert refused.value.argument == "format"


@pytest.mark.parametrize("form", ["{}", "token {}", "Bearer {}", 'Token token="{}"', "Basic {}", "{x} {}"])
def test_a_format_has_the_secret_anywhere(form: str) -> None:
    assert Inject(["api.example.org"], format=form).format == form


def test_a_rule_is_read_as_it_was_written() -> None:
    rule = Inject(["api.example.org:8443"], "X-Api-Key", "{}")
    assert Inject.read(json.loads(json.dumps(rule.as_json()))) == rule
    assert Inject.read({"hosts": ["api.example.org"]}) == Inject(["api.example.org"])


@pytest.mark.parametrize(
    "data", [None, [], "x", {}, {"header": "X"}, {"hosts": ["a.example.org"], "host": 1}, {"hosts": "a"}]
)
def test_what_is_no_rule_is_not_read(data: object) -> None:
    with pytest.raises(InvalidArgument):
        Inject.read(data)


def test_a_value_that_is_kept_with_its_rule_is_not_shown() -> None:
    kept = Injected("hunter2hunter2", Inject(["api.example.org"]))
    assert "hunter2" not in f"{kept!r} {kept}"
