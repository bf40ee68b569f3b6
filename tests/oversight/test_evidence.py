"""The record and the operator's key prove afterwards what ran."""

from __future__ import annotations

import copy
import json
import pickle
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from casemate import Execution, NotFound, Sandbox, sync
from casemate.evidence.keys import Signer, own_signer
from casemate.evidence.pack import check_pack, check_statement
from casemate.evidence.statement import to_json
from casemate.model.operation import Audience, Principal
from casemate.operations.invoke import local
from casemate.operations.operations import Operations

SECRET = "s3cr3t-value-1234"
CODE = """
import os, sys
os.makedirs('output', exist_ok=True)
open('output/a.csv', 'w').write('1,2')
print(os.environ['TOKEN'], open('given.txt').read(), sys.stdin.read())
"""


@pytest.fixture(autouse=True)
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Keys of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def signer_of(environ: dict[str, str]) -> Signer:
    return own_signer(environ)


def said_in(envelope: dict[str, Any], environ: dict[str, str]) -> dict[str, Any]:
    return check_statement(to_json(envelope), signer_of(environ).public_keys())[0]


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()


async def run_it(sandbox: Sandbox) -> Execution:
    await sandbox.vault.set("TOKEN", SECRET)
    return await sandbox.run(
        CODE, secrets=["TOKEN"], files={"given.txt": "given"}, stdin="standard", metadata={"ticket": 7}
    )


async def test_a_run_is_stated_with_what_it_depended_on_and_what_it_gave_and_without_secrets(
    environ: dict[str, str], tmp_path: Path
) -> None:
    async with Sandbox() as sandbox:
        execution = await run_it(sandbox)
        envelope = execution.statement()
        assert envelope == await sandbox.evidence.statement(execution.id)
        assert await sandbox.evidence.save(execution.id, tmp_path / "run.zip", [execution]) == []
        assert [event.name for event in await _events(sandbox)].count("artifact.signed") == 1
    statement = said_in(envelope, environ)
    assert execution.stdout == "[SECRET:TOKEN] given standard\n" or "given standard" in execution.stdout
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert subjects["stdout"] == digest_of(execution.stdout)
    assert subjects["artifacts/output/a.csv"] == digest_of("1,2")
    built = statement["predicate"]["buildDefinition"]
    needed = {one["name"]: one["digest"]["sha256"] for one in built["resolvedDependencies"]}
    assert needed.keys() == {"code", "stdin", "inputs/given.txt", "environment", "policy", "wall"}
    assert (needed["code"], needed["stdin"]) == (digest_of(CODE), digest_of("standard"))
    assert needed["inputs/given.txt"] == digest_of("given")
    assert built["externalParameters"]["secrets"] == ["TOKEN"]
    with zipfile.ZipFile(tmp_path / "run.zip") as pack:
        held = b"".join(pack.read(name) for name in pack.namelist())
        assert digest_of(pack.read(f"runs/{execution.id}/wall").decode()) == needed["wall"]
    assert SECRET.encode() not in held
    assert SECRET not in json.dumps(statement)
    with (tmp_path / "run.zip").open("rb") as file:
        check_pack(file, signer_of(environ).public_keys())


async def _events(sandbox: Sandbox) -> list[Any]:
    found = []
    async for event in sandbox.audit.events(after=0):
        found.append(event)
        if event.name == "artifact.signed":
            break
    return found


async def test_an_outcome_is_stated_also_when_its_sandbox_is_closed_and_copied_without(environ: dict[str, str]) -> None:
    async with Sandbox() as sandbox:
        execution = await sandbox.run("print(1)")
    assert said_in(execution.statement(), environ)["predicate"]["casemate_outcome"]["status"] == "ok"
    assert copy.deepcopy(execution) == pickle.loads(pickle.dumps(execution)) == execution


async def test_what_another_environment_or_policy_changes_shows_in_the_digests(environ: dict[str, str]) -> None:
    async def digests(**options: Any) -> dict[str, str]:
        async with Sandbox(**options) as sandbox:
            statement = said_in((await sandbox.run("print(1)")).statement(), environ)
        needed = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        return {one["name"]: one["digest"]["sha256"] for one in needed}

    plain, again, bound = await digests(), await digests(), await digests(policy={"limits": {"processes": 20}})
    assert plain == again
    assert {name for name in plain if plain[name] != bound[name]} == {"policy"}
    assert (await digests(environment="/usr/bin/python3"))["environment"] != plain["environment"]


async def test_a_pack_on_a_session_has_each_step(environ: dict[str, str], tmp_path: Path) -> None:
    async with Sandbox() as sandbox:
        async with sandbox.session() as session:
            steps = [await session.run("x = 20"), await session.run("x + 1")]
        other = await sandbox.run("print(2)")
        await sandbox.evidence.save(session.id, tmp_path / "session.zip", steps)
    with (tmp_path / "session.zip").open("rb") as file:
        manifest, _ = check_pack(file, signer_of(environ).public_keys())
    assert manifest["predicate"]["statements"] == [one.id for one in steps]
    with zipfile.ZipFile(tmp_path / "session.zip") as pack:
        assert pack.read(f"runs/{steps[1].id}/code") == b"x + 1"
        assert other.id.encode() not in pack.read("record.jsonl")


OF = {True: Principal("mine", Audience.AGENT), False: Principal("user", Audience.OPERATOR)}


async def test_an_agent_has_evidence_on_its_own_runs_alone(environ: dict[str, str], tmp_path: Path) -> None:
    async with Sandbox() as sandbox, Operations(sandbox) as operations:
        mine, other = (local(operations, Principal(name, Audience.AGENT)) for name in ("mine", "other"))
        state = await mine("runs.start", {"code": "open('a', 'w').write('A')", "session": "new", "wait": 60})
        assert said_in(await mine("evidence.statement", {"run": state["run"][:8]}), environ)
        for of in (state["run"], state["session"]):
            assert (await mine("evidence.pack", {"of": of}))["size"] > 1000
            with pytest.raises(NotFound):
                await other("evidence.pack", {"of": of})
        with pytest.raises(NotFound):
            await other("evidence.statement", {"run": state["run"]})
        operator = local(operations, Principal("user", Audience.OPERATOR))
        step = await operator("runs.start", {"code": "'mine alone'", "session": state["session"], "wait": 60})
        for invoke, runs in ((mine, {state["run"]}), (operator, {state["run"], step["run"]})):
            packed = await invoke("evidence.pack", {"of": state["session"]})
            (tmp_path / "s.zip").write_bytes(
                b"".join([piece async for piece in operations.archives.chunks(packed["handle"], OF[invoke is mine])])
            )
            with zipfile.ZipFile(tmp_path / "s.zip") as pack:
                assert json.loads(pack.read("evidence.json"))["runs"].keys() - {state["session"]} == runs


def test_without_await_it_is_the_same(environ: dict[str, str], tmp_path: Path) -> None:
    with sync.Sandbox() as sandbox:
        execution = sandbox.run("print(1)")
        assert sandbox.evidence.statement(execution.id) == execution.statement()
        assert sandbox.evidence.save(execution.id, tmp_path / "run.zip", [execution]) == []
