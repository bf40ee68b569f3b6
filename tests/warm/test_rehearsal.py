"""What a program writes to is its own before it begins."""

from __future__ import annotations

from pathlib import Path

from tests.contract import witness
from tests.support.waiting import until
from tests.warm.ready import all_ready, settle, warmth

from casemate import sync

_FAULTS = "print(open('/proc/self/stat', 'rb').read().rpartition(b')')[2].split()[7].decode())"
_LOOKS = 10  # alike, one after the other, when a process only waits
_MOST = 90  # page faults; there are 190 when nothing was copied ahead, and about 20 more for what this program does

_MOST_OF_A_STEP = 300  # there are 800 when nothing was copied ahead


def test_a_program_hardly_has_to_copy_what_it_writes_to() -> None:
    with sync.Sandbox(preload=()) as sandbox:
        settle(sandbox)
        looks: list[list[int]] = []
        until(lambda: _rests(sandbox, looks), "cells that have prepared themselves")
        run = sandbox.run(_FAULTS)
    assert run.isolation.start == "pool"
    assert min(int(run.stdout) - known for known in looks[-1]) < _MOST, (looks[-1], run.stdout)


def test_neither_does_the_first_step_of_a_session() -> None:
    with sync.Sandbox(preload=()) as sandbox:
        with sandbox.session() as first:
            first.run("pass")
        until(lambda: warmth(sandbox).is_settled)
        looks: list[list[int]] = []
        until(lambda: _rests(sandbox, looks), "cells that have prepared themselves")
        step = sandbox.session().run(_FAULTS)
    assert step.isolation.start == "pool"
    assert min(int(step.stdout) - known for known in looks[-1]) < _MOST_OF_A_STEP, (looks[-1], step.stdout)


def test_what_is_rehearsed_leaves_no_process_and_no_output() -> None:
    with sync.Sandbox(preload=()) as sandbox:
        (zygote,) = settle(sandbox).zygotes
        assert zygote.problem == ""
        all_ready(sandbox)
        below = [pid for server in witness.serving() for pid in witness.children(server)]
        assert all(not witness.children(pid) or len(witness.children(pid)) == 1 for pid in below)
        assert sandbox.run("print(__import__('os').listdir('/program'))").stdout == "['main.py']\n"


def _rests(sandbox: sync.Sandbox, looks: list[list[int]]) -> bool:
    """Whether nothing that waits has taken a page since the last looks, of which this is one more."""
    waiting = [pid for init in all_ready(sandbox) for pid in witness.children(init)]
    looks.append(sorted(_faults_of(pid) for pid in waiting if witness.state(pid) == "S"))  # not what waits for a core
    alike = all(0 not in look and look == looks[-1] for look in looks[-_LOOKS:])
    return len(looks) > _LOOKS and len(looks[-1]) == len(waiting) and alike


def _faults_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
