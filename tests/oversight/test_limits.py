"""Limits that are changed while a sandbox is there, within what it was made with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casemate import InvalidArgument, Limits, Sandbox, SandboxClosed, sync

MIB = 1 << 20


async def test_limits_are_lowered_for_later_runs_and_raised_again_up_to_the_most(tmp_path: Path) -> None:
    made = Limits(memory="256MiB", wall=30, processes=40)
    async with Sandbox(limits=made, audit=tmp_path / "audit.db") as sandbox:
        assert await sandbox.set_limits() == made
        now = await sandbox.set_limits(wall=0.5, memory="128MiB")
        assert (now.wall, now.memory, now.processes) == (0.5, 128 * MIB, 40)
        late = await sandbox.run("import time; time.sleep(20)", timeout=None)
        assert late.status == "timeout"
        assert (await sandbox.explain("1", limits=Limits(memory="200MiB"))).limits.memory == 128 * MIB
        assert (await sandbox.set_limits(wall=30, memory="256MiB")) == made
        assert (await sandbox.explain("1")).limits == made


BEYOND: list[tuple[dict[str, Any], str]] = [
    ({"memory": "257MiB"}, "256 MiB"), ({"wall": 31}, "30"), ({"processes": 41}, "40"), ({"cpus": 1.5}, "1"),
    ({"output": "2MiB"}, "1 MiB"), ({"open_files": 2000}, "1024"), ({"cpu_time": 0}, "5"), ({"cpu_time": 6}, "5"),
    ({"wall": 5, "inodes": 30000}, "20000"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "most"), BEYOND, ids=[str(given) for given, _ in BEYOND])
async def test_what_is_beyond_the_most_changes_nothing_and_is_named(
    tmp_path: Path, given: dict[str, Any], most: str
) -> None:
    made = Limits(memory="256MiB", wall=30, processes=40, cpu_time=5)
    async with Sandbox(limits=made, audit=tmp_path / "audit.db") as sandbox:
        with pytest.raises(InvalidArgument, match="what the sandbox was made with") as raised:
            await sandbox.set_limits(**given)
        assert raised.value.argument == f"limits.{list(given)[-1]}"
        assert most in raised.value.problem
        assert await sandbox.set_limits() == made


async def test_the_most_of_a_policy_is_told_with_its_line(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("limits:\n  memory: 128MiB\n")
    async with Sandbox(policy=policy, limits=Limits(memory="1GiB", wall=9), audit=tmp_path / "audit.db") as sandbox:
        with pytest.raises(InvalidArgument, match=r"policy\.yaml.*2"):
            await sandbox.set_limits(memory="129MiB")
        with pytest.raises(InvalidArgument, match="what the sandbox was made with"):
            await sandbox.set_limits(wall=10)


async def test_a_limit_on_cpu_time_comes_and_goes(sandbox: Sandbox) -> None:
    assert (await sandbox.set_limits(cpu_time=2)).cpu_time == 2
    assert (await sandbox.set_limits(cpu_time=0)).cpu_time is None


async def test_a_session_that_is_open_keeps_the_limits_that_it_began_with(tmp_path: Path) -> None:
    async with Sandbox(limits=Limits(wall=30), audit=tmp_path / "audit.db") as sandbox, sandbox.session() as before:
        await sandbox.set_limits(wall=7)
        async with sandbox.session() as after:
            assert (await sandbox.inspect(before)).limits.wall == 30
            assert (await sandbox.inspect(after)).limits.wall == 7
    with pytest.raises(SandboxClosed):
        await sandbox.set_limits(wall=8)


def test_everything_is_there_without_await(tmp_path: Path) -> None:
    with sync.Sandbox(audit=tmp_path / "audit.db") as sandbox:
        assert sandbox.validate("1").verdict == "pass"
        assert sandbox.set_limits(wall=20).wall == 20
        run = sandbox.run("open('x', 'w').write('y')")
        assert sandbox.artifacts.read(run.id, "x") == b"y"
        assert [artifact.name for artifact in sandbox.artifacts.list(run.id)] == ["x"]
        with sandbox.session(name="s") as session:
            assert sandbox.inspect(session).id == sandbox.inspect("s").id == session.id
            assert sandbox.packages.list(session=session) == ()
        assert [row.kind for row in sandbox.audit.tail(1)] == ["session"]
        assert sandbox.audit.verify().ok
        assert sandbox.stats().totals.executions >= 1
        assert {one.language for one in sandbox.runtimes()} == {"python", "node", "shell"}
        assert not sandbox.egress.request("example.test").allowed
