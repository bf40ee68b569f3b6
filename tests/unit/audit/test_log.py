"""The record on disk: real files, real processes, real damage."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.records import unfinished

from casemate.audit.log import AuditLog, default_path
from casemate.errors import RecordUnavailable


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "casemate" / "audit.db"


@pytest.fixture
def log(path: Path) -> Iterator[AuditLog]:
    log = AuditLog(path)
    yield log
    log.close()


def fill(log: AuditLog, count: int = 3) -> None:
    for number in range(count):
        log.append("intent", f"run-{number}", "default", {"code": f"print({number})"})
        log.append("outcome", f"run-{number}", "default", {"status": "ok"})
    log.fold()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_tail_is_the_end_of_the_record_and_of_one_namespace(log: AuditLog) -> None:
    for number in range(5):
        log.append("intent", f"run-{number}", "odd" if number % 2 else "even", {})
    assert [row.execution_id for row in log.tail(2)] == ["run-3", "run-4"]
    assert [row.execution_id for row in log.tail(2, "odd")] == ["run-1", "run-3"]
    assert log.tail(0) == []


def test_hostile_text_is_one_row_and_comes_back_as_it_was(log: AuditLog) -> None:
    """AU-01, AU-02."""
    hostile = "'); DROP TABLE record;--\n2026-01-01 approved\r\x1b[2K\u2028\x00"
    log.append("intent", hostile, hostile, {hostile: hostile})
    (row,) = log.tail(10)
    assert (row.execution_id, row.namespace) == (hostile, hostile)
    assert row.detail.isprintable()
    assert log.verify().ok


def test_the_record_is_for_its_owner_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        log = AuditLog(path)
        fill(log)
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.rglob("*") if file.is_file()}
        log.close()
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}
    assert len(modes) == 4
    for folder in (path.parent, path.parent.parent, Path(f"{path}.rows")):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_record_that_others_could_read_is_closed_to_them(path: Path) -> None:
    AuditLog(path).close()
    path.chmod(0o644)
    AuditLog(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE record SET detail = '{}' WHERE sequence = 1",
        "DELETE FROM record",
        "INSERT OR REPLACE INTO record VALUES (1, 0, 0, 'intent', 'run-0', '', '', '', '')",
        "INSERT INTO record VALUES (99, 0, 0, 'x', 'x', '', '', '', '')",
        "UPDATE head SET count = 0",
        "DELETE FROM head",
    ],
)
def test_the_database_itself_refuses_to_change_what_was_written(log: AuditLog, path: Path, statement: str) -> None:
    fill(log)
    database = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        database.execute(statement)
    database.close()
    assert log.verify().ok
    assert len(log.tail(100)) == 6


def test_an_execution_has_at_most_one_intent_and_one_outcome(log: AuditLog) -> None:
    """AU-07: nothing that happens in a cell adds rows; what would be a second one is on record as that."""
    fill(log, 1)
    log.append("intent", "run-0", "default", {"code": "other"})
    log.append("outcome", "run-0", "default", {})
    assert [row.kind for row in log.tail(10)] == ["intent", "outcome", "repeated", "repeated"]
    assert json.loads(log.tail(2)[0].detail) == {"kind": "intent", "detail": '{"code":"other"}'}
    assert log.verify().ok


WRITER = """
import sys
from casemate.audit.log import AuditLog
log = AuditLog(sys.argv[1], max_wait=60)
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    log.append("intent",f"{sys.argv[2]}-{number}", "default", {})
    log.append("outcome",f"{sys.argv[2]}-{number}", "default", {})
"""


def test_processes_that_write_at_once_lose_no_row(path: Path) -> None:
    """AU-11: also when they make the file at the same moment."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for writer in writers:
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        with writer:
            assert writer.wait() == 0
    log = AuditLog(path)
    assert log.verify().head.count == 4 * 200
    assert log.verify().ok
    assert unfinished(log) == []
    log.close()


def test_threads_that_write_at_once_lose_no_row(log: AuditLog) -> None:
    """AU-11."""

    def write(name: str) -> None:
        for number in range(50):
            log.append("intent", f"{name}-{number}", "default", {})
            log.append("outcome", f"{name}-{number}", "default", {})

    threads = [threading.Thread(target=write, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.verify().head.count == 4 * 100
    assert log.verify().ok


def test_a_locked_database_costs_no_row_and_nothing_new_is_begun_while_it_is_locked(path: Path) -> None:
    """AU-06."""
    log = AuditLog(path, max_wait=0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    log.append("intent", "run", "default", {})
    with pytest.raises(RecordUnavailable, match=r"locked(.|\n)*Another process"):
        log.fold()
    wait_for(lambda: log._problem is not None)
    with pytest.raises(RecordUnavailable, match=r"locked(.|\n)*Another process"):
        log.append("intent", "new", "default", {})
    log.append("outcome", "run", "default", {})
    other.execute("ROLLBACK")
    other.close()
    assert [row.kind for row in log.tail(9)] == ["intent", "outcome"]
    wait_for(lambda: log._problem is None)
    log.append("intent", "new", "default", {})
    assert log.verify().head.count == 3
    log.close()


def test_a_database_at_its_size_limit_says_so(log: AuditLog) -> None:
    """AU-06."""
    database = log._database
    assert database
    database.execute("PRAGMA max_page_count = 1")
    for number in range(10):
        log.append("crossing", f"run-{number}", "default", {"code": "x" * 8000})
    with pytest.raises(RecordUnavailable, match=r"full(.|\n)*Free some space"):
        log.fold()
    database.execute("PRAGMA max_page_count = 100000")
    assert len(log.tail(20)) == 10
    assert log.verify().ok


@pytest.mark.user_only
def test_a_folder_that_may_not_be_written_stops_the_run(tmp_path: Path) -> None:
    """AU-06."""
    tmp_path.chmod(0o500)
    with pytest.raises(RecordUnavailable, match=r"Permission denied(.|\n)*CASEMATE_AUDIT"):
        AuditLog(tmp_path / "audit.db")
    with pytest.raises(RecordUnavailable, match="Permission denied"):
        AuditLog(tmp_path / "below" / "audit.db")
    tmp_path.chmod(0o700)


@pytest.mark.user_only
def test_a_file_that_may_only_be_read_stops_the_run(path: Path) -> None:
    """AU-06."""
    AuditLog(path).close()
    path.chmod(0o400)
    with pytest.raises(RecordUnavailable, match="read-only"):
        AuditLog(path).append("intent", "run", "default", {})


def test_whatever_lies_in_the_records_place_stops_the_run(tmp_path: Path) -> None:
    """AU-06."""
    (tmp_path / "folder").mkdir()
    AuditLog(tmp_path / "elsewhere.db").close()
    (tmp_path / "link").symlink_to("elsewhere.db")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "text").write_text("not a database, and long enough to be taken for one" * 100)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE theirs (x)")
    other.execute("PRAGMA user_version = 1")
    other.commit()
    other.close()
    for name in ("folder", "link", "fifo", "text", "other.db", "text/audit.db", "nul\x00"):
        with pytest.raises(RecordUnavailable) as refused:
            AuditLog(tmp_path / name)
        assert name in refused.value.message
        assert refused.value.remediation
    assert (tmp_path / "text").read_text().startswith("not a database")


def test_a_damaged_file_stops_the_run(log: AuditLog, path: Path) -> None:
    """AU-06."""
    fill(log, 50)
    log.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 20_000)
    with pytest.raises(RecordUnavailable, match=r"malformed|corrupt|head is missing"):
        AuditLog(path).append("intent", "run", "default", {})


def test_a_record_of_a_newer_casemate_is_left_alone(path: Path) -> None:
    AuditLog(path).close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 3")
    database.close()
    with pytest.raises(RecordUnavailable, match="version 3"):
        AuditLog(path)


def test_a_closed_record_takes_no_more_rows(log: AuditLog) -> None:
    log.close()
    log.close()
    with pytest.raises(RecordUnavailable, match="closed"):
        log.append("intent", "run", "default", {})


def test_the_record_lies_in_the_state_folder_of_the_user() -> None:
    assert default_path({"XDG_STATE_HOME": "/state", "HOME": "/home/u"}) == Path("/state/casemate/audit.db")
    assert default_path({"XDG_STATE_HOME": "relative", "HOME": "/home/u"}) == Path(
        "/home/u/.local/state/casemate/audit.db"
    )
    for environ in ({}, {"HOME": ""}, {"HOME": "relative"}):
        with pytest.raises(RecordUnavailable, match="Set HOME"):
            default_path(environ)


def test_a_close_at_the_moment_when_a_pause_is_over_ends(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(path)
    has_looked = threading.Event()

    class Pause(threading.Event):
        """Over when the close has looked at whether the thread rests, and not sooner."""

        def wait(self, timeout: float | None = None) -> bool:
            return not has_looked.wait(30)

    class Thread(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            has_looked.set()
            super().join(10)

    monkeypatch.setattr(threading, "Thread", Thread)
    monkeypatch.setattr(log, "_ends", Pause())
    log.append("intent", "run", "default", {})
    thread = log._thread
    assert thread is not None
    log.close()
    assert not thread.is_alive()
