"""Runs by handle: real programs in real cells, that go on by themselves."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from typing import Any

import pytest
from tests.operations.conftest import AGENT, APPROVER
from tests.support.waiting import MAX_WAIT

from casemate import Sandbox
from casemate.audit.log import AuditLog
from casemate.errors import Denied, InvalidArgument, NotFound, SandboxClosed
from casemate.operations.invoke import Invoke, local
from casemate.operations.operations import Operations

SLOW = "import time\nprint('begun', flush=True)\ntime.sleep(200)"
ASKS = """
import socket
try:
    way = socket.create_connection(("example.test", 80))
    way.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
    way.recv(1)
except OSError:
    pass
print("refused")
"""


@pytest.fixture(scope="module")
def policy() -> dict[str, Any]:
    """Commands of sessions ask."""
    return {"rules": [{"ask": "shell"}]}


async def ended(invoke: Invoke, run: str) -> dict[str, Any]:
    """How a run stands once it is over."""
    state: dict[str, Any] = {"status": ""}
    while state["status"] != "done":
        state = await invoke("runs.wait", {"run": run, "told": await told(invoke, run)})
    return state


async def told(invoke: Invoke, run: str) -> list[str]:
    return [one["id"] for one in (await invoke("runs.get", {"run": run}))["approvals"]]


async def until_begun(invoke: Invoke, run: str) -> None:
    async for event in invoke.stream("runs.stream", {"run": run}):
        if event["event"] == "output":
            return


async def test_without_waiting_the_answer_comes_while_the_program_runs(agent: Invoke) -> None:
    state = await agent("runs.start", {"code": SLOW})
    assert state["status"] in ("queued", "running")
    assert state["execution"] is None
    await until_begun(agent, state["run"])
    assert (await agent("runs.get", {"run": state["run"]}))["status"] == "running"
    assert (await agent("runs.cancel", {"run": state["run"]}))["status"] == "done"


async def test_a_run_of_its_own_that_is_cancelled_has_an_outcome_with_what_it_wrote(agent: Invoke) -> None:
    run = (await agent("runs.start", {"code": SLOW}))["run"]
    await until_begun(agent, run)
    state = await agent("runs.cancel", {"run": run})
    assert (state["outcome"], state["error"]) == ("cancelled", None)
    assert state["execution"]["text"] == "begun"
    assert await agent("runs.cancel", {"run": run}) == state


async def test_a_run_that_waits_its_turn_is_queued_and_never_begins_when_it_is_cancelled(agent: Invoke) -> None:
    session = (await agent("sessions.open"))["session"]
    first = (await agent("runs.start", {"code": SLOW, "session": session}))["run"]
    await until_begun(agent, first)
    second = await agent("runs.start", {"code": "open('made', 'w')", "session": session})
    assert second["status"] == "queued"
    state = await agent("runs.cancel", {"run": second["run"]})
    assert (state["execution"], state["error"]["kind"]) == (None, "closed")
    await agent("runs.cancel", {"run": first})
    assert "made" not in {one["name"] for one in await agent("files.list", {"session": session})}
    await agent("sessions.close", {"session": session})


async def test_closing_a_session_ends_its_runs_which_say_so(agent: Invoke) -> None:
    state = await agent("runs.start", {"code": SLOW, "session": "new"})
    await until_begun(agent, state["run"])
    await agent("sessions.close", {"session": state["session"]})
    state = await ended(agent, state["run"])
    assert state["outcome"] in (None, "cancelled", "killed")
    assert state["execution"] or state["error"]


@pytest.mark.parametrize("session", [None, "new"])
async def test_what_a_program_asks_for_waits_for_the_operator_and_goes_on_when_it_is_answered(
    agent: Invoke, operator: Invoke, session: str | None
) -> None:
    code = "!echo crossed" if session else ASKS
    state = await agent("runs.start", {"code": code, "session": session, "wait": 60})
    assert state["status"] == "waiting"
    (asked,) = state["approvals"]
    assert asked["kind"] == ("shell" if session else "egress")
    (pending,) = [one for one in await operator("approvals.pending") if one["id"] == asked["id"]]
    assert (pending["run"], pending["caller"]) == (state["run"], AGENT.name)
    assert await operator("approvals.decide", {"request": asked["id"], "allow": bool(session)}) is True
    state = await ended(agent, state["run"])
    assert state["execution"]["text"].splitlines()[-1] == ("crossed" if session else "refused")
    assert await operator("approvals.decide", {"request": asked["id"], "allow": True}) is False


async def test_an_answer_that_comes_too_late_or_from_another_is_on_record_with_the_run_and_who_gave_it(
    operations: Operations, agent: Invoke, operator: Invoke
) -> None:
    state = await agent("runs.start", {"code": ASKS, "wait": 60})
    answer = {"request": state["approvals"][0]["id"], "allow": True}
    assert await local(operations, APPROVER)("approvals.decide", answer) is False
    assert await operator("approvals.decide", {**answer, "allow": False}) is True
    await ended(agent, state["run"])
    assert await operator("approvals.decide", answer) is False
    rows = await operator("audit.tail", {"kind": "decision", "run": state["run"]})
    told = [(row["detail"].get("caller"), row["detail"].get("why"), row["namespace"]) for row in rows]
    assert [one for row, one in zip(rows, told, strict=True) if row["detail"]["decision"] == "ignored"] == [
        ("user", "the request is denied", "default"), (APPROVER.name, "the request is asked", "default"),
    ]  # fmt: skip
    assert await operator("approvals.decide", {"request": "no such"}) is False
    [row] = [row for row in await operator("audit.tail", {"limit": 5}) if row["detail"].get("request") == "no such"]
    assert (row["detail"]["caller"], row["detail"]["why"]) == ("user", "there is no such request")


@pytest.mark.parametrize("answer", ["approvals.decide", "approvals.deny_all"])
async def test_whoever_answers_hears_of_it_when_the_answer_is_on_record(
    operations: Operations, agent: Invoke, operator: Invoke, answer: str
) -> None:
    state = await agent("runs.start", {"code": ASKS, "wait": 60})
    request, held = state["approvals"][0]["id"], threading.Event()
    operations.sandbox.approvals._get_broker().worker.submit(held.wait, MAX_WAIT)  # the approver's thread is busy
    answering = asyncio.ensure_future(operator(answer, {"request": request} if answer == "approvals.decide" else {}))
    done, _ = await asyncio.wait([answering], timeout=0.3)
    assert not done
    held.set()
    assert await answering
    decided = await operator("audit.tail", {"kind": "decision", "limit": 5})
    assert request in [row["detail"].get("request") for row in decided]
    await ended(agent, state["run"])


async def test_waiting_goes_on_when_the_caller_knows_of_the_approval_and_ends_with_the_next_one(
    agent: Invoke, operator: Invoke
) -> None:
    code = "!echo one\n!echo two"
    state = await agent("runs.start", {"code": code, "session": "new", "wait": 60})
    (first,) = state["approvals"]
    waiting = asyncio.ensure_future(agent("runs.wait", {"run": state["run"], "told": [first["id"]], "seconds": 60}))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    await operator("approvals.decide", {"request": first["id"], "allow": True})
    (second,) = (await waiting)["approvals"]
    assert second["id"] != first["id"]
    await operator("approvals.decide", {"request": second["id"], "allow": True})
    assert (await ended(agent, state["run"]))["execution"]["text"].split() == ["one", "two"]
    await agent("sessions.close", {"session": state["session"]})


async def test_waiting_ends_in_time_where_nothing_happens(agent: Invoke) -> None:
    run = (await agent("runs.start", {"code": SLOW}))["run"]
    state = await agent("runs.wait", {"run": run, "seconds": 0.2})
    assert state["status"] in ("queued", "running")
    await agent("runs.cancel", {"run": run})


async def test_an_agent_that_may_approve_answers_its_own_requests_and_sees_no_others(
    operations: Operations, agent: Invoke
) -> None:
    approver = local(operations, APPROVER)
    foreign = await agent("runs.start", {"code": ASKS, "wait": 60})
    own = await approver("runs.start", {"code": ASKS, "wait": 60})
    assert [one["run"] for one in await approver("approvals.pending")] == [own["run"]]
    assert await approver("approvals.decide", {"request": foreign["approvals"][0]["id"], "allow": True}) is False
    assert await approver("approvals.decide", {"request": own["approvals"][0]["id"]}) is True
    assert (await ended(approver, own["run"]))["execution"]["text"].endswith("refused")
    with pytest.raises(Denied):
        await agent("approvals.pending")
    await agent("runs.cancel", {"run": foreign["run"]})


PROGRAM = """
import sys, random
random.seed(3)
for n in range(400):
    letters = chr(random.choice([65, 228, 8364, 128640])) * random.randrange(300)
    (sys.stdout if n % 3 else sys.stderr).write(letters + str(n) + "\\n")
    if not n % 7: sys.stdout.flush(); sys.stderr.flush()
"""


async def test_readers_beside_each_other_lose_no_text_and_get_none_twice(agent: Invoke) -> None:
    run = (await agent("runs.start", {"code": PROGRAM}))["run"]

    async def read_all(limit: int) -> str:
        text, cursor = "", 0
        while True:
            page = await agent("runs.read", {"run": run, "cursor": cursor, "limit": limit})
            assert len(page["text"]) <= limit
            assert page["cursor"] == cursor + len(page["text"])
            text, cursor = text + str(page["text"]), page["cursor"]
            if page["is_done"]:
                return text
            if not page["text"]:
                await agent("runs.wait", {"run": run, "seconds": 0.01})

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(read_all(limit)) for limit in (7919, 20_000, 997)]
    streamed = "".join([one["text"] async for one in agent.stream("runs.stream", {"run": run}) if "text" in one])
    assert len({reader.result() for reader in readers} | {streamed}) == 1
    execution = (await ended(agent, run))["execution"]
    assert streamed.strip() == execution["text"]
    assert len(streamed) > 20_000


async def test_a_blocking_run_gives_the_execution_and_its_files_are_had_by_handle(agent: Invoke) -> None:
    execution = await agent("run", {"code": "open('x.bin', 'wb').write(bytes(range(256)))"})
    assert execution["status"] == "ok"
    (artifact,) = await agent("artifacts.list", {"run": execution["id"]})
    assert artifact == execution["artifacts"][0]
    part = await agent("artifacts.read", {"run": execution["id"], "name": "x.bin", "offset": 1, "limit": 3})
    assert (part["base64"] or part["text"], part["size"], part["next"]) == ("\x01\x02\x03", 256, 4)


async def test_a_blocking_run_whose_caller_goes_away_is_ended(agent: Invoke) -> None:
    before = {one["run"] for one in await agent("runs.list")}
    running = asyncio.ensure_future(agent("run", {"code": SLOW}))
    while not (new := [one for one in await agent("runs.list") if one["run"] not in before]):
        await asyncio.sleep(0)
    await until_begun(agent, new[0]["run"])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await agent("runs.get", {"run": new[0]["run"]}))["status"] == "done"


async def test_what_is_set_with_a_session_is_refused_for_its_steps(agent: Invoke) -> None:
    session = (await agent("sessions.open"))["session"]
    for name, value in [("env", {"A": "1"}), ("limits", {"cpus": 1.0}), ("arguments", ["x"]), ("secrets", ["S"])]:
        with pytest.raises(InvalidArgument) as refused:
            await agent("runs.start", {"code": "1", "session": session, name: value})
        assert refused.value.argument == name
    await agent("sessions.close", {"session": session})


async def test_limits_of_a_run_that_are_left_out_stay_those_of_the_sandbox(
    operations: Operations, agent: Invoke
) -> None:
    execution = await agent("run", {"code": "print(1)", "limits": {"processes": 32}})
    assert execution["status"] == "ok"
    assert operations._shared.limits_for(AGENT, None) is None


async def test_the_record_names_who_has_begun_what(agent: Invoke, audit: Any) -> None:
    name = f"caller-{random.random()}"
    execution = await agent("run", {"code": "print(1)", "metadata": {"mark": name}})
    log = AuditLog(audit)
    try:
        rows = [row for row in log.tail(1000) if row.execution_id == execution["id"] and row.kind == "intent"]
    finally:
        log.close()
    assert [json.loads(row.detail)["caller"] for row in rows] == [AGENT.name]
    assert execution["metadata"] == {"mark": name}


async def test_an_unknown_run_and_a_foreign_one_are_refused_alike(
    agent: Invoke, other: Invoke, operator: Invoke
) -> None:
    run = (await agent("runs.start", {"code": "print(1)", "wait": 60}))["run"]
    for handle in (run, "0" * 32, "../x"):
        for name in ("runs.get", "runs.wait", "runs.read", "runs.cancel", "artifacts.list"):
            with pytest.raises(NotFound) as refused:
                await other(name, {"run": handle})
            assert refused.value.message == f"run: there is no run {handle!r}, or it is no longer kept"
        with pytest.raises(NotFound):
            await anext(other.stream("runs.stream", {"run": handle}))
    assert run not in {one["run"] for one in await other("runs.list")}
    assert (await operator("runs.get", {"run": run}))["owner"] == AGENT.name


async def test_what_is_closed_takes_nothing_more(sandbox: Sandbox) -> None:
    operations = Operations(sandbox)
    invoke = local(operations, AGENT)
    run = (await invoke("runs.start", {"code": SLOW}))["run"]
    await until_begun(invoke, run)
    await operations.close()
    with pytest.raises(SandboxClosed):
        await invoke("runs.start", {"code": "1"})
