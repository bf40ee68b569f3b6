"""Plays the host of a session: real pipes and FIFOs to an interpreter that runs as a plain process, without walls.

What the host must do by docs/internals/session-protocol.md and nothing of the interpreter's language is known here.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

SECONDS = 60
ONCE_MORE = 1  # seconds, by docs/internals/session-protocol.md
_PIECE = 1 << 16


@dataclass
class Pipe:
    """What has been read from a descriptor so far."""

    descriptor: int
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False

    def read(self) -> None:
        """What is there now; it ends where nobody can write any more."""
        piece = os.read(self.descriptor, _PIECE)
        self.data += piece
        self.ended = not piece


@dataclass
class Step:
    """What a step has said so far."""

    number: int
    out_pipe: Pipe
    err_pipe: Pipe
    frames: list[dict[str, Any]] = field(default_factory=list)

    @property
    def out(self) -> str:
        return self.out_pipe.data.decode(errors="backslashreplace")

    @property
    def err(self) -> str:
        return self.err_pipe.data.decode(errors="backslashreplace")

    @property
    def is_done(self) -> bool:
        """Whether it has ended and all of its own output is here."""
        done = self.of_type("done")
        if not done:
            return False
        out, err = done[-1]["at"]
        return bool(len(self.out_pipe.data) >= out and len(self.err_pipe.data) >= err)

    @property
    def done(self) -> dict[str, Any]:
        return self.of_type("done")[-1]

    @property
    def exit(self) -> int:
        code: int = self.done["exit"]
        return code

    @property
    def error(self) -> dict[str, Any]:
        """The only error."""
        [error] = self.of_type("error")
        return error

    @property
    def bundle(self) -> dict[str, Any]:
        """The bundle of the only result."""
        [result] = self.of_type("result")
        bundle: dict[str, Any] = result["bundle"]
        return bundle

    @property
    def result(self) -> str | None:
        """The last value as text; None when there was none."""
        assert not self.of_type("error"), self.of_type("error")
        return str(self.bundle["text/plain"]) if self.of_type("result") else None

    @property
    def displays(self) -> list[dict[str, Any]]:
        return [frame["bundle"] for frame in self.of_type("display")]

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """The frames of this type."""
        return [frame for frame in self.frames if frame["type"] == kind]

    def timeline(self) -> list[str]:
        """Text and frames in the order in which they were made, as the host puts them together."""
        seen = [0, 0]
        events: list[str] = []
        for frame in self.frames:
            for which, pipe in enumerate((self.out_pipe, self.err_pipe)):
                text = bytes(pipe.data[seen[which] : frame["at"][which]]).decode()
                seen[which] = frame["at"][which]
                if text:
                    events.append(f"{('out', 'err')[which]}:{text}")
            if frame["type"] != "mark":
                events.append(frame["type"])
        return events


class Died(Exception):
    """The interpreter has ended; ``code``: how."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"exit {code}: {said}")
        self.code = code


class Session:
    """One interpreter and what it says. ``ready``: its first frame."""

    def __init__(self, folder: Path, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.folder = folder
        self.steps: dict[int, Step] = {}
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self._replies: list[dict[str, Any]] = []
        self._others: list[dict[str, Any]] = []
        self._identity = 0
        self._once_more = float("inf")
        control, self._requests = self._start(command, env)
        self._control = Pipe(control)
        self.ready: dict[str, Any] = {}

    def _start(self, command: Sequence[str], env: Mapping[str, str]) -> tuple[int, int]:
        control, control_end = os.pipe()
        request_end, requests = os.pipe()
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20) for descriptor in (control_end, request_end)]
        os.close(control_end)
        os.close(request_end)
        wrapped = ["bash", "-c", f'exec "$@" 3>&{high[0]} {high[0]}>&- 6<&{high[1]} {high[1]}<&-', "-", *command]
        with (self.folder / "own_output").open("wb") as own:
            self.process = subprocess.Popen(
                wrapped,
                env=dict(env),
                cwd=self.workspace,
                stdin=subprocess.DEVNULL,
                stdout=own,
                stderr=own,
                pass_fds=high,
            )
        for descriptor in high:
            os.close(descriptor)
        return control, requests

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def own_output(self) -> str:
        """What the process has written outside of steps."""
        return (self.folder / "own_output").read_text(errors="backslashreplace")

    def wait_until_ready(self) -> Session:
        """Itself, when it can be talked to."""
        self.wait_for(lambda: bool(self._others), "the ready frame")
        self.ready = self._others.pop(0)
        return self

    def run(self, code: str, **options: Any) -> Step:
        """Run a step to its end."""
        return self.finish(self.begin(code, **options))

    def begin(
        self, code: str, *, stdin: str | None = None, cwd: str | None = None, front: str | None = None,
        colours: bool = False,
    ) -> Step:  # fmt: skip
        """Ask for the next step."""
        self._once_more = float("inf")  # what came between steps is for none
        number = max(self.steps, default=0) + 1
        paths = [self.folder / f"{kind}.{number}" for kind in ("out", "err")]
        pipes = []
        for path in paths:
            os.mkfifo(path)
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            pipes.append(Pipe(descriptor))
        step = self.steps[number] = Step(number, pipes[0], pipes[1])
        given = None if stdin is None else base64.b64encode(stdin.encode()).decode()
        plain: dict[str, object] = {"asks": [], "task": "code", "front": front, "remembers": True, "colours": colours}
        self.send({"op": "run", **plain, "step": number, "code": code, "out": str(paths[0]), "err": str(paths[1]),
                   "stdin": given, "cwd": cwd})  # fmt: skip
        return step

    def finish(self, step: Step) -> Step:
        """The step, when it has ended."""
        self.wait_for(lambda: step.is_done, f"the end of step {step.number}: {step}")
        self._once_more = float("inf")
        return step

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The reply to a request that is no step."""
        self._identity += 1
        self.send({"op": op, "id": self._identity, **fields})
        self.wait_for(lambda: bool(self._replies), f"the reply to {op}")
        reply = self._replies.pop()
        assert reply["id"] == self._identity
        return reply

    def send(self, request: dict[str, Any]) -> None:
        """Write one frame."""
        data = json.dumps(request).encode()
        view = memoryview(len(data).to_bytes(4, "big") + data)
        while view:
            view = view[os.write(self._requests, view) :]

    def interrupt(self, *, again: bool = True) -> None:
        """What the host does at a step's time limit: ``again`` after a second, as long as the step goes on.

        The first may have come in the instant before a wait that it does not end.
        """
        self.process.send_signal(signal.SIGINT)
        self._once_more = time.monotonic() + ONCE_MORE if again else float("inf")

    def _interrupt_once_more(self) -> None:
        if time.monotonic() >= self._once_more:
            self._once_more = float("inf")
            self.process.send_signal(signal.SIGINT)

    def wait_for(self, condition: Callable[[], bool], what: str = "it") -> None:
        """Read until the condition holds. Raises ``Died`` when the interpreter ends before."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come; {self.own_output}"
            self._interrupt_once_more()
            if not self._read(0.02) and self.process.poll() is not None:
                while self._read(0):
                    pass
                if not condition():
                    raise Died(self.process.returncode, self.own_output)

    def wait_for_death(self) -> int:
        """Its exit code, after all that it has said."""
        with contextlib.suppress(Died):
            self.wait_for(lambda: False, "the end of the interpreter")
        return self.process.returncode

    def hang_up(self) -> int:
        """Close the pipe of requests; the interpreter's exit code."""
        os.close(self._requests)
        self._requests = -1
        return self.process.wait(SECONDS)

    def stop_reading(self, step: Step) -> None:
        """Close the reading ends of its pipes."""
        for pipe in (step.out_pipe, step.err_pipe):
            os.close(pipe.descriptor)
            pipe.descriptor, pipe.ended = -1, True

    def close(self) -> None:
        """End everything."""
        self.process.kill()
        self.process.wait(SECONDS)
        pipes = [pipe for step in self.steps.values() for pipe in (step.out_pipe, step.err_pipe)]
        for descriptor in (self._control.descriptor, self._requests, *(pipe.descriptor for pipe in pipes)):
            if descriptor >= 0:
                os.close(descriptor)

    def _read(self, seconds: float) -> bool:
        """Read what arrives within the time; whether anything did."""
        pipes = {pipe.descriptor: pipe for pipe in self._pipes()}
        waiter = select.poll()
        for descriptor in pipes:
            waiter.register(descriptor, select.POLLIN)
        ready = [(fd, event) for fd, event in waiter.poll(seconds * 1000) if event & (select.POLLIN | select.POLLHUP)]
        for descriptor, _ in ready:
            with contextlib.suppress(BlockingIOError):
                pipes[descriptor].read()
        for frame in self._new_frames():
            self._take(frame)
        return bool(ready)

    def _pipes(self) -> Iterator[Pipe]:
        if not self._control.ended:
            yield self._control
        for step in self.steps.values():
            yield from (pipe for pipe in (step.out_pipe, step.err_pipe) if not pipe.ended)

    def _new_frames(self) -> Iterator[dict[str, Any]]:
        data = self._control.data
        while len(data) >= 4:
            size = int.from_bytes(data[:4], "big")
            if len(data) < 4 + size:
                return
            yield json.loads(bytes(data[4 : 4 + size]))
            del data[: 4 + size]

    def _take(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "reply":
            self._replies.append(frame)
        elif "step" in frame:
            self.steps[frame["step"]].frames.append(frame)
        else:
            self._others.append(frame)
