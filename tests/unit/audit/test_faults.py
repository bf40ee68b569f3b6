"""What the record has promised is there after sudden deaths, full disks and clocks that go back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.records import unfinished

from casemate.audit.log import AuditLog
from casemate.errors import RecordUnavailable
from casemate.evidence.keys import Signer

# It runs executions, tells of each row once it was promised, and kills itself before or after some call.
DIES = """
import functools, importlib, os, signal, sys
from pathlib import Path
from casemate.audit.log import AuditLog
from casemate.evidence.keys import Signer

path, module, name, when, count = sys.argv[1:]
holder, _, attribute = name.rpartition(".")
owner = importlib.import_module(module)
owner = getattr(owner, holder) if holder else owner
inner, calls = getattr(owner, attribute), [0]

@functools.wraps(inner)
def deadly(*arguments, **named):
    calls[0] += 1
    if calls[0] == int(count) and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = inner(*arguments, **named)
    if calls[0] == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return result

setattr(owner, attribute, deadly)
log = AuditLog(path, signer=Signer(Path(path).parent / "signing"))
for number in range(6):
    for kind in ("intent", "outcome"):
        log.append(kind, f"{os.getpid()}-{number}", "default", {})
        os.write(1, f"{kind} {os.getpid()}-{number}\\n".encode())
    if number % 2:
        log._settle()
log.close()
"""
STEPS = [
    ("casemate.audit.journal", "Journal.__init__", 1), ("casemate.audit.journal", "Journal.write", 1),
    ("casemate.audit.journal", "Journal.write", 6), ("casemate.audit.log", "AuditLog._begin", 1),
    ("casemate.audit.log", "AuditLog._fold_into", 2), ("casemate.audit.log", "AuditLog._insert", 3),
    ("casemate.audit.log", "sync_to_disk", 2), ("casemate.audit.log", "AuditLog._anchor", 2),
    ("casemate.audit.anchors", "Anchors._write", 1), ("casemate.audit.anchors", "Anchors._write", 2),
    ("casemate.audit.log", "AuditLog._close_lost", 2), ("casemate.audit.journal", "Journal.remove", 1),
]  # fmt: skip


def test_a_death_at_any_step_costs_no_row_that_was_promised(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    promised: list[str] = []
    for module, name, count in STEPS:
        for when in ("before", "after"):
            command = [sys.executable, "-c", DIES, str(path), module, name, when, str(count)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            assert done.returncode == -signal.SIGKILL, (name, when)
            promised += done.stdout.splitlines()
            log = AuditLog(path, signer=Signer(tmp_path / "signing"))
            rows, verdict, problem = log.tail(10_000), log.verify(), (name, count, when)
            assert verdict.ok, (problem, verdict)
            assert verdict.signed == verdict.rows == len(rows), problem
            assert unfinished(log) == [], problem
            log.close()
            found = [f"{row.kind} {row.execution_id}" for row in rows]
            assert len(set(found)) == len(found), problem
            assert set(promised) <= set(found), problem
            begun = [one.split()[1] for one in promised if one.startswith("intent")]
            ended = [one.split()[1] for one in promised if one.startswith("outcome")]
            lost = {row.execution_id for row in rows if json.loads(row.detail).get("status") == "lost"}
            assert not lost & set(ended), problem
            assert set(begun) - set(ended) <= lost | {row.execution_id for row in rows if row.kind == "outcome"}, (
                problem
            )


def test_a_line_that_a_death_has_cut_is_no_row_and_one_that_is_damaged_says_so(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    folder = Path(f"{path}.rows")
    AuditLog(path).close()
    whole = b'[1,2,"intent","run","default"]\t{}\n'
    (folder / "0123456789abcdef").write_bytes(
        whole + b"\0\0\0 damaged\n" + whole.replace(b"intent", b"outcome") + whole[:20]
    )
    log = AuditLog(path)
    assert [row.kind for row in log.tail(9)] == ["intent", "unreadable", "outcome"]
    assert log.verify().ok
    assert len(list(folder.iterdir())) == 1
    log.close()
    assert list(folder.iterdir()) == []


def test_an_anchor_that_a_death_has_cut_is_written_again(tmp_path: Path) -> None:
    path, signer = tmp_path / "audit.db", Signer(tmp_path / "signing")
    for number in range(3):
        log = AuditLog(path, signer=signer)
        log.append("intent", f"run {number}", "default", {})
        log.close()
        with Path(f"{path}.anchors").open("a") as anchors:
            anchors.write('{"count":')
    log = AuditLog(path, signer=signer)
    log.append("intent", "run", "default", {})
    assert log.verify().ok
    log.close()


def test_an_anchor_for_which_there_was_half_the_room_leaves_nothing(tmp_path: Path) -> None:
    """Neither beside the record, where the next one would seem to be no line, nor in a copy elsewhere."""
    program = """
import resource, sys
from pathlib import Path
from casemate.audit.anchors import Anchors, check, hash_of_line, lines_in
from casemate.audit.chain import GENESIS, Head
from casemate.audit.outside import Outside
from casemate.evidence.keys import Signer

folder, said = Path(sys.argv[1]), []
anchors, outside = Anchors(folder / "audit.db", Signer(folder / "signing").sign), Outside([sys.argv[1] + "/copy"], "")
first = anchors.append(Head(1, "1" * 64), GENESIS)
outside.send(first, said.append)
none, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (len(first) + 50, most))
try:
    anchors.append(Head(2, "2" * 64), hash_of_line(first))
except OSError as error:
    said.append(error)
outside.send(first, said.append)
assert len(said) == 2, said
resource.setrlimit(resource.RLIMIT_FSIZE, (none, most))
outside.send(anchors.append(Head(2, "2" * 64), hash_of_line(first)), said.append)
for path in (anchors.path, folder / "copy"):
    good, problem = check(lines_in(path), None)
    assert (len(good), problem) == (2, ""), (path, problem)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_full_file_system_refuses_new_runs_and_loses_nothing(tmp_path: Path) -> None:
    """In a namespace with a file system of its own, which holds a megabyte."""
    program = """
import os, sys
from pathlib import Path
from casemate.audit.log import AuditLog
from casemate.errors import RecordUnavailable
from casemate.evidence.keys import Signer

folder = Path(sys.argv[1])
log, promised, ballast = AuditLog(folder / "audit.db", signer=Signer(folder / "signing")), [], folder / "ballast"
log.append("intent", "first", "default", {})
log.append("outcome", "first", "default", {})
log.fold()
with ballast.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        pass
refused = 0
for number in range(200):
    try:
        log.append("intent", str(number), "default", {"code": "x" * 3000})
        promised.append(str(number))
        log._settle()
    except RecordUnavailable as error:
        assert "Free some space" in error.remediation, error
        refused += 1
assert refused, "the control"
ballast.unlink()
log.append("outcome", promised[0] if promised else "late", "default", {})
log._settle()
found = [row.execution_id for row in log.tail(1000) if row.kind == "intent"]
assert found == ["first", *promised], (found, promised)
verdict = log.verify()
assert verdict.ok and verdict.signed == verdict.rows, verdict
log.close()
print("whole")
"""
    mount = f"mount -t tmpfs -o size=1m none {tmp_path} && exec {sys.executable} -c '{program}' {tmp_path}"
    command = ["unshare", "--map-root-user", "--user", "--mount", "sh", "-c", mount]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "whole\n", done.stderr


def test_rows_that_the_database_does_not_take_at_the_end_are_there_for_the_next_process(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.db", max_wait=0.1)
    log.append("crossing", "one", "default", {})
    with contextlib.closing(sqlite3.connect(log.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        log.close()
    again = AuditLog(tmp_path / "audit.db")
    assert [row.execution_id for row in again.tail(9)] == ["one"]
    again.close()
    assert not list(Path(f"{log.path}.rows").iterdir())


def test_a_clock_that_is_set_back_by_an_hour_changes_no_order(tmp_path: Path) -> None:
    """AU-09."""
    now = [3_600 * 10**9 * 2]
    log = AuditLog(tmp_path / "audit.db", clock=lambda: (now[0], 1), signer=Signer(tmp_path / "signing"))
    log.append("intent", "run", "default", {})
    log.fold()
    now[0] -= 3_600 * 10**9
    log.append("outcome", "run", "default", {})
    assert [row.kind for row in log.tail(9)] == ["intent", "outcome"]
    assert log.verify().ok
    log.close()


def test_rows_of_a_living_process_are_there_for_others_at_once_and_are_not_taken_for_lost(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    ours, theirs = AuditLog(path), AuditLog(path)
    ours.append("intent", "ours", "default", {})
    assert [row.execution_id for row in theirs.tail(9)] == ["ours"]
    theirs.append("intent", "theirs", "default", {})
    assert [row.execution_id for row in ours.tail(9)] == ["ours", "theirs"]
    theirs.append("outcome", "theirs", "default", {})
    theirs.close()
    assert unfinished(ours) == ["ours"]
    ours.append("outcome", "ours", "default", {})
    ours.close()
    assert os.listdir(f"{path}.rows") == []


def test_a_journal_that_grew_long_gives_way_to_another_one(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    log = AuditLog(path)
    for number in range(40):
        log.append("crossing", str(number), "default", {str(key): "x" * 8000 for key in range(7)})
        log.fold()
    assert [row.execution_id for row in log.tail(99)] == [str(number) for number in range(40)]
    (name,) = os.listdir(f"{path}.rows")
    assert Path(f"{path}.rows", name).stat().st_size < 2 << 20
    log.close()


def test_a_record_of_version_1_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "audit.db"
    log = AuditLog(path)
    log.append("intent", "run", "default", {})
    log.close()
    database = sqlite3.connect(path, isolation_level=None)
    for statement in ("DROP TABLE journals", "DROP TABLE kept", "PRAGMA user_version = 1"):
        database.execute(statement)
    database.close()
    log = AuditLog(path, signer=Signer(tmp_path / "signing"))
    log.append("intent", "new", "default", {})
    assert [row.execution_id for row in log.tail(9)] == ["run", "run", "new"]
    assert log.verify().ok
    log.close()


def test_each_row_can_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_size))
    log = AuditLog(tmp_path / "audit.db", sync="row")
    log.append("intent", "run", "default", {})
    assert synced[:1] == [log._journal.size]
    log.close()


def test_a_journal_that_cannot_be_written_stops_the_run(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.db")
    os.close(log._journal._fd)
    with pytest.raises(RecordUnavailable, match="Bad file descriptor"):
        log.append("intent", "run", "default", {})
    log._journal = type(log._journal)(Path(f"{log.path}.rows"))
    log.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_journal_that_is_removed_while_its_process_lives_stops_the_next_run(
    tmp_path: Path, is_replaced: bool
) -> None:
    log = AuditLog(tmp_path / "audit.db", signer=Signer(tmp_path / "signing"))
    log.append("intent", "run", "default", {})
    log.fold()
    (journal,) = Path(f"{log.path}.rows").iterdir()
    data = journal.read_bytes()
    journal.unlink()
    if is_replaced:
        journal.write_bytes(data)
    log.append("outcome", "run", "default", {})
    with pytest.raises(RecordUnavailable, match="removed or replaced"):
        log.fold()
    with pytest.raises(RecordUnavailable, match="removed or replaced"):
        log.verify()
    log.close()


def test_a_fork_leaves_the_record_to_the_parent(tmp_path: Path) -> None:
    program = """
import os, sys
from casemate.audit.log import AuditLog
from casemate.errors import RecordUnavailable
log = AuditLog(sys.argv[1])
log.append("intent", "run", "default", {})
if not (child := os.fork()):
    try:
        log.append("outcome", "run", "default", {})
    except RecordUnavailable as error:
        log.close()
        os._exit(7 if "before a fork" in error.message else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
log.append("outcome", "run", "default", {})
assert [row.kind for row in log.tail(9)] == ["intent", "outcome"]
log.close()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "audit.db")], check=True)
