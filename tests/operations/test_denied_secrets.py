"""A rule that denies secrets binds every caller: the application, an operator, and an agent whose token names them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.operations.conftest import AGENT, OPERATOR

from casemate import Denied, Sandbox
from casemate.operations.invoke import local
from casemate.operations.operations import Operations

SHOW = "import os; print(os.environ['KEY'])"
ALLOW = {"allow": "secret", "arguments": {"name": "KEY"}}
DENY = {"deny": "secret", "reason": "Keys stay here."}
POLICIES: dict[str, dict[str, Any]] = {
    "deny first": {"rules": [DENY, ALLOW]},
    "deny last": {"rules": [ALLOW, DENY]},
    "this name": {"rules": [{"deny": "secret", "arguments": {"name": "KEY"}}]},
    "this namespace": {"rules": [{"deny": "secret", "namespace": "default"}]},
    "without a rule": {"defaults": {"secret": "deny"}},
}
HOST = {"host": {"folder": "/", "path": ["/usr/bin"]}}


async def by_operation(sandbox: Sandbox, principal: Any, operation: str, arguments: dict[str, Any]) -> Any:
    operations = await Operations(sandbox).load()
    try:
        return await local(operations, principal)(operation, arguments)
    finally:
        await operations.close()


async def by_run(sandbox: Sandbox) -> Any:
    return await sandbox.run(SHOW, secrets=["KEY"])


async def by_stream(sandbox: Sandbox) -> Any:
    return [event async for event in sandbox.stream(SHOW, secrets=["KEY"])]


async def by_start(sandbox: Sandbox) -> Any:
    return await sandbox.start(SHOW, secrets=["KEY"]).wait()


async def by_plan(sandbox: Sandbox) -> Any:
    return await sandbox.plan(SHOW, secrets=["KEY"])


async def by_session(sandbox: Sandbox) -> Any:
    async with sandbox.session(secrets=["KEY"]) as session:
        return await session.run(SHOW)


async def by_command_of_the_host(sandbox: Sandbox) -> Any:
    return await sandbox.host.exec(["true"], secrets=["KEY"])


async def by_operator(sandbox: Sandbox) -> Any:
    return await by_operation(sandbox, OPERATOR, "runs.start", {"code": SHOW, "secrets": ["KEY"], "wait": 60})


async def by_operators_session(sandbox: Sandbox) -> Any:
    return await by_operation(sandbox, OPERATOR, "sessions.open", {"secrets": ["KEY"]})


async def by_agent_with_a_token_for_it(sandbox: Sandbox) -> Any:
    agent = AGENT._replace(secrets=("KEY",))
    return await by_operation(sandbox, agent, "runs.start", {"code": SHOW, "secrets": ["KEY"], "wait": 60})


WAYS = [by_run, by_stream, by_start, by_plan, by_session, by_command_of_the_host, by_operator, by_operators_session,
        by_agent_with_a_token_for_it]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
async def test_a_denied_secret_is_given_to_nobody(way: Callable[[Sandbox], Awaitable[Any]], tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "audit.db", policy={**HOST, "rules": [ALLOW, DENY]}) as sandbox:
        await sandbox.vault.set("KEY", "a-secret-value")
        with pytest.raises(Denied, match=r"the secret KEY: Keys stay here\."):
            await way(sandbox)
        rows = [row for row in await sandbox.audit.tail(20) if row.kind == "decision"]
    assert [row.detail["decision"] for row in rows] == ["denied"]
    assert "a-secret-value" not in json.dumps(rows[0].detail)


@pytest.mark.parametrize("policy", POLICIES)
async def test_deny_wins_however_it_is_written(policy: str, tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "audit.db", policy=POLICIES[policy], approve=lambda _: True) as sandbox:
        await sandbox.vault.set("KEY", "a-secret-value")
        with pytest.raises(Denied):
            await sandbox.run(SHOW, secrets=["KEY"])


async def test_another_secret_is_given_and_no_use_of_a_rule_is_spent(tmp_path: Path) -> None:
    policy = {"rules": [{"deny": "secret", "arguments": {"name": "OTHER"}}, {**ALLOW, "uses": 1}]}
    async with Sandbox(audit=tmp_path / "audit.db", policy=policy) as sandbox:
        await sandbox.vault.set("KEY", "a-secret-value")
        for _ in range(2):
            assert (await sandbox.run(SHOW, secrets=["KEY"])).stdout == "[secret:KEY]\n"
