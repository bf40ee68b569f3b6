"""What a program writes to is its own before it begins."""

from __future__ import annotations

from pathlib import Path

from tests.contract import witness
from tests.warm.ready import all_ready, settle

from casemate import sync

_FAULTS = "print(open('/proc/self/stat', 'rb').read().rpartition(b')')[2].split()[7].decode())"
_MOST = 90  # page faults; there are 190 when nothing was copied ahead, and about 20 more for what this program does


def test_a_program_hardly_has_to_copy_what_it_writes_to() -> None:
    with sync.Sandbox(preload=()) as sandbox:
        settle(sandbox)
        before = {int(_faults_of(pid)) for init in all_ready(sandbox) for pid in witness.children(init)}
        run = sandbox.run(_FAULTS)
    assert run.isolation.start == "pool"
    assert min(int(run.stdout) - known for known in before) < _MOST, (before, run.stdout)


def test_what_is_rehearsed_leaves_no_process_and_no_output() -> None:
    with sync.Sandbox(preload=()) as sandbox:
        (zygote,) = settle(sandbox).zygotes
        assert zygote.problem == ""
        all_ready(sandbox)
        below = [pid for server in witness.serving() for pid in witness.children(server)]
        assert all(not witness.children(pid) or len(witness.children(pid)) == 1 for pid in below)
        assert sandbox.run("print(__import__('os').listdir('/program'))").stdout == "['main.py']\n"


def _faults_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7]
