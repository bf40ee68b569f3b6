"""How far long work is: seen on a terminal, gone at its end, and nothing of it in a pipe."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from tests.packages.index import Index, wheel
from tests.surfaces.conftest import At, Cli

from casemate import Sandbox
from casemate.remote.client import connect
from casemate.surfaces.cli import progress
from casemate.surfaces.cli.progress import Progress

GONE = b"\x1b[?25h"  # the cursor is back
WAITS = "import time\ntime.sleep(600)"


def test_a_program_that_says_nothing_is_seen_to_run_until_it_is_interrupted(at_terminal: At, cli: Cli) -> None:
    terminal = at_terminal("run", cli.program(WAITS))
    terminal.until(b"casemate: running")
    terminal.type(b"\x03")
    done = terminal.done()
    assert done.code == 130
    assert GONE in done.stdout


def test_nothing_of_it_is_in_a_pipe(cli: Cli) -> None:
    done = cli("run", "--timeout", "1", cli.program(WAITS))
    assert (done.code, done.stdout, done.stderr.count(b"\n")) == (124, b"", 1)
    assert done.stderr.startswith(b"casemate: timeout")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """Standard error that passes for a terminal, on which everything is shown at once."""
    monkeypatch.setattr(progress, "_AFTER", 0.0)
    monkeypatch.setattr(progress, "_is_watched", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    return capsys


def test_bytes_have_a_bar(seen: pytest.CaptureFixture[str]) -> None:
    with Progress(shows=True) as bar:
        bar.bytes(1 << 20, 4 << 20)
    shown = seen.readouterr().err
    assert "casemate: 1 MiB of 4 MiB" in shown
    assert "━" in shown
    assert shown.endswith("\x1b[2K")


def test_who_is_asked_sees_no_bar_any_more(seen: pytest.CaptureFixture[str]) -> None:
    with Progress(shows=True) as bar:
        bar.files(1, 10)
        bar.end()
        seen.readouterr()
        bar.files(2, 20)
    assert seen.readouterr().err == ""


def test_a_question_stands_alone_while_a_person_is_asked(seen: pytest.CaptureFixture[str]) -> None:
    with Progress(shows=True) as bar:
        bar.files(1, 10)
        with bar.hide():
            seen.readouterr()
            bar.files(2, 20)
            sys.stderr.write("Allow? [y/N] ")
            sys.stderr.flush()
            assert seen.readouterr().err == "Allow? [y/N] "
        bar.files(3, 30)
    assert "3 files" in seen.readouterr().err


def test_nothing_is_shown_where_it_is_not_wanted(seen: pytest.CaptureFixture[str]) -> None:
    with Progress(shows=False) as bar:
        bar.bytes(1, 2)
    assert seen.readouterr().err == ""


def test_an_upload_says_how_much_has_gone(service: Cli) -> None:
    service("sessions", "list")  # which starts it
    told: list[int] = []

    async def upload() -> None:
        remote = await connect(environ=service.env, start=False)
        try:
            await remote.upload(bytes(5 << 20), told.append)
        finally:
            await remote.close()

    asyncio.run(upload())
    assert told == sorted(told)
    assert len(told) > 4
    assert told[-1] >= 5 << 20


def test_an_installation_says_how_much_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told: list[int] = []

    async def install(index: Index) -> None:
        async with Sandbox(audit=tmp_path / "audit.db", package_indexes=[index.url], approve=lambda _: True) as sandbox:
            sandbox.packages.report = told.append
            assert (await sandbox.packages.install(["alpha"])).ok

    index = Index()
    try:
        index.add(wheel("alpha", "1.0"))
        asyncio.run(install(index))
    finally:
        index.close()
    assert told == sorted(told)
    assert told[-1] > 100


def test_earlier_typing_allows_no_installation(at_terminal: At) -> None:
    index = Index()
    try:
        index.add(wheel("alpha", "1.0"))
        terminal = at_terminal("packages", "install", "alpha", "--index", index.url)
        terminal.type(b"y\n" * 10_000)
        terminal.until(b"Install them? [y/N] ")
        terminal.type(b"n\n")
        assert terminal.done().code == 77
    finally:
        index.close()
