"""Running one attack: in a cell, in a cell that lacks layers, or bare on the host as the control."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from casemate import Execution, sync
from casemate.execution import pipeline
from casemate.execution.admit import Admitted
from casemate.execution.house import House
from casemate.isolation.native import launch
from casemate.model.events import Done, Output
from casemate.model.plan import Bind, Plan
from tests.escapes import host
from tests.escapes.payloads.attempts import END

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_PREFIX = "tests/escapes/payloads"
_ENDINGS = {"python": "py", "node": "cjs", "shell": "sh"}
_BARE_TIMEOUT = 60.0


@dataclass(frozen=True)
class Attack:
    """A payload in one language, with the helper that it shares with others."""

    name: str
    language: str

    @property
    def code(self) -> str:
        return self._file(self.name).read_text()

    @property
    def files(self) -> dict[str, bytes]:
        return {f"{_PREFIX}/{self._file('attempts').name}": self._file("attempts").read_bytes()}

    def _file(self, name: str) -> Path:
        return HERE / "payloads" / f"{name}.{_ENDINGS[self.language]}"


@dataclass(frozen=True)
class Bare:
    """What a payload did without any wall."""

    text: str
    exit_code: int


def attack(sandbox: sync.Sandbox, name: str, language: str, env: Mapping[str, str], **arguments: Any) -> Execution:
    """Run the payload ``name`` in a cell; it must have reached its end, else nothing is proved."""
    it = Attack(name, language)
    given = arguments.pop("files", {})
    execution = sandbox.run(it.code, language=language, env=env, files={**it.files, **given}, **arguments)
    assert END in execution.stdout, f"the attack did not reach its end: {execution.status} {execution.text[-2000:]}"
    return execution


def told(execution: Execution) -> str:
    """Everything of an execution that a caller gets to see, as text."""
    contents = b"\n".join(artifact.read_bytes() for artifact in execution.artifacts if artifact.size < 1 << 22)
    names = "\n".join(artifact.name for artifact in execution.artifacts)
    return "\n".join((execution.text, execution.stdout, execution.stderr, names, contents.decode("utf-8", "replace")))


@contextlib.contextmanager
def _bare_process(name: str, language: str, env: Mapping[str, str], cwd: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    it = Attack(name, language)
    for given, content in {**it.files, f"program-{name}": it.code.encode()}.items():
        (cwd / given).parent.mkdir(parents=True, exist_ok=True)
        (cwd / given).write_bytes(content)
    program = {"python": sys.executable, "node": "node", "shell": "bash"}[language]
    variables = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "PYTHONPATH": str(cwd), **env}
    with subprocess.Popen(
        [program, f"program-{name}"], cwd=cwd, env=variables, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def bare(name: str, language: str, env: Mapping[str, str], cwd: Path, **options: Any) -> Bare:
    """Run the payload on the host itself, as this user, in ``cwd``: what it can do when there is no wall."""
    cwd.mkdir(parents=True, exist_ok=True)
    with _bare_process(name, language, env, cwd, **options) as process:
        text = _read_until_end(process)
        return Bare(text, process.wait(_BARE_TIMEOUT))


def _read_until_end(process: subprocess.Popen[str]) -> str:
    """Its output up to END; what it started may hold the pipe open for longer."""
    assert process.stdout is not None
    lines = []
    while select.select([process.stdout], [], [], _BARE_TIMEOUT)[0]:
        line = process.stdout.readline()
        lines.append(line)
        if not line or line.strip() == END:
            break
    text = "".join(lines)
    assert END in text, f"the control did not reach its end: {text[-2000:]}"
    return text


@dataclass
class Held:
    """An attack that has made all its attempts and stays alive for the host to look at."""

    pids: list[int]
    text: str

    @property
    def pid(self) -> int:
        """The payload's own process."""
        return self.pids[0]


@contextlib.contextmanager
def held(sandbox: sync.Sandbox, name: str, language: str, env: Mapping[str, str], **arguments: Any) -> Iterator[Held]:
    """Run the payload in a cell and hold it at its end."""
    it = Attack(name, language)
    before = set(host.guests())
    events = sandbox.stream(it.code, language=language, env={**env, "HOLD": "1"}, files=it.files, **arguments)
    text = ""
    try:
        for event in events:
            text += event.text if isinstance(event, Output) else ""
            assert not isinstance(event, Done), f"the attack did not stay: {event} {text[-2000:]}"
            if END in text:
                break
        yield Held([pid for pid in _oldest_first() if pid not in before], text)
    finally:
        events.close()  # type: ignore[attr-defined]
        host.wait_for(lambda: set(host.guests()) <= before, "the end of everything in the cell")


def _oldest_first() -> list[int]:
    def started(pid: int) -> int:
        text = Path(f"/proc/{pid}/stat").read_text()
        return int(text[text.rindex(")") + 2 :].split()[19])

    return sorted(host.guests(), key=started)


@contextlib.contextmanager
def held_bare(name: str, language: str, env: Mapping[str, str], cwd: Path, **options: Any) -> Iterator[Held]:
    """The control of `held`."""
    cwd.mkdir(parents=True, exist_ok=True)
    with _bare_process(name, language, {**env, "HOLD": "1"}, cwd, **options) as process:
        yield Held([process.pid, *host.descendants(process.pid)], _read_until_end(process))


@contextlib.contextmanager
def without(*layers: str, entries: tuple[Bind, ...] = (), unruled: tuple[str, ...] = ()) -> Iterator[None]:
    """Cells started meanwhile lack ``layers``.

    ``entries``: what a mistake in the mounts would show besides; ``unruled``: targets that Landlock gets no rule for.
    """

    def weakened_plan(admitted: Admitted, house: House) -> Plan:
        plan = real_plan(admitted, house)
        kept = tuple(layer for layer in plan.layers if layer not in layers)
        return replace(plan, layers=kept, entries=(*plan.entries, *entries))

    def weakened_request(*arguments: Any, **options: Any) -> dict[str, Any]:
        request = real_request(*arguments, **options)
        request["readable"] = [path for path in request["readable"] if path not in unruled]
        return request

    real_plan, real_request = pipeline.make_plan, launch.request  # type: ignore[attr-defined]
    with mock.patch.object(pipeline, "make_plan", weakened_plan), mock.patch.object(launch, "request", weakened_request):
        yield


def stop(process: subprocess.Popen[Any]) -> None:
    """Continue and end a process of the test's own."""
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait(host.DEADLINE)
