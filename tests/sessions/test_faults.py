"""What goes wrong on casemate's own side of a session: its supervisor dies, a caller leaves at a bad moment."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from tests.contract import witness
from tests.sessions.driver import PROMPT, Open, said, starting, until_there
from tests.support.languages import every_language
from tests.support.waiting import until_async

from casemate import Fault, InvalidArgument, Limits, Sandbox, SandboxClosed
from casemate.sessions import interpreter_cell
from casemate.walls.native.running_session import RunningSession
from casemate.walls.native.wall import NativeWall


async def test_the_death_of_the_supervisor_between_steps_is_told_once_and_costs_no_session(audit: Path) -> None:
    before = set(witness.supervisors())
    async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
        await said(session, "kept = 1; open('file', 'w').write('1')")
        (supervisor,) = set(witness.supervisors()) - before
        os.kill(supervisor, signal.SIGKILL)
        await until_async(lambda: session._cells.current is not None and not session._cells.current.is_alive)
        first = await session.run("print('on')")
        assert (first.stdout, first.lost_names) == ("on\n", ("kept",))
        assert ["lost with the supervisor" in one.reason for one in first.skipped] == [True]
        second = await session.run("import os; print(os.path.exists('file'))")
        assert (second.stdout, second.state, second.skipped) == ("False\n", "kept", ())


async def test_a_caller_that_leaves_while_the_files_are_looked_at_leaves_a_session_that_works(opened: Open) -> None:
    real = RunningSession.pause_files
    steps: list[asyncio.Task[object]] = []

    async def pause_files(cell: RunningSession) -> bool:
        asyncio.get_running_loop().call_soon(steps[-1].cancel)
        return await real(cell)

    session, other = opened(), opened()
    ticking = "def tick():\n    global ticks\n    while not go.wait(0.001): ticks += 1\n"
    with mock.patch.object(RunningSession, "pause_files", pause_files):
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


async def test_files_that_are_asked_for_during_a_crash_do_not_take_the_steps_own_away(opened: Open) -> None:
    session, over = opened(), asyncio.Event()

    async def poll() -> None:
        while not over.is_set():
            with contextlib.suppress(Fault):
                await session.files.list()

    pollers = [asyncio.create_task(poll()) for _ in range(3)]
    try:
        for turn in range(20):
            ended = await session.run(f"open('made', 'w').write('{turn}'); import os; os._exit(1)")
            assert [(one.name, one.read_bytes()) for one in ended.artifacts] == [("made", str(turn).encode())]
    finally:
        over.set()
        await asyncio.gather(*pollers)


async def test_an_interpreter_that_ends_while_its_files_are_looked_at_holds_nobody_up(opened: Open) -> None:
    session = opened()
    code = "import os, threading, time\nopen('made', 'w').write('{0}')\n"
    code += "def end():\n    time.sleep({1})\n    os._exit(1)\nthreading.Thread(target=end).start()"
    async with asyncio.timeout(PROMPT * 2):
        for turn in range(40):
            await session.run(code.format(turn, turn / 10_000))


async def test_a_step_that_has_used_up_the_files_is_followed_by_one_in_the_same_interpreter(opened: Open) -> None:
    session = opened(limits=Limits(inodes=200))
    full = await session.run("kept = 1\nfor number in range(1000): open(str(number), 'w').close()")
    assert full.cause is not None
    assert (full.cause.code, full.state) == ("inode_limit", "kept")
    for _ in range(3):
        after = await session.run("print(kept, len(__import__('os').listdir()) > 150)")
        assert (after.status, after.state, after.stdout) == ("ok", "kept", "1 True\n")


@pytest.mark.parametrize("how", ["reset", "crash", "expiry"])
async def test_the_files_of_a_session_that_is_over_are_given_up(audit: Path, how: str) -> None:
    before = set(witness.serving())
    async with Sandbox(audit=audit) as sandbox, sandbox.session() as first:
        await said(first, "1")
        (server,) = set(witness.serving()) - before

        async def round_trip() -> int:
            session = sandbox.session(idle_timeout=0.05 if how == "expiry" else None)
            await session.run("open('made', 'w').write('1')" + ("; import os; os._exit(1)" if how != "reset" else ""))
            if how == "reset":
                await session.reset()
            if how == "expiry":
                await until_async(lambda: session.is_closed)
            await session.close()
            return len(os.listdir(f"/proc/{server}/fd"))

        counts = [await round_trip() for _ in range(15)]
        await until_async(lambda: len(os.listdir(f"/proc/{server}/fd")) <= counts[0] + 9, f"{counts}")


async def test_closing_while_files_are_asked_for_leaves_no_cell(audit: Path) -> None:
    async with Sandbox(audit=audit) as sandbox:
        session = sandbox.session()
        await asyncio.gather(session.files.list(), session.close(), return_exceptions=True)
        with pytest.raises(SandboxClosed):
            await session.files.list()
        interpreter = session._cells.current
        assert interpreter is None or not interpreter.is_alive


async def test_what_the_background_says_during_a_step_is_bounded_and_waits_for_the_next(opened: Open) -> None:
    session = opened(limits=Limits(full_output="1MiB"))
    flood = "begin.wait()\n    while not go.wait(0): os.write(fd, b'y' * 65536)"
    await said(
        session,
        f"import os, threading, time\ngo, begin = threading.Event(), threading.Event(); fd = os.dup(1)\n"
        f"def flood():\n    {flood}\n"
        "threading.Thread(target=flood).start()",
    )
    run = session.start("begin.set(); time.sleep(1)")
    assert (await run.wait()).status == "ok"
    assert run.log.size < 4 << 20
    await said(session, "go.set()")


async def test_an_interrupt_before_the_interpreter_is_there_ends_the_step(opened: Open) -> None:
    session = opened()
    with starting("exec"):
        run = session.start("import time\nprint('begun')\ntime.sleep(30)\nprint('ended')")
        while not session.steps.running:
            await asyncio.sleep(0)
        async with asyncio.timeout(PROMPT * 0.8):
            await run.cancel()
    ended = await run.wait()
    assert (ended.status, "ended" in ended.stdout) == ("cancelled", False)


async def test_a_step_that_says_too_much_interrupts_no_other(opened: Open) -> None:
    session = opened(limits=Limits(full_output=2000))
    for _ in range(100):
        assert (await session.run("import os; os.write(1, b'x' * 3000)")).status == "killed"
        after = await session.run("for _ in range(50_000): pass")
        assert (after.status, after.state) == ("ok", "kept")


async def test_children_that_take_memory_between_steps_are_ended_with_their_cell(opened: Open) -> None:
    session = opened(limits=Limits(memory="256MiB"))
    child = "held = []\nfor n in range(80):\n    held.append(b'x' * (8 << 20)); time.sleep(0.01)\n"
    child += "    open(f'took-{os.getpid()}', 'w').write(str(n * 8))\nos._exit(0)"
    await said(
        session,
        "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        time.sleep(0.3)\n"
        + "".join(f"        {line}\n" for line in child.splitlines()),
    )
    await until_async(lambda: session._cells.current is not None and not session._cells.current.is_alive)
    after = await session.run(
        "import os; print(sum(int(open(one).read() or 0) for one in os.listdir() if 'took' in one))"
    )
    assert after.state == "lost"
    assert int(after.stdout) < 1200  # of 1920


async def test_a_session_that_only_values_were_put_into_ends_by_itself(opened: Open) -> None:
    session = opened(lifetime=3)
    await session.set("x", 1)
    await until_async(lambda: session.is_closed)
    with pytest.raises(SandboxClosed, match="lifetime"):
        await session.run("1")


@every_language
async def test_a_limit_that_one_step_met_is_not_blamed_for_the_failure_of_another(opened: Open, language: str) -> None:
    many = {
        "python": "import subprocess, time\nmine = [subprocess.Popen(['sleep', '0.3']) for _ in range(30)]",
        "node": "for (let n = 0; n < 30; n++) require('child_process').spawn('sleep', ['0.3'])\n"
        "await new Promise(done => setTimeout(done, 200))",
        "shell": "for n in $(seq 30); do sleep 0.3 & done; wait",
    }
    fails = {"python": "1 / 0", "node": "throw new Error('mine')", "shell": "false"}
    session = opened(language, limits=Limits(processes=24))
    await session.run(many[language])
    waits = {"python": "import time; time.sleep(0.5)", "node": "await new Promise(done => setTimeout(done, 500))",
             "shell": "sleep 0.5"}  # fmt: skip
    await session.run(waits[language])
    for _ in range(3):
        failed = await session.run(fails[language])
        assert (failed.status, failed.cause) == ("failed", None)


@pytest.mark.parametrize("language", ["python", "node"])
async def test_standard_input_is_what_was_given_to_the_byte(opened: Open, language: str) -> None:
    read = {"python": "import sys; print(sys.stdin.buffer.read().hex())",
            "node": "console.log(require('fs').readFileSync(0).toString('hex'))"}[language]  # fmt: skip
    data = bytes(range(256)) * 3
    assert await said(opened(language), read, stdin=data) == data.hex() + "\n"


async def test_nul_bytes_are_refused_where_bash_would_lose_them(opened: Open) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await opened("shell").run("cat", stdin="a\0b")
    assert raised.value.argument == "stdin"


async def test_a_session_ends_when_its_lifetime_is_over_also_when_it_is_kept_busy(opened: Open) -> None:
    session = opened(lifetime=0.5)
    with pytest.raises(SandboxClosed, match="lifetime"):
        async with asyncio.timeout(PROMPT):
            while True:
                await session.run("1")


async def test_clears_without_end_hold_nobody_up(opened: Open) -> None:
    flood = """
import os
for n in range(6000): os.write(1, b'o'); os.write(2, b'e')
frame = b'{"type":"clear","step":1,"at":[0,0]}'
many = (len(frame).to_bytes(4, 'big') + frame) * 1000
for _ in range(79):
    left = many
    while left: left = left[os.write(3, left):]
"""
    attacker, other = opened(), opened()
    await said(other, "1")
    step = asyncio.create_task(attacker.run(flood, timeout=None))
    answered = 0
    while not step.done():
        await said(other, "1")
        answered += 1
    assert (await step).status in ("ok", "killed")
    assert answered > 2


@pytest.mark.parametrize("data", [rb'"a\ud800b"', b'"a\xed\xa0\x80b"', "[" * 300 + "]" * 300, "1e999", "NaN"])
async def test_what_no_program_could_take_is_not_handed_on(opened: Open, data: bytes | str) -> None:
    value = data.encode() if isinstance(data, str) else data
    session = opened()
    kind = b"text/plain" if value[:1] == b'"' else b"application/json"
    frame = b'{"type":"display","step":1,"at":[0,0],"bundle":{"%s":%s}}' % (kind, value)
    execution = await session.run(f"import os\nf = {frame!r}\n_ = os.write(3, len(f).to_bytes(4, 'big') + f)")
    execution.text.encode()
    if kind != b"text/plain":
        assert execution.results == ()


async def test_an_interrupt_whose_end_is_forged_costs_the_grace_and_no_more(opened: Open) -> None:
    code = """
import json, os, signal
def forge(*_):
    signal.signal(2, signal.SIG_IGN)
    end = json.dumps({"type": "done", "step": 1, "at": [0, 0], "exit": 0, "new": [], "gone": []}).encode()
    os.write(3, len(end).to_bytes(4, "big") + end)
    while True: pass
signal.signal(2, forge)
while True: pass
"""
    session = opened()
    async with asyncio.timeout(20):  # it was thirty seconds
        await session.run(code, timeout=0.3)
    assert await said(session, "print(1)") == "1\n"


def test_a_session_outlives_the_event_loop_that_it_began_in(audit: Path) -> None:
    sandbox = Sandbox(audit=audit)
    session = sandbox.session()
    first = asyncio.run(session.run("x = 1\nopen('file', 'w').write('1')"))
    second = asyncio.run(session.run("import os; print('x' in globals(), os.path.exists('file'))"))
    assert (first.status, second.status, second.state, second.lost_names) == ("ok", "ok", "lost", ("x",)), second
    assert second.stdout == "False True\n"
    asyncio.run(sandbox.close())


_LEFT = """
import casemate.sync
with casemate.sync.Sandbox(audit={audit!r}, preload=[]) as sandbox, sandbox.session() as session:
    try:
        for event in {what}.stream("print('up', flush=True)\\nimport time; time.sleep(50)"):
            print(event.text, end="", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    print({what}.run("print('after')").stdout)
"""


@pytest.mark.parametrize("what", ["session", "sandbox"])
def test_an_interrupt_of_who_reads_a_stream_is_that_and_nothing_else(audit: Path, what: str) -> None:
    program = _LEFT.format(audit=str(audit), what=what)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"up\n"
        reader.send_signal(signal.SIGINT)
        stdout, stderr = reader.communicate(timeout=60)
    assert (stdout, stderr, reader.returncode) == (b"interrupted\nafter\n\n", b"", 0)


async def test_an_application_that_holds_the_interpreters_lock_after_a_step_costs_no_session(audit: Path) -> None:
    """The supervisor hears of a step's end before the lock is held."""
    async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
        await said(session, "kept = 1")
        assert (await session.run("kept", timeout=0.5)).text == "1"
        ctypes.PyDLL(None).usleep(4_000_000)  # with the lock, for longer than the step's time and grace
        after = await session.run("kept")
    assert (after.text, after.state) == ("1", "kept")
