"""``casemate wrap`` as a process of its own, in a folder with something to hide."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

WITHIN = 60.0  # seconds that anything here may take, on a busy machine


@dataclass(frozen=True)
class Wrap:
    """Runs ``casemate wrap`` in ``folder``."""

    folder: Path
    env: Mapping[str, str]

    def command(self, *arguments: str) -> list[str]:
        """The words of it."""
        return [sys.executable, "-m", "casemate", "wrap", *arguments]

    def start(self, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
        """It, with pipes; who starts it ends it."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(self.command(*arguments), cwd=self.folder, env=self.env, **pipes)  # type: ignore[call-overload,no-any-return]

    def __call__(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """It to its end."""
        with self.start(*arguments) as process:
            stdout, stderr = process.communicate(stdin, timeout=WITHIN)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def shell(self, text: str, *options: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """A shell's text in it."""
        return self(*options, "--", "bash", "-c", text, stdin=stdin)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the self-test is remembered, so that each command need not repeat it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def wrap(tmp_path: Path, cache: Path) -> Wrap:
    """The command, in a project's folder."""
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git" / "hooks").mkdir(parents=True)
    (folder / "notes.txt").write_text("notes\n")
    for place in (folder, folder / "sub"):
        (place / ".env").write_text("TOKEN=hidden-value\n")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(cache),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    (tmp_path / "home").mkdir()
    return Wrap(folder, env)


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    """The next line that a process says, which has to come soon."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([process.stdout], [], [], WITHIN)[0], "nothing was said"
        data = os.read(process.stdout.fileno(), 1)  # no more than that: the rest is to be waited for
        if not data:
            break
        line += data
    return line


@pytest.fixture
def started(wrap: Wrap) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts commands, and ends those that are left."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
        processes.append(wrap.start(*arguments, **options))
        return processes[-1]

    yield start
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait(WITHIN)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
