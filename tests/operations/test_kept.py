"""Runs that are over: for how long they are kept, and that a process finds what another has left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operations.conftest import AGENT, OTHER, Checked
from tests.operations.test_runs import SLOW, until_begun

from casemate import Execution, Sandbox
from casemate.errors import NotFound, QueueFull, Unavailable
from casemate.operations import kept, sessions
from casemate.operations.documents import document, execution_of
from casemate.operations.invoke import Invoke, local
from casemate.operations.kept import Retention
from casemate.operations.operations import Operations
from casemate.operations.stores import FolderStore

PROGRAM = """
import sys
open("left.bin", "wb").write(bytes(range(256)) * 10)
display({"text/html": "<b>x</b>", "text/plain": "x"}, raw=True)
print("ä" * 1000)
print("wrong", file=sys.stderr)
raise ValueError("over")
"""


async def test_a_service_finds_the_runs_that_another_has_kept(sandbox: Sandbox, tmp_path: Path) -> None:
    async with Operations(sandbox, FolderStore(tmp_path / "runs")) as first:
        agent = Checked(local(first, AGENT))
        before = await agent("runs.start", {"code": PROGRAM, "wait": 60})
        run = before["run"]
        text = await agent("runs.read", {"run": run})
        events = [one async for one in agent.stream("runs.stream", {"run": run})]
    async with Operations(sandbox, FolderStore(tmp_path / "runs")) as second:
        agent = Checked(local(second, AGENT))
        assert await agent("runs.get", {"run": run}) == before
        assert await agent("runs.read", {"run": run}) == text
        assert [one async for one in agent.stream("runs.stream", {"run": run}, cursor=1)] == events[1:]
        chunks = second.files.chunks("left.bin", run=run, principal=AGENT)
        assert b"".join([one async for one in chunks]) == bytes(range(256)) * 10
        with pytest.raises(NotFound):
            await local(second, OTHER)("runs.get", {"run": run})


async def test_a_run_that_went_on_when_its_service_died_is_over_and_says_so(sandbox: Sandbox, tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "runs")
    async with Operations(sandbox, store) as first:
        run = (await local(first, AGENT)("runs.start", {"code": SLOW}))["run"]
        await until_begun(local(first, AGENT), run)
        with (tmp_path / "runs" / run / "events.jsonl").open("ab") as file:
            file.write(b'{"event": "output", "te')  # where its writer was ended
        async with Operations(
            sandbox, FolderStore(tmp_path / "runs")
        ) as second:  # as if the first were no longer there
            state = await Checked(local(second, AGENT))("runs.get", {"run": run})
            assert (state["status"], state["execution"], state["error"]["kind"]) == ("done", None, "closed")
            assert (await local(second, AGENT)("runs.read", {"run": run}))["text"] == "begun\n"
            assert [one["cursor"] for one in await local(second, AGENT)("runs.list")] == [6]


async def test_only_so_many_runs_of_a_caller_are_kept(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST_KEPT", 2)
    async with Operations(sandbox, FolderStore(tmp_path / "runs")) as operations:
        agent, other = local(operations, AGENT), local(operations, OTHER)
        foreign = (await other("runs.start", {"code": "print(0)", "wait": 60}))["run"]
        runs = [(await agent("runs.start", {"code": "print(1)", "wait": 60}))["run"] for _ in range(4)]
        await settled(agent, 2)
        assert [one["run"] for one in await agent("runs.list")] == runs[2:]
        with pytest.raises(NotFound):
            await agent("runs.get", {"run": runs[0]})
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {foreign, *runs[2:]}


async def settled(agent: Invoke, count: int) -> None:
    while len(await agent("runs.list")) > count:
        await asyncio.sleep(0)


async def test_only_so_many_bytes_of_a_caller_are_kept_but_always_the_last_run(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST_KEPT_BYTES", 5000)
    async with Operations(sandbox, FolderStore(tmp_path / "runs")) as operations:
        agent = local(operations, AGENT)
        code = "open('x', 'w').write('x' * 4000)"
        runs = [(await agent("runs.start", {"code": code, "wait": 60}))["run"] for _ in range(3)]
        await settled(agent, 1)
        assert [one["run"] for one in await agent("runs.list")] == runs[2:]


async def test_only_so_many_runs_of_a_caller_go_on(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_GOING", 1)
    async with Operations(sandbox) as operations:
        agent, other = local(operations, AGENT), local(operations, OTHER)
        run = (await agent("runs.start", {"code": SLOW}))["run"]
        with pytest.raises(QueueFull):
            await agent("runs.start", {"code": "1"})
        assert (await other("runs.start", {"code": "1", "wait": 60}))["outcome"] == "ok"
        assert operations.activity().runs == 1
        await agent("runs.cancel", {"run": run})
        await operations.idle()
        assert operations.activity().runs == 0


async def test_what_is_kept_in_temporary_files_is_gone_at_the_end(sandbox: Sandbox) -> None:
    operations = Operations(sandbox)
    run = (await local(operations, AGENT)("runs.start", {"code": "open('a', 'w').write('b')", "wait": 60}))["run"]
    (artifact,) = await operations.kept.files_of(run, AGENT)
    assert artifact.read_bytes() == b"b"
    await operations.close()
    with pytest.raises(OSError):
        artifact.read_bytes()


async def test_an_execution_comes_back_from_its_document(sandbox: Sandbox) -> None:
    execution = await sandbox.run(PROGRAM, metadata={"a": [1]})
    contents = {artifact.name: artifact.content for artifact in execution.artifacts}
    asked: list[tuple[str, str]] = []

    def fetch(run: str, name: str) -> kept.StoredFile:
        asked.append((run, name))
        return contents[name]  # type: ignore[return-value]

    again = execution_of(document(execution), fetch)
    assert isinstance(again, Execution)
    assert again == execution
    assert again.results[0].html == "<b>x</b>"
    assert again.artifacts[0].read_bytes() == execution.artifacts[0].read_bytes()
    assert asked == [(execution.id, "left.bin")]


async def test_a_run_in_the_background_of_a_sandbox_goes_on_and_is_ended_with_it(audit: Path) -> None:
    async with Sandbox(audit=audit) as sandbox:
        run = sandbox.start("print('begun', flush=True)\nprint(input())", stdin="given")
        execution = await run.wait()
        assert (execution.text, run.is_done, execution.id) == ("begun\ngiven", True, run.id)
        slow = sandbox.start(SLOW)
        async for _ in slow.stream():
            break
        await slow.cancel()
        assert (await slow.wait()).status == "cancelled"
        left = sandbox.start(SLOW)
        async for _ in left.stream():
            break
    assert left.is_done


def test_the_same_without_await(audit: Path) -> None:
    from casemate.sync import Sandbox as Blocking

    with Blocking(audit=audit) as sandbox:
        run = sandbox.start("print(1)")
        assert [type(event).__name__ for event in run.stream()] == ["Output", "Done"]
        assert run.wait().text == "1"


async def test_names_of_one_account_share_its_limits_and_see_nothing_of_each_other(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "MOST_GOING", 1)
    monkeypatch.setattr(sessions, "MOST_OPEN", 1)
    async with Operations(sandbox) as operations:
        one, two = (local(operations, AGENT._replace(name=name, account="both")) for name in ("one", "two"))
        other = local(operations, OTHER)
        run = (await one("runs.start", {"code": SLOW}))["run"]
        await one("sessions.open", {})
        for asked in (two("runs.start", {"code": "1"}), two("sessions.open", {})):
            with pytest.raises(QueueFull):
                await asked
        with pytest.raises(NotFound):
            await two("runs.get", {"run": run})
        assert (await other("runs.start", {"code": "1", "wait": 60}))["outcome"] == "ok"
        await other("sessions.open", {})
        await one("runs.cancel", {"run": run})


@pytest.mark.parametrize(("failure", "kind"), [(OSError(28, "disk full"), "unavailable"), (ValueError("no"), "fault")])
async def test_a_run_whose_events_cannot_be_kept_does_not_go_on_unseen(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, failure: Exception, kind: str
) -> None:
    def fail(*_: object) -> None:
        raise failure

    async with Operations(sandbox) as operations:
        agent = Checked(local(operations, AGENT))
        monkeypatch.setattr("casemate.execution.event_log.EventLog.append", fail)
        state = await agent("runs.start", {"code": SLOW, "wait": 60})
        assert (state["status"], state["error"]["kind"]) == ("done", kind)
        assert "cannot be kept" in state["error"]["message"]
        assert operations.activity().runs == 0
        assert (await sandbox.stats()).running == 0


@pytest.mark.parametrize("place", ["a session", "a cell of its own"])
async def test_a_run_whose_files_cannot_be_made_is_ended_and_its_caller_told(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "disk full")

    async with Operations(sandbox) as operations:
        agent = Checked(local(operations, AGENT))
        where = {"session": (await agent("sessions.open"))["session"]} if place == "a session" else {}
        with monkeypatch.context() as broken:
            broken.setattr(FolderStore, "begin", fail)
            with pytest.raises(Unavailable, match="cannot be kept: disk full"):
                await agent("runs.start", {"code": "import time; time.sleep(50)", **where})
            async with asyncio.timeout(60):
                await operations.idle()
        assert (await agent("runs.list"), operations.activity().runs) == ([], 0)
        assert (await agent("runs.start", {"code": "print(1)", "wait": 60, **where}))["outcome"] == "ok"


async def test_a_run_whose_caller_leaves_at_once_is_ended_and_kept_as_that(sandbox: Sandbox) -> None:
    async with Operations(sandbox) as operations:
        agent = local(operations, AGENT)
        starting = asyncio.ensure_future(agent("runs.start", {"code": SLOW}))
        while not operations.activity().runs:
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await operations.idle()
        assert [one["status"] for one in await agent("runs.list")] == ["done"]


_RUNS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50)), max_size=30)


@given(_RUNS, st.integers(1, 5), st.integers(0, 100), st.integers(2, 8))
def test_the_last_runs_of_an_account_are_kept_within_every_bound_and_always_its_very_last(
    ended: list[tuple[str, int]], runs: int, size: int, all_runs: int
) -> None:
    retention = Retention()
    kept: dict[str, tuple[str, int]] = {}
    for number, (account, bytes_) in enumerate(ended):
        run = str(number)
        retention.add(run, account, bytes_)
        kept[run] = (account, bytes_)
        gone = retention.beyond(account, runs=runs, size=size, all_runs=all_runs)
        before = dict(kept)
        assert all(kept.pop(one)[1] == held for one, held in gone.items())
        own = [one for one, (whose, _) in kept.items() if whose == account]
        assert own[-1] == run
        assert len(own) <= runs
        assert len(own) == 1 or sum(kept[one][1] for one in own) <= size
        assert len(kept) <= all_runs
        if len(before) <= all_runs:  # nothing goes but what its own account has too much of, and the oldest of that
            mine = [one for one, (whose, _) in before.items() if whose == account]
            assert list(gone) == mine[: len(gone)]
            if gone:
                left = [*mine[len(gone) - 1 :]]
                assert len(left) > runs or sum(before[one][1] for one in left) > size


RUN = "a" * 32


@pytest.mark.parametrize("text", ["short", "long" * 10_000])
def test_a_line_that_was_cut_short_leaves_what_was_known_before_and_takes_nothing_from_the_next(
    tmp_path: Path, text: str
) -> None:
    store = FolderStore(tmp_path)
    head = {
        "run": RUN, "owner": "a", "account": "a", "session": None, "language": "python", "started": 1.0, "ended": None,
        "is_done": False, "outcome": None, "error": None, "bytes": 0,
    }  # fmt: skip
    folder = store.begin(RUN, head)
    with (folder / "run.json").open("ab") as file:
        file.write(b'\n{"run": "' + RUN[:5].encode())
    assert store.list() == [head]
    store.end(RUN, {**head, "is_done": True}, {"stdout": text})
    assert store.list() == [{**head, "is_done": True}]
    assert store.execution(RUN) == {"stdout": text}
