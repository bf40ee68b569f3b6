"""The service: a run through it against a run by the library, and 500 streams at once.

python -m benchmarks.service [--streams 500] [--runs 100]

Prints medians and p99 in milliseconds, the lag of the event loop under load, and the memory of the service.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from casemate import Sandbox
from casemate.remote.client import RemoteOperations, connect

_LAG = """
import asyncio, sys, time
sys.argv = ["casemate", "service"]
import casemate.surfaces.cli.daemon as serving
lags, works = [], []
live = serving.live
async def watched(*given):
    async def watch():
        while True:
            before, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - before - 0.005)
            works.append(time.thread_time() - worked)
    watching = asyncio.ensure_future(watch())
    try:
        await live(*given)
    finally:
        watching.cancel()
        for found in (lags, works):
            ordered = sorted(found)
            told = (ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1])
            print(*(f"{1000 * one:.1f}" for one in told), flush=True)
serving.live = watched
from casemate.surfaces.cli import main
main()
"""


async def timed(work: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Milliseconds of each of ``count`` calls."""
    for _ in range(5):
        await work()
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await work()
        found.append(1000 * (time.perf_counter() - began))
    return found


def told(name: str, found: list[float]) -> None:
    ordered = sorted(found)
    print(f"{name:<46} p50 {statistics.median(found):7.2f} ms   p99 {ordered[int(len(ordered) * 0.99)]:7.2f} ms")


async def trips(remote: RemoteOperations, runs: int) -> None:
    """Measure runs in turn, so that both ways have the same conditions."""
    async with Sandbox(audit=Path(tempfile.mkdtemp()) / "audit.db") as sandbox:
        each = max(1, runs // 5)
        library, service, nothing = [], [], []
        for _ in range(5):
            library += await timed(lambda: sandbox.run("print(1)"), each)
            service += await timed(lambda: remote("runs.start", {"code": "print(1)", "wait": 30.0}), each)
            nothing += await timed(lambda: remote("runs.list"), each)
    told("sandbox.run('print(1)') of the library", library)
    told("runs.start(wait=30) through the service", service)
    told("a call that does next to nothing", nothing)
    ratio, over = statistics.median(service) / statistics.median(library), statistics.median(service)
    print(f"{'over the library':<46} {ratio:11.2f} x   {over - statistics.median(library):+10.2f} ms (goal: +5 ms)")


async def streams(remote: RemoteOperations, env: dict[str, str], count: int) -> None:
    """Measure ``count`` streams of one run, which writes a line every 50 ms."""
    code = "import time\nfor n in range(200): print(n, flush=True); time.sleep(0.05)"
    run = (await remote("runs.start", {"code": code}))["run"]
    remotes = [await connect(environ=env, start=False) for _ in range(count)]
    began, events = time.perf_counter(), 0

    async def follow(one: RemoteOperations) -> None:
        nonlocal events
        async for _ in one.stream("runs.stream", {"run": run}):
            events += 1

    async with asyncio.TaskGroup() as following:
        for one in remotes:
            following.create_task(follow(one))
    spent = time.perf_counter() - began
    print(f"{f'{count} streams at once':<46} {events} events in {spent:.1f} s, {events / spent:,.0f} a second")
    for one in remotes:
        await one.close()


async def measured(env: dict[str, str], pid: int, given: argparse.Namespace) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(Exception):
                remote = await connect(environ=env, start=False)
                break
            await asyncio.sleep(0.05)
    before = memory(pid)
    await trips(remote, given.runs)
    await streams(remote, env, given.streams)
    print(f"{'memory of the service: at first, afterwards':<46} {before:.0f} MiB, {memory(pid):.0f} MiB")
    await remote.close()


def memory(pid: int) -> float:
    """Proportional memory of ``pid`` in MiB (Pss of smaps_rollup in proc(5))."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--runs", type=int, default=100)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="casemate-benchmark-"))
    places = {"HOME": folder, "XDG_STATE_HOME": folder / "state", "XDG_RUNTIME_DIR": folder}
    env = {**os.environ, **{name: str(place) for name, place in places.items()}}
    service = subprocess.Popen([sys.executable, "-c", _LAG], env=env, stdout=subprocess.PIPE, text=True)
    try:
        asyncio.run(measured(env, service.pid, given))
    finally:
        service.send_signal(signal.SIGTERM)
        said = service.communicate(timeout=60)[0]
    # The lag includes waiting for processors in use by others. The second line is only the service's own work.
    for name, line in zip(
        ("lag of its event loop", "processor time of the loop's thread within"), said.splitlines(), strict=True
    ):
        p50, p99, most = line.split()
        print(f"{name:<46} p50 {p50:>7} ms   p99 {p99:>7} ms   most {most} ms (goal: 50 ms)")


if __name__ == "__main__":
    main()
