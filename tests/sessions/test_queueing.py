"""Steps of a session run one at a time, in order, however many tasks ask for them."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.sessions.driver import FOREVER, PROMPT, Open, events_of, said, told
from tests.support.languages import every_language

from casemate import InvalidArgument, Output, Sandbox
from casemate.sessions.session import Session


@every_language
async def test_two_steps_at_once_run_in_the_order_in_which_they_were_asked_for(opened: Open, language: str) -> None:
    code = {
        "python": "seen = [*globals().get('seen', []), {n}]; print(seen)",
        "node": "globalThis.seen = [...(globalThis.seen ?? []), {n}]; console.log(JSON.stringify(seen))",
        "shell": 'seen="$seen {n}"; echo $seen',
    }[language]
    session = opened(language)
    async with asyncio.timeout(PROMPT), asyncio.TaskGroup() as tasks:
        steps = [tasks.create_task(said(session, code.replace("{n}", str(n)))) for n in range(10)]
    last = steps[-1].result()
    assert last.translate(str.maketrans("", "", "[], \n")) == "0123456789"


async def test_a_step_that_will_not_wait_is_refused_while_another_runs(session: Session) -> None:
    stream = session.stream("print('begun')\nimport time; time.sleep(1000)", timeout=FOREVER)
    assert isinstance(await anext(stream), Output)
    with pytest.raises(InvalidArgument) as raised:
        await session.run("1", wait=False)
    assert raised.value.argument == "wait"
    with pytest.raises(InvalidArgument):
        await anext(session.stream("1", wait=False))
    await stream.aclose()
    assert (await session.run("1", wait=False)).ok


async def test_one_session_used_from_eight_tasks_gives_each_its_own(session: Session) -> None:
    await said(session, "total = 0")
    choose = random.Random(1)

    async def use(who: int) -> None:
        for number in range(15):
            mark = f"{who}.{number}"
            kind = choose.randrange(4)
            if kind == 0:
                events = await events_of(session.stream(f"total += 1; print('{mark}'); display('{mark}')"))
                assert told(events) == [("stdout", f"{mark}\n"), ("display", f"'{mark}'")]
            elif kind == 1:
                await session.files.write(f"file{who}", mark)
                assert await said(session, f"total += 1; print(open('file{who}').read())") == f"{mark}\n"
            elif kind == 2:
                await session.set(f"value{who}", [mark])
                assert await session.get(f"value{who}") == [mark]
                assert await said(session, f"total += 1; print(value{who})") == f"{[mark]}\n"
            else:
                execution = await session.run(f"total += 1; print('{mark}'); raise ValueError('{mark}')")
                assert execution.error is not None
                assert (execution.stdout, execution.error.value) == (f"{mark}\n", mark)

    async with asyncio.TaskGroup() as tasks:
        for who in range(8):
            tasks.create_task(use(who))
    assert await said(session, "print(total)") == "120\n"


async def test_tasks_that_cancel_and_interrupt_leave_the_others_their_own(session: Session) -> None:
    choose = random.Random(2)

    async def use(who: int) -> None:
        for number in range(8):
            step = asyncio.ensure_future(session.run(f"print('{who}.{number}')", timeout=FOREVER))
            if choose.random() < 0.4:
                for _ in range(choose.randrange(20)):
                    await asyncio.sleep(0)
                step.cancel()
            await asyncio.wait([step])
            if not step.cancelled():
                assert (step.result().status, step.result().stdout) == ("ok", f"{who}.{number}\n")

    async with asyncio.timeout(PROMPT), asyncio.TaskGroup() as tasks:
        for who in range(8):
            tasks.create_task(use(who))


async def test_sessions_run_at_once(opened: Open) -> None:
    """Each waits for what the other does: one after the other would never end."""
    first, second = opened(), opened()
    wait = "import os, time\nprint('begun')\nwhile not os.path.exists('go'): time.sleep(0.005)\nprint('went')"
    async with asyncio.timeout(PROMPT):
        waiting = asyncio.ensure_future(said(first, wait, timeout=None))
        assert await said(second, "print('meanwhile')") == "meanwhile\n"
        await first.files.write("go", "")
        assert await waiting == "begun\nwent\n"


async def test_a_run_in_the_same_sandbox_goes_on_beside_sessions(sandbox: Sandbox, session: Session) -> None:
    await said(session, "x = 1")
    assert (await sandbox.run("print('x' in globals())")).stdout == "False\n"
    assert await said(session, "print(x)") == "1\n"
