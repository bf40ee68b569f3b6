"""What a step leaves running goes on, and what it says is never a later step's; a forked process is no session."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.sessions.driver import (
    PROMPT,
    WAIT_FOR_GO,
    Open,
    background,
    done,
    events_of,
    said,
    told,
    until_there,
)
from tests.sessions.driver import both_starts as start  # noqa: F401 - a fixture

from casemate.model.front_end import StepTerms
from casemate.sessions.session import Session

_THREAD = f"""
import sys, threading
def work():
{"".join(f"    {line}{chr(10)}" for line in WAIT_FOR_GO["python"].splitlines())}
    print("late")
    print("late error", file=sys.stderr)
    open("/workspace/gone", "w").close()
threading.Thread(target=work).start()
print("first")
"""
LEAVE = {
    "a thread": ("python", _THREAD),
    "a child process": (
        "python",
        "import subprocess\nheld = subprocess.Popen(['sh', '-c', '"
        + WAIT_FOR_GO["shell"]
        + " echo late; echo late error >&2; : > /workspace/gone'])\nprint('first')",
    ),
    "a shell command": (
        "python",
        "!(" + WAIT_FOR_GO["shell"] + " echo late; echo late error >&2; : > /workspace/gone) &\nprint('first')",
    ),
    "a forked process": (
        "python",
        "import os, sys\nprint('first', flush=True)\nif os.fork() == 0:\n"
        + "".join(f"    {line}\n" for line in WAIT_FOR_GO["python"].splitlines())
        + "    print('late', flush=True); print('late error', file=sys.stderr, flush=True)\n"
        "    open('/workspace/gone', 'w').close(); os._exit(0)",
    ),
    "a timer of Node's": (
        "node",
        "void setInterval(function () { if (fs.existsSync('/workspace/go')) { console.log('late');"
        " console.error('late error'); fs.writeFileSync('/workspace/gone', ''); clearInterval(this) } }, 5);"
        " console.log('first')",
    ),
    "a child process of Node's": (
        "node",
        "void require('child_process').spawn('sh', ['-c', '"
        + WAIT_FOR_GO["shell"]
        + " echo late; echo late error >&2; : > /workspace/gone'], { stdio: 'inherit' }); console.log('first')",
    ),
    "a job of Shell's": (
        "shell",
        "(" + WAIT_FOR_GO["shell"] + " echo late; echo late error >&2; : > /workspace/gone) & echo first",
    ),
}
leftovers = pytest.mark.parametrize(
    ("language", "code"),
    [pytest.param(*case, marks=[pytest.mark.needs("node")] * (case[0] == "node")) for case in LEAVE.values()],
    ids=LEAVE,
)
LET_GO = {
    "python": "import os, time\nprint('mine'); open('/workspace/go', 'w').close()\n"
    "while not os.path.exists('/workspace/gone'): time.sleep(0.005)\nprint('end')",
    "node": "console.log('mine'); fs.writeFileSync('/workspace/go', '');"
    " while (!fs.existsSync('/workspace/gone')) await new Promise((r) => setTimeout(r, 5)); console.log('end')",
    "shell": "echo mine; : > /workspace/go; while [ ! -e /workspace/gone ]; do sleep 0.005; done; echo end",
}


@leftovers
async def test_what_is_left_over_says_is_not_the_later_steps_and_is_told_as_background(
    opened: Open, language: str, code: str
) -> None:
    session = opened(language)
    assert await said(session, code) == "first\n"
    events = await events_of(session.stream(LET_GO[language], timeout=None))
    execution = done(events)
    assert (execution.status, execution.stdout, execution.stderr) == ("ok", "mine\nend\n", "")
    assert "late" not in execution.text
    assert sorted(background(events).splitlines()) == ["late", "late error"]
    kinds = {kind for kind, _ in told(events) if kind.endswith("*")}
    assert kinds == {"stdout*", "stderr*"}


@leftovers
async def test_what_is_left_over_says_between_two_steps_is_told_by_the_later_ones_stream(
    opened: Open, language: str, code: str
) -> None:
    session = opened(language)
    assert await said(session, code) == "first\n"
    await session.files.write("go", "")
    await until_there(session, "gone")
    show = {"python": "print('mine')", "node": "console.log('mine')", "shell": "echo mine"}[language]
    events = await events_of(session.stream(show, timeout=None))
    assert done(events).stdout == "mine\n"
    assert sorted(background(events).splitlines()) == ["late", "late error"]


@leftovers
async def test_what_is_left_over_says_is_the_background_of_the_next_outcome_and_of_no_other(
    opened: Open, language: str, code: str
) -> None:
    session = opened(language)
    assert (await session.run(code)).background == ""
    during = await session.run(LET_GO[language], timeout=None)
    assert (during.stdout, sorted(during.background.splitlines())) == ("mine\nend\n", ["late", "late error"])
    assert "late" not in during.text
    assert (await session.run("1" if language != "shell" else ":")).background == ""


async def test_what_a_pool_prints_for_a_later_step_that_waits_for_it_is_in_its_background(session: Session) -> None:
    pool = "from concurrent.futures import ThreadPoolExecutor; pool = ThreadPoolExecutor(1); pool.submit(int).result()"
    await said(session, pool)
    execution = await session.run("for i in range(3): pool.submit(print, 'job', i).result()\nprint('end')")
    assert (execution.stdout, execution.background) == ("end\n", "job 0\njob 1\njob 2")


async def test_a_step_off_the_record_takes_nothing_of_the_background(session: Session) -> None:
    await said(session, _THREAD)
    await session.files.write("go", "")
    await until_there(session, "gone")
    await session.steps.run_off_record("1", StepTerms(), PROMPT)
    assert sorted((await session.run("1")).background.splitlines()) == ["late", "late error"]


async def test_what_a_task_says_when_a_later_step_awaits_is_background(session: Session) -> None:
    code = """
import asyncio, os, sys
async def work():
    while not os.path.exists("/workspace/go"): await asyncio.sleep(0.005)
    print("late"); print("late error", file=sys.stderr); open("/workspace/gone", "w").close()
task = asyncio.create_task(work())
await asyncio.sleep(0)
print("first")
"""
    assert await said(session, code) == "first\n"
    later = LET_GO["python"].replace("time.sleep(0.005)", "await asyncio.sleep(0.005)")
    events = await events_of(session.stream(later, timeout=None))
    assert (done(events).stdout, done(events).stderr) == ("mine\nend\n", "")
    assert sorted(background(events).splitlines()) == ["late", "late error"]


async def test_a_flood_in_the_background_neither_ends_nor_enters_later_steps(session: Session) -> None:
    await said(
        session,
        "import subprocess\nheld = [subprocess.Popen(['yes', 'background']) for _ in range(2)]",
    )
    for number in range(20):
        async with asyncio.timeout(PROMPT):
            execution = await session.run(f"print({number})")
        assert (execution.status, execution.stdout, execution.state) == ("ok", f"{number}\n", "kept")
    events = await events_of(session.stream("import time; time.sleep(0.1); print('mine')"))
    assert done(events).stdout == "mine\n"
    assert set(background(events).split()) <= {"background", "background" * 2} | set(_pieces("background"))
    kept = len(done(events).background)
    assert 0 < kept < 3 * 2**20  # limits.output of each stream, and a line that says what is cut


def _pieces(word: str) -> list[str]:
    return [word[first:end] for first in range(len(word)) for end in range(first + 1, len(word) + 1)]


async def test_a_fork_that_returns_twice_ends_the_step_once_and_the_parent_is_the_session(session: Session) -> None:
    await said(session, "mine = 1")
    code = "import os\npid = os.fork()\nwho = 'child' if pid == 0 else 'parent'\nprint(who, flush=True)"
    for _ in range(5):
        async with asyncio.timeout(PROMPT):
            execution = await session.run(code, timeout=None)
        assert (execution.status, execution.state) == ("ok", "kept")
        assert "parent\n" in execution.stdout
        assert set(execution.stdout.split()) <= {"parent", "child"}
        events = await events_of(session.stream("print(who, mine)"))
        assert done(events).stdout == "parent 1\n"
        assert len([kind for kind, _ in told(events) if kind == "result"]) == 0


@pytest.mark.parametrize(
    "end",
    ["raise SystemExit(3)", "raise ValueError", "os.kill(os.getpid(), 9)", "display('child')", "'value'",
     "os.execv('/bin/true', ['true'])"],
)  # fmt: skip
async def test_however_a_forked_child_ends_the_step_and_the_session_do_not(session: Session, end: str) -> None:
    await said(session, "mine = 1")
    code = f"import os\npid = os.fork()\nif pid == 0:\n    {end}\nelse:\n    os.waitpid(pid, 0)\n    print('parent')"
    if end in ("display('child')", "'value'"):
        code = code.replace("    os.waitpid(pid, 0)\n", "")
    async with asyncio.timeout(PROMPT):
        execution = await session.run(code, timeout=None)
        assert (execution.status, execution.state, execution.results) == ("ok", "kept", ())
        assert "parent\n" in execution.stdout
        assert await said(session, "print(mine)") == "1\n"
        assert await said(session, "print(mine)") == "1\n"


async def test_children_of_multiprocessing_give_their_results(session: Session) -> None:
    code = """
import multiprocessing
def square(n): return n * n
with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(square, range(5)))
"""
    assert await said(session, code) == "[0, 1, 4, 9, 16]\n"


async def test_a_child_that_floods_after_its_step_waits_and_the_next_steps_go_on(session: Session) -> None:
    await said(session, "import subprocess; flood = subprocess.Popen(['yes'])")
    for number in range(5):
        assert await said(session, f"print({number})") == f"{number}\n"
    assert (await session.run("flood.kill(); flood.wait()")).state == "kept"


async def test_leaving_a_stream_that_nobody_reads_any_more_leaves_the_session_in_order(session: Session) -> None:
    async with asyncio.timeout(PROMPT):
        async with contextlib.aclosing(session.stream("mine = 1\nwhile True: print('y' * 60000)")) as events:
            async for _ in events:
                await asyncio.sleep(0.3)  # meanwhile more is said than is taken
                break
        execution = await session.run("print(mine)")
    assert (execution.stdout, execution.state) == ("1\n", "kept")
