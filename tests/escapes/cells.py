"""Running one attack: in a cell, in a cell that lacks layers, or bare on the host as the control."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.contract import witness
from tests.escapes import host
from tests.escapes.payloads.attempts import END
from tests.support.waiting import until

from casemate import Execution, sync
from casemate.execution import pipeline
from casemate.execution.admit import AdmittedRequest
from casemate.execution.context import ExecutionContext
from casemate.model.events import Done, Output
from casemate.model.plan import Bind, Plan, ReadyStart
from casemate.sessions import cells as session_cells
from casemate.walls.docker import containers
from casemate.walls.native import launch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_PREFIX = "tests/escapes/payloads"
_ENDINGS = {"python": "py", "node": "cjs", "shell": "sh"}
_BARE_TIMEOUT = 60.0
# The engine's settings for a container without a layer. The engine's own filter is the layer that forbids namespaces.
_WEAKER_CONTAINERS: dict[str, dict[str, Any]] = {
    "namespaces": {"SecurityOpt": ["no-new-privileges", "seccomp=unconfined"]},
    "capabilities": {"CapDrop": []},
    "mounts": {"MaskedPaths": [], "ReadonlyPaths": []},
    "rlimits": {"Ulimits": []},
}
_weakenings = itertools.count(1)


@dataclass(frozen=True)
class Attack:
    """A payload in one language, from payloads/ or of its own ``source``, with the helper that all share."""

    name: str
    language: str = "python"
    source: str | None = None

    @property
    def code(self) -> str:
        return self.source or self._file(self.name).read_text()

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


def attack(
    sandbox: sync.Sandbox,
    it: Attack,
    env: Mapping[str, str] | None = None,
    *,
    into: Path | None = None,
    **arguments: Any,
) -> Execution:
    """Run the payload in a cell; it must have reached its end, else nothing is proved.

    ``into``: a folder that the sandbox writes through, which takes no other files.
    """
    files = it.files if into is None else _placed(it.files, into)
    execution = sandbox.run(it.code, language=it.language, env=env, files=files, **arguments)
    assert END in execution.stdout, f"the attack did not reach its end: {execution.status} {execution.text[-2000:]}"
    return execution


def _placed(files: Mapping[str, bytes], folder: Path) -> dict[str, bytes]:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return {}


def told(execution: Execution) -> str:
    """Everything of an execution that a caller gets to see, as text."""
    contents = b"\n".join(artifact.read_bytes() for artifact in execution.artifacts if artifact.size < 1 << 22)
    names = "\n".join(artifact.name for artifact in execution.artifacts)
    return "\n".join((execution.text, execution.stdout, execution.stderr, names, contents.decode("utf-8", "replace")))


@contextlib.contextmanager
def _bare_process(it: Attack, env: Mapping[str, str], cwd: Path, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    program = {"python": sys.executable, "node": "node", "shell": "bash"}[it.language]
    _placed({**it.files, "program": it.code.encode()}, cwd)
    variables = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "PYTHONPATH": str(cwd), **env}
    with subprocess.Popen(
        [program, "program"], cwd=cwd, env=variables,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def bare(it: Attack, env: Mapping[str, str], cwd: Path, **options: Any) -> Bare:
    """Run the payload on the host itself, as this user, in ``cwd``: what it can do when there is no wall."""
    cwd.mkdir(parents=True, exist_ok=True)
    with _bare_process(it, env, cwd, **options) as process:
        text = _read_until_end(process)
        return Bare(text, process.wait(_BARE_TIMEOUT))


def _read_until_end(process: subprocess.Popen[bytes]) -> str:
    """Its output up to END; what it started may hold the pipe open for longer."""
    assert process.stdout is not None
    data = b""
    while END.encode() not in data and select.select([process.stdout], [], [], _BARE_TIMEOUT)[0]:
        piece = os.read(process.stdout.fileno(), 1 << 16)
        if not piece:
            break
        data += piece
    text = data.decode("utf-8", "replace")
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
def held(sandbox: sync.Sandbox, it: Attack, env: Mapping[str, str] | None = None, **arguments: Any) -> Iterator[Held]:
    """Run the payload in a cell and hold it at its end."""
    before = set(host.cell_processes())
    events = sandbox.stream(
        it.code, language=it.language, env={**(env or {}), "HOLD": "1"}, files=it.files, **arguments
    )
    text = ""
    try:
        for event in events:
            text += event.text if isinstance(event, Output) else ""
            assert not isinstance(event, Done), f"the attack did not stay: {event} {text[-2000:]}"
            if END in text:
                break
        yield Held(until(lambda: [pid for pid in _oldest_first() if pid not in before], "its processes"), text)
    finally:
        events.close()  # type: ignore[attr-defined]
        until(lambda: set(host.cell_processes()) <= before, "the end of everything in the cell")


def _oldest_first() -> list[int]:
    started = {pid: fields[19] for pid in host.cell_processes() if (fields := host.fields_of(pid))}
    return sorted(started, key=lambda pid: int(started[pid]))


@contextlib.contextmanager
def held_bare(it: Attack, env: Mapping[str, str], cwd: Path, **options: Any) -> Iterator[Held]:
    """The control of `held`."""
    cwd.mkdir(parents=True, exist_ok=True)
    with _bare_process(it, {**env, "HOLD": "1"}, cwd, **options) as process:
        yield Held([process.pid, *witness.descendants(process.pid)], _read_until_end(process))


@contextlib.contextmanager
def without(*layers: str, entries: tuple[Bind, ...] = (), unruled: tuple[str, ...] = ()) -> Iterator[None]:
    """Cells started meanwhile lack ``layers``.

    ``entries``: what a mistake in the mounts would show besides; ``unruled``: targets that Landlock gets no rule for.
    """

    def weakened_plan(admitted: AdmittedRequest, context: ExecutionContext, *more: Any, **named: Any) -> Plan:
        plan = real_plan(admitted, context, *more, **named)
        kept = tuple(layer for layer in plan.layers if layer not in layers)
        weakened = replace(plan, layers=kept, entries=(*plan.entries, *entries))
        if isinstance(plan.waiting, ReadyStart):  # of another kind than those that have all rules
            stamp = (*plan.waiting.stamp, *map(hash, unruled))
            weakened = replace(weakened, waiting=replace(plan.waiting, stamp=stamp))
        return weakened

    def weakened_request(*arguments: Any, **options: Any) -> dict[str, Any]:
        request = real_request(*arguments, **options)
        request["readable"] = [path for path in request["readable"] if path not in unruled]
        request["limits"]["inodes"] += own_size
        return request

    def weakened_container(*arguments: Any) -> dict[str, Any]:
        described = real_container(*arguments)
        for layer in layers:
            described["HostConfig"] |= _WEAKER_CONTAINERS.get(layer, {})
        return described

    own_size = next(_weakenings) if layers else 0  # containers of a size of their own, which are no one else's
    real_plan, real_request = pipeline.make_plan, launch.request  # type: ignore[attr-defined]
    real_container = containers.describe
    with (
        mock.patch.object(pipeline, "make_plan", weakened_plan),
        mock.patch.object(session_cells, "make_plan", weakened_plan),
        mock.patch.object(launch, "request", weakened_request),
        mock.patch.object(containers, "describe", weakened_container),
    ):
        yield
