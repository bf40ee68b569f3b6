"""The head that is noted beside the record: a record that is not whole any more is found by it."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from casemate.audit.chain import Verdict
from casemate.audit.log import AuditLog
from casemate.audit.reading import Audit
from casemate.errors import InvalidArgument, RecordUnavailable


def verified(path: Path, head: str | None = None) -> Verdict:
    log = AuditLog(path)
    try:
        return asyncio.run(Audit(log, "default").verify(head))
    finally:
        log.close()


def written(path: Path, rows: int = 5) -> str:
    """A record of so many rows; the last one's hash."""
    log = AuditLog(path)
    for number in range(rows):
        log.append("intent", f"run {number}", "default", {})
        log.append("outcome", f"run {number}", "default", {"status": "ok"})
    head = log.head().last
    log.close()
    return head


def cut(path: Path) -> None:
    with sqlite3.connect(path) as database:
        for trigger in ("no_delete", "head_grows"):
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("DELETE FROM record WHERE sequence > 6")
        database.execute("UPDATE head SET count = 6, last = (SELECT hash FROM record WHERE sequence = 6)")
    database.close()


def make_anew(path: Path) -> None:
    """Every row again, and something else in one: a chain that is whole."""
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    Path(f"{path}.head").rename(f"{path}.kept")
    written(path)
    Path(f"{path}.kept").rename(f"{path}.head")


def delete(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)


@pytest.mark.parametrize("change", [cut, make_anew, delete])
def test_a_record_that_was_changed_as_a_whole_is_not_what_was_noted(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "audit.db"
    written(path)
    assert verified(path).ok, "the control"
    change(path)
    for _ in range(2):  # it stays so, whatever is written meanwhile
        verdict = verified(path)
        assert not verdict.ok
        assert "noted" in verdict.reason
        AuditLog(path).close()


def test_a_head_that_was_noted_elsewhere_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    head = written(path)
    assert verified(path, head).ok
    delete(path)
    (tmp_path / "audit.db.head").unlink()
    written(path)
    assert verified(path).ok, "the control"
    assert head in verified(path, head).reason
    with pytest.raises(InvalidArgument):
        verified(path, "nothing of that kind")


KILLED = """
import os, sys
from casemate.audit.log import AuditLog
log = AuditLog(sys.argv[1])
log.append("intent", "lost one", "default", {})
os.kill(os.getpid(), 9)
"""


def test_a_record_that_could_not_be_settled_can_be_opened_again(tmp_path: Path) -> None:
    def fails() -> tuple[int, int]:
        raise OSError(errno.ENOSPC, "the disk is full")

    path = tmp_path / "audit.db"
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == -signal.SIGKILL
    with pytest.raises(RecordUnavailable, match="the disk is full"):
        AuditLog(path, clock=fails)
    log = AuditLog(path)
    assert [row.kind for row in log.tail(9)] == ["intent", "outcome"]
    log.close()


def test_a_record_that_somebody_keeps_to_himself_is_not_waited_for_without_end(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    AuditLog(path).close()
    with (tmp_path / "audit.db.head").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RecordUnavailable, match="for itself alone"):
            AuditLog(path, max_wait=0.1)
    AuditLog(path).close()


def test_what_was_under_way_when_casemate_was_killed_is_closed_as_lost(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    living = AuditLog(path)
    living.append("intent", "of another process", "default", {})
    assert subprocess.run([sys.executable, "-c", KILLED, path], check=False).returncode == -signal.SIGKILL
    AuditLog(path).close()
    assert [row.kind for row in living.tail(9)] == ["intent", "intent"], "somebody has it open still"
    living.append("outcome", "of another process", "default", {"status": "ok"})
    living.close()
    log = AuditLog(path)
    rows = [row for row in log.tail(9) if row.execution_id == "lost one"]
    log.close()
    assert [row.kind for row in rows] == ["intent", "outcome"]
    assert '"status":"lost"' in rows[1].detail
    assert verified(path).ok
