"""Which requests, seen in clear, a rule covers."""

from __future__ import annotations

import pytest

from casemate.policy.hosts import RequestRule, RequestRules, host_rule

RULES = RequestRules((RequestRule(host_rule("api.good.test"), ("GET",), "/v1/items"),))


@pytest.mark.parametrize(
    "target", ["/v1/items", "/v1/items/", "/v1/items/7?x=../y", "/v1/items?all", "/v1/items/7;v=2", "/v1/items/...;v=2"]
)
def test_a_rule_covers_its_path_and_what_is_below(target: str) -> None:
    assert RULES.allows("api.good.test", 80, "GET", target)


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/v1",
        "/v1/itemsx",
        "/V1/items",
        "/v1/items/../admin",
        "/v1/items/%2e%2E/admin",
        "/v1/items/.%2e/admin",
        "/v1/items%2f..%2fadmin",
        "/v1/items/..",
        "/v1/items\\..\\admin",
        "/v1/items//x",
        "/v1/items/..;/admin",
        "/v1/items/..;x=y/admin",
        "/v1/items/%2e.%3B/admin",
        "/v1/items/;/../admin",
        "/v1/items/..;",
        "/v1/items/%252e%252e/admin",
        "/v1/items/%25252e%25252e%25252fadmin",
        "*",
    ],
)
def test_a_rule_covers_no_path_that_leads_elsewhere(target: str) -> None:
    assert not RULES.allows("api.good.test", 80, "GET", target)


def test_another_method_is_refused_and_another_host_is_not_meant() -> None:
    assert not RULES.allows("api.good.test", 80, "DELETE", "/v1/items")
    assert RULES.allows("other.good.test", 80, "DELETE", "/v1/items")
    assert RULES.names("api.good.test", 443)
    assert not RULES.names("api.good.test", 8080)


@pytest.mark.parametrize(
    "field", [b"X-HTTP-Method-Override", b"x-method-override", b"X-Original-URL", b"X-Rewrite-Url"]
)
def test_no_field_makes_another_request_of_one_that_a_rule_covers(field: bytes) -> None:
    fields = [(b"accept", b"*/*"), (field, b"DELETE")]
    assert not RULES.allows("api.good.test", 80, "GET", "/v1/items", fields)
    assert RULES.allows("api.good.test", 80, "GET", "/v1/items", fields[:1])
    anything = RequestRules((RequestRule(host_rule("api.good.test"), ()),))
    assert anything.allows("api.good.test", 80, "GET", "/v1/items", fields)
