"""The command ``casemate`` as a process of its own, with pipes or under a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import casemate

COMMAND = (sys.executable, "-m", "casemate")


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Cli:
    """Runs ``casemate`` in ``folder``, with state and cache of its own."""

    folder: Path
    env: Mapping[str, str]

    def program(self, text: str | bytes, name: str = "program.py") -> str:
        """A program's file, by its name in the folder."""
        (self.folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
        return name

    def start(self, *arguments: str, **options: int) -> subprocess.Popen[bytes]:
        """A command that goes on; who starts it ends it."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen([*COMMAND, *arguments], cwd=self.folder, env=self.env, **pipes)  # type: ignore[call-overload,no-any-return]

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> Done:
        """A command to its end; without ``stdin`` it is /dev/null."""
        with self.start(*arguments, **({} if stdin is None else {"stdin": subprocess.PIPE})) as process:
            stdout, stderr = process.communicate(stdin)
        return Done(process.returncode, stdout, stderr)

    def on_terminal(self, *arguments: str) -> Done:
        """A command whose three streams are one terminal; what it showed is ``stdout``."""
        ours, theirs = pty.openpty()
        try:
            with self.start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs) as process:
                os.close(theirs)
                shown = b"".join(_read_all(ours))
            return Done(process.returncode, shown.replace(b"\r\n", b"\n"), b"")
        finally:
            os.close(ours)


def _read_all(terminal: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):  # EIO: nobody holds the other end any more
        while data := os.read(terminal, 1 << 16):
            yield data


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the self-test is remembered, so that each command need not repeat it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make_cli(tmp_path: Path, cache: Path) -> Callable[..., Cli]:
    """Makes the command with further variables in its environment."""
    folder = tmp_path / "folder"
    folder.mkdir()

    def make(**variables: str) -> Cli:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "XDG_CACHE_HOME": str(cache),
            "TERM": "xterm-256color",
            "PYTHONPATH": str(
                Path(casemate.__file__).parents[1]
            ),  # the tree under test, also where another is installed
        }
        return Cli(folder, {**env, **variables})

    return make


@pytest.fixture
def cli(make_cli: Callable[..., Cli]) -> Cli:
    """The command."""
    return make_cli()
