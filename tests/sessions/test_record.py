"""The record of sessions: an intent and an outcome for each step; and a host that dies leaves no process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests import records
from tests.contract import witness
from tests.journeys.test_deaths import everything
from tests.records import unfinished
from tests.sessions.driver import FOREVER, said
from tests.support.waiting import MAX_WAIT

import casemate
from casemate import Sandbox
from casemate.audit.log import AuditLog

SOURCE = str(Path(casemate.__file__).parents[1])
HOST = """
import asyncio, os, sys
from casemate import Sandbox
HELD = "import subprocess, signal; signal.signal(15, signal.SIG_IGN)\\n" \\
    "h = subprocess.Popen(['sleep', '1000'], start_new_session=True)"
STAY = "print('ready', flush=True)\\nimport time\\nwhile True:\\n try: time.sleep(1000)\\n except BaseException: pass"
async def main():
    sandbox = Sandbox(audit=sys.argv[1])
    idle, busy, shell = sandbox.session(), sandbox.session(), sandbox.session("shell")
    await idle.run(HELD); await busy.run(HELD); await shell.run("sleep 1000 & x=1")
    async for event in busy.stream(STAY):
        os.write(1, b"running\\n")
asyncio.run(main())
"""


def rows(audit: Path) -> list[tuple[str, dict[str, object]]]:
    return [row for row in records.rows(audit) if row[0] != "session"]


async def test_each_step_has_one_intent_and_one_outcome(audit: Path) -> None:
    steps = ["x = 1", "1 / 0", "import os; os._exit(3)", "print(2)", "import time; time.sleep(1000)"]
    async with Sandbox(audit=audit) as sandbox, sandbox.session(metadata={"ticket": 7}) as session:
        executions = [await session.run(code, timeout=1 if "sleep" in code else 60) for code in steps]
        async for _ in session.stream("print(3)"):
            pass
        await session.start("4").wait()
        session_id = session.id
    recorded = rows(audit)
    assert [kind for kind, _ in recorded] == ["intent", "outcome"] * 7
    intents = [detail for kind, detail in recorded if kind == "intent"]
    outcomes = [detail for kind, detail in recorded if kind == "outcome"]
    assert [intent["code"] for intent in intents] == [*steps, "print(3)", "4"]
    assert {intent["session"] for intent in intents} == {session_id}
    assert [outcome["status"] for outcome in outcomes][:5] == [execution.status for execution in executions]
    assert [outcome["exit_code"] for outcome in outcomes][:3] == [0, 1, 3]


async def test_a_step_that_was_cancelled_is_on_record_as_such(audit: Path) -> None:
    async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
        await said(session, "x = 1")
        stream = session.stream("print('begun')\nimport time; time.sleep(1000)", timeout=FOREVER)
        await anext(stream)
        await stream.aclose()
        task = asyncio.ensure_future(session.run("import time; time.sleep(1000)", timeout=FOREVER))
        while len(rows(audit)) < 5:
            await asyncio.sleep(0.005)
        await session.close()
        await asyncio.wait([task])
    recorded = rows(audit)
    assert [kind for kind, _ in recorded] == ["intent", "outcome"] * 3
    assert recorded[3][1]["status"] == "cancelled"
    assert recorded[5][1]["status"] in ("cancelled", "killed", "error")


async def test_no_step_runs_without_a_record(audit: Path) -> None:
    async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
        await said(session, "x = 1")
        os.rename(audit, audit.with_name("moved"))
        with pytest.raises(casemate.RecordUnavailable):
            await session.run("open('ran', 'w').close()")
        assert "ran" not in [file.name for file in await session.files.list()]


async def test_secrets_given_as_variables_and_input_are_not_in_the_record(audit: Path) -> None:
    async with Sandbox(audit=audit) as sandbox, sandbox.session(env={"TOKEN": "hunter2hunter2"}) as session:
        await said(session, "input()", stdin="hunter2hunter2")
    assert [path for path in audit.parent.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()] == []
    assert rows(audit)[0][1]["env_names"] == ["TOKEN"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_when_the_host_dies_no_process_of_its_sessions_lives(audit: Path, number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOST, str(audit)], stdout=subprocess.PIPE,
                               env={**os.environ, "PYTHONPATH": SOURCE})  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"running\n"
        with witness.watching(everything(process.pid)) as watched:
            assert len(watched.pidfds) >= 2 + 3 * 3
            process.send_signal(number)
            process.wait()
            assert watched.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    log = AuditLog(audit)
    assert unfinished(log) == []
    assert sum('"status":"lost"' in row.detail for row in log.tail(50)) == 1  # the step that ran
    log.close()


@pytest.mark.parametrize("which", ["the one that waits", "the one that serves"])
async def test_when_the_supervisor_dies_a_step_fails_and_the_session_goes_on_or_says_that_it_cannot(
    audit: Path, which: str
) -> None:
    async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
        await said(session, "mine = 1")
        step = asyncio.ensure_future(session.run("import time; time.sleep(1000)", timeout=FOREVER))
        while len(rows(audit)) < 3:
            await asyncio.sleep(0.005)
        os.kill(witness.supervisors()[0] if which == "the one that waits" else witness.serving()[0], signal.SIGKILL)
        async with asyncio.timeout(MAX_WAIT):
            with pytest.raises(casemate.CasemateError):
                await step
            after = await session.run("print('mine' in globals())")
        assert (after.stdout, after.state, after.lost_names) == ("False\n", "lost", ("mine",))
        assert await said(session, "print('goes on')") == "goes on\n"
