"""Commands of real sessions under approval: what crosses, which approvers see it, and that a waiting cell is paused.

AP-01 to AP-28 are cases of the threat model. Cases of the broker alone are in tests/unit/approvals.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract import witness
from tests.sessions.driver import FOREVER, PROMPT, cell_of, done, events_of, said
from tests.support.waiting import until_async

import casemate
from casemate import ApprovalRequest, Decision, Done, Execution, Sandbox, allow_all
from casemate.audit.log import AuditLog
from casemate.sessions.session import Session

MARK = "!touch ran"
ASKS = "get_ipython().system('touch ran')"


@contextlib.asynccontextmanager
async def asked(audit: Path, language: str = "python", **arguments: Any) -> AsyncIterator[tuple[Sandbox, Session]]:
    """A session whose commands are asked about."""
    async with Sandbox(audit=audit, **arguments) as sandbox, sandbox.session(language) as session:
        sandbox.approvals.rules.set_default("shell", "allow")
        await session.run("1" if language == "python" else ":")
        sandbox.approvals.rules.set_default("shell", "ask")
        yield sandbox, session


async def has_run(session: Session) -> bool:
    return "ran" in [file.name for file in await session.files.list()]


def decisions(audit: Path) -> list[str]:
    log = AuditLog(audit)
    try:
        assert log.verify().ok
        return [json.loads(row.detail)["decision"] for row in log.tail(1000) if row.kind == "decision"]
    finally:
        log.close()


async def request_of(sandbox: Sandbox) -> ApprovalRequest:
    """The only request, when it is there."""
    await until_async(sandbox.approvals.pending, "nothing was asked")
    [request] = sandbox.approvals.pending()
    return request


def code_below(init: int) -> list[int]:
    return witness.descendants(init)


def is_paused(init: int) -> bool:
    """Whether everything in a cell but its init is stopped, and nothing else."""
    return all(witness.state(pid) in "TtZ" for pid in code_below(init))


async def in_one(step: asyncio.Future[Execution]) -> Execution:
    async with asyncio.timeout(PROMPT):
        return await step


# -- answers


@pytest.mark.parametrize(
    "code",
    [MARK, "x = !touch ran", "%system touch ran", "%%bash\ntouch ran", "%%sh\ntouch ran", "%sx touch ran", ASKS],
    ids=lambda code: code.replace("\n", " "),
)
async def test_ap_02_a_command_that_is_denied_does_not_run_and_its_code_gets_one_error(audit: Path, code: str) -> None:
    async with asked(audit, approve=lambda _: Decision(reason="not today")) as (_, session):
        execution = await session.run(code)
        assert (execution.status, execution.stdout) == ("failed", "")
        assert execution.error is not None
        assert (execution.error.name, execution.error.value) == (
            "PermissionError",
            "the command was not allowed: not today",
        )
        assert not await has_run(session)
        assert await said(session, "print('on')") == "on\n"
    assert decisions(audit) == ["denied"]


async def test_a_command_that_is_allowed_runs_and_who_was_asked_saw_it(audit: Path) -> None:
    seen: list[ApprovalRequest] = []

    async def approve(request: ApprovalRequest) -> bool:
        seen.append(request)
        return True

    async with asked(audit, approve=approve) as (_, session):
        execution = await session.run("!echo one\n_ = get_ipython().run_cell_magic('bash', '', 'echo two')")
        assert execution.stdout == "one\ntwo\n"
        assert [(one.kind, one.session, one.run) for one in seen] == [("shell", session.id, execution.id)] * 2
        assert [one.arguments for one in seen] == [{"command": "echo one"}, {"command": "bash", "input": "echo two"}]
    assert decisions(audit) == ["allowed"] * 2


STARTS = {
    "subprocess.run": ("import subprocess; subprocess.run(['touch', 'ran'], check=True)", "touch ran"),
    "subprocess.Popen, by posix_spawn": (
        "import subprocess; subprocess.Popen(['/usr/bin/touch', 'ran'], close_fds=False).wait()", "/usr/bin/touch ran",
    ),
    "a line of a shell": ("import subprocess; subprocess.run('touch ran', shell=True)", "/bin/sh -c 'touch ran'"),
    "os.system": ("import os; os.system('touch ran')", "touch ran"),
    "os.popen": ("import os; os.popen('touch ran').close()", "/bin/sh -c 'touch ran'"),
    "os.posix_spawn": (
        "import os; os.waitpid(os.posix_spawn('/usr/bin/touch', ['touch', 'ran'], {}), 0)", "touch ran",
    ),
    "pty.spawn": ("import pty; pty.spawn(['touch', 'ran'], lambda fd: b'', lambda fd: b'')", "touch ran"),
    "asyncio": ("import asyncio\nawait (await asyncio.create_subprocess_exec('touch', 'ran')).wait()", "touch ran"),
}  # fmt: skip


@pytest.mark.parametrize("way", STARTS)
async def test_each_way_of_python_to_start_a_program_is_asked_about_once_where_the_policy_says_so(
    audit: Path, way: str
) -> None:
    code, command = STARTS[way]
    seen: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        seen.append(request)
        return len(seen) > 1

    policy = {"rules": [{"ask": "process"}]}
    async with Sandbox(audit=audit, policy=policy, approve=approve) as sandbox, sandbox.session() as session:
        assert await said(session, "!echo a command is none") == "a command is none\n"
        execution = await session.run(code)
        assert execution.error is not None
        assert (execution.error.name, await has_run(session)) == ("PermissionError", False)
        execution = await session.run(code)
        assert (execution.status, await has_run(session)) == ("ok", True)
    assert [(one.kind, one.arguments) for one in seen] == [("process", {"command": command})] * 2


async def test_a_forked_process_cannot_ask_and_its_program_does_not_start(audit: Path) -> None:
    code = "import os\nif os.fork() == 0: os.execvp('touch', ['touch', 'ran'])\n_ = os.wait()"
    policy = {"rules": [{"ask": "process"}]}
    async with Sandbox(audit=audit, policy=policy, approve=allow_all) as sandbox, sandbox.session() as session:
        assert "a forked process cannot ask" in (await session.run(code)).stderr
        assert not await has_run(session)


@pytest.mark.parametrize("how", ["system", "getoutput"])
async def test_a_command_that_is_longer_than_the_kernel_takes_fails_and_keeps_nobody_waiting(
    audit: Path, how: str
) -> None:
    async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
        execution = await session.run(f"get_ipython().{how}('true ' + 'x' * 300_000)")
        assert execution.error is not None
        assert (execution.status, execution.error.name) == ("failed", "OSError")
        assert "Argument list too long" in execution.error.value
        assert await said(session, "n = 3\n!echo $n {n}") == "3 3\n"


async def test_commands_are_allowed_without_asking_and_with_nobody_there_where_no_rule_says_otherwise(
    audit: Path,
) -> None:
    async with Sandbox(audit=audit) as sandbox, sandbox.session() as session:
        assert await said(session, "!echo one") == "one\n"
    assert decisions(audit) == []


async def test_without_anybody_to_ask_a_command_is_denied_at_once(audit: Path) -> None:
    async with asked(audit, approval_timeout=None) as (_, session):
        execution = await session.run(MARK)
        assert execution.error is not None
        assert "no approver is available; an approver (in Python: approve) or a rule of" in execution.error.value
        assert not await has_run(session)


async def test_allow_all_asks_nobody_and_each_result_says_so(audit: Path) -> None:
    async with asked(audit, approve=allow_all) as (sandbox, session):
        execution = await session.run(MARK)
        assert execution.ok
        assert await has_run(session)
        run = await sandbox.run("1")
        for one in (execution, run):
            assert [note for note in one.isolation.notes if "switched off" in note]
    assert decisions(audit) == ["allowed"]


async def test_a_request_is_an_event_of_its_stream_and_is_answered_there(audit: Path) -> None:
    async with asked(audit) as (_, session):
        told: list[object] = []
        async for event in session.stream("print('before')\n!echo one\nprint('after')"):
            if isinstance(event, ApprovalRequest):
                assert await event.approve() is True
                assert await event.approve() is False
            told.append(event)
        kinds = [type(event).__name__ for event in told]
        assert kinds.index("ApprovalRequest") == 1
        assert isinstance(told[-1], Done)
        assert told[-1].execution.stdout == "before\none\nafter\n"


def test_a_request_is_answered_without_await_through_casemate_sync(audit: Path) -> None:
    from casemate import sync

    with sync.Sandbox(audit=audit) as sandbox, sandbox.session() as session:
        sandbox.approvals.rules.set_default("shell", "ask")
        answers = iter([True, False])
        execution = None
        for event in session.stream("!echo one\n!echo two"):
            if isinstance(event, ApprovalRequest):
                assert isinstance(event, sync.ApprovalRequest)
                assert (event.approve() if next(answers) else event.deny("no")) is True
            if isinstance(event, Done):
                execution = event.execution
        assert execution is not None
        assert (execution.stdout, execution.status) == ("one\n", "failed")


# -- one answer is for one request


FRAME = """
import os, json
def say(**fields):
    fields = {"type": "ask", "step": STEP, "at": [0, 0], "kind": "shell", **fields}
    data = json.dumps(fields).encode()
    os.write(3, len(data).to_bytes(4, "big") + data)
"""


@pytest.mark.full
async def test_ap_07_ap_08_the_bytes_of_a_request_that_was_allowed_are_a_new_request_each_time(audit: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def approve(request: ApprovalRequest) -> bool:
        seen.append((request.id, request.arguments["command"]))
        return len(seen) == 1

    async with asked(audit, approve=approve) as (_, session):
        await session.run(FRAME)
        again = "say(id=1, arguments={'command': 'echo one'})\nsay(id=1, arguments={'command': 'echo other'})\n"
        await session.run(f"STEP = 3\n!echo one\n{again}\nimport time\nwhile True: time.sleep(1)", timeout=4)
        assert [command for _, command in seen] == ["echo one", "echo one", "echo other"]
        assert len({request for request, _ in seen}) == 3
    assert decisions(audit) == ["allowed", "denied", "denied"]


@pytest.mark.parametrize(
    "fields",
    [
        {"id": 1, "arguments": {"command": "x", "session": "another"}},
        {"id": 1, "arguments": {"command": 7}},
        {"id": 1, "arguments": []},
        {"id": True, "arguments": {"command": "x"}},
        {"id": 1, "kind": "tool", "arguments": {"command": "x"}},
        {"id": 1, "step": 99, "arguments": {"command": "x"}},
        {"arguments": {"command": "x"}},
    ],
    ids=str,
)
async def test_ap_05_a_request_that_is_not_well_formed_reaches_nobody(audit: Path, fields: dict[str, Any]) -> None:
    async with asked(audit, approve=lambda _: True) as (_, session):
        await session.run(FRAME)
        assert (await session.run(f"STEP = 3\nsay(**{fields!r})\nprint('on')")).stdout == "on\n"
    assert decisions(audit) == []


async def test_ap_03_answers_that_the_code_gives_itself_allow_nothing(audit: Path) -> None:
    """It may write what it likes: its answers come through a pipe that only the host can write to, and the host has
    decided before it writes."""
    async with asked(audit) as (_, session):
        answer = json.dumps({"op": "answer", "id": 1, "allow": True})
        code = f"import os\ndata = {answer!r}.encode()\ntry: os.write(6, len(data).to_bytes(4, 'big') + data)\n"
        execution = await session.run(f"{code}except OSError as e: print(type(e).__name__)\n{MARK}")
        assert execution.status == "failed"
        assert not await has_run(session)
    assert decisions(audit) == ["denied"]


async def test_ap_14_many_threads_that_ask_at_once_wait_their_turn_in_order_and_none_fails(audit: Path) -> None:
    code = (
        "import threading\nok = []\ndef ask(n):\n    get_ipython().system(f'echo {n} > /dev/null'); ok.append(n)\n"
        "threads = [threading.Thread(target=ask, args=(n,)) for n in range(30)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\nprint(len(ok))"
    )
    async with asked(audit) as (sandbox, session):
        most = 0
        with sandbox.approvals.open():
            step = asyncio.ensure_future(session.run(code, timeout=60))
            while not step.done():
                most = max(most, len(sandbox.approvals.pending()))
                for request in sandbox.approvals.pending():
                    sandbox.approvals.decide(request.id, True)
                await asyncio.sleep(0.01)
        assert (await step).stdout == "30\n"
        assert 1 <= most <= 16
    assert decisions(audit) == ["allowed"] * 30


# -- what is over


async def test_ap_17_a_stream_that_is_left_while_something_is_asked_ends_it(audit: Path) -> None:
    async with asked(audit) as (sandbox, session):
        stream = session.stream(MARK, timeout=FOREVER)
        request = await anext(event async for event in stream if isinstance(event, ApprovalRequest))
        async with asyncio.timeout(PROMPT):
            await stream.aclose()
        assert await request.approve() is False
        assert sandbox.approvals.pending() == []
        assert not await has_run(session)
        assert await said(session, "print('on')") == "on\n"
    assert decisions(audit)[0] == "withdrawn"


async def test_ap_17_a_run_that_nobody_follows_any_more_is_denied_and_goes_on(audit: Path) -> None:
    code = f"try: {ASKS}\nexcept PermissionError as error: print(error)"
    async with asked(audit, approval_timeout=None) as (_, session):
        run = session.start(code, timeout=FOREVER)
        stream = run.stream()
        request = await anext(event async for event in stream if isinstance(event, ApprovalRequest))
        await stream.aclose()
        async with asyncio.timeout(PROMPT):
            execution = await run.wait()
        assert "the approver that was asked is gone" in execution.stdout
        assert await request.approve() is False
        alone = session.start(code)
        async with asyncio.timeout(PROMPT):
            assert "no approver is available" in (await alone.wait()).stdout


async def test_a_run_asks_whoever_follows_it(audit: Path) -> None:
    async with asked(audit) as (_, session):
        run = session.start(MARK)
        async for event in run.stream():
            if isinstance(event, ApprovalRequest):
                assert event.arguments == {"command": "touch ran"}
                assert await event.approve() is True
        assert (await run.wait()).ok
        assert await has_run(session)


LEAVES: dict[str, Callable[[Session, asyncio.Future[Execution]], object]] = {
    "cancelled": lambda session, step: step.cancel(),
    "interrupted": lambda session, step: session.interrupt(),
    "closed": lambda session, step: asyncio.ensure_future(session.close()),
    "reset": lambda session, step: asyncio.ensure_future(session.reset()),
}


@pytest.mark.parametrize("is_cell_paused", [False, True], ids=["at once", "paused"])
@pytest.mark.parametrize("how", LEAVES)
@pytest.mark.parametrize("language", ["python", "shell"])
async def test_ap_20_an_answer_to_what_is_over_is_too_late(
    audit: Path, how: str, language: str, is_cell_paused: bool
) -> None:
    async with asked(audit, language) as (sandbox, session):
        init = (await asked_cell(sandbox, session))[0] if is_cell_paused and language == "python" else 0
        with sandbox.approvals.open():
            step = asyncio.ensure_future(session.run(MARK if language == "python" else "touch ran", timeout=FOREVER))
            request = await request_of(sandbox)
            if init:
                await until_async(lambda: is_paused(init), "it was never stopped")
            other = LEAVES[how](session, step)
            async with asyncio.timeout(PROMPT):
                await asyncio.wait([step])
                if isinstance(other, asyncio.Future):
                    await other
            assert await request.approve() is False
            assert sandbox.approvals.decide(request.id, True) is False
        if how == "cancelled":
            assert step.cancelled()
        else:
            assert step.result().status == "cancelled", step.result()
        if how != "closed":
            assert not await has_run(session)
            sandbox.approvals.rules.set_default("shell", "allow")
            echo = "print('on')" if language == "python" else "echo on"
            assert await said(session, echo) == "on\n"
    assert decisions(audit)[0] == "withdrawn"
    assert "allowed" not in decisions(audit)


async def asked_cell(sandbox: Sandbox, session: Session) -> list[int]:
    """Every process of the session's cell."""
    rules = sandbox.approvals.rules
    before = rules.rules.default("shell")[0]
    rules.set_default("shell", "allow")
    found = await cell_of(session)
    rules.set_default("shell", before)
    return found


async def test_ap_20_a_cell_that_dies_while_it_asks_takes_its_request_with_it(audit: Path) -> None:
    async with asked(audit) as (sandbox, session):
        init = (await asked_cell(sandbox, session))[0]
        with sandbox.approvals.open():
            step = asyncio.ensure_future(session.run(MARK, timeout=FOREVER))
            request = await request_of(sandbox)
            for pid in code_below(init):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert (await in_one(step)).cause is not None
            assert await request.approve() is False
        assert not await has_run(session)


@pytest.mark.parametrize("language", ["python", "shell"])
async def test_the_death_of_the_supervisor_ends_what_is_asked(audit: Path, language: str) -> None:
    before = set(witness.supervisors())
    async with asked(audit, language) as (sandbox, session):
        with sandbox.approvals.open():
            command = "!echo one" if language == "python" else "echo one"
            step = asyncio.ensure_future(session.run(command, timeout=FOREVER))
            request = await request_of(sandbox)
            (supervisor,) = set(witness.supervisors()) - before
            os.kill(supervisor, signal.SIGKILL)
            with pytest.raises(casemate.CasemateError):
                await in_one(step)
            assert await request.approve() is False
    assert decisions(audit)[0] == "withdrawn"


async def test_ap_21_what_a_thread_asks_after_its_step_and_a_child_at_any_time_is_refused(audit: Path) -> None:
    late = (
        "import threading\ngo = threading.Event()\n"
        "def ask():\n    go.wait()\n    try: get_ipython().system('touch ran')\n"
        "    except BaseException as error: open('late', 'w').write(type(error).__name__)\n"
        "thread = threading.Thread(target=ask); thread.start()"
    )
    child = (
        "import os\nif not os.fork():\n    try: get_ipython().system('touch ran')\n"
        "    except BaseException as error: open('child', 'w').write(type(error).__name__)\n"
        "    os._exit(0)\n_ = os.wait()"
    )
    async with asked(audit, approve=lambda _: True) as (_, session):
        await session.run(late)
        await session.run("go.set(); thread.join()")
        await session.run(child)
        assert await session.files.read_text("late") == "PermissionError"
        assert await session.files.read_text("child") == "PermissionError"
        assert not await has_run(session)


async def test_ap_28_a_rule_that_comes_to_deny_while_somebody_thinks_wins(audit: Path) -> None:
    async with asked(audit) as (sandbox, session):
        with sandbox.approvals.open():
            step = asyncio.ensure_future(session.run(MARK, timeout=FOREVER))
            request = await request_of(sandbox)
            sandbox.approvals.rules.set_default("shell", "deny")
            assert await request.approve() is True
            assert (await in_one(step)).status == "failed"
        assert not await has_run(session)
    assert decisions(audit) == ["denied"]


# -- steps of Shell: all of one is a command


async def test_a_shell_step_that_is_denied_is_not_run_and_the_session_goes_on(audit: Path) -> None:
    answers = [Decision(reason="not today"), Decision(allow=True)]
    async with asked(audit, "shell", approve=lambda _: answers.pop(0)) as (_, session):
        denied = await session.run("touch ran; x=1")
        assert (denied.status, denied.exit_code, denied.state) == ("denied", None, "kept")
        assert denied.cause is not None
        assert (denied.cause.code, "not today" in denied.cause.message) == ("denied", True)
        assert not await has_run(session)
        assert (await session.run("echo x$x")).stdout == "x\n"
    assert decisions(audit) == ["denied", "allowed"]


# -- a cell that waits stands still, and its clock with it


async def test_a_cell_that_waits_is_paused_and_its_clock_stops_until_the_answer(audit: Path) -> None:
    async with asked(audit) as (sandbox, session):
        init = (await asked_cell(sandbox, session))[0]
        spin = "import threading\ndef spin():\n    while go: pass\ngo = True\nthreading.Thread(target=spin).start()\n"
        with sandbox.approvals.open():
            began = time.monotonic()
            step = asyncio.ensure_future(session.run(f"{spin}!echo one\ngo = False\nprint('on')", timeout=3))
            request = await request_of(sandbox)
            await until_async(lambda: is_paused(init), "it was never stopped")
            assert len(code_below(init)) >= 2
            await until_async(lambda: time.monotonic() - began > 4)  # more than it has
            assert is_paused(init)
            assert await request.approve()
            execution = await in_one(step)
        assert (execution.status, execution.stdout) == ("ok", "one\non\n")
        assert not is_paused(init)


@pytest.mark.full
async def test_after_the_answer_the_clock_goes_on_where_it_was(audit: Path) -> None:
    async with asked(audit) as (sandbox, session):
        init = (await asked_cell(sandbox, session))[0]
        with sandbox.approvals.open():
            code = "kept = 1\n!echo one\nwhile True: pass"
            step = asyncio.ensure_future(session.run(code, timeout=4))
            request = await request_of(sandbox)
            await until_async(lambda: is_paused(init))
            await request.approve()
            execution = await in_one(step)
        assert (execution.status, execution.stdout, execution.state) == ("timeout", "one\n", "kept")


async def test_what_the_code_had_stopped_itself_is_not_woken(audit: Path) -> None:
    code = (
        "import os, signal, subprocess\nchild = subprocess.Popen(['sleep', '1000'])\nchild.send_signal(signal.SIGSTOP)"
    )
    async with asked(audit) as (sandbox, session):
        init = (await asked_cell(sandbox, session))[0]
        await session.run(code)

        def in_stop() -> list[int]:
            return [pid for pid in code_below(init) if witness.state(pid) == "T"]

        await until_async(lambda: len(in_stop()) == 1)
        stopped = in_stop()
        with sandbox.approvals.open():
            step = asyncio.ensure_future(session.run("!echo one", timeout=FOREVER))
            request = await request_of(sandbox)
            await until_async(lambda: is_paused(init))
            await request.approve()
            assert (await in_one(step)).stdout == "one\n"
        assert in_stop() == stopped


@pytest.mark.full
async def test_code_that_wakes_itself_has_the_clock_against_it(audit: Path) -> None:
    """As a timer can have it that sends SIGCONT: here the host sends it, again and again."""
    async with asked(audit, approval_timeout=None) as (sandbox, session):
        init = (await asked_cell(sandbox, session))[0]
        with sandbox.approvals.open():
            step = asyncio.ensure_future(session.run("!echo one", timeout=2))
            request = await request_of(sandbox)
            await until_async(lambda: is_paused(init), "it was never stopped")
            deadline = time.monotonic() + PROMPT
            while not step.done():
                assert time.monotonic() < deadline, "its clock stood still although it ran"
                for pid in code_below(init):
                    os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(0.01)
            assert step.result().status == "timeout"  # by itself: nobody has answered
            assert await request.approve() is False


@pytest.mark.full
async def test_a_one_shot_that_waits_stands_still_too(audit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a one-shot asks yet, so the test does."""
    from casemate.approvals.requester import Requester
    from casemate.model.approval import Question

    begun = threading.Event()
    askers: list[Requester] = []
    real = Requester.attach

    def attach(requester: Requester, cell: Any) -> None:
        real(requester, cell)
        askers.append(requester)
        begun.set()

    monkeypatch.setattr(Requester, "attach", attach)
    async with Sandbox(audit=audit) as sandbox:
        with sandbox.approvals.open():
            before = set(witness.cells())
            code = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.001)"
            stream = sandbox.stream(code, timeout=3)
            await anext(stream)
            assert begun.is_set()
            [init] = set(witness.cells()) - before
            began = time.monotonic()
            future = askers[0].decide(Question("host", "read a file", {"path": "/x"}))
            request = await request_of(sandbox)
            await until_async(lambda: is_paused(init), "it was never stopped")
            await until_async(lambda: time.monotonic() - began > 4)
            assert is_paused(init)
            await request.deny("no")
            assert (await asyncio.wrap_future(future)).reason == "no"
            events = await events_of(stream)
        assert done(events).status == "timeout"
        assert done(events).duration > 4


def test_the_example_of_the_documentation_does_what_it_says(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    example = root / "examples" / "approvals.py"
    assert f"```python\n{example.read_text()}```\n" in (root / "docs" / "how-to" / "approvals.md").read_text()
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(Path(casemate.__file__).parents[1])}
    ran = subprocess.run([sys.executable, example], env=env, capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    assert ran.stdout.startswith("hello\n")
    assert "only echo is allowed here" in ran.stdout


async def test_an_answer_is_for_the_command_itself_and_not_for_how_its_secrets_are_shown(audit: Path) -> None:
    shown: list[str] = []

    def approve(request: ApprovalRequest) -> Decision:
        shown.append(request.arguments["command"])
        return Decision(allow=True, scope="session")

    policy = {"defaults": {"shell": "ask"}}
    async with Sandbox(audit=audit, approve=approve, policy=policy) as sandbox:
        await sandbox.vault.set("TOKEN", "s3cr3t-" * 6)
        async with sandbox.session(secrets=["TOKEN"]) as session:
            for form in ("t", "t.encode().hex()", "t"):
                await session.run(f"import os; t = os.environ['TOKEN']; get_ipython().system('echo ' + {form})")
    assert shown == ["echo [secret:TOKEN]"] * 2


@pytest.mark.parametrize(("scope", "count"), [("session", 2), ("run", 3), ("once", 6)])
async def test_a_denial_for_a_session_or_a_run_is_kept_as_an_allowance_is(audit: Path, scope: Any, count: int) -> None:
    shown: list[str] = []

    def approve(request: ApprovalRequest) -> Decision:
        shown.append(request.arguments["command"])
        return Decision(scope=scope, reason="not here")

    async with asked(audit, approve=approve) as (_, session):
        for command in ("true", "true", "false"):
            again = f"try: get_ipython().system('{command}')\nexcept PermissionError: pass\n!{command}"
            step = await session.run(again)
            assert step.error is not None
            assert "not here" in step.error.value
    assert len(shown) == count


async def test_questions_beyond_the_most_are_denied_and_not_looked_at(audit: Path) -> None:
    from casemate.approvals.requester import Origin
    from casemate.approvals.requests import MOST_ASKED
    from casemate.model.approval import Question

    async with Sandbox(audit=audit, approve=lambda _: True) as sandbox:
        requester = sandbox.approvals.requester(Origin("default", None, "run"), None)
        requester.asked_count = MOST_ASKED
        verdict = requester.decide(Question("egress", "connect", {"host": "a.test", "port": 80})).result(0)
        assert (verdict.allow, verdict.by) == (False, "limit")
        await requester.end()
