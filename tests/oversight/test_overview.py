"""What a sandbox tells of itself: languages, what goes on, what a session has."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from casemate import InvalidArgument, Limits, Sandbox, SandboxClosed, WallUnavailable
from casemate.languages.node import runtime as node_runtime
from casemate.languages.shell import runtime as shell_runtime
from casemate.languages.shell.runtime import ShellRuntime
from casemate.version import how_to_install
from casemate.walls.native.wall import NativeWall

_HOLD = "import os, time\nopen('began', 'w')\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


async def test_each_language_is_told_with_its_interpreter_and_the_wall_that_is_proved(sandbox: Sandbox) -> None:
    found = {one.language: one for one in await sandbox.runtimes()}
    assert set(found) == {"python", "node", "shell"}
    for language in ("python", "shell"):
        one = found[language]
        assert one.available
        assert one.version.count(".") == 2
        assert os.access(one.executable, os.X_OK)
        assert one.wall == "native"
        assert one.proofs
        assert all(proof.held for proof in one.proofs)
        assert (one.problem, one.remedy) == ("", "")
    run = await sandbox.run("import platform\nprint(platform.python_version())")
    assert run.stdout.strip() == found["python"].version


async def test_a_language_that_is_missing_says_what_would_help(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell_runtime, "_find", lambda: None)
    monkeypatch.setattr(node_runtime.NodeRuntime, "_find", lambda _: None)
    found = {one.language: one for one in await sandbox.runtimes()}
    assert [found[language].available for language in ("python", "node", "shell")] == [True, False, False]
    assert found["node"].remedy == how_to_install("node")
    assert found["shell"].problem


async def test_without_a_wall_no_language_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_: NativeWall) -> None:
        raise WallUnavailable("no namespaces here", reason="user_namespaces", remediation="sysctl it")

    monkeypatch.setattr(NativeWall, "prove", refused)
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        found = await sandbox.runtimes()
    assert [(one.available, one.wall, one.proofs) for one in found] == [(False, "", ())] * 3
    assert {(one.problem, one.remedy) for one in found} == {("no namespaces here", "sysctl it")}
    assert all(one.executable for one in found)


async def test_the_environment_of_the_sandbox_is_the_one_that_is_told(tmp_path: Path) -> None:
    async with Sandbox(environment="/usr/bin/python3", audit=tmp_path / "audit.db") as sandbox:
        (python,) = [one for one in await sandbox.runtimes() if one.language == "python"]
        run = await sandbox.run("import platform, sys\nprint(platform.python_version(), sys.executable)")
    assert run.stdout.split() == [python.version, python.executable]
    assert python.source == "the sandbox's environment"


def test_a_shell_that_is_replaced_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = tmp_path / "bash"
    monkeypatch.setattr(shell_runtime, "_find", lambda: shell)
    shell.write_bytes(b"version 1.2.3")
    assert ShellRuntime().find_installation().version == "1.2.3"
    (tmp_path / "new").write_bytes(b"version 4.5.6")
    (tmp_path / "new").rename(shell)
    assert ShellRuntime().find_installation().version == "4.5.6"


async def test_what_runs_and_what_waits_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    async with Sandbox(
        workspace=folder, workspace_mode="direct", concurrency=2, audit=tmp_path / "audit.db"
    ) as sandbox:
        before = await sandbox.stats()
        assert (before.running, before.waiting, before.concurrency, before.totals.executions) == (0, 0, 2, 0)
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(sandbox.run(_HOLD)) for _ in range(5)]
            while (
                (now := await sandbox.stats()).waiting < 3 or now.cells.running < 2 or not (folder / "began").exists()
            ):
                await asyncio.sleep(0.01)
            assert (now.running, now.waiting) == (2, 3)
            in_use = (await sandbox.stats()).cells
            assert in_use.running >= 2
            assert in_use.processes >= in_use.running
            assert in_use.memory
            assert in_use.memory > 1 << 20
            assert in_use.cpu_seconds is not None
            assert "proc(5)" in in_use.mechanism
            runs[-1].cancel()
            while (await sandbox.stats()).waiting > 2:
                await asyncio.sleep(0.01)
            (folder / "go").touch()
        after = await sandbox.stats()
        assert (after.running, after.waiting, after.totals.by_status) == (0, 0, {"ok": 4})
        await sandbox.run("1 / 0")
        assert (await sandbox.stats()).totals.by_status == {"ok": 4, "failed": 1}
        assert (await sandbox.stats()).totals.peak_memory > 0


async def test_looking_at_stats_starts_nothing(tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        told = await sandbox.stats()
        assert (told.cells.running, told.cells.processes, told.cells.memory, told.approvals) == (0, 0, None, 0)
    with pytest.raises(SandboxClosed):
        await sandbox.stats()


async def test_sessions_and_approvals_that_wait_are_counted(tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "audit.db", policy={"rules": [{"ask": "shell"}]}) as sandbox:
        with sandbox.approvals.open():
            async with sandbox.session() as session, asyncio.TaskGroup() as group:
                step = group.create_task(session.run("!echo hello"))
                while not (pending := sandbox.approvals.pending()):
                    await asyncio.sleep(0.01)
                told = await sandbox.stats()
                assert (told.sessions, told.approvals) == (1, 1)
                await pending[0].approve()
            assert step.result().text == "hello"
        told = await sandbox.stats()
        assert (told.sessions, told.approvals) == (0, 0)


async def test_a_session_is_told_without_its_secrets(sandbox: Sandbox) -> None:
    await sandbox.vault.set("TOKEN", "s3cr3t-value-1234")
    env = {"PLAIN": "1", "URL": "https://user:s3cr3t-value-1234@example.test/"}
    limits = Limits(memory="256MiB", wall=20)
    async with sandbox.session(
        name="mine", secrets=["TOKEN"], env=env, limits=limits, cwd="sub", idle_timeout=600
    ) as session:
        await session.files.write("sub/x", b"")
        fresh = await sandbox.inspect("mine")
        assert fresh.steps == {}
        await session.run("secret = __import__('os').environ['TOKEN']; number = 5")
        await session.run("1 / 0")
        told = await sandbox.inspect(session)
        assert (told.id, told.name, told.language, told.is_busy) == (session.id, "mine", "python", False)
        assert told.env == {"PLAIN": "1", "URL": "https://user:[secret:TOKEN]@example.test/", "TOKEN": "***REDACTED***"}
        assert told.limits.memory == 256 << 20
        assert (told.cwd, told.network, told.idle_timeout) == ("/workspace/sub", "none", 600)
        assert told.variables is not None
        assert {(one.name, one.type) for one in told.variables} == {("secret", "str"), ("number", "int")}
        assert told.steps == {"ok": 1, "failed": 1}
        assert told.usage.peak_memory > 0
        assert 0 <= told.idle <= told.age
        assert "s3cr3t-value-1234" not in json.dumps(asdict(told))
        assert (await sandbox.inspect(session.id)).id == session.id
    with pytest.raises(InvalidArgument, match="no open session"):
        await sandbox.inspect("mine")


async def test_a_session_that_is_busy_is_told_without_waiting_for_it(sandbox: Sandbox) -> None:
    async with sandbox.session() as session:
        run = session.start(_HOLD)
        while not any(one.name == "began" for one in await session.files.list()):
            await asyncio.sleep(0.01)
        told = await sandbox.inspect(session)
        assert (told.is_busy, told.idle, told.variables, told.runs) == (True, 0.0, None, (run.id,))
        await session.files.write("go", b"")
        assert (await run.wait()).ok


async def test_a_session_without_an_interpreter_gets_none_by_being_looked_at(sandbox: Sandbox) -> None:
    async with sandbox.session() as session:
        before = (await sandbox.stats()).cells.running
        told = await sandbox.inspect(session)
        assert (told.variables, told.packages, told.runs) == (None, (), ())
        assert (await sandbox.stats()).cells.running == before
