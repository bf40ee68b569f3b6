"""Each call is defined once, and what it does not take is answered with what was meant."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import casemate
from casemate import ApprovalRequest, InvalidArgument, Sandbox, Session, sync
from casemate.api.options import CellOptions, ProgramOptions, RunOptions, SandboxOptions, SessionOptions
from casemate.model.call_options import DecisionOptions, StepOptions
from casemate.model.limits import LimitOptions
from casemate.model.options import complete, defaults_of, docs_of

SOURCE = Path(casemate.__file__).parent
DEFINITIONS = (
    CellOptions, ProgramOptions, RunOptions, SessionOptions, SandboxOptions, StepOptions, DecisionOptions, LimitOptions,
)  # fmt: skip
NAMES = frozenset(defaults_of(RunOptions))
MOST = 4  # options of a run that one function or call may name besides the definition and its consumer
CONSUMER = "execution/request.py"  # makes a request from the options
OTHERS = {  # what has fields of its own with these names: the plan of a cell, a row of the record
    "execution/plan.py", "execution/record.py", "execution/wrapped.py", "walls/native/selftest.py",
}  # fmt: skip
COMMANDS = {"parameters.py", "plans.py", "run.py"}  # flags have names and values of their own
EXEMPT = {CONSUMER, *OTHERS, *(f"surfaces/cli/{name}" for name in COMMANDS)}


def repeated(path: Path) -> Iterator[str]:
    """Functions and calls that name several options of a run."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
        elif isinstance(node, ast.Call):
            names = {keyword.arg or "" for keyword in node.keywords}
        elif isinstance(node, ast.Dict):
            names = {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
        else:
            continue
        if len(names & NAMES) > MOST:
            yield f"{path.relative_to(SOURCE)}:{node.lineno} names {sorted(names & NAMES)}"


def test_the_options_of_a_run_are_written_out_once() -> None:
    places = {str(path.relative_to(SOURCE)): list(repeated(path)) for path in SOURCE.rglob("*.py")}
    assert [place for file, found in places.items() if file not in EXEMPT for place in found] == []
    assert {file for file in EXEMPT if not places[file]} == set(), "no longer needed: take it off the list"


@pytest.mark.parametrize("definition", DEFINITIONS)
def test_each_option_has_a_default_and_a_docstring(definition: type) -> None:
    assert set(defaults_of(definition)) == set(definition.__annotations__) == set(docs_of(definition))
    assert all(docs_of(definition).values())


@pytest.mark.parametrize(("owner", "methods", "definition"), [
    (Sandbox, ("run", "stream", "start", "plan", "explain"), RunOptions),
    (Sandbox, ("session",), SessionOptions),
    (Session, ("run", "stream", "start"), StepOptions),
    (ApprovalRequest, ("approve",), DecisionOptions),
    (sync.ApprovalRequest, ("approve",), DecisionOptions),
])  # fmt: skip
def test_a_signature_shows_each_option_with_its_default(
    owner: type, methods: tuple[str, ...], definition: type
) -> None:
    for method in methods:
        parameters = inspect.signature(getattr(owner, method)).parameters
        shown = {name: parameters[name].default for name in defaults_of(definition)}
        assert shown == defaults_of(definition), method


def test_all_unknown_options_are_named_at_once_with_what_was_meant() -> None:
    with pytest.raises(InvalidArgument) as raised:
        complete(RunOptions, {"lanuage": "python", "max_ram_mb": 5, "memory": 1, "nothing_like_it": 1}, "run")
    assert raised.value.argument == "lanuage"
    assert isinstance(raised.value, TypeError)
    assert "did you mean language?" in raised.value.message
    assert 'max_ram_mb: run takes no such argument; use limits=Limits(memory="512MiB") here' in raised.value.message
    assert "memory: run takes no such argument; use limits=Limits(memory=...) here" in raised.value.message
    assert "nothing_like_it" in raised.value.message


def test_a_type_checker_sees_each_public_name_where_the_running_program_finds_it() -> None:
    tree = ast.parse(Path(casemate.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and len(node.names) == 1]
    seen = {node.names[0].asname: node.module for node in imports if node.names[0].asname}
    assert seen == casemate._MODULE_OF


def test_names_of_other_sandboxes_are_answered_with_ours() -> None:
    with pytest.raises(AttributeError, match="use Sandbox here"):
        casemate.SandboxFactory  # noqa: B018
    with pytest.raises(AttributeError, match=r"use run\(code\) here"):
        Sandbox.__getattr__(None, "run_code")  # type: ignore[attr-defined]
    assert not hasattr(casemate, "nothing_like_it")


@pytest.mark.parametrize("kind", [Sandbox, sync.Sandbox])
def test_a_class_answers_names_of_other_sandboxes(kind: Any) -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'create'; use Sandbox\(\), or Sandbox.connect"):
        kind.create()


def test_defaults_are_filled_in() -> None:
    assert complete(RunOptions, {"timeout": 1.0}, "run") == {**defaults_of(RunOptions), "timeout": 1.0}


@pytest.mark.parametrize(
    "name",
    [
        "__init__",
        "connect",
        "explain",
        "from_env",
        "from_file",
        "inspect",
        "language_of",
        "plan",
        "run",
        "session",
        "set_limits",
        "start",
        "stream",
        "warm_up",
    ],
)
def test_a_method_documents_each_argument_in_google_style(name: str) -> None:
    method = getattr(Sandbox, name)
    arguments = (inspect.getdoc(method) or "").partition("Args:\n")[2].partition("\n\n")[0]
    documented = re.findall(r"^    \**(\w+): ", arguments, re.MULTILINE)
    code = inspect.unwrap(method).__code__
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    names = code.co_varnames[: count + bool(code.co_flags & inspect.CO_VARKEYWORDS)]
    assert set(documented) == set(names) - {"self", "cls"}
