"""How sessions begin and end: names and ids, limits of time, reset and close, and what is left afterwards."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.contract import witness
from tests.sessions.driver import FOREVER, PROMPT, Open, called, cell_of, ours, said, starting
from tests.support.languages import every_language
from tests.support.waiting import until_async
from tests.warmth import runs_a_program

from casemate import Done, InvalidArgument, Limits, Output, RuntimeMissing, Sandbox, SandboxClosed
from casemate.sessions.session import Session


async def test_a_session_is_found_by_its_id_and_by_its_name_as_long_as_it_is_open(sandbox: Sandbox) -> None:
    async with sandbox.session(name="häß 1") as named, sandbox.session() as plain:
        assert await sandbox.sessions.get("häß 1") is named
        assert await sandbox.sessions.get(named.id) is named
        assert await sandbox.sessions.get(plain.id) is plain
        assert plain.name is None
        assert {one.id for one in await sandbox.sessions.list()} >= {named.id, plain.id}
    assert named not in await sandbox.sessions.list()
    for gone in ("häß 1", named.id):
        with pytest.raises(InvalidArgument) as raised:
            await sandbox.sessions.get(gone)
        assert raised.value.argument == "id_or_name"


async def test_a_name_is_taken_only_while_its_session_is_open(opened: Open) -> None:
    first = opened(name="one")
    with pytest.raises(InvalidArgument) as raised:
        opened(name="one")
    assert raised.value.argument == "name"
    await first.close()
    assert await said(opened(name="one"), "print(1)") == "1\n"


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", 7])
async def test_a_name_that_nobody_could_use_is_refused(opened: Open, name: object) -> None:
    with pytest.raises(InvalidArgument) as raised:
        opened(name=name)
    assert raised.value.argument == "name"


async def test_an_id_is_128_random_bits(opened: Open) -> None:
    ids = {opened().id for _ in range(200)}
    assert len(ids) == 200
    assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in ids)
    assert len({one[:8] for one in ids}) == 200


async def test_the_id_of_one_session_is_no_name_for_another(opened: Open) -> None:
    with pytest.raises(InvalidArgument):
        opened(name=opened().id)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("language", "ruby"), ("idle_timeout", 0), ("idle_timeout", -1), ("lifetime", "x"), ("env", {"a b": "c"}),
     ("files", {"../x": b""}), ("limits", 5)],
)  # fmt: skip
async def test_a_wrong_argument_is_named(sandbox: Sandbox, argument: str, value: object) -> None:
    before = len(await sandbox.sessions.list())
    with pytest.raises(InvalidArgument) as raised:
        sandbox.session(**{argument: value})  # type: ignore[arg-type]
    assert raised.value.argument.startswith(argument)
    assert len(await sandbox.sessions.list()) == before


@every_language
async def test_a_session_that_is_not_used_starts_nothing(opened: Open, language: str) -> None:
    await said(opened(), "1")
    before = set(ours())
    unused = opened(language)
    assert not [pid for pid in ours() if pid not in before and runs_a_program(pid)]
    await unused.close()
    assert unused.is_closed


@every_language
async def test_reset_forgets_the_state_and_keeps_the_files(opened: Open, language: str) -> None:
    make = {
        "python": "mine = 1; open('file', 'w').write('kept'); import os; os.chdir('/tmp')",
        "node": "var mine = 1; fs.writeFileSync('file', 'kept'); process.chdir('/tmp')",
        "shell": "mine=1; printf kept > file; cd /tmp",
    }
    look = {
        "python": "import os; print('mine' in globals(), open('file').read(), os.getcwd())",
        "node": "console.log('mine' in globalThis ? 'True' : 'False', fs.readFileSync('file', 'utf8'), process.cwd())",
        "shell": 'echo ${mine-False} "$(cat file)" $PWD',
    }
    session = opened(language)
    await said(session, make[language])
    await session.reset()
    after = await session.run(look[language])
    assert (after.stdout, after.state, after.lost_names) == ("False kept /workspace\n", "kept", ())
    await session.reset()
    await session.reset()
    assert await said(session, look[language]) == "False kept /workspace\n"


async def test_a_file_that_is_called_like_a_module_keeps_no_session_from_starting_again(session: Session) -> None:
    for name in ("random", "functools", "asyncio", "traitlets", "IPython"):
        await session.files.write(f"{name}.py", b"raise RuntimeError('the user's own')")
    await session.reset()
    with starting("exec"):
        assert await said(session, "import os, sys; print(repr(sys.path[0]), os.getcwd())") == "'' /workspace\n"


async def test_reset_ends_a_step_that_runs_and_everything_that_was_left_running(session: Session) -> None:
    with witness.watching(await cell_of(session)) as watched:
        stream = session.stream("print('begun')\nimport time; time.sleep(1000)", timeout=FOREVER)
        assert isinstance(await anext(stream), Output)
        async with asyncio.timeout(PROMPT):
            reset = asyncio.ensure_future(session.reset())
            last = [event async for event in stream][-1]
            await reset
        assert isinstance(last, Done)
        assert last.execution.status == "cancelled"
        assert watched.living() == 0
    assert await said(session, "print('fresh')") == "fresh\n"


async def test_a_reset_of_a_session_that_was_never_used_is_harmless(session: Session) -> None:
    await session.reset()
    assert await said(session, "print(1)") == "1\n"


async def test_a_closed_session_refuses_everything(opened: Open) -> None:
    session = opened()
    await said(session, "x = 1")
    run = session.start("1")
    await run.wait()
    await session.close()
    await session.close()
    assert session.is_closed
    for refused in (session.run("1"), session.reset(), session.variables(), session.get("x"), session.set("x", 1),
                    session.files.list(), session.files.write("x", "x"), session.files.read_bytes("x")):  # fmt: skip
        with pytest.raises(SandboxClosed):
            await refused
    with pytest.raises(SandboxClosed):
        session.start("1")
    with pytest.raises(SandboxClosed):
        await anext(session.stream("1"))
    session.interrupt()


async def test_closing_while_a_step_runs_ends_it_at_once_and_says_why(opened: Open) -> None:
    session = opened()
    cell = await cell_of(session)
    step = asyncio.ensure_future(session.run("import time; time.sleep(1000)", timeout=FOREVER))
    queued = asyncio.ensure_future(session.run("print('never')"))
    stream = session.stream("print('never')")
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    with witness.watching(cell) as watched:
        async with asyncio.timeout(PROMPT):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(3):
                    tasks.create_task(session.close())
            assert watched.living() == 0
            await asyncio.wait([step, queued, first])
    assert isinstance(queued.exception(), SandboxClosed)
    assert isinstance(first.exception(), SandboxClosed)
    if step.exception() is None:
        assert step.result().status in ("cancelled", "killed")
    else:
        assert isinstance(step.exception(), SandboxClosed)


@pytest.mark.full
async def test_a_session_that_nobody_uses_ends_after_its_idle_timeout(opened: Open) -> None:
    session = opened(idle_timeout=3, name="idle")  # until then its cell is looked at
    cell = await cell_of(session)
    with witness.watching(cell) as watched:
        assert await asyncio.to_thread(watched.wait)
    await until_async(lambda: session.is_closed)
    with pytest.raises(SandboxClosed) as raised:
        await session.run("1")
    assert "idle" in str(raised.value)
    assert (await said(opened(name="idle"), "print(1)")) == "1\n"


@pytest.mark.full
async def test_what_wakes_in_an_idle_session_is_held_to_its_limits(opened: Open) -> None:
    session = opened(limits=Limits(cpu_time=3))
    cell = await cell_of(session)
    code = """
import subprocess, sys, threading, time
def work():
    time.sleep(6)  # it is at rest by then
    for _ in range(8):
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
threading.Thread(target=work).start()
"""
    await said(session, code)
    with witness.watching(cell) as watched:
        assert await asyncio.to_thread(watched.wait)
    assert (await session.run("1")).state == "lost"


@pytest.mark.full
async def test_a_step_that_takes_longer_than_the_idle_timeout_is_not_idle(opened: Open) -> None:
    session = opened(idle_timeout=2)
    assert await said(session, "import time; time.sleep(3); x = 1; print(x)") == "1\n"
    assert await said(session, "print(x)") == "1\n"


@pytest.mark.full
async def test_a_session_ends_when_its_lifetime_is_over(opened: Open) -> None:
    session = opened(lifetime=2)  # no step is ended by it: this one outlasts it
    code = "import subprocess, time; child = subprocess.Popen(['sleep', '98765.25']); time.sleep(3); print(1)"
    step = asyncio.ensure_future(said(session, code))
    await until_async(lambda: called("98765.25"))
    with witness.watching(called("98765.25")) as watched:
        assert await step == "1\n"
        assert await asyncio.to_thread(watched.wait)
    await until_async(lambda: session.is_closed)
    with pytest.raises(SandboxClosed) as raised:
        await session.run("1")
    assert "lifetime" in str(raised.value)


async def test_leaving_the_block_closes_the_session_and_nothing_of_it_is_left(sandbox: Sandbox) -> None:
    async with sandbox.session() as session:
        cell = await cell_of(session)
        with witness.watching(cell) as watched:
            await session.close()
            assert watched.living() == 0
    assert session.is_closed


@pytest.mark.full
@every_language
async def test_many_sessions_that_come_and_go_leave_no_process_descriptor_mount_or_group(
    opened: Open, sandbox: Sandbox, language: str
) -> None:
    async def come_and_go() -> None:
        async with sandbox.session(language) as session:
            await said(session, "1" if language != "shell" else ":")
            await session.reset()
            await said(session, "1" if language != "shell" else ":")
            await session.run(
                {"python": "import os; os._exit(1)", "node": "process.exit(1)", "shell": "exit 1"}[language]
            )
            await said(session, "1" if language != "shell" else ":")

    def held() -> dict[str, int]:
        return {kind: count for kind, count in witness.descriptors().items() if kind != "anon_inode"}

    for _ in range(3):
        await come_and_go()
    warm = max(_counted(held(), len(ours())) for _ in range(3))
    for _ in range(12):
        await come_and_go()
    # Cells that wait for programs come and go meanwhile: a leak of one for each session would be far more.
    await until_async(
        lambda: _counted(held(), len(ours())) <= warm + 8, f"{held()}, {len(ours())} processes; {warm} before"
    )


def _counted(descriptors: dict[str, int], processes: int) -> int:
    return sum(descriptors.values()) + processes


async def test_after_the_sandbox_is_closed_nothing_is_left(audit: object) -> None:
    with starting("warm"):
        one = Sandbox(audit=str(audit))
        before = witness.descriptors()
        sessions = [one.session(language) for language in ("python", "shell", "python")]
        for session in sessions:
            await said(session, "1" if session.language == "python" else ":")
        step = asyncio.ensure_future(sessions[0].run("import time; time.sleep(1000)", timeout=FOREVER))
        run = sessions[1].start("sleep 1000", timeout=FOREVER)
        await asyncio.sleep(0)
        supervisor = set(witness.supervisors())
        mine = ours()
        groups = witness.cgroup_folders(*supervisor)
        with witness.watching(mine) as watched:
            async with asyncio.timeout(PROMPT):
                await one.close()
                await asyncio.wait([step])
            living = watched.living()
        with pytest.raises(SandboxClosed):
            await sessions[2].run("1")
        with pytest.raises(SandboxClosed):
            one.session()
        del run
    assert living <= len(mine) - 3
    # Cells that others of these tests keep ready come and go meanwhile.
    await until_async(
        lambda: all(count <= before.get(kind, 0) + 1 for kind, count in witness.descriptors().items()),
        f"{before}, {witness.descriptors()}",
    )
    assert groups is not None


@pytest.mark.full
async def test_limits_hold_in_every_step_and_the_cap_on_time_is_the_sandboxs(opened: Open) -> None:
    session = opened(limits=Limits(wall=2, processes=20, disk="1MiB", open_files=64))
    for _ in range(2):
        execution = await session.run("import time; time.sleep(1000)", timeout=FOREVER)
        assert (execution.status, execution.state) == ("timeout", "kept")
    disk = await session.run("open('big', 'wb').write(bytes(4 << 20))")
    assert disk.cause is not None
    assert disk.cause.code == "disk_limit"
    await said(session, "import os; os.remove('big')")
    files = await session.run("held = [open('/dev/null') for _ in range(100)]")
    assert files.cause is not None
    assert files.cause.code == "open_files_limit"
    assert await said(session, "print('goes on')") == "goes on\n"


async def test_an_environment_without_ipython_is_a_clear_error(audit: object, tmp_path: object) -> None:
    from pathlib import Path

    from tests.warm.ready import make_venv

    venv = make_venv(Path(str(tmp_path)) / "venv")
    async with Sandbox(audit=str(audit), environment=venv) as sandbox, sandbox.session() as session:
        with pytest.raises(RuntimeMissing) as raised:
            await session.run("1")
        assert "IPython" in str(raised.value)
        with pytest.raises(RuntimeMissing):
            await session.run("1")
        with pytest.raises(RuntimeMissing):
            await session.set("x", 1)
