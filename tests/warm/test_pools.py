"""Cells that are ready: each serves one run, they are no more than may run at once, and they end when nobody comes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract import witness
from tests.contract.test_listeners import ADDRESS, CLIENT, Kept, answer
from tests.support.languages import LANGUAGES
from tests.support.waiting import MAX_WAIT, until, until_async
from tests.warm.ready import all_ready, name_of, ours, ready_inits, settle, start_of, warmth, zygotes

import casemate
from casemate import Execution, Sandbox, sync
from casemate.model.plan import ListeningSocket
from casemate.walls.native import demand, pool

SOURCE = str(Path(casemate.__file__).parents[1])

LEAVES = {
    "python": """
import glob, os, subprocess
places = ("/tmp", "/dev/shm", "/workspace", "/workspace/output", "/home/user", "/var/tmp")
print(sorted(name for place in places for name in glob.glob(place + "/*marker*")),
      len([p for p in os.listdir("/proc") if p.isdigit()]))
for place in places:
    open(f"{place}/marker", "w").write("mine")
subprocess.Popen(["sleep", "1000"], start_new_session=True)
""",
    "node": """
const fs = require('fs'), places = ['/tmp', '/dev/shm', '/workspace', '/workspace/output', '/home/user', '/var/tmp'];
console.log(JSON.stringify(places.flatMap(p => fs.readdirSync(p).filter(n => n.includes('marker')))).replace(/"/g, ''),
            fs.readdirSync('/proc').filter(n => /^[0-9]+$/.test(n)).length);
for (const p of places) fs.writeFileSync(p + '/marker', 'mine');
require('child_process').spawn('sleep', ['1000'], {detached: true, stdio: 'ignore'}).unref();
""",
    "shell": """
set -- /proc/[0-9]*
echo "[$(ls -d {/tmp,/dev/shm,/workspace,/workspace/output,/home/user,/var/tmp}/marker* 2>/dev/null)]" $#
for place in /tmp /dev/shm /workspace /workspace/output /home/user /var/tmp; do echo mine > $place/marker; done
setsid sleep 1000 &
""",
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_run_sees_anything_of_another(sandbox: sync.Sandbox, language: str) -> None:
    settle(sandbox, language)
    with ThreadPoolExecutor(8) as threads:
        runs = list(
            threads.map(
                lambda _: sandbox.run(LEAVES[language], language=language), range(60 if language == "python" else 30)
            )
        )
    assert {one.stdout for one in runs} == {"[] 2\n"}
    assert all(one.status == "ok" for one in runs)
    assert sum(start_of(one)[0] == "pool" for one in runs) >= 5, "hardly a ready cell was tried"
    states = warmth(sandbox).pools
    assert sum(one.taken for one in states) <= sum(one.made for one in states)
    assert sum(one.running for one in states) == 0


def test_ready_cells_are_ended_when_nobody_comes_and_come_back(
    sandbox: sync.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(sandbox, "python", "shell")
    first = all_ready(sandbox)
    assert first
    with witness.watching(first) as watched:
        monkeypatch.setattr(demand, "IDLE", 0.2)
        assert watched.wait()
    until(lambda: not ready_inits())
    assert sum(one.ready for one in warmth(sandbox).pools) == 0
    assert len(zygotes()) == 1, "zygotes are kept for longer"
    monkeypatch.setattr(demand, "IDLE", 30.0)
    assert sandbox.run("print(1)").stdout == "1\n"
    until(ready_inits)
    until(lambda: start_of(sandbox.run("print(1)"))[0] == "pool")


def test_zygotes_are_ended_when_nobody_comes_and_come_back(
    sandbox: sync.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(sandbox)
    with witness.watching(zygotes()) as watched:
        monkeypatch.setattr(pool, "ZYGOTE_IDLE", 0.2)
        assert watched.wait()
    until(lambda: not warmth(sandbox).zygotes and not warmth(sandbox).pools)
    until(lambda: not ready_inits())
    monkeypatch.setattr(pool, "ZYGOTE_IDLE", 600.0)
    until(lambda: start_of(sandbox.run("print(1)"))[0] == "pool")


def test_there_are_never_more_cells_than_may_run_at_once(audit: Path) -> None:
    most = 3
    with sync.Sandbox(audit=audit, preload=(), concurrency=most) as sandbox:
        settle(sandbox, "shell")
        seen: list[int] = []

        def look() -> None:
            for one in warmth(sandbox).pools:
                assert one.ready + one.running <= most, one
                seen.append(one.ready)

        with ThreadPoolExecutor(8) as threads:
            runs = [threads.submit(sandbox.run, "sleep 0.02", language="shell") for _ in range(40)]
            while not all(one.done() for one in runs):
                look()
                assert len(ready_inits()) <= most
        until(lambda: warmth(sandbox).pools[0].ready == most)
        look()
        assert len(all_ready(sandbox)) == most
        assert set(seen) >= {0, most}


def test_a_sandbox_for_one_run_at_a_time_keeps_one_cell_ready(audit: Path) -> None:
    with sync.Sandbox(audit=audit, preload=(), concurrency=1) as sandbox:
        settle(sandbox, "shell")
        for _ in range(3):
            until(lambda: warmth(sandbox).pools[0].ready)
            assert len(all_ready(sandbox)) == 1
            assert start_of(sandbox.run("echo 1", language="shell"))[0] == "pool"


@pytest.mark.needs("node")
@pytest.mark.parametrize("moment", ["settled", "starting", "running"])
def test_closing_ends_everything(audit: Path, moment: str) -> None:
    others = set(ours())  # of a sandbox that is not this test's
    sandbox = sync.Sandbox(audit=audit, preload=())
    running = None
    with ThreadPoolExecutor(1) as threads:
        try:
            if moment == "starting":
                sandbox.warm_up("python", "node", "shell")
                until(zygotes)
            else:
                settle(sandbox, "python", "node", "shell")
            if moment == "running":
                running = threads.submit(sandbox.run, "import time; time.sleep(1000)")
                until(witness.cells)
            everything = [pid for pid in ours() if pid not in others]
            assert len([pid for pid in everything if name_of(pid).startswith("casemate-")]) >= 2
        finally:
            with witness.watching([pid for pid in ours() if pid not in others]) as watched:
                sandbox.close()
                assert watched.wait()
        if running is not None:
            assert isinstance(running.exception(MAX_WAIT), casemate.SandboxClosed)
    assert set(ours()) <= others


def test_nothing_is_started_for_a_sandbox_that_ran_nothing(audit: Path) -> None:
    with sync.Sandbox(audit=audit, preload=()) as sandbox:
        sandbox.warm_up()
        until(witness.serving)
        assert (warmth(sandbox).pools, zygotes(), ready_inits()) == ((), [], [])


def test_cells_are_kept_ready_after_a_run_without_being_asked_for(sandbox: sync.Sandbox) -> None:
    assert start_of(sandbox.run("print(1)"))[0] == "exec"
    until(zygotes)
    until(ready_inits)
    assert start_of(sandbox.run("print(1)"))[0] == "pool"


@pytest.mark.parametrize("lines", ["", "import numpy\n"], ids=["plain", "numpy"])
def test_the_command_line_starts_no_zygote_for_a_single_run(tmp_path: Path, lines: str) -> None:
    program = tmp_path / "file.py"
    program.write_text(f"{lines}import time\nprint('begun', flush=True)\ntime.sleep(1)\nprint('ended')\n")
    env = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": SOURCE}
    command = [sys.executable, "-m", "casemate", "run", str(program)]
    names: set[str] = set()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            deadline = time.monotonic() + MAX_WAIT
            while process.poll() is None:
                below = [pid for first in witness.supervisors(process.pid) for pid in witness.descendants(first)]
                names |= {name_of(pid) for pid in below}
                assert not ready_inits(process.pid)
                assert time.monotonic() < deadline
            assert process.stdout.read() == b"begun\nended\n"
        finally:
            process.kill()
    assert "casemate-init" in names, "the cell was not seen"
    assert "casemate-zygote" not in names


async def with_a_listener(audit: Path) -> tuple[bytes, bytes, int | None, str]:
    async with Sandbox(audit=audit, preload=()) as sandbox:
        await sandbox.run("pass")
        sandbox.warm_up("python")
        async with asyncio.timeout(MAX_WAIT):
            while not sandbox._wall.warmth().is_settled:
                await asyncio.sleep(0.01)
        plan = replace(await sandbox.explain(CLIENT), listeners=(ListeningSocket("tcp", *ADDRESS),))
        kept = Kept()
        cell = sandbox._wall.start(plan, kept)
        (descriptor,) = await asyncio.wrap_future(cell.listeners())
        received = await asyncio.to_thread(answer, descriptor)
        ending = await cell.wait()
        os.close(ending.tree_fd)
        return received, kept.data, ending.wait_status, ending.start


def test_the_host_answers_on_a_listener_inside_a_cell_that_was_ready(audit: Path) -> None:
    received, said, status, start = asyncio.run(with_a_listener(audit))
    assert (received, said, status, start) == (b"from the cell", b"from the host\n", 0, "pool")


def test_a_listener_of_one_run_is_not_there_in_the_next(sandbox: sync.Sandbox) -> None:
    settle(sandbox)
    execution = sandbox.run(CLIENT)
    assert ("ConnectionRefusedError" in execution.stderr, start_of(execution)[0]) == (True, "pool")


@pytest.mark.parametrize("language", LANGUAGES)
def test_runs_that_are_cancelled_at_any_moment_leave_nothing(audit: Path, language: str) -> None:
    code = {"python": "import time; time.sleep(1000)", "node": "setInterval(() => 0, 1000)", "shell": "sleep 1000"}
    hello = {"python": "print('hello')", "node": "console.log('hello')", "shell": "echo hello"}

    async def journey() -> Execution:
        async with Sandbox(audit=audit, preload=()) as sandbox:
            sandbox.warm_up(language)
            for turns in range(0, 40, 3):
                task = asyncio.ensure_future(sandbox.run(code[language], language=language, timeout=5))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await asyncio.sleep(turns / 5000)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled(), task
            await until_async(lambda: not witness.cells())
            assert sum(one.running for one in sandbox._wall.warmth().pools) == 0
            return await sandbox.run(hello[language], language=language)

    assert asyncio.run(journey()).stdout == "hello\n"
