"""What goes wrong on casemate's own side of a session: its supervisor dies, a caller leaves at a bad moment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from tests.contract import witness
from tests.sessions.driver import PROMPT, Open, said, until, until_there

from casemate import Fault, Sandbox, SandboxClosed
from casemate.isolation.native.running import RunningSession
from casemate.isolation.native.wall import NativeWall
from casemate.sessions import interpreter_cell


async def test_the_death_of_the_supervisor_between_steps_is_told_once_and_costs_no_session(audit: Path) -> None:
    before = set(witness.supervisors())
    async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
        await said(session, "kept = 1; open('file', 'w').write('1')")
        (supervisor,) = set(witness.supervisors()) - before
        os.kill(supervisor, signal.SIGKILL)
        await until(lambda: session._lives.current is not None and not session._lives.current.is_alive)
        first = await session.run("print('on')")
        assert (first.stdout, first.lost_names) == ("on\n", ("kept",))
        assert ["went with the process" in one.reason for one in first.skipped] == [True]
        second = await session.run("import os; print(os.path.exists('file'))")
        assert (second.stdout, second.state, second.skipped) == ("False\n", "kept", ())


async def test_a_caller_that_leaves_while_the_files_are_looked_at_leaves_a_session_that_works(opened: Open) -> None:
    real = RunningSession.freeze
    steps: list[asyncio.Task[object]] = []

    async def freeze(cell: RunningSession) -> bool:
        asyncio.get_running_loop().call_soon(steps[-1].cancel)
        return await real(cell)

    session, other = opened(), opened()
    ticking = "def tick():\n    global ticks\n    while not go.wait(0.001): ticks += 1\n"
    with mock.patch.object(RunningSession, "freeze", freeze):
        await said(session, "import threading, time\ngo = threading.Event()\nticks = 0")
        steps.append(
            asyncio.ensure_future(
                session.run(f"{ticking}threading.Thread(target=tick).start()\nopen('made', 'w').write('1')")
            )
        )
        with pytest.raises(asyncio.CancelledError):
            await steps[-1]
    assert await said(other, "print('there')") == "there\n"
    assert (
        await said(session, "before = ticks\nwhile ticks == before: time.sleep(0.001)\nprint('goes on')") == "goes on\n"
    )
    assert await said(session, "go.set(); print(open('made').read())") == "1\n"


async def test_an_interpreter_that_does_not_answer_is_ended_and_the_next_step_has_a_fresh_one(opened: Open) -> None:
    session = opened()
    await said(session, "import os, signal, threading, time\nkept = 1")
    stop = "while not os.path.exists('go'): time.sleep(0.001)\n    os.kill(os.getpid(), signal.SIGSTOP)"
    await said(session, f"def stop():\n    {stop}\nthreading.Thread(target=stop, daemon=True).start()")
    await session.files.write("go", b"")
    with mock.patch.object(interpreter_cell, "_ANSWER_WITHIN", 0.5):
        async with asyncio.timeout(PROMPT):
            with pytest.raises(Fault, match="ended before it answered"):
                while True:  # until it has stopped
                    await session.get("kept")
    after = await session.run("print('fresh')")
    assert (after.stdout, after.state) == ("fresh\n", "lost")
    assert "kept" in after.lost_names


async def test_closing_a_session_that_is_about_to_start_does_not_wait_for_its_step(audit: Path) -> None:
    real, begun, go = NativeWall.prove, asyncio.Event(), asyncio.Event()

    async def prove(wall: NativeWall) -> object:
        begun.set()
        await go.wait()
        return await real(wall)

    async with Sandbox(audit=audit) as sandbox:
        session = sandbox.session()
        with mock.patch.object(NativeWall, "prove", prove):
            async with asyncio.timeout(PROMPT), asyncio.TaskGroup() as group:
                step = group.create_task(_refused(session.run("import time; time.sleep(1000)")))
                await begun.wait()
                closing = group.create_task(session.close())
                while not session.is_closed:
                    await asyncio.sleep(0)
                go.set()
        assert step.done()
        assert closing.done()


async def _refused(step: object) -> None:
    with pytest.raises(SandboxClosed):
        await step  # type: ignore[misc]


async def test_a_given_file_need_not_be_there_any_more_when_a_session_starts_again(
    opened: Open, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    given.write_text("what was given")
    session = opened(files={"given.txt": given})
    assert await said(session, "print(open('given.txt').read())") == "what was given\n"
    given.unlink()
    await session.reset()
    assert await said(session, "print(open('given.txt').read())") == "what was given\n"
    await until_there(session, "given.txt")


_INTERRUPTED = """
import casemate.sync
with casemate.sync.Sandbox(audit={audit!r}) as sandbox, sandbox.session() as session:
    for event in session.stream("print('up')\\nwhile True: pass"):
        if getattr(event, "text", "") == "up\\n":
            session.interrupt()
    print(event.execution.status, event.execution.state)
"""


def test_a_step_can_be_interrupted_where_the_application_itself_ignores_interrupts(audit: Path) -> None:
    """As in a shell's background, and under nohup."""
    program = _INTERRUPTED.format(audit=str(audit))
    ended = subprocess.run(
        ["env", "--ignore-signal=INT", sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr) == (b"cancelled kept\n", b"")
