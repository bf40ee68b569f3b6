"""What was promised of steps and programs, and has no test elsewhere."""

from __future__ import annotations

import inspect
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.mcp_server.conftest import OWN_SERVER

from casemate import ApprovalRequest, Decision, Done, InvalidArgument, Sandbox
from casemate.execution import admit, collect, context, plan, record, run, seal

OWN = {"own": {"command": sys.executable, "args": ["-S", str(OWN_SERVER), "good"]}}
CALL = "from mcptools.own.echo import run\nprint('came', run(word='hello'))"
ALLOW = {"rules": [{"allow": "tool", "server": "own", "tool": "echo", "arguments": "any"}]}


def test_each_step_takes_what_the_step_before_it_makes() -> None:
    steps: list[tuple[Any, str]] = [
        (admit.admit, "AdmittedRequest"), (plan.plan, "Plan"), (context.Planned, "Planned"), (run.run, "Finished"),
        (collect.collect, "Collected"), (seal.seal, "Execution"), (record.Record.note_execution, "Execution"),
    ]  # fmt: skip
    for (before, made), (after, _) in itertools.pairwise(steps):
        assert made in (inspect.signature(before).return_annotation, before.__name__)
        assert made in [one.annotation for one in inspect.signature(after).parameters.values()]


async def test_a_decision_in_one_namespace_is_none_in_another(tmp_path: Path) -> None:
    asked: list[str] = []

    def approve(request: ApprovalRequest) -> Any:
        asked.append(request.namespace)
        return Decision(True, scope="session") if request.namespace == "one" else False

    path = tmp_path / "audit.db"
    async with (
        Sandbox(audit=path, namespace="one", approve=approve) as one,
        Sandbox(audit=path, namespace="other", approve=approve) as other,
    ):
        assert (await one.egress.request("api.example.test")).allowed
        assert (await one.egress.request("api.example.test")).allowed
        assert not (await other.egress.request("api.example.test")).allowed
    assert asked == ["one", "other"]


async def test_each_kind_of_rich_output_reaches_the_caller_whole(sandbox: Sandbox) -> None:
    bundle = {
        "text/plain": "plain", "text/html": "<b>h</b>", "text/markdown": "**m**", "text/latex": "$l$",
        "image/svg+xml": "<svg/>", "application/json": {"j": [1]},
        "application/vnd.plotly.v1+json": {"data": []}, "application/vnd.vegalite.v5+json": {"mark": "bar"},
        "image/jpeg": "/9j/4AAQSkZJRg==",
    }  # fmt: skip
    async with sandbox.session() as session:
        execution = await session.run(f"from IPython.display import display\ndisplay({bundle!r}, raw=True)")
    (shown,) = execution.results
    assert dict(shown) == bundle


@pytest.mark.parametrize("language", ["python", "shell"])
async def test_a_step_that_waits_for_an_approval_is_cancelled_cleanly(tmp_path: Path, language: str) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox, sandbox.session(language) as session:
        assert (await session.run("kept = 7" if language == "python" else "kept=7")).ok
        sandbox.approvals.rules.set_default("shell", "ask")
        begun = session.start("print('before')\n!echo no" if language == "python" else "echo no")
        events = begun.stream()
        request = None
        async for event in events:
            if isinstance(event, ApprovalRequest):
                request = event
                await begun.cancel()
            if isinstance(event, Done):
                assert event.execution.status == "cancelled"
                assert "no" not in event.execution.stdout.replace("before", "")
        assert request is not None
        assert sandbox.approvals.pending() == []
        assert await session.get("kept") in (7, "7")


async def test_a_reset_keeps_the_tools(tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "audit.db", tools=OWN, policy=ALLOW) as sandbox, sandbox.session() as session:
        assert (await session.run(CALL)).stdout.startswith("came")
        await session.reset()
        again = await session.run(CALL)
    assert again.stdout.startswith("came"), again


async def test_code_that_was_saved_is_imported_by_later_steps_and_after_a_reset(sandbox: Sandbox) -> None:
    async with sandbox.session() as session:
        await session.files.write("actions/__init__.py", "")
        saved = await session.run("open('actions/sums.py', 'w').write('def run(values):\\n    return sum(values)\\n')")
        assert saved.ok
        use = "from actions.sums import run\nrun([40, 2])"
        first = await session.run(use)
        await session.reset()
        second = await session.run(use)
    assert [one.results[-1].text for one in (first, second)] == ["42", "42"]


TYPESCRIPT = """
enum Colour { Red = 1, Blue }
class Point { constructor(public x: number) {} }
console.log(Colour.Blue, new Point(3).x, process.argv[1]);
"""


@pytest.mark.needs("node-wheel")
@pytest.mark.parametrize("name", ["ts", "TypeScript"])
async def test_typescript_runs_with_all_that_it_has(tmp_path: Path, name: str) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        execution = await sandbox.run(TYPESCRIPT, language=name)
        assert (execution.stdout, execution.stderr) == ("2 3 /program/main.ts\n", "")
        with pytest.raises(InvalidArgument, match="a session's steps cannot be"):
            sandbox.session(language=name)


@pytest.mark.parametrize("name", ["py", "bash", "SH"])
async def test_the_names_that_people_use_for_a_language_are_taken_by_every_call(tmp_path: Path, name: str) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        assert (await sandbox.run("print(1)" if name == "py" else "echo 1", language=name)).stdout == "1\n"
        assert (await sandbox.validate("print(1)" if name == "py" else "echo 1", name)).valid
        async with sandbox.session(language=name) as session:
            assert session.language in ("python", "shell")


@pytest.mark.parametrize("language", ["python", "node", "shell"])
async def test_a_program_of_nothing_does_nothing(tmp_path: Path, language: str) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox, sandbox.session(language=language) as session:
        for code in ("", " \n\t"):
            execution = await sandbox.run(code, language=language)
            step = await session.run(code)
            assert [(one.status, one.text) for one in (execution, step)] == [("ok", "")] * 2


@pytest.mark.parametrize(("language", "code", "last"), [
    ("python", "print('before'); 1/0", "ZeroDivisionError: division by zero"),
    ("node", "console.log('before'); null.x", "TypeError: Cannot read properties of null"),
])  # fmt: skip
async def test_the_text_of_a_run_and_of_a_step_that_fail_has_the_traceback_once(
    tmp_path: Path, language: str, code: str, last: str
) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox, sandbox.session(language=language) as session:
        for failed in (await sandbox.run(code, language=language), await session.run(code)):
            assert failed.text.startswith("before\n")
            assert failed.text.count(last) == 1
