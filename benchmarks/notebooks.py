"""The kernel for notebooks: the time from its start to its first result, and the time of a notebook's cell.

First result: from the start of the kernel's process to the reply to ``1 + 1``. Jupyter's own client is loaded before. A
cell: ``x + 1`` until its reply and all of its published output, against the same step of a session of the library in
this process.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import kernel, measure
from benchmarks.measure import Goal, Thing
from casemate import Sandbox

ARGV = (sys.executable, "-m", "casemate.surfaces.kernel")


def main() -> None:
    run = measure.Run("notebooks", __doc__ or "")
    if kernel.missing():
        run.note(f"left out: {kernel.missing()} not installed")
    else:
        _first_results(run)
        with asyncio.Runner() as runner, tempfile.TemporaryDirectory(prefix="casemate-notebooks-") as folder:
            _cells(run, runner, f"{folder}/audit.db")
    run.finish()


def _first_results(run: measure.Run) -> None:
    things = {
        "python -c pass": lambda: measure.start_and_wait([sys.executable, "-c", "pass"]),
        "casemate, first result": lambda: _start(ARGV),
        "ipykernel, first result": lambda: _start(()),
    }
    goals = {"casemate, first result": Goal(most=0.3)}
    run.compare("a new kernel", measure.in_turn(things, run.rounds(20), goals))


def _start(argv: tuple[str, ...]) -> float:
    began = time.perf_counter()
    started = kernel.Kernel("1 + 1", argv=argv)
    seconds = time.perf_counter() - began
    started.close()
    return seconds


def _check(text: str) -> None:
    if text != "2":
        raise RuntimeError(f"x + 1 is said to be {text!r}")


def _cells(run: measure.Run, runner: asyncio.Runner, audit: str) -> None:
    ours, theirs = kernel.Kernel("x = 1", hears=True, argv=ARGV), kernel.Kernel("x = 1", hears=True)
    sandbox = Sandbox(audit=audit)
    try:
        session = sandbox.session()
        runner.run(session.run("x = 1"))
        things: dict[str, Thing] = {
            "a step of a session": lambda: _check(runner.run(session.run("x + 1")).text),
            "casemate, a cell": lambda: _check(ours.text_of("x + 1")),
            "ipykernel, a cell": lambda: _check(theirs.text_of("x + 1")),
        }
        run.compare("a cell", measure.in_turn(things, run.rounds(200), {}))
    finally:
        ours.close()
        theirs.close()
        runner.run(sandbox.close())


if __name__ == "__main__":
    main()
