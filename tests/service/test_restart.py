"""What is promised across the end of a service: drained, told twice, or killed."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.service.daemon import Daemon, serving
from tests.support.waiting import until

from casemate.errors import SandboxClosed, Unavailable
from casemate.remote import client
from casemate.remote.client import RemoteOperations
from casemate.remote.sse import EventReader

SLOW = "import time\nprint('begun', flush=True)\ntime.sleep(60)"
ENDS = ("drained", "killed")


def end(daemon: Daemon, how: str) -> None:
    daemon.kill() if how == "killed" else daemon.stop()


async def until_writes(remote: RemoteOperations, run: str, text: str = "begun") -> None:
    while text not in (await remote("runs.read", {"run": run}))["text"]:
        await asyncio.sleep(0.02)


async def asking(remote: RemoteOperations, command: str = "echo hello", **given: Any) -> dict[str, Any]:
    """The state of a step that waits for a command to be allowed."""
    arguments = {"code": f"!{command}", "session": "new", "wait": 30.0, **given}
    state: dict[str, Any] = await remote("runs.start", arguments)
    return state


@pytest.mark.parametrize("how", ENDS)
def test_results_output_and_artifacts_are_there_after_a_restart(env: dict[str, str], how: str) -> None:
    async def before(remote: RemoteOperations) -> str:
        code = "open('left.bin', 'wb').write(bytes(range(256)) * 1000); print('said')"
        state = await remote("runs.start", {"code": code, "wait": 30.0})
        return str(state["run"])

    async def after(remote: RemoteOperations, run: str) -> None:
        execution = (await remote("runs.get", {"run": run}))["execution"]
        assert (execution["status"], execution["stdout"]) == ("ok", "said\n")
        assert await remote.download("artifacts", run, "left.bin") == bytes(range(256)) * 1000
        assert (await remote("runs.read", {"run": run}))["text"] == "said\n"
        events = [event["event"] async for event in remote.stream("runs.stream", {"run": run})]
        assert events == ["output", "done"]

    with serving(env) as daemon:
        run = daemon.ask(before)
        end(daemon, how)
    with serving(env) as daemon:
        daemon.ask(lambda remote: after(remote, run))


@pytest.mark.parametrize("how", ENDS)
def test_a_run_that_the_service_ended_says_so_and_has_what_there_was(env: dict[str, str], how: str) -> None:
    async def before(remote: RemoteOperations) -> str:
        run = (await remote("runs.start", {"code": SLOW}))["run"]
        await until_writes(remote, run)
        return str(run)

    async def after(remote: RemoteOperations, run: str) -> None:
        execution = (await remote("runs.get", {"run": run}))["execution"]
        assert execution["status"] == ("killed" if how == "killed" else "cancelled")
        assert execution["stdout"] == "begun\n"
        assert execution["cause"]["code"] == "service_stopped"
        assert "stopped during this run" in execution["cause"]["message"]
        assert execution["cause"]["retryable"] is True

    with serving(env, "--drain", "0.2") as daemon:
        run = daemon.ask(before)
        end(daemon, how)
    with serving(env) as daemon:
        daemon.ask(lambda remote: after(remote, run))


@pytest.mark.parametrize("how", ENDS)
def test_what_waited_can_be_allowed_after_a_restart_and_that_holds_once_for_the_same(
    asking_env: dict[str, str], how: str
) -> None:
    async def before(remote: RemoteOperations) -> tuple[str, str]:
        state = await asking(remote)
        assert state["status"] == "waiting"
        return state["run"], state["approvals"][0]["id"]

    async def after(daemon: Daemon, run: str, request: str) -> None:
        operator, one, other = (
            await daemon.connect(), await daemon.connect(agent="one"), await daemon.connect(agent="other")
        )  # fmt: skip
        execution = (await one("runs.get", {"run": run}))["execution"]
        assert execution["cause"]["code"] == "service_stopped"
        assert "waited for an approval" in execution["cause"]["message"]
        assert execution["cause"]["retryable"] is True
        [listed] = await operator("approvals.pending")
        assert (listed["id"], listed["kind"], listed["run"]) == (request, "shell", run)
        assert (listed["arguments"]["command"], listed["state"]) == ("echo hello", "withdrawn")
        assert await operator("approvals.decide", {"request": request, "allow": True}) is True
        assert await operator("approvals.pending") == []
        assert await operator("approvals.decide", {"request": request, "allow": True}) is False
        assert (await asking(other, wait=5.0))["status"] == "waiting"  # it was another's
        assert (await asking(one, "echo other", wait=5.0))["status"] == "waiting"  # it was something else
        done = await asking(one)
        assert (done["status"], done["execution"]["stdout"]) == ("done", "hello\n")
        assert (await asking(one, wait=5.0))["status"] == "waiting"  # it held once
        for remote in (operator, one, other):
            await remote.close()

    with serving(asking_env) as daemon:
        run, request = daemon.ask(before, agent="one")
        end(daemon, how)
    with serving(asking_env) as daemon:
        asyncio.run(after(daemon, run, request))


def test_an_answer_survives_another_restart_and_a_denial_leaves_nothing(asking_env: dict[str, str]) -> None:
    async def ask(remote: RemoteOperations) -> None:
        for command in ("echo yes", "echo no"):
            assert (await asking(remote, command))["status"] == "waiting"

    async def answer(remote: RemoteOperations) -> None:
        for listed in await remote("approvals.pending"):
            allow = listed["arguments"]["command"] == "echo yes"
            assert await remote("approvals.decide", {"request": listed["id"], "allow": allow})

    async def use(remote: RemoteOperations) -> None:
        assert (await asking(remote, "echo yes"))["execution"]["stdout"] == "yes\n"
        assert (await asking(remote, "echo no", wait=5.0))["status"] == "waiting"

    for step, agent in ((ask, "one"), (answer, None), (use, "one")):
        with serving(asking_env) as daemon:
            daemon.ask(step, agent=agent)
            daemon.kill()


def test_an_open_request_and_an_answer_expire(tmp_path: Path) -> None:
    from casemate.surfaces.http.stores import HOLDS_FOR, OPEN_FOR, Database, KeptRequests

    now = [1000.0]
    kept = KeptRequests(Database(tmp_path / "kept"), lambda: now[0])
    for number in range(2):
        told = {"id": f"r{number}", "namespace": "n", "run": "run", "hash": f"h{number}", "summary": "s"}
        kept.keep_request("one", told)
    assert kept.open("n") == []
    kept.reopen()
    assert kept.answer("r0", "elsewhere", allow=True) is False
    assert kept.answer("r0", "n", allow=True) is True
    assert [one["id"] for one in kept.open("n")] == ["r1"]
    now[0] += HOLDS_FOR
    assert kept.redeem("n", "one", "h0") is False
    now[0] += OPEN_FOR
    assert kept.open("n") == []
    assert kept.answer("r1", "n", allow=True) is False


def test_a_request_that_was_answered_is_not_listed_after_a_restart(asking_env: dict[str, str]) -> None:
    async def before(remote: RemoteOperations) -> None:
        state = await asking(remote)
        assert await remote("approvals.decide", {"request": state["approvals"][0]["id"], "allow": True})
        done = await remote("runs.wait", {"run": state["run"]})
        assert done["execution"]["stdout"] == "hello\n"

    async def after(remote: RemoteOperations) -> None:
        assert await remote("approvals.pending") == []

    with serving(asking_env) as daemon:
        daemon.ask(before)
        daemon.kill()
    with serving(asking_env) as daemon:
        daemon.ask(after)


def test_a_service_that_drains_takes_no_new_work_and_lets_runs_end(env: dict[str, str]) -> None:
    async def use(daemon: Daemon) -> None:
        remote, other = await daemon.connect(), await daemon.connect()
        session = (await remote("sessions.open"))["session"]
        run = (await remote("runs.start", {"code": SLOW, "session": session}))["run"]
        await until_writes(remote, run)
        daemon.send(signal.SIGTERM)
        while (await remote.health())["status"] != "draining":
            await asyncio.sleep(0.02)
        answer = await remote.request("POST", "/v1/runs/start", b'{"code": "1"}')
        assert (answer.status, answer.headers["retry-after"]) == (503, "2")
        with pytest.raises(SandboxClosed, match="no new work"):
            await remote("sessions.open")
        waiting = asyncio.ensure_future(other("runs.wait", {"run": run, "seconds": 30.0}))
        with pytest.raises(SandboxClosed):
            await remote("files.write", {"session": session, "path": "go", "text": ""})
        await remote("sessions.interrupt", {"session": session})
        assert (await waiting)["execution"]["stdout"] == "begun\n"
        await remote.close()
        await other.close()

    with serving(env, "--drain", "60") as daemon:
        asyncio.run(use(daemon))
        assert daemon.ended() == 0


def test_a_second_signal_ends_it_at_once(env: dict[str, str]) -> None:
    async def begin(daemon: Daemon) -> str:
        remote = await daemon.connect()
        run = (await remote("runs.start", {"code": SLOW}))["run"]
        await until_writes(remote, run)
        daemon.send(signal.SIGTERM)
        while (await remote.health())["status"] != "draining":
            await asyncio.sleep(0.02)
        daemon.send(signal.SIGTERM)
        await remote.close()
        return str(run)

    async def after(remote: RemoteOperations, run: str) -> None:
        assert (await remote("runs.get", {"run": run}))["execution"]["cause"]["code"] == "service_stopped"

    with serving(env, "--drain", "3600") as daemon:
        run = asyncio.run(begin(daemon))
        assert daemon.ended() == 0
    with serving(env) as daemon:
        daemon.ask(lambda remote: after(remote, run))


def test_a_stream_of_a_service_that_ends_tells_the_outcome_first(env: dict[str, str]) -> None:
    events: list[dict[str, Any]] = []
    begun = threading.Event()

    async def follow(remote: RemoteOperations) -> None:
        run = (await remote("runs.start", {"code": SLOW}))["run"]
        async for event in remote.stream("runs.stream", {"run": run}):
            events.append(event)
            begun.set()

    with serving(env, "--drain", "0.1") as daemon:
        thread = threading.Thread(target=lambda: daemon.ask(follow))
        thread.start()
        assert begun.wait(60)
        daemon.stop()
        thread.join(60)
    assert [event["event"] for event in events] == ["output", "done"]
    assert events[1]["execution"]["cause"]["code"] == "service_stopped"


def test_what_a_killed_service_ran_is_dead(env: dict[str, str]) -> None:
    marker = f"casemate-{id(env)}"

    async def begin(remote: RemoteOperations) -> None:
        run = (await remote("runs.start", {"code": f"{SLOW} # {marker}", "language": "python"}))["run"]
        await until_writes(remote, run)

    def below(pid: int) -> list[int]:
        try:
            found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:  # it has ended meanwhile, as what a zygote runs while it loads does
            return []
        return [int(one) for one in found] + [deep for one in found for deep in below(int(one))]

    with serving(env) as daemon:
        daemon.ask(begin)
        assert daemon.process is not None
        cells = below(daemon.process.pid)
        assert len(cells) >= 2
        daemon.kill()
        until(lambda: not any(Path(f"/proc/{one}").exists() for one in cells), "cells outlived their service")


async def test_whoever_is_told_that_it_is_gone_is_told_what_to_do(env: dict[str, str]) -> None:
    with serving(env) as daemon:
        remote = await daemon.connect()
        run = (await remote("runs.start", {"code": SLOW}))["run"]
        waiting = asyncio.ensure_future(remote("runs.wait", {"run": run}))
        other = await daemon.connect()
        await until_writes(other, run)
        await other.close()
        daemon.kill()
        with pytest.raises(Unavailable, match="was lost") as lost:
            await waiting
        assert "casemate service logs" in lost.value.remediation
        with pytest.raises(Unavailable, match="no service answers"):
            await remote("runs.list")
        await remote.close()


def test_events_are_read_from_bytes_however_they_are_cut() -> None:
    data = b'id: 7\nevent: event\ndata: {"a": 1}\n\n: \n\nevent: end\ndata: {}\n\n'
    for cut in range(len(data)):
        reader = EventReader()
        found = [*reader.feed(data[:cut]), *reader.feed(data[cut:])]
        assert [(one.name, one.id, one.data) for one in found] == [("event", "7", {"a": 1}), ("end", "", {})]


def test_a_kept_run_that_cannot_be_read_costs_that_run_alone(env: dict[str, str]) -> None:
    async def before(remote: RemoteOperations) -> list[str]:
        return [str((await remote("runs.start", {"code": "print(1)", "wait": 30.0}))["run"]) for _ in range(3)]

    async def after(remote: RemoteOperations) -> list[str]:
        return [one["run"] for one in await remote("runs.list")]

    with serving(env) as daemon:
        runs = daemon.ask(before)
        end(daemon, "drained")
    for run, head in zip(runs, (b'{"run": 1}', b'{"owner": "x"}'), strict=False):
        (found,) = daemon.places.state.glob(f"**/{run}/run.json")
        found.write_bytes(head)
    with serving(env) as daemon:
        assert daemon.ask(after) == runs[2:]


def test_a_service_that_hangs_is_told_with_what_to_do(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_ANSWERS_WITHIN", 0.5)
    with serving(env) as daemon:
        daemon.send(signal.SIGSTOP)
        try:
            with pytest.raises(Unavailable, match="does not answer") as told:
                asyncio.run(daemon.connect())
            assert "end its process" in told.value.remediation
        finally:
            daemon.send(signal.SIGCONT)
