"""A program begins in a ready cell without a hop: the host gives it, and the supervisor hears of it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
from tests.contract import witness
from tests.support.languages import LANGUAGES
from tests.support.waiting import MAX_WAIT, until
from tests.warm.ready import all_ready, settle, start_of, stop_waiting
from tests.warm.test_deaths import HELLO

from casemate import sync
from casemate.files.beneath import write_all
from casemate.walls.native.descriptors import Outbox
from casemate.walls.native.link import SupervisorLink

STAYS = {  # and has a second process
    "python": "import os, time\nos.fork()\ntime.sleep(100)",
    "node": "require('child_process').spawn('sleep', ['100'])",
    "shell": "sleep 100 & wait",
}


@contextlib.contextmanager
def stopped_supervisors() -> Iterator[None]:
    """They do nothing meanwhile; one may be another test's that is ending."""
    stopped = witness.serving()
    for supervisor in stopped:
        os.kill(supervisor, signal.SIGSTOP)
    try:
        until(lambda: all(witness.state(supervisor) == "T" for supervisor in stopped))
        yield
    finally:
        for supervisor in stopped:
            os.kill(supervisor, signal.SIGCONT)


def cells_that_can_begin(sandbox: sync.Sandbox, language: str) -> list[int]:
    """The first process of each ready cell, once the host has all that it needs to begin a program in it."""
    sandbox.run(HELLO[language], language=language)  # the wall is proved
    settle(sandbox, language)
    inits = all_ready(sandbox)
    pools = sandbox.asynchronous._wall._link.pools._pools.values()  # type: ignore[attr-defined]
    until(lambda: all(cell.program >= 0 for pool in pools for cell in pool.ready))
    return inits


def has_ended(inits: list[int]) -> bool:
    """Whether one of these cells is over, which nobody has noticed."""
    return any(witness.state(init) == "Z" for init in inits)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_that_is_over_before_the_supervisor_hears_of_it_has_run_once(
    sandbox: sync.Sandbox, language: str
) -> None:
    inits = cells_that_can_begin(sandbox, language)
    link: Any = sandbox.asynchronous._wall._link  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as threads:
        with stopped_supervisors():
            for _ in range(100):  # it hears of other things first
                link.send({"op": "forget", "id": "nobody"})
            run = threads.submit(sandbox.run, HELLO[language], language=language)
            until(lambda: has_ended(inits))
        execution = run.result(MAX_WAIT)
    assert (execution.status, execution.stdout, start_of(execution)[0]) == ("ok", "hello\n", "pool")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_that_dies_before_the_supervisor_hears_of_it_is_not_run_again(
    sandbox: sync.Sandbox, language: str
) -> None:
    inits = cells_that_can_begin(sandbox, language)
    with ThreadPoolExecutor(1) as threads:
        with stopped_supervisors():
            run = threads.submit(sandbox.run, STAYS[language], language=language)
            until(lambda: any(len(witness.descendants(init)) > 1 for init in inits))
            for init in inits:
                os.kill(init, signal.SIGKILL)
            until(lambda: has_ended(inits))
        execution = run.result(MAX_WAIT)
    assert (execution.status, start_of(execution)[0]) == ("killed", "pool")


@pytest.mark.parametrize("way", [("begin_now", {}), ("begin", {"files": {"a": b"a"}})], ids=["host", "supervisor"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_that_has_not_read_its_order_when_its_cell_dies_is_run_in_another(
    sandbox: sync.Sandbox, language: str, way: tuple[str, dict[str, Any]]
) -> None:
    name, options = way
    inits, begun = cells_that_can_begin(sandbox, language), threading.Event()
    begin = getattr(SupervisorLink, name)

    def give(link: SupervisorLink, *what: Any) -> bool:
        is_given: bool = begin(link, *what)
        begun.set()
        return is_given

    stop_waiting(inits)
    with ThreadPoolExecutor(1) as threads, mock.patch.object(SupervisorLink, name, give):
        with stopped_supervisors():
            run = threads.submit(sandbox.run, HELLO[language], language=language, **options)
            assert begun.wait(MAX_WAIT)
            for init in inits:
                os.kill(init, signal.SIGKILL)
            until(lambda: all(has_ended([init]) for init in inits))  # and with each all that was in its cell
        execution = run.result(MAX_WAIT)
    assert (execution.status, execution.stdout, start_of(execution)[0]) == ("ok", "hello\n", "exec")


def test_what_is_posted_meanwhile_keeps_no_program_from_its_cell(sandbox: sync.Sandbox) -> None:
    cells_that_can_begin(sandbox, "python")
    link: Any = sandbox.asynchronous._wall._link  # type: ignore[attr-defined]

    def write(fd: int, data: bytes) -> None:
        link.post({"op": "forget", "id": "nobody"})
        write_all(fd, data)

    with mock.patch("casemate.walls.native.link.write_all", write):
        execution = sandbox.run(HELLO["python"])
    assert (execution.stdout, start_of(execution)[0]) == ("hello\n", "pool")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_whose_beginning_cannot_be_told_the_supervisor_runs_once_in_another_cell(
    sandbox: sync.Sandbox, language: str
) -> None:
    cells_that_can_begin(sandbox, language)
    with mock.patch.object(Outbox, "send_now", return_value=False) as refused:
        execution = sandbox.run(HELLO[language], language=language)
    assert (execution.status, execution.stdout, start_of(execution)[0]) == ("ok", "hello\n", "exec")
    assert refused.called
