"""Sudden deaths of what is kept ready: no run notices, and what died is replaced."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.contract import witness
from tests.support.languages import LANGUAGES
from tests.support.waiting import MAX_WAIT, until
from tests.warm.ready import all_ready, ready_inits, settle, start_of, stop_waiting, warmth, zygote_of, zygotes

from casemate import CasemateError, Execution, Fault, Sandbox, sync
from casemate.supervisor import wire
from casemate.walls.native.link import SupervisorLink
from casemate.walls.native.running import RunningCell

HELLO = {"python": "print('hello')", "node": "console.log('hello')", "shell": "echo hello"}


def kill(pid: int) -> None:
    """End it suddenly, and wait for that."""
    with witness.watching([pid]) as watched:
        os.kill(pid, signal.SIGKILL)
        assert watched.wait()


def check(execution: Execution) -> Execution:
    assert (execution.stdout, execution.status, execution.cause) == ("hello\n", "ok", None), execution
    return execution


def ends_it_first(begin: Callable[..., bool]) -> Callable[..., bool]:
    """`begin` or `begin_now` of `SupervisorLink`, which has the first cell that it is called for ended before it
    begins."""
    ended: list[RunningCell] = []

    def begins(link: SupervisorLink, cell: RunningCell, *more: object) -> bool:
        if not ended:
            ended.append(cell)
            cell.kill("killed")
        return begin(link, cell, *more)

    return begins


def is_back(sandbox: sync.Sandbox, language: str = "python") -> bool:
    """Whether a run finds a cell that was ready."""
    return start_of(check(sandbox.run(HELLO[language], language=language)))[0] == "pool"


def test_a_zygote_that_dies_between_runs_is_replaced_and_no_run_fails(sandbox: sync.Sandbox) -> None:
    settle(sandbox)
    first = zygote_of(sandbox)
    kill(first)
    check(sandbox.run(HELLO["python"]))
    until(lambda: len(zygotes()) == 1)
    assert first not in zygotes()
    until(lambda: is_back(sandbox))


def test_a_folder_that_was_replaced_while_a_cell_for_it_was_made_is_noticed_by_no_run(
    audit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, prepare = tmp_path / "folder", SupervisorLink.prepare

    def prepare_for_another(link: SupervisorLink, request: dict[str, Any], payload: int) -> RunningCell:
        workspace = {**wire.decode(request["workspace"].data), "folder": str(tmp_path / "removed")}
        return prepare(link, {**request, "workspace": workspace}, payload)

    folder.mkdir()
    with sync.Sandbox(audit=audit, preload=(), workspace=folder) as sandbox:
        settle(sandbox)
        link: Any = sandbox.asynchronous._wall._link  # type: ignore[attr-defined]
        monkeypatch.setattr(link.pools, "_prepare", partial(prepare_for_another, link))
        starts = [start_of(check(sandbox.run(HELLO["python"]))) for _ in range(3)]
    assert any(how == "exec" and "the cell that was ready had ended" in str(why) for how, why in starts), starts


@pytest.mark.parametrize(("most", "waiting"), [(16, 0), (64, 5)], ids=["few cells", "as many as may end in a row"])
def test_a_zygote_that_dies_while_runs_wait_for_cells_of_it_is_noticed_by_none(
    audit: Path, most: int, waiting: int
) -> None:
    with sync.Sandbox(audit=audit, preload=(), concurrency=most) as sandbox:
        settle(sandbox)
        pid = zygote_of(sandbox)
        os.kill(pid, signal.SIGSTOP)  # cells that are asked for now will never be made
        with ThreadPoolExecutor(8) as threads:
            before = warmth(sandbox)
            runs = [threads.submit(sandbox.run, HELLO["python"]) for _ in range(8)]
            until(lambda: sum(pool.running for pool in warmth(sandbox).pools) + sum(one.done() for one in runs) >= 8)
            until(lambda: sum(pool.ready for pool in warmth(sandbox).pools) >= waiting)
            kill(pid)
            ended = [check(run.result(MAX_WAIT)) for run in runs]
        assert before.is_settled
        assert any(start_of(one)[0] == "exec" for one in ended), "nobody had to wait for the zygote"
        until(lambda: is_back(sandbox))


@pytest.mark.parametrize("which", ["init", "what waits"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_ready_cell_that_dies_is_not_missed(sandbox: sync.Sandbox, language: str, which: str) -> None:
    settle(sandbox, language)
    inits = all_ready(sandbox)
    for init in inits:
        kill(init if which == "init" else witness.children(init)[0])
    check(sandbox.run(HELLO[language], language=language))
    until(lambda: is_back(sandbox, language))
    until(lambda: not set(ready_inits()) & set(inits))


def test_nothing_begins_in_a_cell_whose_end_is_being_noted(sandbox: sync.Sandbox) -> None:
    settle(sandbox)
    real = RunningCell.close_ways_in
    noted: Future[RunningCell] = Future()
    tried = threading.Event()

    def close_ways_in(cell: RunningCell) -> None:
        real(cell)
        if not noted.done():
            noted.set_result(cell)
            assert tried.wait(MAX_WAIT)

    with mock.patch.object(RunningCell, "close_ways_in", close_ways_in):
        kill(all_ready(sandbox)[0])
        chosen = noted.result(MAX_WAIT)
        try:
            assert not chosen._link.begin(chosen, {}, {}, b"", None)  # type: ignore[attr-defined]
        finally:
            tried.set()
    check(sandbox.run(HELLO["python"]))


def test_a_program_whose_ready_cell_is_ended_as_it_is_chosen_runs_once_in_another(sandbox: sync.Sandbox) -> None:
    settle(sandbox)
    stop_waiting(all_ready(sandbox))  # else it might begin before the supervisor ends it
    with mock.patch.object(SupervisorLink, "begin_now", ends_it_first(SupervisorLink.begin_now)):
        execution = check(sandbox.run(HELLO["python"]))
    assert start_of(execution)[0] == "exec"
    assert "had ended" in start_of(execution)[1]


@pytest.mark.parametrize("times", range(5))
def test_a_session_whose_ready_cell_is_ended_as_it_is_chosen_begins_in_another(
    sandbox: sync.Sandbox, times: int
) -> None:
    with sandbox.session() as session:
        session.run("pass")
    until(lambda: any(pool.ready for pool in warmth(sandbox).pools))
    with mock.patch.object(SupervisorLink, "begin", ends_it_first(SupervisorLink.begin)), sandbox.session() as session:
        steps = [session.run(f"print({n})") for n in range(2)]
    assert [(one.status, one.stdout, one.state) for one in steps] == [("ok", "0\n", "kept"), ("ok", "1\n", "kept")]


def test_what_comes_of_a_ready_cell_of_a_cancelled_run_is_nothing_that_asyncio_complains_of(audit: Path) -> None:
    chosen, complaints = threading.Event(), list[dict[str, Any]]()

    async def cancelled() -> None:
        loop, is_cancelled = asyncio.get_running_loop(), threading.Event()
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        begin, finish = SupervisorLink.begin_now, SupervisorLink._finish

        def begins(link: SupervisorLink, cell: RunningCell, *more: object) -> bool:
            cell.kill("killed")  # so that its program never begins
            chosen.set()
            return begin(link, cell, *more)  # type: ignore[arg-type]

        def finishes(link: SupervisorLink, *what: Any) -> None:
            assert not chosen.is_set() or is_cancelled.wait(MAX_WAIT)
            finish(link, *what)

        async with Sandbox(audit=audit, preload=()) as sandbox:
            await sandbox.run("pass")
            sandbox.warm_up("python")
            await asyncio.to_thread(until, lambda: sandbox._wall.warmth().is_settled)
            with (
                mock.patch.object(SupervisorLink, "begin_now", begins),
                mock.patch.object(SupervisorLink, "_finish", finishes),
            ):
                async with asyncio.TaskGroup() as group:
                    run = group.create_task(sandbox.run(HELLO["python"]))
                    assert await asyncio.to_thread(chosen.wait, MAX_WAIT)
                    run.cancel()
                    loop.call_soon(loop.call_soon, is_cancelled.set)  # when it waits for nobody any more
        assert run.cancelled()

    asyncio.run(cancelled())
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_ready_cell_whose_program_was_stopped_is_ended_by_the_time_limit(
    sandbox: sync.Sandbox, language: str
) -> None:
    settle(sandbox, language)
    for init in all_ready(sandbox):
        for pid in witness.children(init):
            os.kill(pid, signal.SIGSTOP)
    execution = sandbox.run(HELLO[language], language=language, timeout=0.5)
    assert (execution.status, execution.stdout) == ("timeout", "")


@pytest.mark.parametrize("which", ["the one that waits", "the one that serves"])
def test_when_the_supervisor_dies_the_next_run_works_and_cells_are_kept_ready_again(
    sandbox: sync.Sandbox, which: str
) -> None:
    settle(sandbox)
    below = witness.descendants(witness.supervisors()[0])
    with witness.watching(below) as watched:
        kill(witness.supervisors()[0] if which == "the one that waits" else witness.serving()[0])
        assert watched.wait(), "zygotes or ready cells live on"
    ended: Execution | None = None
    while ended is None:  # a run that came before that was noticed fails; the next one starts another
        with suppress(CasemateError):
            ended = sandbox.run(HELLO["python"])
    check(ended)
    until(lambda: is_back(sandbox))
    until(lambda: len(zygotes()) == 1)


def test_a_run_that_finds_its_supervisor_gone_says_that(sandbox: sync.Sandbox) -> None:
    real = SupervisorLink.launch

    def launch(link: SupervisorLink, *more: Any) -> RunningCell:
        for supervisor in witness.supervisors():  # another sandbox's may still be ending
            kill(supervisor)
        until(lambda: not link.alive)
        return real(link, *more)

    sandbox.run("pass", timeout=59)
    with mock.patch.object(SupervisorLink, "launch", launch), pytest.raises(Fault, match="supervisor was killed"):
        sandbox.run("print(1)", language="shell")
    check(sandbox.run(HELLO["python"]))


def test_a_program_lives_on_when_its_zygote_dies(sandbox: sync.Sandbox) -> None:
    settle(sandbox)
    said: Future[str] = Future()
    gone = threading.Event()

    def run() -> Execution:
        from casemate import Done, Output

        for event in sandbox.stream("print('begun', flush=True)\nimport time\nfor n in range(300):\n"
                                    "    time.sleep(0.01)\nprint('ended')"):  # fmt: skip
            if isinstance(event, Output) and not said.done():
                said.set_result(event.text)
                assert gone.wait(MAX_WAIT)
            if isinstance(event, Done):
                return event.execution
        raise AssertionError("the stream has no end")

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        assert said.result(MAX_WAIT).startswith("begun")
        (cell,) = witness.cells()
        kill(zygote_of(sandbox))
        assert witness.state(cell) not in ("", "Z")
        gone.set()
        execution = running.result(MAX_WAIT)
    assert (execution.stdout, execution.status) == ("begun\nended\n", "ok")
    assert start_of(execution)[0] == "pool"


def test_a_zygote_that_dies_again_and_again_is_given_up_and_runs_go_on(sandbox: sync.Sandbox) -> None:
    settle(sandbox)

    def is_given_up() -> bool:
        for pid in zygotes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return all(one.state == "ruled out" for one in warmth(sandbox).zygotes)

    until(is_given_up)
    left = sum(pool.ready for pool in warmth(sandbox).pools)  # cells live on, and may be used
    starts = [start_of(check(sandbox.run(HELLO["python"]))) for _ in range(left + 1)]
    assert starts[-1][0] == "exec"
    assert "it ended 3 times" in starts[-1][1]
