"""A step ends when anyone with the right to do so ends it. The session keeps its earlier state or reports the loss."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.contract import witness
from tests.sessions.driver import FOREVER, PROMPT, Open, cell_of, done, first_text, said
from tests.sessions.driver import both_starts as start  # noqa: F401 - a fixture
from tests.support.languages import every_language

from casemate import Done, Execution, Output
from casemate.sessions.session import Session

STUCK = {
    "python": {
        "sleeping": "kept = 1; print('begun')\nimport time\nwhile True: time.sleep(1000)",
        "spinning": "kept = 1; print('begun')\nwhile True: pass",
        "awaiting": "kept = 1; print('begun')\nimport asyncio\nawait asyncio.sleep(1000)",
        "in a command": "kept = 1; print('begun')\n!sleep 1000",
        "in a bash cell": "kept = 1; print('begun')\nget_ipython().run_cell_magic('bash', '', 'sleep 1000')",
        "in a child process": "kept = 1; print('begun')\nimport subprocess; subprocess.run(['sleep', '1000'])",
        "waiting for a thread": "kept = 1; print('begun')\nimport threading; threading.Event().wait()",
    },
    "node": {
        "spinning": "var kept = 1; console.log('begun'); for (;;) {}",
        "awaiting": "var kept = 1; console.log('begun'); await new Promise((r) => setTimeout(r, 1e8))",
        "awaiting nothing": "var kept = 1; console.log('begun'); await new Promise(() => {})",
    },
    "shell": {
        "sleeping": "kept=1; echo begun; sleep 1000",
        "spinning": "kept=1; echo begun; while :; do :; done",
        "in a pipeline": "kept=1; echo begun; sleep 1000 | cat",
        "in a function": "kept=1; f() { echo begun; sleep 1000; echo not; }; f; echo not",
        "waiting": "kept=1; echo begun; wait_for() { sleep 1000 & wait; }; wait_for",
    },
}
SOON = 1.0  # seconds: enough to begin, on a busy machine, and not to be waited for long
READY = {"python": "pass", "node": "0", "shell": ":"}  # what the first step costs is not the next one's
SHOW = {"python": "print(kept)", "node": "console.log(kept)", "shell": "echo $kept"}
stuck = pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param(language, code, id=f"{language} {name}", marks=[pytest.mark.needs("node")] * (language == "node"))
        for language, codes in STUCK.items()
        for name, code in codes.items()
    ],
)
one_of_each = pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param("python", STUCK["python"]["sleeping"], id="python"),
        pytest.param("node", STUCK["node"]["awaiting"], id="node", marks=pytest.mark.needs("node")),
        pytest.param("shell", STUCK["shell"]["sleeping"], id="shell"),
    ],
)
DEAF = {
    "python": "mine = 1; print('begun')\nimport time\nwhile True:\n"
    " try: open('begun', 'w').close(); time.sleep(1000)\n except BaseException: pass",
    "node": "var mine = 1; console.log('begun');"
    " require('child_process').execSync(\"trap '' INT TERM; sleep 1000 & wait; sleep 1000\")",
    "shell": "mine=1; echo begun; trap '' INT; sleep 1000",
}
NAMED = {
    "python": "first = 1; second = 2",
    "node": "var first = 1; let second = 2",
    "shell": "first=1; second() { :; }",
}
LOST = {"python": {"first", "second"}, "node": {"first", "second"}, "shell": {"first", "second()"}}
LEAVE_FILE = {
    "python": "_ = open('file', 'w').write('still there')",
    "node": "fs.writeFileSync('file', 'still there')",
    "shell": "printf 'still there' > file",
}
READ_FILE = {
    "python": "print(open('file').read())",
    "node": "console.log(fs.readFileSync('file', 'utf8'))",
    "shell": "cat file; echo",
}
GONE = {
    "python": "print('first' in globals())",
    "node": "console.log('first' in globalThis)",
    "shell": "echo ${first-False}",
}


async def begun(session: Session, code: str) -> asyncio.Task[Execution]:
    """The step, as a task; its file `begun` is there."""
    said, mark = {
        "python": ("print('begun')", "; open('begun', 'w').close()"),
        "node": ("console.log('begun');", " fs.writeFileSync('begun', '');"),
        "shell": ("echo begun;", " : > begun;"),
    }[session.language]
    assert said in code
    marked = code if "open('begun'" in code else code.replace(said, said + mark, 1)
    task = asyncio.ensure_future(session.run(marked, timeout=FOREVER))
    while "begun" not in [file.name for file in await session.files.list()]:
        assert not task.done(), task.result()
        await asyncio.sleep(0.003)
    await session.files.remove("begun")
    return task


@stuck
async def test_a_step_whose_time_is_up_is_interrupted_and_what_it_made_is_kept(
    opened: Open, language: str, code: str
) -> None:
    session = opened(language)
    await said(session, READY[language])
    execution = await session.run(code, timeout=SOON)
    assert execution.cause is not None
    assert (execution.status, execution.cause.code, execution.exit_code) == ("timeout", "timeout", None)
    assert (execution.state, execution.lost_names, execution.stdout) == ("kept", (), "begun\n")
    after = await session.run(SHOW[language])
    assert (after.status, after.stdout, after.stderr, after.state) == ("ok", "1\n", "", "kept")


@pytest.mark.needs("node")
async def test_node_that_spins_after_an_await_is_ended_and_says_truly_whether_its_state_is(opened: Open) -> None:
    session = opened("node")  # an older Node cannot be interrupted there: see guest/node/interrupts.cjs
    await said(session, "var first = 1")
    async with asyncio.timeout(PROMPT):
        execution = await session.run("console.log('begun'); await null; for (;;) {}", timeout=SOON)
        after = await session.run("console.log(typeof first)")
    assert (execution.status, execution.stdout) == ("timeout", "begun\n")
    assert after.stdout == {"kept": "number\n", "lost": "undefined\n"}[str(execution.state)]
    assert execution.lost_names == (() if execution.state == "kept" else ("first",))


@every_language
async def test_code_that_ignores_the_interrupt_is_ended_and_what_is_lost_is_named_twice(
    opened: Open, language: str
) -> None:
    session = opened(language)
    await said(session, NAMED[language])
    await said(session, LEAVE_FILE[language])
    async with asyncio.timeout(PROMPT):
        execution = await session.run(DEAF[language], timeout=2 * SOON)  # a shell has to be started in it
    assert execution.cause is not None
    assert (execution.status, execution.cause.code, execution.state) == ("timeout", "timeout", "lost")
    assert set(execution.lost_names) >= LOST[language]
    assert execution.stdout == "begun\n"
    after = await session.run(GONE[language])
    assert (after.status, after.stdout.strip().lower(), after.state) == ("ok", "false", "lost")
    assert set(after.lost_names) >= LOST[language]
    last = await session.run(READ_FILE[language])
    assert (last.stdout, last.state, last.lost_names) == ("still there\n", "kept", ())


@one_of_each
async def test_an_interrupt_ends_the_step_and_what_it_made_is_kept(opened: Open, language: str, code: str) -> None:
    session = opened(language)
    events = []
    async with asyncio.timeout(PROMPT):
        async for event in session.stream(code, timeout=FOREVER):
            events.append(event)
            if isinstance(event, Output) and not event.background:
                session.interrupt()
    execution = done(events)
    assert execution.cause is not None
    assert (execution.status, execution.cause.code, execution.state) == ("cancelled", "cancelled", "kept")
    assert execution.stdout == "begun\n"
    assert await said(session, SHOW[language]) == "1\n"


@every_language
async def test_an_interrupt_where_nothing_runs_does_nothing(opened: Open, language: str) -> None:
    session = opened(language)
    session.interrupt()
    await said(session, NAMED[language])
    session.interrupt()
    after = await session.run(GONE[language])
    assert (after.status, after.state) == ("ok", "kept")


@one_of_each
async def test_cancelling_the_task_of_a_step_interrupts_it_and_what_it_made_is_kept(
    opened: Open, language: str, code: str
) -> None:
    session = opened(language)
    task = await begun(session, code)
    async with asyncio.timeout(PROMPT):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = await session.run(SHOW[language])
    assert (after.status, after.stdout, after.stderr, after.state) == ("ok", "1\n", "", "kept")


async def test_cancelling_twice_is_as_cancelling_once(session: Session) -> None:
    task = await begun(session, STUCK["python"]["sleeping"])
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(PROMPT):
        await asyncio.wait([task])
        assert await said(session, "print(kept)") == "1\n"
    assert task.cancelled()


@pytest.mark.full
@pytest.mark.parametrize("start_again", [False, True])
async def test_cancelling_at_any_moment_leaves_the_session_in_order(opened: Open, start_again: bool) -> None:
    session = opened()
    await said(session, "count = 0")
    for moment in range(40):
        if start_again and moment % 4 == 0:
            await session.reset()
        task = asyncio.ensure_future(session.run(f"count = {moment}; print('step {moment}')"))
        for _ in range(moment):
            await asyncio.sleep(0)
        if moment % 3 == 0:
            await asyncio.sleep(0.0005 * moment)
        task.cancel()
        async with asyncio.timeout(PROMPT):
            await asyncio.wait([task])
            assert await said(session, f"print('after {moment}')") == f"after {moment}\n"


@pytest.mark.full
async def test_cancelling_a_step_that_ignores_it_ends_the_cell_and_the_next_step_says_so(session: Session) -> None:
    await said(session, "first = 1")
    task = await begun(session, DEAF["python"])
    async with asyncio.timeout(PROMPT):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        after = await session.run("print('first' in globals())")
    assert (after.stdout, after.state, after.lost_names) == ("False\n", "lost", ("first",))


@one_of_each
async def test_leaving_a_stream_interrupts_its_step_and_what_it_made_is_kept(
    opened: Open, language: str, code: str
) -> None:
    session = opened(language)
    stream = session.stream(code, timeout=FOREVER)
    assert await first_text(stream) == "begun\n"
    async with asyncio.timeout(PROMPT):
        await stream.aclose()
        assert await said(session, SHOW[language]) == "1\n"


async def test_a_step_that_waits_behind_another_can_be_cancelled_and_never_runs(session: Session) -> None:
    first = await begun(session, STUCK["python"]["sleeping"])
    second = asyncio.ensure_future(session.run("second = 1"))
    third = asyncio.ensure_future(session.run("print('second' in globals())"))
    await asyncio.sleep(0)
    second.cancel()
    session.interrupt()
    async with asyncio.timeout(PROMPT):
        assert (await first).status == "cancelled"
        assert (await third).stdout == "False\n"
    assert second.cancelled()


@pytest.mark.full
async def test_an_interrupt_that_is_too_late_does_not_end_the_session_later(session: Session) -> None:
    """The loop stands still while the step ends, so that the interrupt comes after its end and before that is known."""
    await said(session, "kept = 1")
    cell = await cell_of(session)
    stream = session.stream("print('begun')", timeout=FOREVER)
    with witness.watching(cell) as watched:
        assert isinstance(await anext(stream), Output)
        time.sleep(0.3)
        session.interrupt()
        async for event in stream:
            if isinstance(event, Done):
                assert event.execution.state == "kept"
        assert not await asyncio.to_thread(watched.wait, 3.5)
        assert watched.living() == len(cell)
    after = await session.run("print(kept)")
    assert (after.stdout, after.state) == ("1\n", "kept")


@every_language
async def test_background_work_survives_an_interrupt_of_a_later_step(opened: Open, language: str) -> None:
    begin = {
        "python": "import threading, time, os\n"
        "def work():\n while not os.path.exists('/workspace/go'): time.sleep(0.01)\n open('/workspace/worked', 'w')\n"
        "t = threading.Thread(target=work); t.start()",
        "node": "var t = setInterval(() => { if (fs.existsSync('/workspace/go')) {"
        " fs.writeFileSync('/workspace/worked', ''); clearInterval(t) } }, 5); undefined",
        "shell": "(while [ ! -e go ]; do sleep 0.01; done; : > worked) &",
    }
    session = opened(language)
    await said(session, begin[language])
    execution = await session.run(STUCK[language]["spinning"], timeout=0.3)
    assert (execution.status, execution.state) == ("timeout", "kept")
    if language == "shell":  # a signal to the foreground ends what was started in it, as Ctrl-C does not in a terminal
        await said(session, "(while [ ! -e go ]; do sleep 0.01; done; : > worked) &")
    await session.files.write("go", "")
    async with asyncio.timeout(PROMPT):
        while "worked" not in [file.name for file in await session.files.list()]:
            await asyncio.sleep(0.003)
