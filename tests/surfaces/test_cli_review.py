"""Changes of a folder that are kept back, shown and asked about on a terminal, and by commands of a service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from tests.surfaces.conftest import At, Cli, Done

from casemate.model.review import Change, shown_change
from casemate.surfaces.cli import review, terminal
from casemate.surfaces.cli.terminal import review_lines

PROGRAM = "open('changed.txt', 'w').write('after\\n'); open('new.txt', 'w').write('new\\n')"


@pytest.fixture
def workspace(cli: Cli) -> Path:
    """A folder of the caller's."""
    path = cli.folder / "workspace"
    path.mkdir()
    (path / "changed.txt").write_text("before\n")
    return path


@pytest.mark.parametrize(("typed", "content"), [(b"y\n", "after\n"), (b"n\n", "before\n")])
def test_whoever_sits_at_the_terminal_sees_the_changes_of_a_run_and_decides(
    cli: Cli, at_terminal: At, workspace: Path, typed: bytes, content: str
) -> None:
    at = at_terminal("run", "--workspace", "workspace", "--review", cli.program(PROGRAM))
    at.until(b"[y/N] ")
    assert b"changed changed.txt (mode 644, 7 to 6 bytes)" in at.shown
    assert b"\x1b[31m-before\x1b[0m" in at.shown
    assert b"\x1b[32m+after\x1b[0m" in at.shown
    assert (workspace / "changed.txt").read_text() == "before\n"
    at.type(typed)
    done = at.done()
    assert done.code == 0
    assert (workspace / "changed.txt").read_text() == content
    assert (workspace / "new.txt").exists() is (typed == b"y\n")
    assert (b"nothing was written" in done.stdout) is (typed == b"n\n")


def test_where_nobody_is_at_a_terminal_nothing_is_written_and_that_is_said(cli: Cli, workspace: Path) -> None:
    done = cli("run", "--workspace", "workspace", "--review", cli.program(PROGRAM))
    assert done.code == 0
    assert b"it was not allowed" in done.stderr
    assert (workspace / "changed.txt").read_text() == "before\n"
    assert cli("run", "--review", "--workspace-mode", "direct", "program.py").code == 2


def test_no_name_and_no_content_can_act_upon_the_terminal_or_pass_for_a_line_of_casemates() -> None:
    hostile = "\x1b[2J\u202e\rcasemate: files"
    lines = review_lines([shown_change(Change(hostile, "added"))], f"+{hostile}\u2028+more\n-x\n", has_colours=False)
    shown = list(lines)
    assert len(shown) == 3
    assert all(line.startswith("    ") and line.isprintable() for line in shown)


@pytest.fixture
def served(make_cli: Callable[..., Cli], workspace: Path) -> Iterator[Cli]:
    """The command, with a service whose workspace is reviewed."""
    cli = make_cli(CASEMATE_PRELOAD="", CASEMATE_WORKSPACE=str(workspace), CASEMATE_WORKSPACE_MODE="review")
    yield cli
    cli("service", "stop")


def output_of(done: Done) -> str:
    assert done.code == 0, done
    return done.stdout.decode()


@pytest.mark.full
def test_a_session_of_a_service_is_shown_applied_and_given_up_by_commands(
    served: Cli, at_terminal: At, workspace: Path
) -> None:
    output_of(served("sessions", "open", "work"))
    output_of(served("exec", "work", PROGRAM))
    assert (workspace / "changed.txt").read_text() == "before\n"
    shown = output_of(served("diff", "work"))
    assert "    added new.txt (mode 644, 4 bytes)\n" in shown
    assert "    +after\n" in shown
    assert [one["path"] for one in json.loads(output_of(served("diff", "work", "--format", "json")))["changes"]] == [
        "changed.txt", "new.txt",
    ]  # fmt: skip
    assert b"casemate: PATHS: " in served("apply", "work", "nowhere").stderr
    refused = served("apply", "work")
    assert (refused.code, b"nobody is at a terminal to be asked; apply it at one, or" in refused.stderr) == (77, True)
    assert (workspace / "changed.txt").read_text() == "before\n"
    at = at_terminal("apply", "work", "new.txt")
    at.until(b"[y/N] ")
    assert b"added new.txt" in at.shown
    assert b"changed.txt" not in at.shown
    at.type(b"y\n")
    assert at.done().code == 0
    assert (workspace / "new.txt").read_text() == "new\n"
    at = at_terminal("apply", "work")
    at.until(b"[y/N] ")
    at.type(b"n\n")
    assert at.done().code == 77
    output_of(served("discard", "work"))
    assert output_of(served("exec", "work", "print(open('changed.txt').read(), end='')")) == "before\n"
    assert output_of(served("diff", "work")) == ""
    assert (workspace / "changed.txt").read_text() == "before\n"


class Service:
    """Where a program's call of a tool asks before an apply does; ``decided``: what the command has decided."""

    def __init__(self) -> None:
        self.decided: list[str] = []
        self._asked: list[str] = []
        self._is_asked, self._is_over = asyncio.Event(), asyncio.Event()

    async def __call__(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        if operation == "sessions.apply":
            self._asked = ["tool", "files"]
            self._is_asked.set()
            await self._is_over.wait()
        if operation == "approvals.pending":
            return [{"id": one} for one in self._asked]
        if operation == "approvals.decide":
            self.decided.append(arguments["request"])
        return {"id": "session"}

    async def stream(self, _operation: str, arguments: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        await self._is_asked.wait()
        for kind in self._asked:
            if kind not in arguments["told"]:
                shown = {"summary": "", "namespace": "", "run": "", "hash": "", "arguments": {"changes": []}}
                yield {"event": "asked", "request": {"id": kind, "kind": kind, "session": "session", **shown}}
        self._is_over.set()


def test_an_apply_decides_its_own_question_however_soon_that_comes_and_no_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "somebody_is_there", lambda: False)

    async def apply() -> list[str]:
        service = Service()
        await review._apply(cast(Any, service), "work", [])
        return service.decided

    assert asyncio.run(apply()) == ["files"]
