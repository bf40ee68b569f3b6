"""A host is asked for before any program connects to it, and what was allowed holds for those that come."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.network.test_asked import decisions, get
from tests.network.visits import World

from casemate import ApprovalRequest, Decision, EgressAnswer, InvalidArgument, Sandbox, SandboxClosed, sync
from casemate.audit.log import AuditLog

HELLO, REFUSED = "hello from GET /x\n", "refused\n"


def approver(*answers: Decision | bool) -> tuple[list[ApprovalRequest], Any]:
    """Gives these answers, then denies; and what it was asked."""
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Decision | bool:
        asked.append(request)
        return answers[len(asked) - 1] if len(asked) <= len(answers) else False

    return asked, approve


def test_what_is_allowed_for_the_sandbox_holds_for_its_runs_and_sessions(world: World, audit: Path) -> None:
    asked, approve = approver(Decision(True, scope="session", reason="go on"))
    with sync.Sandbox(audit=audit, approve=approve) as sandbox:
        answer = sandbox.egress.request("EVIL.test.", port=80, reason="to fetch\nthe data")
        assert answer == EgressAnswer("evil.test", 80, True, "namespace", None, "approve", "go on")
        assert sandbox.run(get("evil.test")).stdout == HELLO
        assert sandbox.run(get("evil.test")).stdout == HELLO
        with sandbox.session() as session:
            assert session.run(get("evil.test")).stdout == HELLO
        assert len(asked) == 1
        assert sandbox.run(get("other.test")).stdout == REFUSED
    assert (asked[0].kind, dict(asked[0].arguments), asked[0].session) == (
        "egress",
        {"host": "evil.test", "port": 80},
        None,
    )
    assert asked[0].summary.endswith("asked for ahead, they say: to fetch the data")
    assert decisions(audit)[0] == ("allowed", {"host": "evil.test", "port": 80})


@pytest.mark.parametrize("decision", [True, Decision(True), Decision(True, scope="run")])
def test_what_is_allowed_once_is_good_for_one_connection(world: World, audit: Path, decision: Decision | bool) -> None:
    asked, approve = approver(decision)
    with sync.Sandbox(audit=audit, approve=approve) as sandbox:
        assert sandbox.egress.request("evil.test", port=80).scope == "once"
        assert sandbox.run(get("evil.test")).stdout == HELLO
        assert len(asked) == 1
        assert sandbox.run(get("evil.test")).stdout == REFUSED
    assert len(asked) == 2


def test_what_is_allowed_for_so_long_ends_then(world: World, audit: Path) -> None:
    asked, approve = approver(Decision(True, scope="session", expires=0.01))
    with sync.Sandbox(audit=audit, approve=approve) as sandbox:
        before = time.time()
        answer = sandbox.egress.request("other.test", port=80)
        assert answer.allowed
        assert before <= answer.expires <= time.time() + 1
        while time.time() <= answer.expires:
            time.sleep(0.01)
        assert sandbox.run(get("other.test")).stdout == REFUSED
    assert len(asked) == 2


def test_what_is_allowed_for_a_session_holds_in_it_alone(world: World, audit: Path) -> None:
    asked, approve = approver(Decision(True, scope="session"))
    with (
        sync.Sandbox(audit=audit, approve=approve) as sandbox,
        sandbox.session(name="a") as mine,
        sandbox.session() as other,
    ):
        answer = sandbox.egress.request("evil.test", port=80, session=mine)
        assert (answer.allowed, answer.scope, asked[0].session) == (True, "session", mine.id)
        assert [mine.run(get("evil.test")).stdout for _ in range(2)] == [HELLO, HELLO]
        assert other.run(get("evil.test")).stdout == REFUSED
        assert sandbox.run(get("evil.test")).stdout == REFUSED
        assert sandbox.egress.request("evil.test", port=80, session="a").scope == "rule"
        with pytest.raises(InvalidArgument, match="no open session"):
            sandbox.egress.request("evil.test", session="b")


def test_what_was_allowed_while_somebody_looked_holds_after_they_have_gone(world: World, audit: Path) -> None:
    with sync.Sandbox(audit=audit) as sandbox:
        assert sandbox.run(get("evil.test")).stdout == REFUSED
        with sandbox.approvals.open():
            answers: list[EgressAnswer] = []
            asking = threading.Thread(
                target=lambda: answers.append(sandbox.egress.request("evil.test", port=80)), daemon=True
            )
            asking.start()
            while not (pending := sandbox.approvals.pending()):
                time.sleep(0.01)
            assert pending[0].approve(scope="session")
            asking.join(60)
        assert answers[0].allowed
        assert sandbox.run(get("evil.test")).stdout == HELLO
        assert sandbox.run(get("other.test")).stdout == REFUSED


def test_nobody_to_ask_is_a_denial_at_once_and_nothing_is_looked_up(world: World, audit: Path) -> None:
    queries = world.queries()
    with sync.Sandbox(audit=audit) as sandbox:
        answer = sandbox.egress.request("secret-data.unknown.test")
        assert (answer.allowed, answer.scope, answer.by) == (False, "", "nobody")
    with sync.Sandbox(audit=audit, approve=lambda _: False) as sandbox:
        assert not sandbox.egress.request("secret-data.unknown.test").allowed
        assert sandbox.run(get("secret-data.unknown.test")).stdout == REFUSED
    assert world.queries() == queries


@pytest.mark.parametrize(
    ("arguments", "host", "allowed", "by"),
    [
        ({"network": "none"}, "good.test", False, "network"),
        ({"allowed_domains": ["good.test"]}, "good.test", True, "allowed_domains"),
        ({"policy": {"denied_domains": ["evil.test"]}}, "evil.test", False, "denied_domains"),
    ],
)
def test_what_the_network_says_is_told_without_asking(
    world: World, audit: Path, arguments: dict[str, Any], host: str, allowed: bool, by: str
) -> None:
    asked, approve = approver(True)
    with sync.Sandbox(audit=audit, approve=approve, **arguments) as sandbox:
        answer = sandbox.egress.request(host)
    assert (answer.allowed, answer.scope, answer.by, asked) == (allowed, "rule" if allowed else "", by, [])


def test_a_rule_that_denies_wins_over_whoever_would_allow(world: World, audit: Path) -> None:
    asked, approve = approver(True)
    policy = {"rules": [{"deny": "egress", "host": "evil.test:443"}]}
    with sync.Sandbox(audit=audit, approve=approve, policy=policy) as sandbox:
        answer = sandbox.egress.request("evil.test")
    assert not answer.allowed
    assert asked == []


@pytest.mark.parametrize(
    "domain",
    ["", "localhost", "127.0.0.1", "[::1]", "0x7f.1", "a b.test", "host.casemate.internal", "x.casemate.internal",
     "häß.test", "example.org:80", "https://example.org", "*.example.org", "a" * 300 + ".test", None, 1],
)  # fmt: skip
def test_what_is_no_host_name_is_a_bad_argument_and_nobody_is_asked(audit: Path, domain: Any) -> None:
    asked, approve = approver(True)
    with sync.Sandbox(audit=audit, approve=approve) as sandbox:
        with pytest.raises(InvalidArgument, match="domain"):
            sandbox.egress.request(domain)
        with pytest.raises(InvalidArgument, match="port"):
            sandbox.egress.request("example.test", port=True)
    assert asked == []


def test_a_decision_that_is_asked_ahead_is_on_record(audit: Path) -> None:
    _, approve = approver(Decision(True, scope="session", expires=60))
    with sync.Sandbox(audit=audit, approve=approve) as sandbox:
        sandbox.egress.request("example.test", port=8443)
    log = AuditLog(audit)
    asked, decided = log.tail(10)
    log.close()
    assert (asked.kind, decided.kind) == ("request", "decision")
    row = json.loads(decided.detail)
    assert (row["decision"], row["scope"], row["expires"], row["by"]) == ("allowed", "session", 60, "approve")


async def _closed(audit: Path) -> None:
    sandbox = Sandbox(audit=audit)
    await sandbox.close()
    with pytest.raises(SandboxClosed):
        await sandbox.egress.request("example.test")


def test_a_closed_sandbox_asks_nobody(audit: Path) -> None:
    asyncio.run(_closed(audit))
