"""The catalogue: what is described of each operation, and that arguments are refused before its method runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import reference
from tests.operations.conftest import AGENT, OPERATOR

from casemate.errors import Denied, InvalidArgument, NotFound
from casemate.model.operation import Audience, Principal, operation
from casemate.operations.catalogue import Operation, catalogue
from casemate.operations.invoke import Invoke, local
from casemate.operations.operations import Operations
from casemate.remote.client import _RESUMABLE
from casemate.surfaces.http.app import _ANSWERS

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = sorted(catalogue())
AGENTS = {
    "web.browse", "web.fetch", "web.search",
    "archives.drop", "archives.pack", "archives.unpack", "artifacts.list", "artifacts.read", "audit.tail",
    "evidence.pack", "evidence.statement",
    "egress.request", "files.info", "files.list", "files.read", "files.remove", "files.write", "host.access",
    "host.copy", "host.exec", "host.list", "host.read", "host.request_access", "host.write", "inspect",
    "packages.install", "packages.list", "plans.get", "plans.run", "plans.start", "run", "runs.cancel", "runs.get",
    "runs.list", "runs.read", "runs.start", "runs.stream", "runs.wait", "runtimes", "sessions.apply", "sessions.bridge",
    "sessions.close", "sessions.diff", "sessions.discard", "sessions.get",
    "sessions.interrupt", "sessions.list", "sessions.open", "sessions.reset", "sessions.set",
    "sessions.variables", "set_limits", "stats", "tools.describe", "tools.list", "tools.problems", "tools.register",
    "tools.search", "validate",
}  # fmt: skip


@pytest.mark.parametrize("names", [_ANSWERS, _RESUMABLE], ids=["answers", "resumable"])
def test_operations_that_are_treated_apart_are_named_as_they_are_called(names: frozenset[str]) -> None:
    assert names <= catalogue().keys()


async def called(invoke: Invoke, name: str, arguments: dict[str, Any]) -> object:
    if not catalogue()[name].streams:
        return await invoke(name, arguments)
    return [event async for event in invoke.stream(name, arguments)]


class Never:
    """Something whose attributes nobody may use, but for those that are given."""

    def __init__(self, **given: Any) -> None:
        self.__dict__ = given

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of the operations was used")


def never(operations: Operations) -> Any:
    """A operations on which nothing may be called."""
    return Never(sandbox=Never(limits=operations.sandbox.limits, namespace=operations.sandbox.namespace))


@pytest.fixture
def strict(operations: Operations) -> Invoke:
    """Operations whose methods fail the test when they are called."""
    return local(never(operations), OPERATOR)


def values(schema: dict[str, Any], whole: dict[str, Any]) -> Any:
    """A value that a schema allows."""
    if "$ref" in schema:
        return values(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "anyOf" in schema:
        return values(schema["anyOf"][0], whole)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "integer":
            return max(1, schema.get("minimum", 1))
        case "number":
            return max(1.0, schema.get("minimum", 1.0))
        case "boolean":
            return True
        case "array":
            return []
        case "object":
            return {name: values(schema["properties"][name], whole) for name in schema.get("required", [])}
    return "x"


def good(name: str) -> dict[str, Any]:
    schema = catalogue()[name].params_schema()
    return {wanted: values(schema["properties"][wanted], schema) for wanted in schema.get("required", [])}


def bounds(name: str) -> list[tuple[str, Any]]:
    """Values just outside of what each argument may be."""
    found: list[tuple[str, Any]] = []
    schema = catalogue()[name].params_schema()
    for argument, about in schema["properties"].items():
        for one in about.get("anyOf", [about]):
            found += [(argument, one["minimum"] - 1)] if "minimum" in one else []
            found += [(argument, one["maximum"] * 2)] if "maximum" in one else []
            found += [(argument, "x" * (one["maxLength"] + 1))] if one.get("maxLength", 1 << 30) <= 1 << 20 else []
            found += [(argument, ["x"] * (one["maxItems"] + 1))] if "maxItems" in one else []
            found += (
                [(argument, {str(n): {} for n in range(one["maxProperties"] + 1)})] if "maxProperties" in one else []
            )
            found += [(argument, "no such word")] if "enum" in one else []
        if "anyOf" not in about or all(one.get("type") != "boolean" for one in about["anyOf"]):
            found += [(argument, {"an": {"object": 1}})] if about.get("type") in ("string", "number", "integer") else []
    return found


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_argument_that_is_not_known_is_refused_before_anything_is_done(strict: Invoke, name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await called(strict, name, {**good(name), "unknown": 1})
    assert refused.value.argument == "unknown"


@pytest.mark.parametrize("name", OPERATIONS)
async def test_nobody_says_for_himself_who_calls(strict: Invoke, name: str) -> None:
    for argument in ("principal", "operations", "self"):
        with pytest.raises(InvalidArgument):
            await called(strict, name, {**good(name), argument: {"name": "user", "audience": "operator"}})


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        pytest.param(name, *pair, id=f"{name}-{pair[0]}-{n}")
        for name in OPERATIONS
        for n, pair in enumerate(bounds(name))
    ],
)
async def test_a_value_out_of_bounds_is_refused_before_anything_is_done(
    strict: Invoke, name: str, argument: str, value: Any
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await called(strict, name, {**good(name), argument: value})
    assert refused.value.argument == argument
    assert len(refused.value.message) < 1000


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_agent_may_call_exactly_what_is_for_agents(operations: Operations, name: str) -> None:
    agent = local(never(operations), AGENT)
    expected = AssertionError if name in AGENTS else Denied
    with pytest.raises(expected) as raised:
        await called(agent, name, good(name))
    if expected is Denied:
        assert name in str(raised.value)
        assert "operator" in str(raised.value)


async def test_what_is_wanted_and_missing_is_named(strict: Invoke) -> None:
    for name in OPERATIONS:
        for wanted in good(name):
            arguments = {**good(name)}
            del arguments[wanted]
            with pytest.raises(InvalidArgument) as refused:
                await called(strict, name, arguments)
            assert refused.value.argument in good(name)


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_name_that_is_not_known_is_told_before_one_that_is_missing(strict: Invoke, name: str) -> None:
    for wanted in good(name):
        arguments = {one: value for one, value in good(name).items() if one != wanted}
        with pytest.raises(InvalidArgument) as refused:
            await called(strict, name, {**arguments, f"{wanted}x": 1})
        assert refused.value.argument == f"{wanted}x"
        assert f"; did you mean {wanted}?" in refused.value.message
        assert wanted in refused.value.remediation


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_wrong_value_is_told_with_what_the_argument_is(strict: Invoke, name: str) -> None:
    for wanted, field in catalogue()[name].params.model_fields.items():
        if wanted != "value":  # any JSON value is right
            with pytest.raises(InvalidArgument) as refused:
                await called(strict, name, {**good(name), wanted: [[]]})
            assert refused.value.argument == wanted
            assert refused.value.remediation == f"{wanted} of {name}: {field.description}"


async def test_an_operation_that_there_is_not_is_not_found(agent: Invoke) -> None:
    for name in ("nothing", "runs.__init__", "runs._state", "sandbox.close", "kept.close", "", "run.", "close"):
        with pytest.raises(NotFound):
            await agent(name)


async def test_a_stream_is_not_called_and_a_call_not_streamed(agent: Invoke) -> None:
    with pytest.raises(InvalidArgument):
        await agent("runs.stream", {"run": "x"})
    with pytest.raises(InvalidArgument):
        await anext(agent.stream("runs.list"))


def test_a_principal_of_another_namespace_is_refused(operations: Operations) -> None:
    with pytest.raises(InvalidArgument):
        local(operations, Principal("user", Audience.OPERATOR, "elsewhere"))


@pytest.mark.parametrize("one", catalogue().values(), ids=OPERATIONS)
def test_everything_is_described_and_bounded(one: Operation) -> None:
    assert one.summary
    assert "``" not in one.description
    schema = one.params_schema()
    assert schema["additionalProperties"] is False
    for name, about in schema["properties"].items():
        assert about["description"], name
        for kind in about.get("anyOf", [about]):
            if "enum" in kind or "$ref" in kind or kind.get("type") in ("boolean", "null", None):
                continue
            limit = {"string": "maxLength", "array": "maxItems", "object": "maxProperties"}.get(kind["type"], "maximum")
            assert limit in kind, name


@pytest.mark.parametrize("one", catalogue().values(), ids=OPERATIONS)
def test_a_part_takes_only_sessions_that_the_caller_may_see(one: Operation) -> None:
    """A part looks up sessions by id without checking the caller, so invoking must resolve the given handles."""
    if one.place.startswith("sandbox."):
        assert {"session", "source", "target"} & one.params.model_fields.keys() <= set(one.sessions)


def test_what_is_not_marked_is_no_operation() -> None:
    class Group:
        async def hidden(self) -> None:
            """Not marked."""

        @operation()
        async def shown(self) -> None:
            """Marked."""

    from casemate.model.operation import mark_of

    assert mark_of(Group.hidden) is None
    mark = mark_of(Group.shown)
    assert mark is not None
    assert mark.audience is Audience.OPERATOR


def test_the_table_is_current() -> None:
    written = json.loads((ROOT / reference.TABLE).read_text(encoding="utf-8"))
    assert written == json.loads(reference.table()), "the interface has changed: run python -m tests.reference"


def test_the_reference_is_current() -> None:
    for path, page in ((reference.PAGE, reference.page()), (reference.PYTHON, reference.python_page())):
        assert (ROOT / path).read_text(encoding="utf-8") == page, (
            f"a docstring has changed: python -m tests.reference ({path})"
        )


@pytest.mark.parametrize("path", sorted({path for path, _ in reference.BLOCKS}))
def test_what_other_pages_have_of_definitions_is_current(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text == reference.with_blocks(path, text), "a definition has changed: run python -m tests.reference"


@pytest.mark.full
def test_both_are_written_by_one_command(tmp_path: Path) -> None:
    for path in (reference.PAGE, reference.TABLE):
        (tmp_path / path).parent.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "tests.reference", str(tmp_path)], check=True)
    assert (tmp_path / reference.TABLE).read_text() == (ROOT / reference.TABLE).read_text()


def test_documents_and_operations_load_no_pydantic() -> None:
    program = (
        "import sys, casemate.operations.documents, casemate.operations.operations, casemate.operations.invoke;"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
