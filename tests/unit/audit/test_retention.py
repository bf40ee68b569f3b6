"""Rows that were kept long enough are dropped, and what is left stays provable."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest

from casemate.audit import retention
from casemate.audit.anchors import lines_in
from casemate.audit.log import AuditLog
from casemate.audit.retention import RowRetention
from casemate.errors import RecordUnavailable
from casemate.evidence.keys import Signer

HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.ago = 0.0

    def __call__(self) -> tuple[int, int]:
        return time.time_ns() - int(self.ago * 1e9), time.monotonic_ns()


def filled(path: Path, old: int = 6, new: int = 4) -> AuditLog:
    """A record with so many rows that are two hours old, and new ones; signed after every second."""
    clock = Clock()
    log = AuditLog(path, clock=clock, signer=Signer(path.parent / "signing"))
    for ago, count in ((2 * HOUR, old), (0.0, new)):
        clock.ago = ago
        for number in range(count // 2):
            log.append("intent", f"{ago} {number}", "default", {"code": "x" * 2000})
            log.append("outcome", f"{ago} {number}", "default", {"status": "ok"})
            log._settle()
    return log


def test_what_is_old_is_dropped_and_the_rest_verifies_also_later(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    log = filled(path)
    head = log.head().last
    assert log.prune(RowRetention(max_age=HOUR)) == 6
    assert [row.sequence for row in log.tail(99)] == [7, 8, 9, 10, 11]
    assert json.loads(log.tail(1)[0].detail) == {"dropped": 6, "max_age": HOUR}
    verdict = log.verify(head)
    assert (verdict.ok, verdict.dropped, verdict.rows, verdict.signed) == (True, 6, 11, 11)
    assert log.prune(RowRetention(max_age=HOUR)) == 0
    log.append("intent", "later", "default", {})
    log.close()
    log = AuditLog(path, signer=Signer(tmp_path / "signing"))
    assert log.verify().ok
    assert len(list(lines_in(Path(f"{path}.anchors")))) < 7, "the anchors of what was dropped are gone, too"
    log.close()


def test_many_rows_are_dropped_in_several_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_AT_ONCE", 4)
    log = filled(tmp_path / "audit.db", old=30)
    copy = Path(f"{log.path}.anchors").read_text()
    assert log.prune(RowRetention(max_age=HOUR)) == 30
    assert log.verify(anchors=copy).ok
    log.close()


def test_a_record_that_takes_too_much_room_loses_its_oldest(tmp_path: Path) -> None:
    log = filled(tmp_path / "audit.db", old=200, new=200)
    assert 200 < log.prune(RowRetention(max_size=200_000)) < 400
    assert log.verify().ok
    log.close()


def test_an_execution_without_outcome_is_not_dropped(tmp_path: Path) -> None:
    log = filled(tmp_path / "audit.db")
    log._clock.ago = 2 * HOUR  # type: ignore[attr-defined]
    log.append("intent", "goes on", "default", {})
    log.append("intent", "done", "default", {})
    log.append("outcome", "done", "default", {})
    assert log.prune(RowRetention(max_age=0.0)) == 10
    assert [row.execution_id for row in log.tail(99)][:3] == ["goes on", "done", "done"]
    log.close()


def test_what_rules_are_bound_to_is_written_again(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.db", signer=Signer(tmp_path / "signing"))
    for schema in ("old", "new"):
        log.append("definition", "", "default", {"rule": "a", "schema": schema})
    log.append("other", "", "default", {})
    assert log.prune(RowRetention(max_age=0.0)) == 3
    assert [json.loads(row.detail)["schema"] for row in log.rows("definition", "default")] == ["new"]
    assert log.verify().ok
    log.close()


def test_a_record_that_is_not_whole_loses_nothing(tmp_path: Path) -> None:
    log = filled(tmp_path / "audit.db")
    with sqlite3.connect(log.path) as database:
        database.execute("DROP TRIGGER no_update")
        database.execute("UPDATE record SET detail = '{}' WHERE sequence = 2")
    database.close()
    with pytest.raises(RecordUnavailable, match="not intact"):
        log.prune(RowRetention(max_age=HOUR))
    assert len(log.tail(99)) == 10
    log.close()


def test_without_a_signature_nothing_is_dropped(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.db")
    log.append("crossing", "run", "default", {})
    with pytest.raises(RecordUnavailable, match="nothing is signed"):
        log.prune(RowRetention(max_age=0.0))
    log.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM record WHERE sequence = 8",
        "UPDATE kept SET count = 9, last = 'x'",
        "UPDATE kept SET count = 2, last = (SELECT hash FROM record WHERE sequence = 2)",
        "DELETE FROM kept",
        "INSERT INTO kept VALUES (0, '', 0, '')",
    ],
)
def test_the_database_lets_only_this_be_dropped(tmp_path: Path, statement: str) -> None:
    log = filled(tmp_path / "audit.db")
    log.prune(RowRetention(max_age=HOUR))
    database = sqlite3.connect(log.path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        database.execute(statement)
    database.close()
    assert log.verify().ok
    log.close()


def test_a_log_drops_by_itself_what_it_is_told_to(tmp_path: Path) -> None:
    filled(tmp_path / "audit.db").close()
    log = AuditLog(tmp_path / "audit.db", signer=Signer(tmp_path / "signing"), retention=RowRetention(max_age=HOUR))
    log._prune_in_turn()
    assert log.tail(99)[0].sequence == 7
    log.close()
