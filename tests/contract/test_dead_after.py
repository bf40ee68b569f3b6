"""After a limit nothing of the cell lives, whatever its code did. The host judges, by descriptors of the processes."""

from __future__ import annotations

import pytest
from tests.contract import witness
from tests.warmth import is_init

from casemate import Done, Execution, Limits, Output, sync

READY = "import sys; sys.stdout.write('ready\\n'); sys.stdout.flush()\n"
WAIT = "import signal\nwhile True: signal.pause()\n"
STUBBORN: dict[str, tuple[str, str, int]] = {  # language, program, processes besides init that must be there
    "a session of its own": ("python", f"""
import subprocess
held = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(5)]
{READY}{WAIT}""", 6),
    "a daemon, forked twice": ("python", f"""
import os, signal
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in (0, 1, 2): os.close(fd)
        os.write(w, b"x")
        while True: signal.pause()
    os._exit(0)
os.read(r, 1)
{READY}{WAIT}""", 2),
    "every signal ignored": ("python", f"""
import os, signal
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork() == 0:
    while True: signal.pause()
{READY}{WAIT}""", 2),
    "stopped children": ("python", f"""
import os, signal, subprocess
held = [subprocess.Popen(["sleep", "1000"]) for _ in range(5)]
for child in held:
    child.send_signal(signal.SIGSTOP); os.waitpid(child.pid, os.WUNTRACED)
{READY}{WAIT}""", 6),
    "stopped itself": ("python", f"{READY}import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", 1),
    "children that hold the pipes": ("shell", "sleep 1000 & sleep 1000 >&2 & echo ready; exec sleep 1000", 3),
    "a storm of threads": ("python", f"""
import threading
gate = threading.Event()
def spin():
    gate.wait()
    while True: pass
for _ in range(50): threading.Thread(target=spin).start()
{READY}
gate.set(); spin()""", 1),
    "a storm of forks": ("python", f"""
import os
{READY}
while True:
    try: pid = os.fork()
    except OSError: continue
    if pid == 0: os.setsid()""", 1),
    "children that fork as they end": ("python", f"""
import os
{READY}
main = os.getpid()
while True:
    try: pid = os.fork()
    except OSError: continue
    if pid != 0 and os.getpid() != main: os._exit(0)
    if pid != 0: os.waitpid(pid, 0)""", 1),
    "memory of 300 MiB in 30 children": ("python", f"""
import os, signal
r, w = os.pipe()
for _ in range(30):
    if os.fork() == 0:
        held = bytearray(10 << 20); held[::4096] = bytes([1]) * len(held[::4096])
        os.write(w, b"x"); signal.pause()
got = 0
while got < 30: got += len(os.read(r, 30))
{READY}{WAIT}""", 31),
    "Node's own, detached": ("node", """
const { spawn } = require('child_process');
for (let n = 0; n < 5; n++) spawn('sleep', ['1000'], { detached: true, stdio: 'inherit' });
process.on('SIGTERM', () => {}); setTimeout(() => console.log('ready'), 50); setInterval(() => {}, 1000);""", 6),
    "Shell's own, deaf and stopped": ("shell", """
trap '' TERM INT HUP QUIT
for n in 1 2 3 4 5; do setsid sleep 1000 & done
sleep 1000 & kill -STOP $!; echo ready; while :; do sleep 1000; done""", 7),
}  # fmt: skip
LIMITS = Limits(memory="1GiB", processes=80, full_output="8MiB")
TIMES = (3.0, 12.0, 48.0)  # seconds in which everything must be there and have been looked at: more on a busy machine


def in_programs() -> list[int]:
    """Every process in every cell except init, which the kernel may still be ending at the "done" event."""
    return [pid for pid in witness.in_cells() if not is_init(pid)]


def ended_by(sandbox: sync.Sandbox, language: str, code: str, timeout: float) -> tuple[Execution, int, int]:
    """Run ``code`` to its end by a limit: its execution, how many processes were held, how many of them live."""
    with witness.leaving(sandbox.stream(code, language=language, timeout=timeout, limits=LIMITS)) as stream:
        said = ""
        for event in stream:
            if isinstance(event, Done):
                return event.execution, 0, 0
            assert isinstance(event, Output), event
            said += event.text
            if "ready\n" in said:
                break
        with witness.watching(in_programs()) as watched:
            execution = next(event.execution for event in stream if isinstance(event, Done))
            alive = watched.living()  # at the moment of the "done" event
            return execution, len(watched.pidfds), alive


@pytest.mark.parametrize(("language", "code", "least"), [
    pytest.param(*case, marks=[pytest.mark.needs("node")] if case[0] == "node" else []) for case in STUBBORN.values()],
    ids=STUBBORN)  # fmt: skip
def test_nothing_lives_after_a_timeout(sandbox: sync.Sandbox, language: str, code: str, least: int) -> None:
    outcomes = (ended_by(sandbox, language, code, timeout=seconds) for seconds in TIMES)
    execution, _, alive = next(outcome for outcome in outcomes if outcome[1] >= least)
    assert (execution.status, alive) == ("timeout", 0)


@pytest.mark.parametrize(("after_ready", "status"), [
    ("import os\nb = bytes(1 << 16)\nwhile True: os.write(1, b)", "killed"),
    ("held = []\nwhile True: held.append(bytes([1]) * (1 << 20))", "out_of_memory")])  # fmt: skip
def test_nothing_lives_after_another_limit(sandbox: sync.Sandbox, after_ready: str, status: str) -> None:
    code = f"""
import subprocess
held = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(5)]
{READY}
{after_ready}"""
    execution, held, alive = ended_by(sandbox, "python", code, timeout=60)
    assert held >= 6
    assert (execution.status, alive) == (status, 0)


def test_nothing_lives_after_the_program_has_ended_by_itself(sandbox: sync.Sandbox) -> None:
    code = "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; echo ready; read line; exit 0"
    before = in_programs()  # of others on this worker
    with witness.leaving(sandbox.stream(code, language="shell", timeout=30)) as stream:
        assert isinstance(next(stream), Output)
        # The program may have ended by now: what is there to hold is held, and all of it must be dead at the end.
        with witness.watching([pid for pid in in_programs() if pid not in before]) as watched:
            *_, last = stream
            assert isinstance(last, Done)
            assert (last.execution.status, watched.living()) == ("ok", 0)
    assert witness.cells() == []
