"""Starts a Shell session as a plain process and speaks with it as the host does."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SESSION = Path(__file__).resolve().parents[3] / "src" / "casemate" / "guest" / "shell_session.sh"
PROGRAM = f'\\builtin eval "${{__casemate_code-. {SESSION}}}"\n'
SECONDS = 60.0
BASE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}


def run_request(
    step: int, code: bytes, out: str, err: str, *, stdin: bytes | None = None, cwd: bytes | None = None
) -> bytes:
    """One step. No NUL byte may be in ``code``, ``stdin`` or ``cwd``, and no white space in ``out`` or ``err``."""
    words = ["run", str(step), str(len(code)), _length(cwd), _length(stdin), out, err]
    return " ".join(words).encode() + b"\n" + code + (cwd or b"") + (stdin or b"")


def variables_request(number: int) -> bytes:
    """What variables and functions the user has."""
    return b"variables %d\n" % number


def get_request(number: int, name: str) -> bytes:
    """The text of one variable; ``name`` has no white space."""
    return b"get %d %s\n" % (number, name.encode())


def set_request(number: int, name: str, value: bytes) -> bytes:
    """Makes a variable hold ``value``, which has no NUL byte; ``name`` has no white space."""
    return b"set %d %s %d\n%s" % (number, name.encode(), len(value), value)


def _length(text: bytes | None) -> str:
    return "-" if text is None else str(len(text))


@dataclass
class Step:
    """What a step wrote and said; ``frames``: all that came until ``done``, or until the session ended."""

    out: int
    err: int
    frames: list[dict[str, Any]] = field(default_factory=list)
    stdout_so_far: bytes = b""
    stderr_so_far: bytes = b""

    @property
    def done(self) -> dict[str, Any]:
        assert self.frames[-1]["type"] == "done", self.frames
        return self.frames[-1]

    @property
    def exit(self) -> int:
        return int(self.done["exit"])

    @property
    def stdout(self) -> str:
        """What has been written by now."""
        self.stdout_so_far += _available(self.out)
        return self.stdout_so_far.decode(errors="surrogateescape")

    @property
    def stderr(self) -> str:
        self.stderr_so_far += _available(self.err)
        return self.stderr_so_far.decode(errors="surrogateescape")

    @property
    def visible(self) -> tuple[int, str, str]:
        return self.exit, self.stdout, self.stderr


class Session:
    """A live session; ``folder`` holds its program, its FIFOs and its working directory."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], control: int, requests: int) -> None:
        self.folder = folder
        self.process = process
        self.control = control
        self.requests = requests
        self._received = b""
        self._steps = 0
        self._opened: list[int] = []

    def run(self, code: str | bytes, *, stdin: bytes | None = None, cwd: bytes | None = None) -> Step:
        """A step, until its end."""
        step = self.begin(code, stdin=stdin, cwd=cwd)
        return self.finish(step)

    def begin(self, code: str | bytes, *, stdin: bytes | None = None, cwd: bytes | None = None) -> Step:
        self._steps += 1
        step = Step(self._fifo(f"out.{self._steps}"), self._fifo(f"err.{self._steps}"))
        out, err = (str(self.folder / f"{name}.{self._steps}") for name in ("out", "err"))
        given = code if isinstance(code, bytes) else code.encode()
        self.send(run_request(self._steps, given, out, err, stdin=stdin, cwd=cwd))
        return step

    def finish(self, step: Step) -> Step:
        for frame in self.frames():
            step.frames.append(frame)
            if frame["type"] == "done":
                assert frame["step"] == self._steps
                break
        return step

    def interrupt(self, *, whole_group: bool = True) -> None:
        if whole_group:
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGINT)

    def ask(self, request: bytes) -> dict[str, Any]:
        """The reply to a request that is no step."""
        self.send(request)
        frame = next(self.frames())
        assert frame["type"] == "reply"
        return frame

    def send(self, request: bytes) -> None:
        with open(os.dup(self.requests), "wb") as file:
            file.write(request)

    def frames(self) -> Iterator[dict[str, Any]]:
        """Frames as they come, until the control pipe's end."""
        while True:
            head = self._take(4)
            if not head:
                return
            yield json.loads(self._take(int.from_bytes(head, "big")).decode())

    def ended(self) -> int:
        return self.process.wait(SECONDS)

    def close_requests(self) -> None:
        os.close(self.requests)
        self.requests = -1

    def _fifo(self, name: str) -> int:
        path = self.folder / name
        os.mkfifo(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with contextlib.suppress(PermissionError):  # an ordinary user may have so much in all pipes, and no more
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 1 << 20)
        self._opened.append(descriptor)
        return descriptor

    def _take(self, size: int) -> bytes:
        deadline = time.monotonic() + SECONDS
        while len(self._received) < size:
            readable, _, _ = select.select([self.control], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, "no frame came"
            more = os.read(self.control, 1 << 16)
            if not more:
                assert not self._received, "a frame was cut"
                return b""
            self._received += more
        taken, self._received = self._received[:size], self._received[size:]
        return taken

    def close(self) -> None:
        for descriptor in (*self._opened, self.control, self.requests):
            if descriptor >= 0:
                os.close(descriptor)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)


@contextmanager
def session(folder: Path, program: str = PROGRAM) -> Iterator[Session]:
    """A session that has said that it is ready."""
    (folder / "main.sh").write_text(program)
    workspace = folder / "workspace"
    workspace.mkdir()
    control, said = _high_pipe()
    asked, requests = _high_pipe()
    bash = shutil.which("bash")
    assert bash
    wrapped = f'exec "$@" 3>&{said} 6<&{asked} {said}>&- {asked}<&-'
    process = subprocess.Popen(
        [bash, "-c", wrapped, "-", bash, str(folder / "main.sh")],
        cwd=workspace,
        env={**BASE_ENV, "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        pass_fds=[said, asked],
        start_new_session=True,
    )
    os.close(said)
    os.close(asked)
    live = Session(folder, process, control, requests)
    try:
        assert next(live.frames()) == {"type": "ready"}
        yield live
    finally:
        live.close()


def eventually(holds: Callable[[], object]) -> None:
    """Returns when it holds, and fails when it does not in time."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        select.select([], [], [], 0.005)


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends no redirection of a wrapper can meet."""
    low = os.pipe()
    high = (fcntl.fcntl(low[0], fcntl.F_DUPFD_CLOEXEC, 30), fcntl.fcntl(low[1], fcntl.F_DUPFD_CLOEXEC, 30))
    for descriptor in low:
        os.close(descriptor)
    return high


def _available(descriptor: int) -> bytes:
    taken = b""
    with suppress(BlockingIOError):
        while more := os.read(descriptor, 1 << 16):
            taken += more
    return taken
