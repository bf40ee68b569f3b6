"""Drives the Node interpreter of a session by pipes and FIFOs (docs/internals/session-protocol.md), without walls."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.unit.guest.stage import BASE_ENV, GUEST, framed

SECONDS = 60.0
ENDS = {"done", "reply", "ready"}

Frame = dict[str, Any]


@dataclass
class Step:
    """What a step said and wrote; what it left running may still write more."""

    number: int
    frames: list[Frame] = field(default_factory=list)
    written: list[bytearray] = field(default_factory=lambda: [bytearray(), bytearray()])

    @property
    def out(self) -> str:
        return self.written[0].decode()

    @property
    def err(self) -> str:
        return self.written[1].decode()

    def of_type(self, kind: str) -> list[Frame]:
        return [frame for frame in self.frames if frame["type"] == kind]

    @property
    def bundle(self) -> dict[str, Any]:
        (result,) = self.of_type("result")
        bundle: dict[str, Any] = result["bundle"]
        return bundle

    @property
    def result(self) -> str | None:
        """The last value as text; None when there was none."""
        assert not self.of_type("error"), self.of_type("error")
        text: str | None = self.bundle["text/plain"] if self.of_type("result") else None
        return text

    @property
    def error(self) -> Frame:
        (error,) = self.of_type("error")
        return error

    @property
    def done(self) -> Frame:
        (done,) = self.of_type("done")
        return done


class Session:
    """One interpreter; requests go in, and everything that comes out is kept with its step."""

    def __init__(
        self, folder: Path, node: str, *, flags: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> None:
        """Start it in ``folder/workspace`` and wait until it is ready."""
        self.folder = folder
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.steps: dict[int, Step] = {}
        self._asked = 0
        self._control = bytearray()
        self._frames: list[Frame] = []
        self._selector = selectors.DefaultSelector()
        program = folder / "program" / "main.js"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"require({json.dumps(str(GUEST / 'node_session.cjs'))});\n")
        self._start([node, *flags, str(program)], {**BASE_ENV, "HOME": str(folder), **(env or {})})
        self.ready = self._next_end()

    def _start(self, command: list[str], env: dict[str, str]) -> None:
        control, sends = os.pipe()
        receives, self._requests = os.pipe()
        high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (sends, receives)]
        wrapped = ["bash", "-c", f'exec "$@" 3>&{high[0]} 6<&{high[1]} {high[0]}>&- {high[1]}<&-', "-", *command]
        self.process = subprocess.Popen(
            wrapped, env=env, cwd=self.workspace, pass_fds=high, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        for descriptor in (sends, receives, *high):
            os.close(descriptor)
        self._selector.register(control, selectors.EVENT_READ, self._control)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for key in list(self._selector.get_map().values()):
            self._drop(key.fd)
        os.close(self._requests)

    # --- steps -------------------------------------------------------------------------------------------------------

    def run(self, code: str, *, stdin: str | None = None, cwd: str | None = None) -> Step:
        """Run a step to its end."""
        return self.finish(self.begin(code, stdin=stdin, cwd=cwd))

    def begin(self, code: str, *, stdin: str | None = None, cwd: str | None = None) -> Step:
        step = self.steps[len(self.steps) + 1] = Step(len(self.steps) + 1)
        paths = [self._pipe(step, stream) for stream in (0, 1)]
        self.request(
            {
                "op": "run",
                "step": step.number,
                "code": code,
                "out": paths[0],
                "err": paths[1],
                "stdin": None if stdin is None else base64.b64encode(stdin.encode()).decode(),
                "cwd": cwd,
            }
        )
        return step

    def finish(self, step: Step) -> Step:
        """Wait for its end, and for all that the interpreter itself has written by then."""
        self._next_end()
        assert step.of_type("done"), "another step has ended"
        self.until(lambda: all(len(step.written[stream]) >= step.done["at"][stream] for stream in (0, 1)))
        return step

    def results(self, *codes: str) -> list[str | None]:
        """The last value of each of these steps, as text."""
        return [self.run(code).result for code in codes]

    def _pipe(self, step: Step, stream: int) -> str:
        path = self.folder / f"{'out' if stream == 0 else 'err'}.{step.number}"
        os.mkfifo(path)
        self._selector.register(os.open(path, os.O_RDONLY | os.O_NONBLOCK), selectors.EVENT_READ, step.written[stream])
        return str(path)

    # --- everything else ---------------------------------------------------------------------------------------------

    def ask(self, op: str, **fields: Any) -> Any:
        """The value of the reply."""
        reply = self.reply(op, **fields)
        assert "error" not in reply, reply
        return reply["value"]

    def reply(self, op: str, **fields: Any) -> Frame:
        self._asked += 1
        self.request({"op": op, "id": self._asked, **fields})
        reply = self._next_end()
        assert reply["id"] == self._asked
        return reply

    def request(self, request: Frame) -> None:
        data = memoryview(framed(request))
        while data:
            data = data[os.write(self._requests, data) :]

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def close_requests(self) -> None:
        os.close(self._requests)
        self._requests = os.open("/dev/null", os.O_WRONLY)

    def exit_code(self) -> int:
        """Wait for the interpreter's end."""
        return self.process.wait(SECONDS)

    def until(self, holds: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Read what comes until ``holds``."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "it did not come about"
            self._read(0.02)

    def until_it_rests(self) -> None:
        """Until a signal has had all its effect: none waits, and no thread has run between two looks."""
        looks: list[list[tuple[str, ...]]] = []

        def rests() -> bool:
            looks.append(
                [self._look(task) for task in sorted((Path("/proc") / str(self.process.pid) / "task").iterdir())]
            )
            asleep = all(state == "S" and not int(own, 16) + int(shared, 16) for state, own, shared, *_ in looks[-1])
            return asleep and looks[-2:-1] == looks[-1:]

        self.until(rests)

    @staticmethod
    def _look(task: Path) -> tuple[str, ...]:
        lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        names = ("State", "SigPnd", "ShdPnd", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
        return tuple(lines[name].split()[0] for name in names)

    def stop_reading(self, step: Step) -> None:
        """Close the reading ends of its pipes."""
        for key in list(self._selector.get_map().values()):
            if any(key.data is written for written in step.written):
                self._drop(key.fd)

    def _next_end(self) -> Frame:
        deadline = time.monotonic() + SECONDS
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame["type"] in ENDS:
                    return frame
            assert time.monotonic() < deadline, "no end was said"
            if self.process.poll() is not None:
                self._read(0)
                assert self._frames, f"the interpreter ended with {self.process.returncode}"
            else:
                self._read(0.02)

    def _read(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            data = os.read(key.fd, 2**20)
            key.data.extend(data)
            if not data:
                self._drop(key.fd)
            elif key.data is self._control:
                self._take_frames()

    def _take_frames(self) -> None:
        while len(self._control) >= 4:
            end = 4 + int.from_bytes(self._control[:4], "big")
            if len(self._control) < end:
                return
            frame: Frame = json.loads(self._control[4:end])
            del self._control[:end]
            self._frames.append(frame)
            if "step" in frame:
                self.steps[frame["step"]].frames.append(frame)

    def _drop(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
