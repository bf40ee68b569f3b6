"""Rooms of a connected sandbox beside those of a local one: values of the same classes, with the same in them."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.service.daemon import Daemon
from tests.service.test_connected import KINDS, opened, until_over

from casemate import Artifact, Done, EgressAnswer, InvalidArgument, Limits
from casemate.audit.chain import AuditRow, Head, Verdict
from casemate.audit.reading import AuditEvent
from casemate.errors import NotFound
from casemate.model.execution import Usage
from casemate.model.isolation import Proof
from casemate.model.overview import Inspection, InUse, RuntimeInfo, Stats, Totals, VariableInfo
from casemate.remote.facade import ConnectedSandbox

BOTH = pytest.mark.parametrize("kind", KINDS)


def alike(local: Any, connected: Any, where: str) -> None:
    """Both are made of the same classes all the way down, whatever they say; what one of them has not is left out."""
    if local is None or connected is None:
        return
    assert type(connected) is type(local), where
    if is_dataclass(local):
        for field in (one for one in fields(local) if one.repr):
            alike(getattr(local, field.name), getattr(connected, field.name), f"{where}.{field.name}")
    elif isinstance(local, Mapping):
        for name in local.keys() & connected.keys():
            alike(local[name], connected[name], f"{where}[{name!r}]")
    elif isinstance(local, list | tuple):
        for one, other in zip(local, connected, strict=False):
            alike(one, other, f"{where}[]")


@asynccontextmanager
async def narrowed(kind: str, shared: Daemon, folder: Path) -> AsyncIterator[Any]:
    """A sandbox whose limits nobody else has: those of a caller of its own, where it is a service's."""
    if kind == "local":
        async with opened(kind, shared, folder) as local:
            yield local
    else:
        async with ConnectedSandbox(await shared.connect(agent="narrowed")) as connected:
            yield connected


@BOTH
async def test_limits_are_narrowed_one_by_one_and_told(kind: str, shared: Daemon, tmp_path: Path) -> None:
    async with narrowed(kind, shared, tmp_path) as sandbox:
        before = await sandbox.set_limits()
        after = await sandbox.set_limits(memory="256MiB", wall=None, output=1000)
        assert type(before) is type(after) is Limits
        assert (after.memory, after.output) == (256 << 20, 1000)
        assert (after.wall, after.processes, after.disk) == (before.wall, before.processes, before.disk)
        cut = await sandbox.run("print('x' * 5000)")
        assert cut.truncated
        assert len(cut.stdout) < 5000
        with pytest.raises(InvalidArgument):
            await sandbox.set_limits(memory="much")
        with pytest.raises((TypeError, InvalidArgument)):
            await sandbox.set_limits(memroy="64MiB")


@BOTH
async def test_the_record_is_read_and_verified(kind: str, shared: Daemon, tmp_path: Path) -> None:
    async with opened(kind, shared, tmp_path) as sandbox:
        execution = await sandbox.run("print(1)")
        rows = await sandbox.audit.tail(10, run=execution.id)
        assert {type(row) for row in rows} == {AuditRow}
        assert [row.kind for row in rows] == ["outcome", "intent"]
        assert (rows[0].run, rows[0].previous) == (execution.id, rows[1].hash)
        assert rows == await sandbox.audit.tail(10, run=execution.id, since=rows[1].time)
        assert [row.kind for row in await sandbox.audit.tail(run=execution.id, kind="intent")] == ["intent"]
        verdict = await sandbox.audit.verify()
        assert (type(verdict), type(verdict.head)) == (Verdict, Head)
        assert verdict.ok is True
        assert verdict.rows >= 2
        events = [event async for event in until_over(sandbox.audit.events(after=0), execution.id)]
        assert {type(event) for event in events} == {AuditEvent}
        with pytest.raises(InvalidArgument):
            await sandbox.audit.tail(0)


@BOTH
@pytest.mark.parametrize("allow", [True, False])
async def test_a_host_is_asked_for_and_somebody_else_answers(
    kind: str, allow: bool, shared: Daemon, tmp_path: Path
) -> None:
    async with opened(kind, shared, tmp_path) as sandbox, opened("connected", shared, tmp_path) as connected:
        other = connected if kind == "connected" else sandbox
        name = f"{kind}-{allow}.example.test".lower()
        asking = asyncio.ensure_future(sandbox.egress.request(name, port=8443, reason="because"))
        while not (waiting := await asyncio.to_thread(other.approvals.pending)):
            await asyncio.sleep(0.01)
        (request,) = waiting
        assert (request.kind, request.arguments) == ("egress", {"host": name, "port": 8443})
        assert "because" in request.summary
        assert (await request.approve() if allow else await request.deny("not that one")) is True
        answer = await asking
        assert type(answer) is EgressAnswer
        assert (answer.domain, answer.port, answer.allowed, answer.expires) == (name, 8443, allow, None)
        assert (answer.scope, answer.reason) == (("once", "") if allow else ("", "not that one"))
        with pytest.raises(InvalidArgument):
            await sandbox.egress.request("no name")


@BOTH
async def test_what_goes_on_and_what_there_is_are_told(kind: str, shared: Daemon, tmp_path: Path) -> None:
    async with opened(kind, shared, tmp_path) as sandbox, sandbox.session(env={"NAME": "value"}) as session:
        await session.run("x = 1")
        stats = await sandbox.stats()
        assert (type(stats), type(stats.cells), type(stats.totals)) == (Stats, InUse, Totals)
        assert stats.sessions >= 1
        assert stats.totals.by_status["ok"] >= 1
        for asked in (session, session.id):
            found = await sandbox.inspect(asked)
            assert (type(found), type(found.limits), type(found.usage)) == (Inspection, Limits, Usage)
            assert (found.env["NAME"], found.variables) == ("value", (VariableInfo("x", "int"),))
            assert (found.packages, found.steps) == ((), {"ok": 1})
        with pytest.raises(InvalidArgument):
            await sandbox.inspect("nothing-of-that-name")
        runtimes = await sandbox.runtimes()
        assert {type(one) for one in runtimes} == {RuntimeInfo}
        (python,) = (one for one in runtimes if one.language == "python")
        assert python.available
        assert {type(proof) for proof in python.proofs} == {Proof}


@BOTH
async def test_files_of_a_run_are_listed_and_read_by_its_id(kind: str, shared: Daemon, tmp_path: Path) -> None:
    code = "open('a.txt', 'w').write('first'); open('ü b.bin', 'wb').write(bytes(range(256))); print('x' * 5000)"
    async with opened(kind, shared, tmp_path) as sandbox:
        execution = await sandbox.run(code, limits=Limits(output=1000))
        found = await sandbox.artifacts.list(execution.id)
        assert {type(one) for one in found} == {Artifact}
        assert execution.full_output is not None
        names = {"a.txt", "ü b.bin", execution.full_output.name}
        assert {one.name for one in found} == names
        assert found[-1].name == execution.full_output.name
        empty = await sandbox.run("print('no file')")
        assert await sandbox.artifacts.list(empty.id) == []
        assert {one.name: one.read_bytes() for one in found}["a.txt"] == b"first"
        assert await sandbox.artifacts.read(execution.id, "ü b.bin") == bytes(range(256))
        for run in (execution.id, empty.id, "0" * 32):
            with pytest.raises(NotFound):
                await sandbox.artifacts.read(run, "c.txt")
        with pytest.raises(NotFound):
            await sandbox.artifacts.list("0" * 32)


@BOTH
async def test_what_ran_is_stated_and_packed(
    kind: str, shared: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with opened(kind, shared, tmp_path) as sandbox:
        execution = await sandbox.run("open('a.txt', 'w').write('first')")
        (done,) = [one async for one in sandbox.stream("print(1)") if isinstance(one, Done)]
        for one in (execution, done.execution):
            envelope = await asyncio.to_thread(one.statement)
            assert envelope == await sandbox.evidence.statement(one.id)
            assert envelope["payloadType"] == "application/vnd.in-toto+json"
        assert await sandbox.evidence.save(execution.id, tmp_path / "run.zip") == []
        with zipfile.ZipFile(tmp_path / "run.zip") as pack:
            assert f"statements/{execution.id}.dsse.json" in pack.namelist()
        with pytest.raises(NotFound):
            await sandbox.evidence.statement("0" * 32)


async def test_every_value_is_made_of_the_same_classes_on_both_sides(shared: Daemon, tmp_path: Path) -> None:
    made: list[dict[str, Any]] = []
    for kind in KINDS:
        async with opened(kind, shared, tmp_path) as sandbox, sandbox.session() as session:
            made.append({
                "run": await session.run("x = 1\nopen('a', 'w').write('1')"),
                "error": await session.run("raise ValueError"),
                "inspect": await sandbox.inspect(session),
                "variables": await session.variables(),
                "runtimes": await sandbox.runtimes(),
                "validate": await sandbox.validate("import os; eval('1')"),
                "tail": await sandbox.audit.tail(20),
                "verify": await sandbox.audit.verify(),
                "doctor": await sandbox.doctor(),
                "packages": await sandbox.packages.list(),
                "removed": await sandbox.packages.remove(["alpha"]),
                "names": await sandbox.vault.names(),
                "injects": await sandbox.vault.injects(),
                "tools": await sandbox.tools.list(),
                "problems": await sandbox.tools.problems(),
            })  # fmt: skip
    local, connected = made
    for name, value in local.items():
        alike(value, connected[name], name)
