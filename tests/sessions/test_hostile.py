"""Code that lies to casemate spoils its own session's results at most: not another session, the host or the record."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from tests.contract import witness
from tests.records import unfinished
from tests.sessions.driver import PROMPT, Open, said
from tests.support.languages import every_language

from casemate import CasemateError, Limits, Sandbox
from casemate.audit.log import AuditLog
from casemate.sessions.session import Session

MIB = 2**20
SAY = """
import json, os
def raw(data):
    while data: data = data[os.write(3, data):]
def say(**message):
    body = json.dumps(message).encode(); raw(len(body).to_bytes(4, "big") + body)
"""
FORGED: dict[str, str] = {
    "the end of this step": 'say(type="done", step=2, at=[0, 0], exit=0, new=[], gone=[])',
    "the end of later steps": 'for n in range(3, 40): say(type="done", step=n, at=[0, 0], exit=0, new=[], gone=[])',
    "the end of no step": 'for n in (0, -1, 2**70, "2", None, [], 1.5): say(type="done", step=n, at=[0, 0], exit=0)',
    "an error": 'say(type="error", step=2, at=[0, 0], name="E", value="v", traceback="t", errno=None)',
    "a display of another step": 'say(type="display", step=3, at=[0, 0], bundle={"text/plain": "forged"}, id=None)',
    "a bundle that is none": 'say(type="display", step=2, at=[0, 0], bundle={"text/plain": {"a": []}, "x": 1})',
    "ready again": 'for _ in range(50): say(type="ready", problem="none")',
    "answers to no question": 'for n in range(200): say(type="reply", id=n, value="forged")',
    "text that never comes": 'say(type="mark", step=2, at=[2**52, 2**52])',
    "a place below nothing": 'say(type="mark", step=2, at=[-1, -1]); say(type="mark", step=2, at=["a", None])',
    "names without end": 'say(type="done", step=9, at=[0,0], exit=0, new=["x" * 300] * 20000, gone=[3, None])',
    "no JSON": 'raw((5).to_bytes(4, "big") + b"{{{{{")',
    "JSON that is no object": 'raw((2).to_bytes(4, "big") + b"[]")',
    "deep JSON": 'body = b"[" * 100000; raw(len(body).to_bytes(4, "big") + body)',
    "many values": 'body = b"[" + b"0," * 1000000 + b"0]"; raw(len(body).to_bytes(4, "big") + body)',
    "bytes that are no text": 'raw((4).to_bytes(4, "big") + bytes([255, 254, 0, 1]))',
    "empty frames": "raw(bytes(4 * 1000))",
    "a length beyond the bound": "raw(bytes([255]) * 4)",
    "half a frame": 'raw((1000).to_bytes(4, "big") + b"{")',
    "garbage": "raw(os.urandom(100000))",
}


@pytest.mark.parametrize("code", FORGED.values(), ids=FORGED)
async def test_a_forged_frame_harms_its_own_session_at_most_and_the_next_step_works(opened: Open, code: str) -> None:
    victim, other = opened(), opened()
    await said(other, "theirs = 1")
    await said(victim, "mine = 1")  # step 1; the forger is step 2
    async with asyncio.timeout(PROMPT):
        forged = await victim.run(f"{SAY}\n{code}\nprint('said')", timeout=5)
        assert forged.state in ("kept", "lost")
        after = await victim.run("print('after')", timeout=5)
        if after.status != "ok":  # what it has spoiled may end its next step, too, but no more
            after = await victim.run("print('after')", timeout=PROMPT)
        assert (after.status, after.stdout, after.results) == ("ok", "after\n", ())
        last = await victim.run("print('last'); 5", timeout=PROMPT)
    assert (last.status, last.stdout, [result.text for result in last.results]) == ("ok", "last\n", ["5"])
    assert await said(other, "print(theirs)") == "1\n"


async def test_a_forged_end_ends_the_step_for_the_host_and_what_it_says_later_is_background(opened: Open) -> None:
    session = opened()
    await said(session, "mine = 1")
    code = (
        SAY
        + """
print("before", flush=True)
say(type="done", step=2, at=[7, 0], exit=0, new=[], gone=[])
import time
while not os.path.exists("/workspace/go"): time.sleep(0.005)
print("after", flush=True)
"""
    )
    async with asyncio.timeout(PROMPT):
        forged = await session.run(code, timeout=None)
        assert (forged.status, forged.stdout) == ("ok", "before\n")
        await session.files.write("go", "")
        after = await session.run("print('mine')", timeout=None)
    assert (after.status, after.stdout) == ("ok", "mine\n")


async def test_after_a_forged_end_code_that_goes_on_for_ever_is_ended_by_the_next_steps_time(opened: Open) -> None:
    session = opened()
    await said(session, "mine = 1")
    code = f"""{SAY}
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
say(type="done", step=2, at=[0, 0], exit=0, new=[], gone=[])
while True: pass
"""
    async with asyncio.timeout(PROMPT):
        assert (await session.run(code, timeout=None)).status == "ok"
        stuck = await session.run("print('never')", timeout=0.5)
        assert (stuck.status, stuck.state) == ("timeout", "lost")
        assert await said(session, "print('fresh')") == "fresh\n"


async def test_answers_that_were_forged_before_the_question_are_not_taken(session: Session) -> None:
    await said(session, SAY + '\nx = "true"\nfor n in range(100): say(type="reply", id=n, value="forged")')
    assert await session.get("x") == "true"
    assert [variable.repr for variable in await session.variables() if variable.name == "x"] == ["'true'"]


async def test_a_flood_of_frames_ends_its_step_and_costs_the_host_little(opened: Open) -> None:
    victim, other = opened(limits=Limits(full_output="8MiB")), opened()
    await said(victim, "mine = 1")
    await said(other, "theirs = 1")
    before = witness.resident()
    witness.reset_peak()
    code = SAY + 'body = {"text/plain": "x" * 60000}\nwhile True: say(type="display", step=2, at=[0, 0], bundle=body)'
    async with asyncio.timeout(PROMPT):
        flood = await victim.run(code, timeout=None)
    grown = witness.resident(line="VmHWM") - before
    assert flood.cause is not None
    assert flood.cause.code == "output_limit"
    assert grown < 64 * MIB, f"{grown / MIB:.1f} MiB"
    assert await said(other, "print(theirs)") == "1\n"
    assert await said(victim, "print('goes on')") == "goes on\n"


@pytest.mark.parametrize(
    "frame",
    ['type="display", step=2, at=[0, 0], bundle={"text/plain": "x"}', 'type="ready"', 'type="mark", step=2, at=[0, 0]',
     'type="reply", id=5', 'type="mark", step=2, at=[2**50, 0]', 'type="clear", step=2, at=[0, 0], wait=False'],
)  # fmt: skip
async def test_a_flood_of_small_frames_ends_its_step_and_the_others_go_on(opened: Open, frame: str) -> None:
    victim, other = opened(limits=Limits(full_output="8MiB")), opened()
    await said(victim, "mine = 1")
    await said(other, "theirs = 1")
    before = witness.resident()
    witness.reset_peak()
    task = asyncio.ensure_future(victim.run(f"{SAY}\nwhile True: say({frame})", timeout=None))
    async with asyncio.timeout(PROMPT):
        for _ in range(20):
            assert await said(other, "print(theirs)") == "1\n"
        flood = await task
    assert flood.cause is not None
    assert flood.cause.code == "output_limit"
    assert witness.resident(line="VmHWM") - before < 64 * MIB
    assert await said(victim, "print('goes on')") == "goes on\n"


async def test_a_flood_of_frames_between_steps_ends_neither_the_others_nor_the_host(opened: Open) -> None:
    victim, other = opened(limits=Limits(full_output="4MiB")), opened()
    code = (
        SAY
        + """
import threading
def flood():
    while not os.path.exists("/workspace/go"): pass
    while True: say(type="display", step=1, at=[0, 0], bundle={"text/plain": "x" * 1000})
threading.Thread(target=flood, daemon=True).start()
"""
    )
    await said(victim, code)
    before = witness.resident()
    witness.reset_peak()
    await victim.files.write("go", "")
    async with asyncio.timeout(PROMPT):
        for number in range(50):
            assert await said(other, f"print({number})") == f"{number}\n"
        for _ in range(3):
            execution = await victim.run("print('mine')", timeout=5)
            assert "x" not in execution.stdout
        await victim.reset()
        assert await said(victim, "print('fresh')") == "fresh\n"
    assert witness.resident(line="VmHWM") - before < 64 * MIB


_KEEPS_ITS_PIPE = """
import os, fcntl
pipes = globals().get("pipes", []) + [os.dup(1)]
fcntl.fcntl(pipes[-1], fcntl.F_SETPIPE_SZ, 2**20)
"""
_FLOODS_ALL_PIPES = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
for pipe in pipes:
    if os.fork() == 0:
        while True: os.write(pipe, b"x" * 65536)
fcntl.fcntl(3, fcntl.F_SETPIPE_SZ, 2**20)
at = 2**52
while True:
    bodies = [b'{"type":"mark","step":3,"at":[%d,0]}' % (at + n) for n in range(500)]
    os.write(3, b"".join(len(body).to_bytes(4, "big") + body for body in bodies))
    at += 500
"""


async def test_a_step_that_floods_all_its_pipes_costs_no_other_session_its_state(opened: Open) -> None:
    """Frames wait for text that comes through the pipes of steps before."""
    victim, other = opened(), opened()
    await said(other, "theirs = 1")
    for _ in range(2):
        await said(victim, _KEEPS_ITS_PIPE)
    flood = asyncio.ensure_future(victim.run(_FLOODS_ALL_PIPES, timeout=5))
    while not flood.done():
        beside = await other.run("print(theirs)", timeout=2)
        assert (beside.stdout, beside.cause, beside.state) == ("1\n", None, "kept")


TAMPER = {
    "3 is closed": "import os; os.close(3)",
    "6 is closed": "import os; os.close(6)",
    "3 and 6 are something else": "import os; fd = os.open('/dev/null', 2); os.dup2(fd, 3); os.dup2(fd, 6)",
    "6 is read by another": "import os, threading\n"
    "threading.Thread(target=lambda: [os.read(6, 65536) for _ in range(9)], daemon=True).start()",
    "1 and 2 are closed": "import os; os.close(1); os.close(2)",
    "everything above 2 is closed": "import os; os.closerange(3, 65536)",
    "a builtin is gone": "import builtins; del builtins.print, builtins.len, builtins.Exception",
    "all builtins are gone": "import builtins; vars(builtins).clear()",
    "the streams are gone": "import sys; sys.stdout = sys.stderr = sys.stdin = None",
    "a stream that fails": "import sys\n"
    "class Bad:\n def __getattr__(self, name): raise RuntimeError\nsys.stdout = sys.stderr = Bad()",
    "no modules": "import sys; sys.modules.clear()",
    "os does something else": "import os, json\n"
    "os.write = os.read = os.open = json.dumps = json.loads = lambda *a, **k: 1 / 0",
    "IPython does something else": "ip = get_ipython()\n"
    "ip.run_cell = ip.run_cell_async = ip.showtraceback = lambda *a, **k: 1 / 0",
    "the namespace is gone": "globals().clear()",
    "signals are ignored": "import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)",
    "an audit hook that forbids everything": "import sys\ndef no(*a): raise RuntimeError('no')\nsys.addaudithook(no)",
    "a trace function that fails": "import sys, threading\nsys.settrace(lambda *a: 1 / 0)",
    "no recursion": "import sys; sys.setrecursionlimit(60)",
    "a hundred thousand names": "globals().update({f'name{n}' + 'x' * 300: n for n in range(100_000)})",
    "names that are no names": "globals().update({'a b': 1, '\\n': 2, '\\ud800': 3}); globals()[5] = 6",
    "the place of the pipes": "import os, glob\nfor path in glob.glob('/program/*'):\n"
    "  for act in (os.remove, lambda p: os.rename(p, p + 'x'), lambda p: open(p, 'w'), lambda p: os.chmod(p, 0)):\n"
    "    try: act(path)\n    except OSError: pass",
    "no descriptors": "import os\nheld = []\n"
    "try:\n  while True: held.append(os.open('/dev/null', 0))\nexcept OSError: pass",
    "no memory for anybody": "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))",
    "no file may grow": "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
}  # fmt: skip


@pytest.mark.parametrize("code", TAMPER.values(), ids=TAMPER)
async def test_what_code_does_to_its_interpreter_ends_in_its_own_session_and_a_reset_heals_it(
    opened: Open, code: str
) -> None:
    victim, other = opened(), opened()
    await said(other, "theirs = 1")
    await said(victim, "mine = 1")
    async with asyncio.timeout(PROMPT * 2):
        await victim.run(code, timeout=3)
        for _ in range(2):  # whatever comes of these
            await victim.run("1 + 1", timeout=3)
        with contextlib.suppress(CasemateError):
            await victim.variables()
        await victim.reset()
        fresh = await victim.run("print('fresh', 'mine' in globals()); 1 + 1", timeout=PROMPT)
    assert (fresh.status, fresh.stdout, fresh.text) == ("ok", "fresh False\n", "fresh False\n2")
    assert await said(other, "print(theirs)") == "1\n"


KEEPS_SPEAKING = [
    "the streams are gone", "a stream that fails", "os does something else", "the namespace is gone",
    "1 and 2 are closed", "a hundred thousand names",
    "names that are no names", "the place of the pipes",
]  # fmt: skip


@pytest.mark.parametrize("name", KEEPS_SPEAKING)
async def test_a_session_whose_code_has_broken_python_still_tells_results_and_errors(opened: Open, name: str) -> None:
    session = opened()
    await said(session, "mine = 1")
    async with asyncio.timeout(PROMPT):
        await session.run(TAMPER[name], timeout=PROMPT)
        value = await session.run("1 + 1", timeout=PROMPT)
        error = await session.run("1 / 0", timeout=PROMPT)
    assert (value.status, value.text, value.state) == ("ok", "2", "kept")
    assert error.error is not None
    assert (error.error.name, error.status, error.state) == ("ZeroDivisionError", "failed", "kept")


OTHERS = {
    "node": {
        "JSON": "JSON.stringify = JSON.parse = () => { throw new Error('no') }; 0",
        "prototypes": "Array.prototype.push = Array.prototype.map = Object.keys = () => { throw new Error('no') };"
        " Promise.prototype.then = null; Function.prototype.call = null; 0",
        "streams": "process.stdout.write = console.log = fs.writeSync = () => { throw new Error('no') }; 0",
        "globals": "for (const name of Object.getOwnPropertyNames(globalThis))"
        " try { delete globalThis[name] } catch {}",
        "process": "process.on = process.exit = process.emit = null; process.removeAllListeners?.(); 0",
        "closes 3": "fs.closeSync(3)",
        "writes garbage to 3": "fs.writeSync(3, Buffer.alloc(100000, 255))",
    },
    "shell": {
        "functions": "echo() { :; }; read() { :; }; exec() { :; }; builtin() { :; }; mapfile() { :; }",
        "no PATH": "PATH=/nowhere; unset HOME TMPDIR; IFS=xyz; set -f; POSIXLY_CORRECT=1",
        "streams": "exec 1>&- 2>&- 0<&-",
        "options": "set -eu; set -o pipefail; shopt -s extdebug; set -T",
        "traps": "trap 'exit 9' DEBUG; trap 'exit 8' ERR; trap '' INT; trap 'echo x' EXIT",
        "aliases": "shopt -s expand_aliases; alias local=false builtin=false exec=false",
        "closes 20": "exec 20>&- 21<&- 22<&- 3>&- 6<&-",
        "frames": "printf '\\xff\\xff\\xff\\xffgarbage' >&20; printf 'xxxxxxxxxxx' >&3",
        "unsets": 'unset $(compgen -v | grep casemate); unset -f $(compgen -A function)',
        "readonly": "readonly PATH IFS LC_ALL; readonly -f echo 2>/dev/null; TMOUT=1; readonly TMOUT",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param(language, code, id=f"{language} {name}", marks=[pytest.mark.needs("node")] * (language == "node"))
        for language, codes in OTHERS.items()
        for name, code in codes.items()
    ],
)
async def test_what_other_languages_do_to_their_interpreter_is_healed_by_a_reset(
    opened: Open, language: str, code: str
) -> None:
    victim, other = opened(language), opened("python")
    await said(other, "theirs = 1")
    show = {"node": "console.log('fresh')", "shell": "echo fresh"}[language]
    async with asyncio.timeout(PROMPT * 2):
        await victim.run(code, timeout=3)
        for _ in range(2):
            await victim.run(show, timeout=3)
        await victim.reset()
        assert await said(victim, show) == "fresh\n"
    assert await said(other, "print(theirs)") == "1\n"


@every_language
async def test_code_of_a_session_has_no_descriptor_that_leads_out_of_its_cell(opened: Open, language: str) -> None:
    own = "" if language == "node" else "-e socket -e eventpoll"  # Node's own
    source = Path(__file__).parents[2]
    code = f"ls -l /proc/self/fd /proc/$PPID/fd | grep -c {own} -e pidfd -e /root -e {source} -e memfd:supervisor"
    run = {
        "python": f"!{code}",
        "node": f"console.log(require('child_process').spawnSync('sh', ['-c', {json.dumps(code)}]).stdout + '')",
        "shell": f"sh -c {json.dumps(code.replace('$', chr(92) + '$'))}",
    }
    assert (await opened(language).run(run[language])).stdout.strip() == "0"


async def test_the_record_has_each_step_of_a_forger_once(audit: Path) -> None:
    async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
        await session.run(
            SAY + 'for n in range(9): say(type="done", step=n, at=[0,0], exit=7, new=[], gone=[])', timeout=5
        )
        await session.run("print(1)", timeout=5)
    log = AuditLog(audit)
    try:
        assert log.verify().ok
        assert [row.kind for row in log.tail(100) if row.kind != "session"] == ["intent", "outcome"] * 2
        assert unfinished(log) == []
    finally:
        log.close()
