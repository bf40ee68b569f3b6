"""Ctrl-C that comes when no wait is ended by it: in the instant before one, or while another thread takes it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

MAX_WAIT = 60.0  # seconds
# Has the kernel give SIGINT to another thread, as soon as the main one waits in its loop: nothing else ends that wait.
PROGRAM = """
import asyncio, os, signal, threading
from pathlib import Path

main = threading.get_native_id()
awaits = threading.Event()

def send():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    awaits.wait()
    while Path(f"/proc/self/task/{main}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        pass
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()

async def forever(*_):
    asyncio.get_running_loop().call_soon(awaits.set)
    await asyncio.Event().wait()

class Connection:
    async def close(self):
        print("closed", flush=True)

async def connected(*_, **__):
    return Connection()

def begin():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=send, daemon=True).start()
"""
LOOP = """
from casemate.surfaces.cli.interrupts import run
begin()
try:
    run(forever())
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(signal.set_wakeup_fd(-1), len(os.listdir("/proc/self/fd")) == before)
"""
COMMAND = """
import casemate.remote.client
from casemate.surfaces.cli.connection import with_service
casemate.remote.client.connect = connected
begin()
try:
    with_service(forever)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        pytest.param('before = len(os.listdir("/proc/self/fd"))' + LOOP, "interrupted\n-1 True\n", id="loop"),
        pytest.param(COMMAND, "closed\ninterrupted\n", id="command"),
    ],
)
def test_an_interrupt_that_ends_no_wait_is_noticed_at_once(program: str, said: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM + program], stdout=subprocess.PIPE, text=True) as started:
        try:
            told, _ = started.communicate(timeout=MAX_WAIT)
        finally:
            started.kill()
    assert (told, started.returncode) == (said, 0)


def test_what_a_command_gives_and_raises_is_passed_on() -> None:
    from casemate.surfaces.cli.interrupts import run

    async def given() -> int:
        return 3

    async def raised() -> None:
        raise LookupError("no")

    before = signal.getsignal(signal.SIGINT)
    assert run(given()) == 3
    with pytest.raises(LookupError, match="no"):
        run(raised())
    assert signal.getsignal(signal.SIGINT) is before
