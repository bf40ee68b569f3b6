"""What is done for one cell: in what order, what waits for it, and what becomes of it when it goes wrong."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import MAX_WAIT

from casemate.supervisor import cgroups, jobs, serve

Done = list[object]


@pytest.fixture
def done() -> Done:
    return []


def made(done: Done, *, threads: bool = True) -> jobs.Jobs:
    """Jobs whose guard notes what went wrong."""

    def guard(cell_id: str, do: Callable[[], object]) -> None:
        if error := jobs.attempt(do):
            done.append((cell_id, repr(error)))

    return jobs.Jobs(guard, threads=threads)


def finish(made: jobs.Jobs) -> None:
    """Wait for a thread, and go on as the loop does."""
    assert select.select([made.fd], [], [], MAX_WAIT)[0], "nothing was done"
    made.finish()


def test_what_is_said_of_a_cell_waits_for_its_job_in_order_and_of_others_does_not(done: Done) -> None:
    jobs, may_end = made(done), threading.Event()
    jobs.run("slow", may_end.wait, lambda: done.append("job"))
    for number in (1, 2):
        jobs.when_free("slow", lambda number=number: done.append(number))  # type: ignore[misc]
    jobs.when_free("other", lambda: done.append("other"))
    assert done == ["other"]
    may_end.set()
    finish(jobs)
    assert done == ["other", "job", 1, 2]


def test_what_follows_may_begin_another_job_and_what_waits_goes_on_waiting(done: Done) -> None:
    jobs = made(done)
    jobs.run("cell", int, lambda: jobs.run("cell", int, lambda: done.append("second")))
    jobs.when_free("cell", lambda: done.append("waited"))
    finish(jobs)
    assert done == []
    finish(jobs)
    assert done == ["second", "waited"]


@pytest.mark.parametrize("threads", [True, False])
def test_a_job_that_fails_fails_for_its_cell_closes_what_it_was_given_and_lets_others_go_on(
    done: Done, *, threads: bool
) -> None:
    jobs, (read, write) = made(done, threads=threads), os.pipe()
    jobs.run("cell", lambda: {"y": 1}["x"], lambda: done.append("never"), fds=[write])
    if threads:
        finish(jobs)
    assert done == [("cell", "KeyError('x')")]
    assert os.read(read, 1) == b""
    os.close(read)
    jobs.when_free("cell", lambda: done.append("later"))
    assert done[1:] == ["later"]


def test_where_no_thread_is_left_the_job_fails_for_its_cell(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    jobs = made(done)
    monkeypatch.setattr("_thread.start_new_thread", refuse)
    jobs.run("cell", int, lambda: done.append("never"), lambda error: done.append(str(error)))
    assert done == ["can't start new thread"]


class Host:
    """A host that has said nothing but what is put into ``messages``, and goes after that."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.heard: list[dict[str, Any]] = []
        self.fd = os.eventfd(1)

    def fileno(self) -> int:
        return self.fd

    def receive(self) -> Any:
        return (self.messages.pop(0), {}, True) if self.messages else None

    def send(self, message: dict[str, Any], fds: object = None) -> None:
        self.heard.append(message)


class Cell(SimpleNamespace):
    """A cell that notes why it is ended."""

    reason: str | None

    def __init__(self, name: str) -> None:
        super().__init__(id=name, reason=None, signals=[], group=None, problem=None)

    def kill(self, reason: str) -> None:
        self.reason = self.reason or reason

    def next_time(self) -> float:
        return float("inf")


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    os.close(host.fd)


def serving(host: Host, *cells: Cell) -> serve.SupervisorLoop:
    maker: Any = SimpleNamespace(identities=None, prefork=lambda *_: None, seccomp_program=lambda **_: b"")
    loop = serve.SupervisorLoop(host, maker, cgroups.Cgroups(None, None))
    loop._pool = SimpleNamespace(prepare=lambda: None, next_time=lambda: float("inf"), discard=lambda: None)  # type: ignore[assignment]
    loop._cells.update({cell.id: cell for cell in cells})
    loop._end_all = lambda: None  # type: ignore[method-assign]
    return loop


@pytest.mark.parametrize("error", [KeyError("x"), OSError(31, "Too many links"), ValueError("x\x1b[2J")])
def test_a_failure_in_what_the_host_wants_of_a_cell_ends_that_cell_and_the_others_are_served(
    host: Host, error: Exception
) -> None:
    bad, good = Cell("bad"), Cell("good")

    def fail(_: int) -> None:
        raise error

    bad.forward_signal, good.forward_signal = fail, good.signals.append
    host.messages = [{"op": "signal", "id": name, "number": 2} for name in ("bad", "good")]
    serving(host, bad, good).run()
    assert (good.reason, good.signals) == (None, [2])
    assert bad.reason == f"a failure in its supervisor: {error!a}"


def test_a_failure_for_a_cell_that_is_not_there_yet_is_told_to_the_host_as_a_refusal(host: Host) -> None:
    loop = serving(host)
    loop._roots["root"] = None
    limits = {"cpus": 1.0}
    host.messages = [
        {"op": "launch", "id": "new", "root": "root", "interpreter": "", "limits": limits},
        {"op": "ping"},
    ]
    loop.run()  # the pool that it has chooses no cores
    assert [(message["op"], message.get("stage")) for message in host.heard] == [
        ("launch refused", "launch"), ("pong", None)
    ]  # fmt: skip


def test_a_failure_that_is_no_cells_ends_the_supervisor(host: Host) -> None:
    def fail() -> Any:
        raise OSError(9, "Bad file descriptor")

    host.receive = fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="Bad file descriptor"):
        serving(host, Cell("cell")).run()


def test_the_next_cell_is_prepared_though_something_is_always_ready(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "_BUSY", 0.0)
    loop, prepared, rounds = serving(host), list[int](), list(range(1000))

    def say_nothing() -> Any:
        """The descriptor can be read all the time."""
        if prepared or not rounds:
            return None
        rounds.pop()
        raise BlockingIOError

    host.receive = say_nothing  # type: ignore[method-assign]
    loop._pool = SimpleNamespace(prepare=lambda: prepared.append(1), next_time=lambda: float("inf"))  # type: ignore[assignment]
    loop.run()
    assert prepared


def test_a_cell_is_ended_at_once_while_something_is_done_for_it(host: Host) -> None:
    cell, may_end = Cell("cell"), threading.Event()
    cell.forward_signal = cell.signals.append
    loop = serving(host, cell)
    loop._jobs = jobs.Jobs(loop._attempt, threads=True)
    loop._jobs.run("cell", may_end.wait, lambda: None)
    host.messages = [
        {"op": "signal", "id": "cell", "number": 2},
        {"op": "kill", "id": "cell", "reason": "cancelled"},
    ]
    loop.run()
    assert (cell.reason, cell.signals) == ("cancelled", [])
    may_end.set()
    finish(loop._jobs)
    assert cell.signals == [2]


def test_a_clock_that_a_job_has_started_is_kept(host: Host) -> None:
    cell, due = Cell("cell"), [float("inf")]
    cell.next_time = lambda: due[0]  # type: ignore[method-assign]
    loop = serving(host, cell)
    loop._jobs = jobs.Jobs(loop._attempt, threads=True)
    loop._jobs.run("cell", int, lambda: due.insert(0, 100.0))
    finish(loop._jobs)
    assert loop._schedule.next_time() == 100.0
