"""Sessions: the time to a new session's first result, the time of a step, and the speed of output.

A new session, from the call that opens it to the result of its first step, which uses pandas:

- pool: a ready cell, forked in advance from a zygote that has loaded IPython, numpy and pandas
- zygote: a cell that is forked on demand
- exec: a fresh cell that starts the interpreter, which loads what it needs
- ipykernel, a new one: the same code, from the start of a kernel to its reply. Its text is not even read.

A step in running interpreters: ``x + 1``, and printing ten lines; the text is compared. With ipykernel a step is over
after the reply and all published output, as for clients of Jupyter.

A hundred megabytes from one step, in one write and as lines. The reference is a bare Python that writes the same into a
pipe, which this process reads and discards. The session keeps all of it in a file, and its beginning and end in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import kernel, measure, ready
from benchmarks.measure import Goal, Thing
from casemate import Limits, Sandbox
from casemate.errors import RuntimeMissing
from casemate.model.events import Output
from casemate.sessions.session import Session

FIRST, FIRST_TEXT = "import pandas as pd\npd.DataFrame({'a': [1]}).shape", "(1, 1)"
_NEW = {"pool": Goal(times=1 / 40, most=8e-3), "zygote": Goal(times=1 / 40, most=15e-3), "exec": None}
_STEP = Goal(times=1 / 5, most=1e-3)
_THIRD = Goal(times=3.0)  # a third of the speed
_TRIES = 5  # to get a sample that began as intended
_REST = 0.3  # seconds until the previous session has ended
_BEFORE = {"python": "x = 1", "node": "x = 1", "shell": "x=1"}
_ONE = {"python": "x + 1", "node": "x + 1", "shell": "echo $((x + 1))"}
_TEN = {
    "python": "for n in range(10): print('line', n)",
    "node": "for (let n = 0; n < 10; n++) console.log('line', n)",
    "shell": "for n in {0..9}; do echo line $n; done",
}
_STEPS = {"x + 1": (_ONE, "2"), "ten lines": (_TEN, "\n".join(f"line {n}" for n in range(10)))}
_LINE = "x" * 63
_WRITES = {
    "in one write": "import sys; _ = sys.stdout.write(('{line}' + '\\n') * {lines})",
    "as lines": "for n in range({lines}): print('{line}')",
}
_SIZE, _QUICK_SIZE = 100_000_000, 6_400_000
_READ = 1 << 16


def main() -> None:
    run = measure.Run("sessions", __doc__ or "")
    if kernel.missing():
        run.note(f"ipykernel left out: {kernel.missing()} not installed")
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory(prefix="casemate-sessions-") as folder:
        _new(run, runner, f"{folder}/audit.db")
        _steps(run, runner, f"{folder}/audit.db")
        _output(run, runner, f"{folder}/audit.db")
    run.finish()


# -- a new session


def _new(run: measure.Run, runner: asyncio.Runner, audit: str) -> None:
    sandboxes = {how: Sandbox(audit=audit) for how in _NEW}
    bare = [sys.executable, "-c", "pass"]
    try:
        ready.keep_nothing(sandboxes["exec"])
        for how in ("pool", "zygote"):
            runner.run(ready.settle_sessions(sandboxes[how]))
        ready.keep_zygotes_only(sandboxes["zygote"])
        fast: dict[str, Thing] = {"bare python -c pass": lambda: measure.start_and_wait(bare, measure.ENV)}
        fast |= {_by(how): _first_result(runner, sandboxes[how], how) for how in ("pool", "zygote")}
        slow: dict[str, Thing] = {_by("exec"): _first_result(runner, sandboxes["exec"], "exec")}
        if not kernel.missing():
            slow["ipykernel, a new one"] = _new_kernel
        goals = {_by(how): goal for how, goal in _NEW.items() if goal}
        series = [*measure.in_turn(fast, run.rounds(100), goals), *measure.in_turn(slow, run.rounds(15, 2))]
    finally:
        for sandbox in sandboxes.values():
            runner.run(sandbox.close())
    if kernel.missing():
        series = [measure.without_ratio(one) for one in series]
    else:
        series.insert(0, series.pop())
    run.compare("a new session, to the first result of its first step, which uses pandas", series)


def _by(how: str) -> str:
    return f"session, {how}"


def _first_result(runner: asyncio.Runner, sandbox: Sandbox, how: str) -> Thing:
    """Time a session that began as ``how`` says. Other sessions are repeated."""

    async def timed() -> float:
        began = ""
        for _ in range(_TRIES):
            await (ready.settled(sandbox) if how == "pool" else asyncio.sleep(_REST))
            start = time.perf_counter()
            async with sandbox.session() as session:
                execution = await session.run(FIRST)
                took = time.perf_counter() - start
            if execution.text != FIRST_TEXT:
                raise RuntimeError(f"the first step gave {execution.text!r}: {execution.cause}")
            began = f"{execution.isolation.start}, {execution.isolation.start_reason}"
            if execution.isolation.start == how:
                return took
        raise RuntimeError(f"no session began in a cell from the {how}: {began}")

    return lambda: runner.run(timed())


def _new_kernel() -> float:
    start = time.perf_counter()
    new = kernel.Kernel(FIRST)
    took = time.perf_counter() - start
    new.close()
    return took


# -- a step


def _steps(run: measure.Run, runner: asyncio.Runner, audit: str) -> None:
    with _open(run, runner, audit) as sessions, _running_kernel() as running:
        for title, (codes, text) in _STEPS.items():
            things: dict[str, Thing] = {}
            if running:
                things["ipykernel"] = _kernel_step(running, codes["python"], text)
            for language, session in sessions.items():
                things[f"{language} session"] = _step(runner, session, codes[language], text)
            goals = dict.fromkeys(things, _STEP)
            goals.pop("ipykernel", None)
            series = measure.in_turn(things, run.rounds(500), goals)
            if not running:
                series = [measure.without_ratio(one) for one in series]
            run.compare(f"a step: {title}", series)


@contextlib.contextmanager
def _open(run: measure.Run, runner: asyncio.Runner, audit: str) -> Iterator[dict[str, Session]]:
    """A session of each available language, with ``x`` = 1."""
    sandbox = Sandbox(audit=audit)
    sessions: dict[str, Session] = {}
    try:
        for language, code in _BEFORE.items():
            try:
                session = sandbox.session(language)
                runner.run(session.run(code)).raise_for_status()
            except RuntimeMissing as error:
                run.note(f"{language} left out: {error}")
            else:
                sessions[language] = session
        yield sessions
    finally:
        runner.run(sandbox.close())


@contextlib.contextmanager
def _running_kernel() -> Iterator[kernel.Kernel | None]:
    """A kernel with ``x`` = 1; None if ipykernel is missing."""
    if kernel.missing():
        yield None
        return
    running = kernel.Kernel(_BEFORE["python"], hears=True)
    try:
        yield running
    finally:
        running.close()


def _step(runner: asyncio.Runner, session: Session, code: str, text: str) -> Thing:
    async def timed() -> float:
        start = time.perf_counter()
        execution = await session.run(code)
        took = time.perf_counter() - start
        _check(execution.text, text)
        return took

    return lambda: runner.run(timed())


def _kernel_step(running: kernel.Kernel, code: str, text: str) -> Thing:
    def timed() -> float:
        start = time.perf_counter()
        found = running.text_of(code)
        took = time.perf_counter() - start
        _check(found, text)
        return took

    return timed


def _check(found: str, text: str) -> None:
    if found != text:
        raise RuntimeError(f"a step gave {found!r} instead of {text!r}")


# -- output


def _output(run: measure.Run, runner: asyncio.Runner, audit: str) -> None:
    size = _QUICK_SIZE if run.quick else _SIZE
    lines = size // (len(_LINE) + 1)
    sandbox = Sandbox(audit=audit, limits=Limits(full_output=2 * _SIZE))
    try:
        session = sandbox.session()
        for title, form in _WRITES.items():
            code = form.format(line=_LINE, lines=lines)
            with _bare_writer(code, size) as bare:
                things: dict[str, Thing] = {
                    "bare python, into a pipe": bare,
                    "session.run": lambda code=code: runner.run(_written(session, code, size)),  # type: ignore[misc]
                    "session.stream": lambda code=code: runner.run(_streamed(session, code, size)),  # type: ignore[misc]
                }
                goals = dict.fromkeys(("session.run", "session.stream"), _THIRD)
                series = measure.in_turn(things, run.rounds(10, 2), goals)
            run.compare(f"{size / 1e6:g} MB {title}", series)
    finally:
        runner.run(sandbox.close())


@contextlib.contextmanager
def _bare_writer(code: str, size: int) -> Iterator[Callable[[], None]]:
    """Makes a running bare Python execute ``code``, and reads ``size`` bytes from it."""
    told = f"import sys\nfor _ in sys.stdin:\n    exec({code!r})\n    sys.stdout.flush()"
    argv = [sys.executable, "-c", told]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=measure.ENV) as writer:
        assert writer.stdin
        assert writer.stdout
        way_in, way_out = writer.stdin.fileno(), writer.stdout.fileno()

        def once() -> None:
            os.write(way_in, b"\n")
            missing = size
            while missing:
                missing -= len(os.read(way_out, min(missing, _READ)))

        try:
            yield once
        finally:
            writer.kill()


async def _written(session: Session, code: str, size: int) -> float:
    start = time.perf_counter()
    execution = await session.run(code)
    took = time.perf_counter() - start
    if not execution.ok or execution.full_output is None or execution.full_output.size != size:
        raise RuntimeError(f"not all was kept: {execution.status}, {execution.full_output}, {execution.skipped}")
    return took


async def _streamed(session: Session, code: str, size: int) -> float:
    start = time.perf_counter()
    found = 0
    async for event in session.stream(code):
        if isinstance(event, Output):
            found += len(event.text)
    took = time.perf_counter() - start
    if found != size:
        raise RuntimeError(f"only {found} of {size} bytes came")
    return took


if __name__ == "__main__":
    main()
