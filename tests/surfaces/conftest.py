"""The command ``casemate``: a process of its own, with pipes or under a terminal, or a call in this process."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

import casemate
from casemate.surfaces.cli import command

COMMAND = (sys.executable, "-m", "casemate")
_SECONDS = 60  # for a command at a terminal
_LIGHT = {"CASEMATE_PRELOAD": ""}  # of commands that start a service, or may
# Makes its standard input the terminal that it is controlled by, and becomes the command.
_AT_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


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


@dataclass(frozen=True)
class InProcess(Cli):
    """The command without a process of its own: what it prints is in ``capture``; ``start`` starts a process still."""

    capture: pytest.CaptureFixture[bytes]

    def __call__(self, *arguments: str, stdin: bytes | None = None) -> Done:
        """A command to its end."""
        if stdin is not None or (arguments[:1] == ("run",) and "--explain" not in arguments):
            # whose supervisor ends with the process
            return super().__call__(*arguments, stdin=stdin)
        return self.call(*arguments)

    def call(self, *arguments: str) -> Done:
        """A command that starts no supervisor, or is refused before it would."""
        self.capture.readouterr()
        with patch.dict(os.environ, self.env, clear=True), contextlib.chdir(self.folder):
            code = command(arguments)
        return Done(code, *self.capture.readouterr())


def _read_all(terminal: int) -> Iterator[bytes]:
    with contextlib.suppress(OSError):  # EIO: nobody holds the other end any more
        while data := os.read(terminal, 1 << 16):
            yield data


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the self-test is remembered, so that each command need not repeat it."""
    return tmp_path_factory.mktemp("cache")


def _cli(home: Path, cache: Path, variables: Mapping[str, str]) -> Cli:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CACHE_HOME": str(cache),
        "TERM": "xterm-256color",
        "PYTHONPATH": str(Path(casemate.__file__).parents[1]),  # the tree under test, also where another is installed
    }
    folder = home / "folder"
    folder.mkdir(exist_ok=True)
    return Cli(folder, {**env, **variables})


@pytest.fixture
def make_cli(tmp_path: Path, cache: Path) -> Callable[..., Cli]:
    """Makes the command with further variables in its environment."""
    return lambda **variables: _cli(tmp_path, cache, variables)


@pytest.fixture
def cli(make_cli: Callable[..., Cli]) -> Cli:
    """The command."""
    return make_cli()


@pytest.fixture
def in_process(make_cli: Callable[..., Cli], capfdbinary: pytest.CaptureFixture[bytes]) -> InProcess:
    """The command, called in this process; a service that it starts preloads nothing."""
    cli = make_cli(**_LIGHT)
    return InProcess(cli.folder, cli.env, capfdbinary)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Iterator[Cli]:
    """The command with one service for all tests of a file."""
    cli = _cli(tmp_path_factory.mktemp("service"), cache, _LIGHT)
    yield cli
    cli("service", "stop")


@pytest.fixture
def shared(service: Cli, capfdbinary: pytest.CaptureFixture[bytes]) -> Cli:
    """The command, called in this process, with the service of all tests of the file."""
    return InProcess(service.folder, service.env, capfdbinary)


@dataclass
class Terminal:
    """A command at a terminal of its own: what was shown so far, and somebody who types."""

    ours: int
    process: subprocess.Popen[bytes]
    shown: bytes = b""

    def until(self, text: bytes) -> None:
        """Wait until something is shown."""
        ends = time.monotonic() + _SECONDS
        while text not in self.shown and self._read(ends - time.monotonic()):
            pass
        assert text in self.shown, self.shown

    def type(self, text: bytes) -> None:
        os.write(self.ours, text)

    def done(self) -> Done:
        """Its end."""
        ends = time.monotonic() + _SECONDS
        while self._read(ends - time.monotonic()):
            pass
        return Done(self.process.wait(_SECONDS), self.shown.replace(b"\r\n", b"\n"), b"")

    def _read(self, seconds: float) -> bool:
        if not select.select([self.ours], [], [], max(seconds, 0))[0]:
            return False
        with contextlib.suppress(OSError):  # EIO: nobody holds the other end any more
            self.shown += (data := os.read(self.ours, 1 << 16))
            return bool(data)
        return False


At = Callable[..., Terminal]


@pytest.fixture
def at_terminal(cli: Cli) -> Iterator[At]:
    """Runs the command at a terminal that is its own."""
    started: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", _AT_TERMINAL, *COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
            cwd=cli.folder, env={**cli.env, **_LIGHT}, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        started.append(Terminal(ours, process))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        os.close(one.ours)
