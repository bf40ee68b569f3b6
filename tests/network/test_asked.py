"""A host that no rule covers is asked for when a program connects; the connection, and then the cell, waits."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.network.visits import World
from tests.support.approvers import answering
from tests.support.loopback import answer, serving

from casemate import ApprovalRequest, Decision, Done, Execution, Sandbox, sync
from casemate.audit.log import AuditLog

GET = """
import urllib.request, urllib.error
try:
    print(urllib.request.urlopen("http://{}/x", timeout=60).read().decode())
except OSError as error:
    print("refused")
"""


def get(host: str) -> str:
    return GET.format(host)


def decisions(audit: Path) -> list[tuple[str, Any]]:
    log = AuditLog(audit)
    rows = [json.loads(row.detail) for row in log.tail(1000) if row.kind == "decision"]
    log.close()
    return [(row["decision"], row["arguments"]) for row in rows]


@pytest.mark.parametrize(("answer", "said"), [(True, "hello from GET /x\n"), (False, "refused\n"), (None, "refused\n"),
                                              ("true", "refused\n"), (1, "refused\n")])  # fmt: skip
def test_the_approver_decides_about_a_host_that_no_rule_covers(
    world: World, audit: Path, answer: object, said: str
) -> None:
    asked: list[ApprovalRequest] = []
    visits = world.visits()
    with sync.Sandbox(audit=audit, approve=answering(asked, answer)) as sandbox:
        execution = sandbox.run(get("evil.test"))
    assert execution.stdout == said
    assert [(one.kind, dict(one.arguments), one.run) for one in asked] == [
        ("egress", {"host": "evil.test", "port": 80}, execution.id)
    ]
    assert "evil.test" in asked[0].summary
    assert len(world.visits()) - len(visits) == (1 if answer is True else 0)
    assert decisions(audit) == [("allowed" if answer is True else "denied", {"host": "evil.test", "port": 80})]


def test_eg_06_a_name_is_not_looked_up_before_somebody_has_allowed_it(world: World, audit: Path) -> None:
    queries = world.queries()
    with sync.Sandbox(audit=audit, approve=lambda _: False) as sandbox:
        assert sandbox.run(get("secret-data.unknown.test")).stdout == "refused\n"
        assert world.queries() == queries
    with sync.Sandbox(audit=audit, approve=lambda _: True) as sandbox:
        sandbox.run(get("looked-up.unknown.test"))
    assert "looked-up.unknown.test" in world.queries()


@pytest.mark.parametrize("name", ["private.test", "metadata.test", "loopback.test", "own.test"])
def test_what_somebody_has_allowed_is_still_not_reached_where_it_is_not_public(
    world: World, audit: Path, name: str
) -> None:
    visits = world.visits()
    with sync.Sandbox(audit=audit, approve=lambda _: True) as sandbox:
        assert "hello" not in sandbox.run(get(name)).stdout
    assert world.visits() == visits


def test_eg_09_an_answer_for_a_session_holds_in_it_and_in_no_other(audit: Path) -> None:
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> Decision:
        asked.append(request)
        return Decision(allow=len(asked) == 1, scope="session")

    with sync.Sandbox(audit=audit, approve=approve) as sandbox:
        with sandbox.session() as one, sandbox.session() as other:
            assert one.run(get("evil.test")).stdout == "hello from GET /x\n"
            assert one.run(get("evil.test")).stdout == "hello from GET /x\n"
            assert len(asked) == 1
            assert other.run(get("evil.test")).stdout == "refused\n"
            assert one.run(get("other.test")).stdout == "refused\n"
        assert sandbox.run(get("evil.test")).stdout == "refused\n"
    assert [request.arguments["host"] for request in asked] == ["evil.test", "evil.test", "other.test", "evil.test"]


async def follow(events: Any, answer: Callable[[ApprovalRequest], Awaitable[object]]) -> Execution:
    done: Execution | None = None
    async for event in events:
        if isinstance(event, ApprovalRequest):
            await answer(event)
        if isinstance(event, Done):
            done = event.execution
    assert done is not None
    return done


@pytest.mark.parametrize("of", ["sandbox", "session"])
def test_whoever_follows_a_stream_is_asked_as_well(audit: Path, of: str) -> None:
    async def main() -> tuple[Execution, Execution, Execution]:
        async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
            runner: Any = session if of == "session" else sandbox
            quiet = await runner.run(get("evil.test"))
            allowed = await follow(runner.stream(get("evil.test")), lambda request: request.approve())
            denied = await follow(runner.stream(get("evil.test")), lambda request: request.deny("no"))
            return quiet, allowed, denied

    quiet, allowed, denied = asyncio.run(main())
    assert (quiet.stdout, allowed.stdout, denied.stdout) == ("refused\n", "hello from GET /x\n", "refused\n")


def test_the_clock_of_a_step_stands_still_while_its_connection_waits_for_an_answer(audit: Path) -> None:
    async def main() -> Execution:
        async def approve(_: ApprovalRequest) -> bool:
            await asyncio.sleep(own_time)
            return True

        async with Sandbox(audit=audit, approve=approve) as sandbox, sandbox.session() as session:
            await session.run("import urllib.request")
            return await session.run(get("evil.test"), timeout=own_time)

    own_time = 10  # what the step may take, and what the answer takes alone

    execution = asyncio.run(main())
    assert (execution.stdout, execution.status) == ("hello from GET /x\n", "ok")


def test_allow_local_reaches_that_port_of_the_hosts_loopback_and_no_other(audit: Path) -> None:
    def hello(request: BaseHTTPRequestHandler) -> None:
        answer(request, b"from the host")

    with serving(hello) as port, serving(hello) as other, sync.Sandbox(audit=audit, allow_local=[port]) as sandbox:
        said = [sandbox.run(get(f"{host}:{one}")).stdout for one in (port, other)
                for host in ("host.casemate.internal", "127.0.0.1", "localhost")]  # fmt: skip
        none = sandbox.run(get(f"host.casemate.internal:{port}"), allowed_domains=[]).stdout
        named = sandbox.run(get(f"host.casemate.internal:{port}"),
                            allowed_domains=[f"host.casemate.internal:{port}"]).stdout  # fmt: skip
    assert said == ["from the host\n", *["refused\n"] * 5]
    assert (none, named) == ("refused\n", "from the host\n")


def test_au_12_each_host_that_is_reached_or_refused_is_on_record_while_the_program_runs(audit: Path) -> None:
    program = get("good.test") + get("evil.test") * 2
    with sync.Sandbox(audit=audit, allowed_domains=["good.test"]) as sandbox:
        execution = sandbox.run(program)
    log = AuditLog(audit)
    rows = [row for row in log.tail(100) if row.execution_id == execution.id]
    log.close()
    assert [row.kind for row in rows] == ["intent", "crossing", "crossing", "outcome"]
    told = [json.loads(row.detail) for row in rows]
    assert [(one["host"], one["port"], one["decision"]) for one in told[1:3]] == [
        ("good.test", 80, "allowed"), ("evil.test", 0, "denied")
    ]  # fmt: skip
    assert [(one["host"], one["connections"]) for one in told[3]["crossings"]] == [("good.test", 1), ("evil.test", 2)]


def test_what_was_left_running_reaches_is_told_by_the_next_step(sandbox: sync.Sandbox) -> None:
    code = """
import socket, threading
go = threading.Event()
def later():
    go.wait()
    try: socket.create_connection(("evil.test", 80), 10)
    except OSError: pass
    done.set()
done = threading.Event()
threading.Thread(target=later).start()
"""
    with sandbox.session() as session:
        first = session.run(code)
        second = session.run("go.set(); done.wait()")
        third = session.run("pass")
    assert [[one.host for one in step.crossings] for step in (first, second, third)] == [[], ["evil.test"], []]


def test_the_record_of_a_step_whose_network_opened_says_so(audit: Path) -> None:
    async def main() -> None:
        async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
            await session.run("pass")
            await follow(session.stream("pass"), lambda request: request.deny())

    asyncio.run(main())
    log = AuditLog(audit)
    rows = [json.loads(row.detail)["network"] for row in log.tail(100) if row.kind == "intent"]
    log.close()
    assert rows == ["none", "listed"]


def test_the_example_of_the_page_does_what_it_says(world: World, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    example, page = root / "examples" / "network.py", (root / "docs" / "how-to" / "network.md").read_text()
    before = world.visits(), world.queries()
    ran = subprocess.run(
        [sys.executable, example], env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert f"```python\n{example.read_text()}```\n\n```\n{ran.stdout}```\n" in page, ran.stderr
    assert (world.visits(), world.queries()) == before
