"""Every way to die is noticed at once and named; the next step has a fresh interpreter and says what is lost."""

from __future__ import annotations

import asyncio

import pytest
from tests.sessions.driver import PROMPT, Open, done, events_of, said, until_there
from tests.sessions.driver import both_starts as start  # noqa: F401 - a fixture
from tests.support.languages import every_language

from casemate import Limits, Output

NO_NODE = [pytest.mark.needs("node")]
MAKE = {"python": "mine = 1", "node": "var mine = 1", "shell": "mine=1"}
LEAVE = {
    "python": "print('before'); open('file', 'w').write('kept');",
    "node": "console.log('before'); fs.writeFileSync('file', 'kept');",
    "shell": "echo before; printf kept > file;",
}
AFTER = {
    "python": "print('mine' in globals(), open('file').read())",
    "node": "console.log('mine' in globalThis ? 'True' : 'False', fs.readFileSync('file', 'utf8'))",
    "shell": 'echo ${mine-False} "$(cat file)"',
}
STACK = """
import ctypes, sys
sys.setrecursionlimit(1 << 30)
kind = ctypes.CFUNCTYPE(None)
def deeper(): again()
again = kind(deeper)
again()
"""
KILLED, ABORTED, FAULT, TERMINATED = 137, 134, 139, 143
# Each with the exit code that tells how, or None where casemate ended what did not speak any more.
DEATHS: dict[str, dict[str, tuple[str, int | None]]] = {
    "python": {
        "os._exit": ("import os; os._exit(7)", 7),
        "os._exit(0)": ("import os; os._exit(0)", 0),
        "exec of what ends": ("import os; os.execv('/bin/true', ['true'])", 0),
        "exec of what stays": ("import os; os.execv('/bin/sleep', ['sleep', '1000'])", None),
        "SIGKILL": ("import os; os.kill(os.getpid(), 9)", KILLED),
        "SIGTERM": ("import os, signal; signal.signal(15, signal.SIG_DFL); os.kill(os.getpid(), 15)", TERMINATED),
        "SIGKILL of everything": (
            "import os, subprocess as s; s.Popen(['sleep', '9']); os.kill(-1, 9); os.kill(os.getpid(), 9)", KILLED),
        "abort": ("import os; os.abort()", ABORTED),
        "segfault": ("import ctypes; ctypes.string_at(0)", FAULT),
        "stack overflow": (STACK, FAULT),
        "in a thread": (
            "import os, threading; threading.Thread(target=os._exit, args=(7,)).start()\nwhile True: pass", 7),
        "every descriptor closed": ("import os; os.closerange(0, 65536)\nwhile True: pass", None),
        "3 closed": ("import os; os.close(3)\nwhile True: pass", None),
    },
    "node": {
        "process.exit": ("process.exit(7)", 7),
        "process.exit later": ("setTimeout(() => process.exit(7), 1); await new Promise(() => {})", 7),
        "process.reallyExit": ("process.reallyExit(7)", 7),
        "SIGKILL": ("process.kill(process.pid, 'SIGKILL'); for (;;) {}", KILLED),
        "abort": ("process.abort()", ABORTED),
        "every descriptor closed": (
            "for (let fd = 0; fd < 300; fd++) try { fs.closeSync(fd) } catch {}\nfor (;;) {}", None),
    },
    "shell": {
        "exit": ("exit 7", 7),
        "exit 0": ("exit", 0),
        "exit in a function": ("f() { exit 7; }; f", 7),
        "exec of what ends": ("exec true", 0),
        "exec of what stays": ("exec sleep 1000", None),
        "SIGKILL": ("kill -9 $$; while :; do :; done", KILLED),
        "SIGKILL of everything": ("kill -9 -1; kill -9 $$", KILLED),
        "segfault": ("kill -SEGV $$; while :; do :; done", FAULT),
    },
}  # fmt: skip
deaths = pytest.mark.parametrize(
    ("language", "code", "exit_code"),
    [
        pytest.param(language, code, number, id=f"{language} {name}", marks=NO_NODE * (language == "node"))
        for language, ways in DEATHS.items()
        for name, (code, number) in ways.items()
    ],
)  # fmt: skip


@deaths
async def test_a_death_is_noticed_at_once_and_named_and_the_next_step_says_what_is_lost(
    opened: Open, language: str, code: str, exit_code: int | None
) -> None:
    session = opened(language)
    await said(session, MAKE[language])
    async with asyncio.timeout(PROMPT):  # the step has the thousand seconds of limits.wall
        events = await events_of(session.stream(f"{LEAVE[language]}\n{code}", timeout=None))
    dead = done(events)
    assert dead.cause is not None, dead
    assert (dead.state, dead.lost_names, dead.stdout) == ("lost", ("mine",), "before\n")
    assert (dead.exit_code, dead.status) == (exit_code, "failed" if exit_code is not None else dead.status)
    assert dead.cause.code == ("interpreter_ended" if exit_code is not None else dead.cause.code)
    assert dead.status != "ok"
    assert {artifact.name: artifact.read_bytes() for artifact in dead.artifacts} == {"file": b"kept"}
    after = await session.run(AFTER[language])
    assert (after.status, after.stdout, after.state) == ("ok", "False kept\n", "lost")
    assert after.lost_names == ("mine",)
    last = await session.run(AFTER[language])
    assert (last.state, last.lost_names, last.stdout) == ("kept", (), "False kept\n")


@pytest.mark.parametrize(
    ("language", "code", "exit_code"),
    [
        pytest.param("python", "import sys; sys.exit(3)", 3),
        pytest.param("python", "raise SystemExit('why')", 1),
        pytest.param("python", "import os; os.kill(1, 9); os.kill(1, 15)", 0, id="python kills pid 1"),
        pytest.param("python", "def deep(): deep()\ndeep()", 1, id="python recursion"),
        pytest.param("python", "import threading, sys; t = threading.Thread(target=sys.exit); t.start(); t.join()", 0),
        pytest.param("python", "import os\nif os.fork() == 0: os._exit(3)\nos.wait()", 0, id="python child's os._exit"),
        pytest.param("node", "(function deep() { deep() })()", 1, marks=pytest.mark.needs("node")),
        pytest.param("node", "try { process.kill(1, 'SIGKILL') } catch {}", 0, marks=pytest.mark.needs("node")),
        pytest.param("node", "setTimeout(() => { throw new Error('later') }, 0)", 0, marks=pytest.mark.needs("node")),
        pytest.param("shell", "(exit 3)", 3),
        pytest.param("shell", "kill -9 1", 0),
        pytest.param("shell", "return 3", 3),
        pytest.param("shell", "if", 2, id="shell syntax"),
        pytest.param("shell", "nosuchcommand", 127),
    ],
)
async def test_what_is_no_death_keeps_the_state(opened: Open, language: str, code: str, exit_code: int) -> None:
    session = opened(language)
    await said(session, MAKE[language])
    async with asyncio.timeout(PROMPT):
        execution = await session.run(code, timeout=None)
    assert (execution.exit_code, execution.state, execution.lost_names) == (exit_code, "kept", ())
    after = await session.run({"python": "print(mine)", "node": "console.log(mine)", "shell": "echo $mine"}[language])
    assert (after.stdout, after.state) == ("1\n", "kept")


@pytest.mark.parametrize("code", ["exit()", "quit()", "exit", "%exit"])
async def test_exit_in_ipython_leaves_a_session_that_works(opened: Open, code: str) -> None:
    session = opened()
    await said(session, "mine = 1")
    async with asyncio.timeout(PROMPT):
        execution = await session.run(code, timeout=None)
        after = await session.run("print('mine' in globals())")
    assert execution.state in ("kept", "lost")
    assert after.stdout == f"{execution.state == 'kept'}\n"
    assert after.state == execution.state


HUNGRY = {
    "python": "held = []\nwhile True: held.append(bytes([1]) * (1 << 20))",
    "node": "var held = []; for (;;) held.push(Buffer.alloc(1 << 20, 1))",
    "shell": "held=x; while :; do held=$held$held; done",
}


@every_language
async def test_code_that_wants_more_memory_than_there_is_is_named_and_the_next_step_works(
    opened: Open, language: str
) -> None:
    session = opened(language, limits=Limits(memory="160MiB"))
    await said(session, MAKE[language])
    async with asyncio.timeout(PROMPT):
        execution = await session.run(f"{LEAVE[language]}\n{HUNGRY[language]}", timeout=None)
        assert execution.cause is not None
        named = (execution.status, execution.cause.code)
        if language == "shell" and named != ("out_of_memory", "memory_limit"):  # bash gives up, and says so itself
            assert named == ("failed", "interpreter_ended")
            assert "cannot allocate" in execution.stderr
        else:
            assert named == ("out_of_memory", "memory_limit")
        assert execution.stdout == "before\n"
        after = await session.run(AFTER[language])
    if execution.state == "kept":
        assert after.state == "kept"
    else:
        assert (after.state, after.lost_names, after.stdout) == ("lost", ("mine",), "False kept\n")
    assert after.status == "ok", after


async def test_children_that_take_all_memory_end_the_cell_and_the_next_step_says_so(opened: Open) -> None:
    session = opened(limits=Limits(memory="160MiB"))
    await said(session, "mine = 1")
    code = """
import os, signal
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(40 << 20); held[::4096] = bytes([1]) * len(held[::4096])
        while True: signal.pause()
while True: signal.pause()
"""
    async with asyncio.timeout(PROMPT):
        execution = await session.run(code, timeout=None)
        after = await session.run("print('fresh')")
    assert execution.cause is not None
    assert (execution.status, execution.cause.code, execution.state) == ("out_of_memory", "memory_limit", "lost")
    assert (after.stdout, after.state, after.lost_names) == ("fresh\n", "lost", ("mine",))


async def test_an_interpreter_that_has_stopped_itself_is_ended_when_its_time_is_up(opened: Open) -> None:
    session = opened()
    await said(session, "mine = 1")
    async with asyncio.timeout(PROMPT):
        execution = await session.run("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", timeout=0.5)
        after = await session.run("print('fresh')")
    assert execution.status == "timeout"
    assert (after.status, after.stdout) == ("ok", "fresh\n")


@every_language
async def test_a_death_between_two_steps_is_told_by_the_next(opened: Open, language: str) -> None:
    code = {
        "python": "import threading, os, time\ndef die():\n"
        " while not os.path.exists('/workspace/go'): time.sleep(0.01)\n"
        " open('/workspace/went', 'w').close(); os._exit(1)\nthreading.Thread(target=die).start()",
        "node": "void setInterval(() => { if (fs.existsSync('/workspace/go')) {"
        " fs.writeFileSync('/workspace/went', ''); process.exit(1) } }, 5)",
        "shell": "(while [ ! -e go ]; do sleep 0.01; done; : > went; kill -9 $$) &",
    }
    session = opened(language)
    await said(session, MAKE[language])
    await said(session, code[language])
    await session.files.write("go", "")
    await until_there(session, "went")
    async with asyncio.timeout(PROMPT):
        show = {"python": "print('fresh')", "node": "console.log('fresh')", "shell": "echo fresh"}
        after = await session.run(show[language])
        if after.state == "kept" or "fresh" not in after.stdout:  # it died as this step began, which is reported
            assert after.state == "lost", after
            after = await session.run("1" if language != "shell" else ":")
    assert (after.status, after.state) == ("ok", "lost")
    assert "mine" in after.lost_names


async def test_a_session_that_dies_in_every_step_goes_on(opened: Open) -> None:
    session = opened()
    for number in range(6):
        async with asyncio.timeout(PROMPT):
            dead = await session.run(f"print({number}); import os; os._exit({number})", timeout=None)
        assert (dead.stdout, dead.exit_code) == (f"{number}\n", number)
    assert await said(session, "print('alive')") == "alive\n"


async def test_everything_of_a_dead_interpreter_is_dead(opened: Open) -> None:
    from tests.contract import witness
    from tests.sessions.driver import cell_of

    session = opened()
    with witness.watching(await cell_of(session)) as watched:
        assert watched.living() >= 3
        await session.run("import os; os._exit(1)")
        assert watched.living() == 0
    assert await said(session, "print('fresh')") == "fresh\n"


@every_language
async def test_output_before_a_death_is_all_there(opened: Open, language: str) -> None:
    code = {
        "python": "for n in range(20000): print(n)\nimport os; os._exit(1)",
        "node": "for (let n = 0; n < 20000; n++) console.log(n);\nprocess.exit(1)",
        "shell": "seq 0 19999; exit 1",
    }
    events = await events_of(opened(language).stream(code[language]))
    whole = "".join(f"{n}\n" for n in range(20000))
    assert done(events).stdout == whole
    assert "".join(event.text for event in events if isinstance(event, Output)) == whole
