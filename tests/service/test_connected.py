"""The same programs on a sandbox of this process and on one of a service: same results, same classes, same errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.service.daemon import ASKS, Daemon
from tests.support.waiting import MAX_WAIT

from casemate import (
    ApprovalRequest,
    Done,
    Execution,
    InvalidArgument,
    Limits,
    Output,
    Sandbox,
    SandboxClosed,
    Unavailable,
    sync,
)
from casemate.remote.client import connect
from casemate.remote.facade import ConnectedSandbox

KINDS = ("local", "connected")


@asynccontextmanager
async def opened(kind: str, shared: Daemon, folder: Path) -> AsyncIterator[Any]:
    if kind == "local":
        policy = folder / "policy.json"
        policy.write_text(ASKS)
        limits = Limits(wall=3600)  # as a service has it where nobody has said
        async with Sandbox(audit=folder / "audit.db", policy=policy, preload=(), limits=limits) as sandbox:
            with sandbox.approvals.open():
                yield sandbox
    else:
        async with ConnectedSandbox(await shared.connect()) as connected:
            yield connected


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_gives_the_same_execution(kind: str, shared: Daemon, tmp_path: Path) -> None:
    (tmp_path / "given.bin").write_bytes(bytes(range(256)) * 1200)
    code = """
import os, sys
data = open('given.bin', 'rb').read()
print(open('text.txt').read(), len(data), open('bytes', 'rb').read(), os.environ['NAME'], input())
print('aside', file=sys.stderr)
open('left.bin', 'wb').write(data)
"""
    files = {"given.bin": tmp_path / "given.bin", "text.txt": "täxt\n", "bytes": b"\xff\x00"}
    async with opened(kind, shared, tmp_path) as sandbox:
        execution = await sandbox.run(code, files=files, env={"NAME": "value"}, stdin="line\n", metadata={"a": [1]})
        assert isinstance(execution, Execution)
        assert execution.raise_for_status() is execution
        assert execution.stdout == "täxt\n 307200 b'\\xff\\x00' value line\n"
        assert (execution.stderr, execution.exit_code, execution.metadata) == ("aside\n", 0, {"a": [1]})
        assert execution.isolation.proved
        [artifact] = execution.artifacts
        assert artifact.read_bytes() == bytes(range(256)) * 1200
        artifact.save(tmp_path / "saved.bin")
        assert (tmp_path / "saved.bin").stat().st_size == artifact.size == 307200


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
async def test_failures_limits_and_refusals_are_the_same_values(kind: str, shared: Daemon, tmp_path: Path) -> None:
    async with opened(kind, shared, tmp_path) as sandbox:
        failed = await sandbox.run("raise ValueError('no')")
        assert failed.error is not None
        assert (failed.status, failed.error.name, failed.error.value) == ("failed", "ValueError", "no")
        late = await sandbox.run("import time; print(1, flush=True); time.sleep(60)", timeout=5)
        assert late.cause is not None
        assert (late.status, late.cause.code, late.stdout) == ("timeout", "timeout", "1\n")
        small = await sandbox.run("print('x' * 5000)", limits=Limits(output=1000))
        assert small.truncated
        assert small.full_output is not None
        assert small.full_output.read_bytes() == b"x" * 5000 + b"\n"
        with pytest.raises(InvalidArgument) as wrong:
            await sandbox.run("1", language="cobol")
        assert wrong.value.argument == "language"
        with pytest.raises(InvalidArgument):
            await sandbox.run("1", secrets=["NOBODY_HAS"])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_has_the_same_events_and_leaving_it_ends_the_cell(
    kind: str, shared: Daemon, tmp_path: Path
) -> None:
    async with opened(kind, shared, tmp_path) as sandbox:
        events = [event async for event in sandbox.stream("import sys\nprint('a')\nprint('b', file=sys.stderr)")]
        told = [(event.stream, event.text) for event in events if isinstance(event, Output)]
        assert sorted(told) == [("stderr", "b\n"), ("stdout", "a\n")]
        assert isinstance(events[-1], Done)
        assert events[-1].execution.ok
        left = sandbox.stream("import time\nwhile True: print(1, flush=True); time.sleep(0.01)", timeout=60)
        async for _ in left:
            break
        await left.aclose()
        if kind == "connected":
            assert [one["status"] for one in await sandbox.invoke("runs.list") if one["status"] != "done"] == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_keeps_its_state_and_has_the_same_methods(kind: str, shared: Daemon, tmp_path: Path) -> None:
    async with opened(kind, shared, tmp_path) as sandbox, sandbox.session(name=f"mine-{kind}") as session:
        await session.run("x = 20")
        assert (await session.run("x + 1")).text == "21"
        assert (session.name, session.language, await session.get("x")) == (f"mine-{kind}", "python", 20)
        await session.set("y", {"a": [None, 1.5]})
        assert await session.get("y") == {"a": [None, 1.5]}
        assert {one.name for one in await session.variables()} == {"x", "y"}
        with pytest.raises(InvalidArgument):
            await session.get("nothing")
        with pytest.raises(InvalidArgument):
            sandbox.session(name=f"mine-{kind}")
        found = await sandbox.sessions.get(f"mine-{kind}")
        assert found.id == session.id
        async with sandbox.session() as other:
            assert await sandbox.sessions.bridge("x", session.id, other) == 20
            assert {one.id for one in await sandbox.sessions.list()} >= {session.id, other.id}
        events = [event async for event in session.stream("print(x)\nx")]
        assert isinstance(events[-1], Done)
        await session.reset()
        assert await session.variables() == []
        await session.close()
        with pytest.raises((SandboxClosed, InvalidArgument)):
            await session.run("1")


@pytest.mark.parametrize("kind", KINDS)
async def test_files_of_a_session_go_both_ways(kind: str, shared: Daemon, tmp_path: Path) -> None:
    large = os.urandom(3 << 20)
    (tmp_path / "large.bin").write_bytes(large)
    async with opened(kind, shared, tmp_path) as sandbox, sandbox.session() as session:
        await session.files.write("a/b.txt", "täxt")
        await session.files.write("c.bin", b"\x00\xff")
        await session.files.upload(tmp_path / "large.bin")
        assert await session.files.read_text("a/b.txt") == "täxt"
        assert await session.files.read_bytes("c.bin") == b"\x00\xff"
        assert (await session.files.info("c.bin")).size == 2
        assert await session.files.read_bytes("/workspace/large.bin") == large
        assert {(one.name, one.kind) for one in await session.files.list()} >= {("a", "folder"), ("c.bin", "file")}
        await session.files.download("large.bin", tmp_path / "back.bin")
        assert (tmp_path / "back.bin").read_bytes() == large
        packed = await session.files.pack("", tmp_path / "all.tar", top="all")
        assert (packed.files, packed.is_whole, packed.left_out) == (3, True, ())
        assert await session.files.unpack(tmp_path / "all.tar", "copy") == packed
        assert await session.files.read_bytes("copy/all/c.bin") == b"\x00\xff"
        await session.files.remove("c.bin")
        with pytest.raises(InvalidArgument):
            await session.files.read_bytes("c.bin")
        with pytest.raises(InvalidArgument):
            await session.files.read_bytes("../../etc/passwd")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_and_a_run_are_begun_with_files_of_any_size(kind: str, shared: Daemon, tmp_path: Path) -> None:
    large = os.urandom(3 << 20)
    (tmp_path / "large.bin").write_bytes(large)
    files = {"large.bin": tmp_path / "large.bin", **{f"{n}.txt": "x" * 100_000 for n in range(20)}}
    code = "import os\nprint(sorted((one, os.path.getsize(one)) for one in os.listdir() if '.' in one))"
    async with opened(kind, shared, tmp_path) as sandbox:
        expected = repr(sorted([("large.bin", 3 << 20), *((f"{n}.txt", 100_000) for n in range(20))]))
        async with sandbox.session(files=files) as session:
            assert (await session.run(code)).text == expected
            assert await session.files.read_bytes("large.bin") == large
        assert (await sandbox.start(code, files=files).wait()).text == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_what_of_a_copied_folder_is_at_fault_is_told(kind: str, shared: Daemon, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "all.tar"
    async with opened(kind, shared, tmp_path) as sandbox, sandbox.session() as session:
        await session.files.write("a", "1")
        for packed, argument in ((("missing", tmp_path / "all.tar"), "path"), (("", nowhere), "target")):
            with pytest.raises(InvalidArgument) as caught:
                await session.files.pack(*packed)
            assert caught.value.argument == argument
        with pytest.raises(InvalidArgument) as caught:
            await session.files.unpack(nowhere)
        assert caught.value.argument == "source"
        with pytest.raises(Unavailable, match="archive cannot be written"):
            await session.files.pack("", "/dev/full")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_goes_on_without_its_caller_and_is_attached_to(kind: str, shared: Daemon, tmp_path: Path) -> None:
    async with opened(kind, shared, tmp_path) as sandbox, sandbox.session() as session:
        run = session.start("import time\nfor n in range(3): print(n, flush=True); time.sleep(0.01)")
        assert (await run.wait()).stdout == "0\n1\n2\n"
        again = await session.attach(run.id)
        first = [event async for event in again.stream()]
        assert [event async for event in again.stream(len(first) - 1)] == first[-1:]
        with pytest.raises(InvalidArgument):
            await session.attach("0" * 32)
        slow = session.start("import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)", timeout=60)
        async for _ in slow.stream():
            break
        else:
            raise AssertionError
        await slow.cancel()
        assert not (await slow.wait()).ok
        alone = sandbox.start("print('alone')")
        assert (await alone.wait()).stdout == "alone\n"


@pytest.mark.parametrize("kind", KINDS)
async def test_interrupting_ends_a_step_and_keeps_its_state(kind: str, shared: Daemon, tmp_path: Path) -> None:
    async with opened(kind, shared, tmp_path) as sandbox, sandbox.session() as session:
        await session.run("x = 1")
        stream = session.stream("import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)", timeout=60)
        async for event in stream:
            if isinstance(event, Output):
                session.interrupt()
            if isinstance(event, Done):
                assert not event.execution.ok
        assert await session.get("x") == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answer", ["approve", "deny", "decide"])
async def test_what_asks_is_an_event_that_can_be_answered(
    kind: str, answer: str, shared: Daemon, tmp_path: Path
) -> None:
    async with opened(kind, shared, tmp_path) as sandbox, sandbox.session() as session:
        async for event in session.stream("!echo crossed"):
            if isinstance(event, ApprovalRequest):
                assert (event.kind, event.arguments["command"]) == ("shell", "echo crossed")
                assert [one.id for one in sandbox.approvals.pending()] == [event.id]
                if answer == "approve":
                    assert await event.approve() is True
                    assert await event.approve() is False
                elif answer == "deny":
                    assert await event.deny("not today") is True
                else:
                    assert sandbox.approvals.decide(event.id, True) is True
            if isinstance(event, Done):
                assert ("crossed\n" in event.execution.stdout) is (answer != "deny")
        assert sandbox.approvals.pending() == []


def test_the_blocking_facade_connects_too_also_inside_a_running_loop(shared: Daemon) -> None:
    program = """
import asyncio
from casemate.sync import Sandbox

def use():
    with Sandbox.connect(start=False) as sandbox:
        print(sandbox.run("print(2 + 2)").stdout, end="")
        with sandbox.session() as session:
            session.run("x = 20")
            print(session.run("x + 1").text, session.get("x"))
            for event in session.stream("!echo crossed"):
                if hasattr(event, "approve"):
                    print(event.approve(), len(sandbox.approvals.pending()))
            print([type(one).__name__ for one in sandbox.sessions.list()])

async def main():
    use()

use()
asyncio.run(main())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], env=shared.env, capture_output=True, text=True, timeout=MAX_WAIT, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout == "4\n21 20\nTrue 0\n['Session']\n" * 2


async def test_two_connections_share_sessions_and_namespaces_do_not(shared: Daemon) -> None:
    one, other = ConnectedSandbox(await shared.connect()), ConnectedSandbox(await shared.connect())
    elsewhere = ConnectedSandbox(await connect(environ=shared.env, start=False, namespace="elsewhere"))
    session = one.session(name="shared-by-two")
    await session.run("x = 1")
    assert await (await other.sessions.get("shared-by-two")).get("x") == 1
    with pytest.raises(InvalidArgument):
        await elsewhere.sessions.get("shared-by-two")
    await session.close()
    for sandbox in (one, other, elsewhere):
        await sandbox.close()


async def until_over(events: Any, run: str) -> AsyncIterator[Any]:
    async for event in events:
        yield event
        if event.run == run and event.name == "execution.completed":
            await events.aclose()
            return


@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_shows_itself_alike(kind: str, shared: Daemon, tmp_path: Path) -> None:
    async with opened(kind, shared, tmp_path) as sandbox:
        async with sandbox.session("shell", name="<b>") as session:
            assert repr(session) == f"<Session '<b>' shell {session.id}>"
            shown = session._repr_mimebundle_()
            assert shown["text/plain"] == f"Session\nname: <b>\nlanguage: shell\nhandle: {session.id}\nstate: open"
            assert "&lt;b&gt;" in shown["text/html"]
        assert repr(session).endswith(" closed>")
        assert session._repr_mimebundle_()["text/plain"].endswith("state: closed")


def test_a_session_without_await_shows_itself_alike(tmp_path: Path) -> None:
    with sync.Sandbox(audit=tmp_path / "audit.db", preload=()) as sandbox, sandbox.session("shell", name="<b>") as one:
        assert repr(one) == f"<Session '<b>' shell {one.id}>"
        assert one._repr_mimebundle_() == one.asynchronous._repr_mimebundle_()
