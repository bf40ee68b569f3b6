"""The record, read beside its writers: newest first, bounded, verified."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from casemate import InvalidArgument, RecordUnavailable, Sandbox
from casemate.audit import database, verifying
from casemate.audit.chain import verify_after
from casemate.audit.log import AuditLog
from casemate.audit.reading import Audit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "au dit?#%.db"


def filled(path: Path, rows: int) -> AuditLog:
    log = AuditLog(path)
    for number in range(rows):
        log.append("noted", "", "mine" if number % 2 else "other", {"number": number})
    log.fold()
    return log


async def test_the_newest_rows_come_first_with_their_hashes_chained(path: Path) -> None:
    async with Sandbox(audit=path, namespace="mine") as sandbox:
        first, second = await sandbox.run("print(1)"), await sandbox.run("print(2)")
        rows = await sandbox.audit.tail()
        assert [(row.kind, row.run) for row in rows] == [
            ("outcome", second.id), ("intent", second.id), ("outcome", first.id), ("intent", first.id),
        ]  # fmt: skip
        assert all(newer.previous == older.hash for newer, older in itertools.pairwise(rows))
        assert rows[-1].previous == "0" * 64
        assert rows[-1].detail["code"] == "print(1)"
        assert abs(rows[0].time - time.time()) < 60
        assert [row.sequence for row in await sandbox.audit.tail(2)] == [4, 3]
        assert [row.kind for row in await sandbox.audit.tail(run=first.id)] == ["outcome", "intent"]
        assert [row.run for row in await sandbox.audit.tail(kind="intent")] == [second.id, first.id]
        assert [row.sequence for row in await sandbox.audit.tail(since=rows[1].time)] == [4, 3]
        assert await sandbox.audit.tail(since=time.time() + 60) == []
        verdict = await sandbox.audit.verify()
        assert (verdict.ok, verdict.rows, verdict.first_bad) == (True, 4, None)


@pytest.mark.parametrize("policy", [{"defaults": {"egress": "deny"}}, {"allowed_domains": []}, {"network": "listed"}])
async def test_what_a_program_tries_under_a_policy_that_allows_no_host_is_on_record_and_proposed(
    path: Path, policy: dict[str, Any]
) -> None:
    program = "import socket\ntry: socket.create_connection(('a.example', 443), 20)\nexcept OSError: print('refused')"
    async with Sandbox(audit=path, policy=policy) as sandbox:
        execution = await sandbox.run(program)
        assert execution.stdout == "refused\n"
        assert [(one.host, one.decision) for one in execution.crossings] == [("a.example", "denied")]
        [used] = await sandbox.audit.crossings()
        assert [(use.name, use.decision) for use in used.uses] == [("a.example", "denied")]
        proposal = await sandbox.audit.propose(execution.id)
        assert (proposal.rules, proposal.refused) == (0, 1)
        assert '#    host: "a.example:443"' in proposal.yaml
        session = sandbox.session()
        assert [one.host for one in (await session.run(program)).crossings] == ["a.example"]


async def test_rows_of_another_namespace_are_not_there_and_count_in_the_chain(path: Path) -> None:
    log = filled(path, 10)
    audit = Audit(log, "mine")
    assert [row.detail["number"] for row in await audit.tail()] == [9, 7, 5, 3, 1]
    assert {row.namespace for row in await audit.tail()} == {"mine"}
    assert (await audit.verify()).rows == 10
    assert await Audit(log, "mine' OR '1'='1").tail() == []
    log.close()


BAD: list[dict[str, Any]] = [
    {"limit": 0}, {"limit": -1}, {"limit": 1001}, {"limit": True}, {"limit": "5"}, {"since": float("nan")},
    {"since": "now"}, {"since": 10**400}, {"kind": 1}, {"run": "\0"},
]  # fmt: skip


@pytest.mark.parametrize("given", BAD, ids=str)
async def test_what_makes_no_sense_is_a_bad_argument(sandbox: Sandbox, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        await sandbox.audit.tail(**given)


async def test_times_beyond_all_bounds_find_all_or_nothing(path: Path) -> None:
    log = filled(path, 2)
    assert len(await Audit(log, "mine").tail(since=-1e300)) == 1
    assert await Audit(log, "mine").tail(since=1e300) == []
    log.close()


CHANGES = [
    ("UPDATE record SET detail = '{}' WHERE sequence = 4500", 4500),
    ("DELETE FROM record WHERE sequence = 4500", 4500),
    ("DELETE FROM record WHERE sequence > 4500", 4501),
    ("DELETE FROM record", 1),
    ("UPDATE record SET namespace = 'mine' WHERE sequence = 1", 1),
    ("UPDATE head SET count = 4999", 5000),
    ("UPDATE head SET last = 'x'", 5000),
    ("UPDATE record SET sequence = 6000 WHERE sequence = 5000", 5000),
]


@pytest.fixture(scope="module")
def long_record(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("long") / "audit.db"
    log = filled(path, 5000)
    log.close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


@pytest.mark.parametrize(("change", "row"), CHANGES, ids=[change for change, _ in CHANGES])
async def test_a_record_that_was_changed_says_where(path: Path, long_record: bytes, change: str, row: int) -> None:
    path.write_bytes(long_record)
    log = AuditLog(path)
    assert (await Audit(log, "mine").verify()).rows == 5000
    with sqlite3.connect(path, isolation_level=None) as file:
        for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            file.execute(f"DROP TRIGGER {name}")
        file.execute(change)
    verdict = await Audit(log, "mine").verify()
    assert (verdict.ok, verdict.first_bad) == (False, row)
    assert verdict.reason
    log.close()


async def test_details_that_are_no_json_are_told_as_that(path: Path) -> None:
    log = filled(path, 2)
    with sqlite3.connect(path, isolation_level=None) as file:
        file.execute("DROP TRIGGER no_update")
        file.execute("UPDATE record SET detail = '[' || hex(zeroblob(5000))")
    (row,) = await Audit(log, "mine").tail()
    assert list(row.detail) == ["unreadable"]
    assert len(row.detail["unreadable"]) == 1000
    log.close()


async def test_an_answer_is_bounded_in_bytes(path: Path) -> None:
    log = AuditLog(path)
    for _ in range(120):
        log.append("noted", "", "mine", {str(number): "x" * 8000 for number in range(7)})
    rows = await Audit(log, "mine").tail(1000)
    assert 50 < len(rows) < 100
    log.close()


async def test_writers_go_on_while_the_record_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(path, 4000)
    reading_now, go_on = threading.Event(), threading.Event()

    def slowly(rows: Any, good: Any, head: Any = None) -> Any:
        reading_now.set()
        assert go_on.wait(60)
        return verify_after(rows, good, head)

    monkeypatch.setattr(verifying, "verify_after", slowly)
    judging = asyncio.ensure_future(Audit(log, "mine").verify())
    assert await asyncio.to_thread(reading_now.wait, 30)
    log.append("intent", "run", "mine", {})
    log.append("outcome", "run", "mine", {})
    assert log.head().count == 4002
    go_on.set()
    verdict = await judging
    assert (verdict.ok, verdict.rows) == (True, 4000)
    assert log.verify().head.count == 4002
    log.close()


async def test_a_reading_that_takes_too_long_is_ended(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(path, 4000)
    monkeypatch.setattr(database, "_SECONDS", 0.0)
    monkeypatch.setattr(database, "_STEPS", 100)
    with pytest.raises(RecordUnavailable, match="longer"):
        await Audit(log, "mine").tail(kind="nothing of the kind")
    log.close()


async def test_a_record_that_is_gone_is_unavailable(path: Path) -> None:
    log = filled(path, 1)
    path.unlink()
    with pytest.raises(RecordUnavailable):
        await Audit(log, "mine").tail()
    with pytest.raises(RecordUnavailable):
        await Audit(log, "mine").verify()
    assert not path.exists()
    log.close()


def make_version_1(path: Path) -> None:
    """A record as casemate left it before there were indexes."""
    file = sqlite3.connect(path)
    file.executescript("""DROP INDEX of_namespace; DROP INDEX of_execution; DROP TABLE journals; DROP TABLE kept;
        PRAGMA user_version = 1;""")
    file.close()


@pytest.mark.parametrize("is_old", [False, True])
async def test_rows_of_others_cost_a_reader_nothing(path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool) -> None:
    log = AuditLog(path)
    log.append("noted", "", "mine", {"number": 1})
    log.append("intent", "one", "alone", {})
    for number in range(3000):
        log.append("noted", "", "other", {"number": number})
    log.close()
    if is_old:
        make_version_1(path)
    log = AuditLog(path)
    monkeypatch.setattr(database, "_STEPS", 3000)  # of SQLite's machine, after which it looks whether time is over
    monkeypatch.setattr(database, "_SECONDS", -1.0)  # as it is from the beginning
    assert len(await Audit(log, "mine").tail()) == 1
    assert [row.kind for row in await Audit(log, "alone").tail(run="one")] == ["outcome", "intent"]
    assert await Audit(log, "nobody").tail(kind="intent") == []
    first = await anext(Audit(log, "alone").events(after=0))
    assert first.run == "one"
    with pytest.raises(RecordUnavailable, match="took longer"):
        await Audit(log, "other").tail(kind="nothing of the kind")  # it does look
    log.close()
