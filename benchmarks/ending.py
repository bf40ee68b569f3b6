"""The time from a limit until every process in the cell is dead, as the host sees it.

The cell has forty processes. Most of them have separate sessions, ignore SIGTERM, or are stopped. The host finds them
in its own /proc, below the cell's init, and holds a pidfd of each before the limit. Times end with the last death:

- deadline: from call + timeout. It includes making the cell, so it is an upper bound.
- deadline by the supervisor: ``Execution.duration`` beyond the timeout (its clock begins with the cell)
- memory: from the program's last output, which it writes before it takes each MiB
- output: from the last output before the program floods; reaching the limit takes it a moment
- spread: from the first death to the last
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import looking, measure
from benchmarks.measure import Goal, Series
from casemate import Limits, Sandbox

_PROCESSES = 40
_TIMEOUT = 1.5  # seconds; enough to start all of them on a busy machine
_MAX_WAIT = 20.0
_GOAL = Goal(plus=0.1)
_LIMITS = Limits(memory="128MiB", disk="16MiB", processes=100, full_output="2MiB", wall=30)
_CROWD = f"""
import os, signal, sys, time
for number in range({_PROCESSES}):
    if os.fork() == 0:
        if number % 4:
            os.setsid()
        for ignored in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)
        if number % 3 == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            time.sleep(60)
time.sleep({_TIMEOUT / 2})  # meanwhile the host finds them all
print(time.monotonic(), flush=True)  # a cell has the host's clock
"""
_OVER = {
    "timeout": "while True: time.sleep(60)",
    "out_of_memory": "kept = []\nwhile True: print(time.monotonic(), flush=True); kept.append(b'x' * (1 << 20))",
    "killed": "while True: os.write(1, b'x' * 65536)",
}


@dataclass(slots=True)
class Deaths:
    """When the host saw the processes of one cell die, on the monotonic clock."""

    first: float = 0.0
    last: float = 0.0
    number: int = 0


def main() -> None:
    run = measure.Run("ending", __doc__ or "")
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="casemate-ending-") as folder, asyncio.Runner() as runner:
        sandbox = Sandbox(limits=_LIMITS, audit=f"{folder}/audit.db")
        runner.run(sandbox.run("pass"))
        for _ in range(run.rounds(20, 2)):
            for status in _OVER:
                for name, seconds in runner.run(_one(sandbox, status)).items():
                    found.setdefault(name, []).append(seconds)
        runner.run(sandbox.close())
    series = [Series(name, tuple(samples), None if "spread" in name else _GOAL) for name, samples in found.items()]
    run.compare(f"until all {_PROCESSES} processes and their init are dead", series)
    run.finish()


async def _one(sandbox: Sandbox, status: str) -> dict[str, float]:
    """Run into one limit. Returns the times."""
    deaths = Deaths()
    watcher = threading.Thread(target=_watch, args=(deaths,))
    watcher.start()
    called = time.monotonic()
    timeout = _TIMEOUT if status == "timeout" else _LIMITS.wall
    execution = await sandbox.run(_CROWD + _OVER[status], timeout=timeout)
    await asyncio.to_thread(watcher.join)
    if execution.status != status or deaths.number <= _PROCESSES:
        raise RuntimeError(f"{execution.status} for {status}, {deaths.number} processes: {execution.text[:500]}")
    spread = {"deadline: spread": deaths.last - deaths.first}
    if status == "timeout":
        by_supervisor = execution.duration - _TIMEOUT
        return {"deadline": deaths.last - called - timeout, "deadline by the supervisor": by_supervisor, **spread}
    lines = execution.stdout.splitlines()
    name, line = ("memory", lines[-1]) if status == "out_of_memory" else ("output", lines[0])
    said = float(line)
    return {name: deaths.last - said, f"{name}: spread": deaths.last - deaths.first}


def _watch(deaths: Deaths) -> None:
    """Find the cell's processes, hold a pidfd of each, and note when they die."""
    until = time.monotonic() + _MAX_WAIT
    members: set[int] = set()
    while len(members) <= _PROCESSES + 1 and time.monotonic() < until:  # includes its init and the program itself
        time.sleep(0.02)
        members = _largest_cell()
    watched = {}
    poll = select.poll()
    for pid in members:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue  # too late; the count is then too small, which is an error
        watched[fd] = pid
        poll.register(fd, select.POLLIN)
    deaths.number = len(watched)
    while watched and time.monotonic() < until:
        for fd, _ in poll.poll(1000):
            deaths.last = time.monotonic()
            deaths.first = deaths.first or deaths.last
            poll.unregister(fd)
            del watched[fd]
            os.close(fd)
    if watched:
        deaths.number = -len(watched)


def _largest_cell() -> set[int]:
    """Every process, by host pid, of the largest cell of this process, including its init.

    It follows parent pids, which every user may read. An init's namespaces are hidden from an ordinary user.
    """
    inits = [one for one in looking.below(os.getpid()) if one.is_init]
    cells = ({init.pid, *(one.pid for one in looking.below(init.pid))} for init in inits)
    return max(cells, key=len, default=set())


if __name__ == "__main__":
    main()
