"""The plan of a cell, told by a service: the same object as of a sandbox of this process, and no secret in it."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tests.service.daemon import Daemon
from tests.service.test_connected import opened
from tests.service.test_connected_parts import alike

from casemate import InvalidArgument, Limits, sync
from casemate.errors import Denied
from casemate.model.plan import Plan, ReadyStart
from casemate.operations.documents import document_fields
from casemate.remote.facade import ConnectedSandbox

GIVEN: tuple[dict[str, Any], ...] = (
    {},
    {"timeout": None, "limits": Limits(wall=7.5, memory="64MiB")},
    {"language": "node"},
    {"language": "shell", "arguments": ["one", "two words"], "program_name": "named.sh"},
    {"env": {"NAME": "välue"}, "stdin": b"line\n", "files": {"a/b.txt": "täxt", "c": b"\xff"}},
    {"program_name": "named.py", "arguments": ("x",), "secrets": ["TOKEN"]},
)


@pytest.mark.parametrize("given", GIVEN, ids=[",".join(one) or "plain" for one in GIVEN])
async def test_what_a_service_plans_is_what_a_sandbox_plans(
    given: dict[str, Any], shared: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "given").write_bytes(b"x" * 200_000)
    plans: list[Plan] = []
    for kind in ("local", "connected"):
        async with opened(kind, shared, tmp_path) as sandbox:
            await sandbox.vault.set("TOKEN", "a-secret-value")
            files = {"large": tmp_path / "given", **given.get("files", {})}
            plans.append(await sandbox.explain("print(1)  # ü", **{**given, "files": files}))
    local, connected = (replace(one, id="", secrets=names_of_secrets(one)) for one in plans)
    assert plans[0].secrets.names == plans[1].secrets.names == tuple(given.get("secrets", ()))
    if isinstance(local.waiting, ReadyStart):
        local = replace(local, waiting=replace(local.waiting, order=b""))
    for field in fields(Plan):
        assert getattr(connected, field.name) == getattr(local, field.name), field.name
    alike(local, connected, "plan")


def names_of_secrets(plan: Plan) -> Any:
    """In place of its secrets, whose values a service does not tell."""
    return plan.secrets.names


async def test_no_value_of_a_secret_is_in_what_a_service_tells(shared: Daemon, tmp_path: Path) -> None:
    async with opened("connected", shared, tmp_path) as sandbox:
        await sandbox.vault.set("TOKEN", "a-secret-value")
        told = await sandbox.invoke("explain", {"code": "print(1)", "secrets": ["TOKEN"]})
        assert told["secrets"] == ["TOKEN"]
        assert isinstance(told["waiting"], dict)  # whose order has all variables of the program
        assert "a-secret-value" not in json.dumps(told)
        plan = await sandbox.explain("print(1)", secrets=["TOKEN"])
        assert plan.secrets.reveal() == {"TOKEN": "***REDACTED***"}
        with pytest.raises(InvalidArgument):
            await sandbox.explain("print(1)", secrets=["NOBODY_HAS"])


async def test_what_lies_where_on_the_services_machine_is_not_for_agents(shared: Daemon) -> None:
    async with ConnectedSandbox(await shared.connect(agent="curious")) as sandbox:
        with pytest.raises(Denied):
            await sandbox.explain("print(1)")


def test_every_part_of_a_plan_is_told_or_left_out_on_purpose() -> None:
    left_out = {"code", "files", "stdin"}  # the caller's own arguments
    assert {field.name for field in fields(Plan)} - left_out == set(document_fields(Plan))
    assert "order" not in document_fields(ReadyStart)  # it has all variables of the program


async def test_a_limit_that_a_caller_has_narrowed_is_in_its_plan(shared: Daemon) -> None:
    async with ConnectedSandbox(await shared.connect(namespace="narrowing")) as sandbox:
        await sandbox.set_limits(memory="99MiB")
        plan = await sandbox.explain("print(1)", limits=Limits(memory="200MiB"))
        assert plan.limits.memory == 99 << 20


@pytest.mark.parametrize("kind", ["local", "connected"])
@pytest.mark.parametrize("how", ["run", "stream", "start"])
async def test_a_program_has_its_name_and_its_arguments(kind: str, how: str, shared: Daemon, tmp_path: Path) -> None:
    code = "import sys\nprint(sys.argv[1:], __file__.rpartition('/')[2])\nraise ValueError"
    given: Any = {"program_name": "named.py", "arguments": ("one", "two words", "ü")}
    async with opened(kind, shared, tmp_path) as sandbox:
        if how == "run":
            execution = await sandbox.run(code, **given)
        elif how == "start":
            execution = await sandbox.start(code, **given).wait()
        else:
            execution = [event async for event in sandbox.stream(code, **given)][-1].execution
        assert execution.stdout == "['one', 'two words', 'ü'] named.py\n"
        assert 'named.py", line 3' in execution.stderr
        with pytest.raises(InvalidArgument) as wrong:
            await sandbox.run(code, arguments="one text")
        assert wrong.value.argument == "arguments"


def test_the_blocking_facade_explains_and_names_programs_too(shared: Daemon) -> None:
    with sync.Sandbox.connect(f"unix://{shared.socket}") as sandbox:
        plan = sandbox.explain("print(1)")
        assert (type(plan), plan.code) == (Plan, b"print(1)")
        assert sandbox.run("import sys; print(sys.argv[1:])", arguments=["a"]).stdout == "['a']\n"
