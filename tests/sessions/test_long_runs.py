"""A step begun with ``start`` continues without its caller, and every reader that attaches gets all of its events."""

from __future__ import annotations

import asyncio

import pytest
from tests.sessions.driver import FOREVER, PROMPT, Open, done, events_of, first_text, said, told
from tests.support.languages import every_language

from casemate import Done, Event, InvalidArgument, Limits, SandboxClosed
from casemate.sessions.session import Session

COUNT = "import os, sys, time\nfor n in range(200):\n    print(n); print('e', n, file=sys.stderr); display(n)\n"
WAIT = "while not os.path.exists('/workspace/go'): time.sleep(0.005)\n"


async def test_a_run_goes_on_when_its_caller_leaves_and_is_attached_to_again(session: Session) -> None:
    await said(session, "import os, time")

    async def begin() -> str:
        return session.start(f"print('begun')\n{WAIT}print('end'); 5", timeout=None).id

    run_id = await asyncio.create_task(begin())
    run = await session.attach(run_id)
    assert run.id == run_id
    left = run.stream()
    assert told([await anext(left)]) == [("stdout", "begun\n")]
    await left.aclose()
    assert not run.is_done
    await session.files.write("go", "")
    async with asyncio.timeout(PROMPT):
        execution = await run.wait()
    assert (execution.id, execution.status, execution.stdout, execution.text) == (
        run_id,
        "ok",
        "begun\nend\n",
        "begun\nend\n5",
    )
    again = await session.attach(run_id)
    assert told(await events_of(again.stream())) == [("stdout", "begun\nend\n"), ("result", "5")]


async def test_from_every_cursor_on_each_event_is_given_once(session: Session) -> None:
    run = session.start(COUNT, timeout=None)
    live = await events_of(run.stream())
    assert told(live) == [
        item for n in range(200) for item in (("stdout", f"{n}\n"), ("stderr", f"e {n}\n"), ("display", str(n)))
    ]  # fmt: skip
    for cursor in (*range(0, len(live), 17), len(live) - 2, len(live) - 1):
        again = await events_of(run.stream(cursor))
        assert again == live[cursor:]
        assert done(again) == done(live)
    assert [event async for event in run.stream(len(live))] == []


async def test_many_readers_at_once_and_ones_that_leave_and_come_again_get_everything_once(session: Session) -> None:
    run = session.start(COUNT, timeout=None)

    async def follow() -> list[Event]:
        return [event async for event in run.stream()]

    async def come_and_go() -> list[Event]:
        seen: list[Event] = []
        while not (seen and isinstance(seen[-1], Done)):
            stream = run.stream(len(seen))
            for _ in range(7):
                seen.append(await anext(stream))
                if isinstance(seen[-1], Done):
                    break
            await stream.aclose()
        return seen

    async with asyncio.timeout(PROMPT), asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(follow()) for _ in range(4)] + [tasks.create_task(come_and_go()) for _ in range(4)]
    first = readers[0].result()
    assert len(first) > 400
    assert all(reader.result() == first for reader in readers)


@every_language
async def test_cancelling_a_run_ends_its_step_and_keeps_the_state(opened: Open, language: str) -> None:
    code = {
        "python": "kept = 1; print('begun')\nimport time; time.sleep(1000)",
        "node": "var kept = 1; console.log('begun'); await new Promise((r) => setTimeout(r, 1e8))",
        "shell": "kept=1; echo begun; sleep 1000",
    }
    session = opened(language)
    run = session.start(code[language], timeout=FOREVER)
    stream = run.stream()
    assert await first_text(stream) == "begun\n"
    async with asyncio.timeout(PROMPT):
        await run.cancel()
        await run.cancel()
        execution = await run.wait()
        rest = [event async for event in stream]
    assert (execution.status, execution.state, execution.stdout) == ("cancelled", "kept", "begun\n")
    assert isinstance(rest[-1], Done)
    show = {"python": "print(kept)", "node": "console.log(kept)", "shell": "echo $kept"}
    assert await said(session, show[language]) == "1\n"


async def test_a_run_that_was_cancelled_before_it_began_never_runs(session: Session) -> None:
    first = session.start("print('begun')\nimport time; time.sleep(1000)", timeout=FOREVER)
    await anext(first.stream())
    second, third = session.start("ran = 1"), session.start("print('ran' in globals())")
    async with asyncio.timeout(PROMPT):
        await second.cancel()
        await first.cancel()
        assert (await third.wait()).stdout == "False\n"
    for outcome in (second.wait(), events_of(second.stream())):
        with pytest.raises(SandboxClosed):
            await outcome


async def test_whoever_stops_waiting_does_not_stop_the_run(session: Session) -> None:
    await said(session, "import os, time")
    run = session.start(f"print('begun')\n{WAIT}print('end')", timeout=None)
    await anext(run.stream())
    waiting = asyncio.ensure_future(run.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await session.files.write("go", "")
    async with asyncio.timeout(PROMPT):
        assert (await run.wait()).stdout == "begun\nend\n"


@pytest.mark.parametrize("cursor", [-1, "0", None, True, 1.5])
async def test_what_is_no_cursor_is_refused(session: Session, cursor: object) -> None:
    run = session.start("1")
    await run.wait()
    with pytest.raises(InvalidArgument) as raised:
        await events_of(run.stream(cursor))  # type: ignore[arg-type]
    assert raised.value.argument == "cursor"


async def test_a_run_that_is_not_this_sessions_is_refused(opened: Open) -> None:
    first, second = opened(), opened()
    run = first.start("1")
    await run.wait()
    for wrong in (run.id, "", "x"):
        with pytest.raises(InvalidArgument) as raised:
            await second.attach(wrong)
        assert raised.value.argument == "run_id"


async def test_closing_the_session_ends_its_runs(opened: Open) -> None:
    session = opened()
    run = session.start("print('begun')\nimport time; time.sleep(1000)", timeout=FOREVER)
    stream = run.stream()
    await anext(stream)
    waiting = asyncio.ensure_future(run.wait())
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    async with asyncio.timeout(PROMPT):
        await session.close()
        await asyncio.wait([waiting, reading])
    if waiting.exception() is None:
        assert waiting.result().status in ("cancelled", "killed")
    else:
        assert isinstance(waiting.exception(), SandboxClosed)


async def test_a_death_in_a_run_is_its_outcome(session: Session) -> None:
    run = session.start("print('before'); import os; os._exit(7)", timeout=None)
    async with asyncio.timeout(PROMPT):
        execution = await run.wait()
    assert (execution.exit_code, execution.state, execution.stdout) == (7, "lost", "before\n")


async def test_the_events_of_a_run_are_bounded_by_full_output(opened: Open) -> None:
    session = opened(limits=Limits(output="64KiB", full_output="1MiB"))
    run = session.start("while True: print('x' * 100)", timeout=None)
    async with asyncio.timeout(PROMPT):
        execution = await run.wait()
        events = await events_of(run.stream())
    assert execution.cause is not None
    assert execution.cause.code == "output_limit"
    assert sum(len(text) for _, text in told(events)) < 4 << 20
