"""docs/start/quickstart.md: every command in it runs, every program is a file of examples/, both print what it says; so
do the commands that the README shows with their output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import casemate

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "start" / "quickstart.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
_SHOWN = re.compile(r"```sh\n(.*?)```\n\n```\n(.*?)```\n", re.DOTALL)
COMMANDS = _SHOWN.findall(PAGE)
PROGRAMS = re.findall(r"`(examples/\w+\.py)`:\n\n```python\n(.*?)```\n\n```\n(.*?)```\n", PAGE, re.DOTALL)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    """With `casemate` on PATH, and a home of its own, whose service ends with the test."""
    command = tmp_path / "bin" / "casemate"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m casemate "$@"\n')
    command.chmod(0o755)
    source = str(Path(casemate.__file__).parents[1])
    with tempfile.TemporaryDirectory() as home:  # short, as the path of a socket has to be
        env = {"PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": home, "PYTHONPATH": source}
        yield env
        subprocess.run([command, "service", "stop"], env=env, check=False, capture_output=True)


def test_the_page_is_read_whole() -> None:
    assert len(COMMANDS) == PAGE.count("```sh\n") > 3
    assert len(_SHOWN.findall(README)) == README.count("```sh\n") > 0
    assert len(PROGRAMS) == PAGE.count("```python\n") > 1


@pytest.mark.parametrize(("commands", "shown"), [*COMMANDS, *_SHOWN.findall(README)])
def test_commands_do_what_the_page_shows(env: dict[str, str], tmp_path: Path, commands: str, shown: str) -> None:
    done = subprocess.run(
        ["bash", "-c", commands], cwd=tmp_path, env=env, check=False, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.stdout.rstrip() == shown.rstrip()


@pytest.mark.full
@pytest.mark.parametrize(("name", "text", "shown"), PROGRAMS)
def test_programs_are_files_that_print_what_the_page_shows(
    env: dict[str, str], name: str, text: str, shown: str
) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == text
    done = subprocess.run([sys.executable, ROOT / name], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == shown
