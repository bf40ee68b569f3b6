"""A list of a run's, a session's or a sandbox's own narrows what the policy allows, however that is written there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.network.test_asked import get
from tests.network.visits import World

from casemate import ApprovalRequest, Decision, Execution, allow_all, sync
from casemate.api.settings import settings_of

GOOD = {"allow": "egress", "host": "good.test"}
POLICIES: dict[str, dict[str, Any]] = {
    "a list": {"allowed_domains": ["good.test", "other.test"]},
    "rules": {"rules": [GOOD, {"allow": "egress", "host": "other.test"}]},
    "a rule with a budget": {"rules": [GOOD, {"allow": "egress", "host": "other.test", "uses": 5}]},
    "only rules with a budget": {"rules": [{**GOOD, "uses": 5}, {"allow": "egress", "host": "other.test", "uses": 5}]},
    "a wildcard": {"rules": [GOOD, {"allow": "egress", "host": "*.good.test"}]},
}


def by_run(audit: Path, code: str, **arguments: Any) -> Execution:
    with sync.Sandbox(audit=audit, **arguments) as sandbox:
        return sandbox.run(code, allowed_domains=["good.test"])


def by_session(audit: Path, code: str, **arguments: Any) -> Execution:
    with sync.Sandbox(audit=audit, **arguments) as sandbox, sandbox.session(allowed_domains=["good.test"]) as session:
        return session.run(code)


def by_sandbox(audit: Path, code: str, **arguments: Any) -> Execution:
    with sync.Sandbox(audit=audit, allowed_domains=["good.test"], **arguments) as sandbox:
        return sandbox.run(code)


HOW = pytest.mark.parametrize("how", [by_run, by_session, by_sandbox])


@HOW
@pytest.mark.parametrize("policy", POLICIES)
def test_what_the_policy_allows_is_not_reached_beyond_a_narrower_list(
    world: World, audit: Path, how: Any, policy: str
) -> None:
    visits = world.visits()
    beyond = "api.good.test" if policy == "a wildcard" else "other.test"
    assert "refused" in how(audit, get(beyond), policy=POLICIES[policy]).stdout
    assert world.visits() == visits
    assert "hello" in how(audit, get("good.test"), policy=POLICIES[policy]).stdout


@HOW
def test_a_person_may_still_widen_it_and_is_asked_where_a_rule_would_have_decided(audit: Path, how: Any) -> None:
    asked: list[Any] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request.arguments["host"])
        return True

    assert "hello" in how(audit, get("other.test"), policy=POLICIES["a rule with a budget"], approve=approve).stdout
    assert asked == ["other.test"]


def test_without_a_narrower_list_rules_decide_as_before(audit: Path) -> None:
    with sync.Sandbox(audit=audit, policy=POLICIES["a rule with a budget"]) as sandbox:
        assert [("hello" in sandbox.run(get("other.test")).stdout) for _ in range(6)] == [True] * 5 + [False]


def test_a_list_of_the_sandbox_does_not_lift_the_budget_of_a_rule(audit: Path) -> None:
    policy = {"rules": [{"allow": "egress", "host": "other.test", "uses": 1}]}
    with sync.Sandbox(audit=audit, policy=policy, allowed_domains=["other.test"]) as sandbox:
        assert [("hello" in sandbox.run(get("other.test")).stdout) for _ in range(2)] == [True, False]


@HOW
def test_where_asking_is_switched_off_a_list_holds(world: World, audit: Path, how: Any) -> None:
    visits = world.visits()
    execution = how(audit, get("other.test"), approve=allow_all)
    assert "refused" in execution.stdout
    assert world.visits() == visits
    assert "not in a given list" in execution.crossings[0].reason
    assert "hello" in how(audit, get("good.test"), approve=allow_all).stdout


@pytest.mark.parametrize("decision", [True, Decision(True, scope="session")])
def test_what_was_allowed_ahead_for_all_does_not_widen_a_narrower_list(
    world: World, audit: Path, decision: Decision | bool
) -> None:
    answers: list[Decision | bool] = [decision]
    with sync.Sandbox(audit=audit, approve=lambda _: answers.pop() if answers else False) as sandbox:
        assert sandbox.egress.request("other.test", port=80).allowed
        visits = world.visits()
        assert "refused" in sandbox.run(get("other.test"), allowed_domains=["good.test"]).stdout
        with sandbox.session(allowed_domains=["good.test"]) as session:
            assert "refused" in session.run(get("other.test")).stdout
        assert world.visits() == visits
        assert "hello" in sandbox.run(get("other.test"), allowed_domains=["*.good.test", "other.test"]).stdout


def test_asking_ahead_for_a_session_goes_by_its_own_list(audit: Path) -> None:
    asked: list[Any] = []

    def approve(request: ApprovalRequest) -> Decision:
        asked.append(request.arguments["host"])
        return Decision(True, scope="session")

    policy = POLICIES["a rule with a budget"]
    with (
        sync.Sandbox(audit=audit, policy=policy, approve=approve) as sandbox,
        sandbox.session(allowed_domains=["api.good.test"]) as session,
    ):
        assert sandbox.egress.request("good.test", port=80).scope == "rule"
        for host in ("good.test", "other.test"):
            assert sandbox.egress.request(host, port=80, session=session).scope == "session"
            assert "hello" in session.run(get(host)).stdout
    assert asked == ["good.test", "other.test"]


def test_asking_ahead_is_narrowed_as_well(audit: Path) -> None:
    policy = POLICIES["a rule with a budget"]
    with sync.Sandbox(audit=audit, policy=policy) as sandbox:
        assert sandbox.egress.request("other.test", port=80).allowed
    with sync.Sandbox(audit=audit, policy=policy, allowed_domains=["good.test"]) as sandbox:
        assert not sandbox.egress.request("other.test", port=80).allowed


def by_variable(audit: Path, code: str, **arguments: Any) -> Execution:
    with sync.Sandbox(
        audit=audit, **settings_of({"CASEMATE_ALLOWED_DOMAINS": ""}).sandbox_arguments(), **arguments
    ) as one:
        return one.run(code)


def by_empty_list(audit: Path, code: str, **arguments: Any) -> Execution:
    with sync.Sandbox(audit=audit, allowed_domains=[], **arguments) as sandbox:
        return sandbox.run(code)


@pytest.mark.parametrize("how", [by_empty_list, by_variable])
@pytest.mark.parametrize("policy", [*POLICIES, "public"])
def test_an_empty_list_of_the_sandbox_allows_nothing(world: World, audit: Path, how: Any, policy: str) -> None:
    visits = world.visits()
    most = POLICIES.get(policy, {"network": "public"})
    assert "hello" not in how(audit, get("good.test"), policy=most).stdout
    assert world.visits() == visits


def test_a_wrapped_command_has_what_rules_allow_at_times_and_no_more(world: World, tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"rules": [{"allow": "egress", "host": "good.test", "uses": 1}]}))
    for name in ("folder", "home"):
        (tmp_path / name).mkdir()
    asks = "for n in 1 2; do curl -sS http://good.test/$n; done; curl -sS http://other.test/"
    visits = world.visits()
    done = subprocess.run(
        [sys.executable, "-m", "casemate", "wrap", "--policy", str(policy), "--", "bash", "-c", asks],
        cwd=tmp_path / "folder", env={**os.environ, "HOME": str(tmp_path / "home")}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout.count("hello") == 1, done.stderr
    assert "hello from GET /1" in done.stdout
    assert len(world.visits()) == len(visits) + 1
