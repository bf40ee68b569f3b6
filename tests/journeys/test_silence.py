"""A supervisor that does not answer, an application that does not ask, and one that is gone before its supervisor can
notice. Judged by process descriptors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.contract import witness
from tests.journeys.test_deaths import everything
from tests.support.waiting import MAX_WAIT, until
from tests.support.walls import skip_without

import casemate
from casemate import Fault, sync
from casemate.walls.native import link

WALLS = ("native", pytest.param("landlock", marks=pytest.mark.full))
SOURCE = str(Path(casemate.__file__).parents[1])
# Says that it runs, and answers each line that it gets with what its session says.
HOST = """
import sys
from casemate import sync
with sync.Sandbox(isolation=sys.argv[2], audit=sys.argv[1]) as sandbox, sandbox.session() as session:
    session.run("import subprocess\\nheld = subprocess.Popen(['sleep', '1000'], start_new_session=True)")
    print("running", flush=True)
    for line in sys.stdin:
        print(session.run("print(held.poll())").stdout.strip(), sandbox.run("print(1)").stdout.strip(), flush=True)
"""
HOLDS = "import subprocess, time\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\ntime.sleep(1000)"


@pytest.fixture(params=WALLS)
def wall(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    skip_without(request.param, tmp_path_factory)
    return str(request.param)


@contextmanager
def host(audit: Path, wall: str) -> Iterator[subprocess.Popen[str]]:
    """An application with a session in which something runs."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, str(audit), wall],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "running\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_supervisor_that_is_stopped_is_ended_with_its_cells_and_what_ran_in_them_is_told_why(
    audit: Path, wall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "_MOST_LOOKS", 3)  # of ten
    seen: list[BaseException] = []
    with sync.Sandbox(audit=audit, isolation=wall) as sandbox:
        sandbox.run("print(1)")

        def run() -> None:
            try:
                sandbox.run(HOLDS, timeout=60)
            except Fault as error:
                seen.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: any(b"sleep" in witness.command(pid) for pid in witness.in_cells()))
        with witness.watching([*witness.supervisors(), *witness.serving(), *witness.in_cells()]) as watched:
            os.kill(witness.serving()[0], signal.SIGSTOP)
            thread.join(MAX_WAIT)
            assert watched.living() == 0
        assert "did not answer" in str(seen)
        assert sandbox.run("print(2)").stdout == "2\n"


@pytest.mark.full
def test_an_application_that_is_stopped_for_thirty_seconds_loses_nothing(audit: Path, wall: str) -> None:
    with host(audit, wall) as process, witness.watching(everything(process.pid)) as watched:
        count = len(watched.pidfds)
        process.send_signal(signal.SIGSTOP)
        time.sleep(30)  # three times as long as a supervisor has to answer
        process.send_signal(signal.SIGCONT)
        for _ in range(3):
            print("go on", file=process.stdin, flush=True)
            assert process.stdout is not None
            assert process.stdout.readline() == "None 1\n"
        assert count - watched.living() <= 1  # the cell that was ready has run a program


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_when_an_application_dies_everything_is_dead_though_its_supervisor_does_not_notice(
    audit: Path, wall: str, number: signal.Signals
) -> None:
    with host(audit, wall) as process, witness.watching(everything(process.pid)) as watched:
        assert len(watched.pidfds) >= 5
        os.kill(witness.serving(process.pid)[0], number)
        process.kill()
        process.wait()
        assert watched.wait()
