"""Processes that write a private file take turns."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from casemate.files.private_files import open_lock, turn


def test_a_process_that_was_forked_during_a_turn_keeps_nobody_else_from_one(tmp_path: Path) -> None:
    path = tmp_path / "private" / "lock"
    theirs, ours = os.pipe()
    with turn(open_lock(path)):
        child = os.fork()
        if child == 0:
            os.close(ours)
            os.read(theirs, 1)  # until the test ends
            os._exit(0)
    other = open_lock(path)
    try:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(other)
        os.close(ours)
        os.close(theirs)
        os.waitpid(child, 0)
