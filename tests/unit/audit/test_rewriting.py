"""An owner of the record's files tries to rewrite history. Each way is detected, or SECURITY.md says that it is not.

The attacker knows all of casemate and has everything except the key. If it also has the key, the test's name says so.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from casemate.audit import verifying
from casemate.audit.anchors import Anchors, hash_of_line, lines_in
from casemate.audit.chain import GENESIS, Head, Row, Verdict, hash_of
from casemate.audit.log import AuditLog
from casemate.audit.reading import Audit
from casemate.audit.retention import RowRetention
from casemate.errors import InvalidArgument
from casemate.evidence.keys import Signer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A record of 20 rows, opened five times: five anchors, at rows 4, 8, 12, 16 and 20."""
    for opened in range(5):
        log = opened_log(tmp_path / "audit.db")
        for number in range(2):
            log.append("intent", f"run {opened} {number}", "default", {"code": "rm -r ."})
            log.append("outcome", f"run {opened} {number}", "default", {"status": "ok"})
        log.close()
    return tmp_path / "audit.db"


def opened_log(path: Path, folder: str = "signing") -> AuditLog:
    return AuditLog(path, signer=Signer(path.parent / folder))


def verified(path: Path, head: str | None = None, anchors: str | None = None) -> Verdict:
    log = opened_log(path)
    try:
        return asyncio.run(Audit(log, "default").verify(head, anchors))
    finally:
        log.close()


def anchors_of(path: Path) -> Path:
    return Path(f"{path}.anchors")


class Attacker:
    """Changes the database as only somebody can who is not held by its triggers."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self.database = sqlite3.connect(self.path, isolation_level=None)
        for (name,) in self.database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            self.database.execute(f"DROP TRIGGER {name}")
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()

    def rows(self) -> list[Row]:
        columns = "sequence, wall, monotonic, kind, execution_id, namespace, detail, previous, hash"
        return [Row(*row) for row in self.database.execute(f"SELECT {columns} FROM record ORDER BY sequence")]

    def write(self, rows: list[Row]) -> None:
        """These rows and no others, as one good chain."""
        head = Head(0, GENESIS)
        self.database.execute("DELETE FROM record")
        for row in rows:
            chained = row._replace(sequence=head.count + 1, previous=head.last)
            chained = chained._replace(hash=hash_of(chained))
            self.database.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", chained)
            head = Head(chained.sequence, chained.hash)
        self.database.execute("UPDATE head SET count = ?, last = ?", (head.count, head.last))


def edits_a_row(path: Path) -> None:
    with Attacker(path) as attacker:
        attacker.database.execute("UPDATE record SET detail = '{}' WHERE sequence = 5")


def edits_a_row_and_its_hash(path: Path) -> None:
    with Attacker(path) as attacker:
        row = attacker.rows()[4]._replace(detail="{}")
        attacker.database.execute("UPDATE record SET detail = '{}', hash = ? WHERE sequence = 5", (hash_of(row),))


def edits_a_row_and_chains_all_after_it_anew(path: Path) -> None:
    with Attacker(path) as attacker:
        rows = attacker.rows()
        rows[4] = rows[4]._replace(detail="{}")
        attacker.write(rows)


def takes_a_row_out_and_chains_all_after_it_anew(path: Path) -> None:
    with Attacker(path) as attacker:
        rows = attacker.rows()
        attacker.write(rows[:5] + rows[6:])


def puts_a_row_in_and_chains_all_after_it_anew(path: Path) -> None:
    with Attacker(path) as attacker:
        rows = attacker.rows()
        attacker.write([*rows[:5], rows[0]._replace(execution_id="never"), *rows[5:]])


def cuts_the_end_and_corrects_the_head(path: Path) -> None:
    with Attacker(path) as attacker:
        attacker.write(attacker.rows()[:10])


def cuts_the_end_and_the_anchors_of_it(path: Path) -> None:
    with Attacker(path) as attacker:
        attacker.write(attacker.rows()[:8])
    anchors_of(path).write_text("".join(f"{line}\n" for line in [*lines_in(anchors_of(path))][:2]))


def rewrites_what_follows_an_anchor_and_takes_the_later_ones_away(path: Path) -> None:
    with Attacker(path) as attacker:
        rows = attacker.rows()
        attacker.write([*rows[:16], *(row._replace(detail="{}") for row in rows[16:])])
    anchors_of(path).write_text("".join(f"{line}\n" for line in [*lines_in(anchors_of(path))][:4]))


def takes_an_anchor_out(path: Path) -> None:
    lines = [*lines_in(anchors_of(path))]
    anchors_of(path).write_text("".join(f"{line}\n" for line in lines[:2] + lines[3:]))


def removes_the_anchors(path: Path) -> None:
    anchors_of(path).unlink()


def removes_the_database(path: Path) -> None:
    path.unlink()


def puts_an_older_database_back(path: Path) -> None:
    with Attacker(path) as attacker:
        attacker.write(attacker.rows()[:12])
        noted = hash_of_line([*lines_in(anchors_of(path))][2])
        attacker.database.execute("UPDATE kept SET anchor = ?", (noted,))


def signs_a_rewritten_record_with_a_key_of_its_own(path: Path) -> None:
    edits_a_row_and_chains_all_after_it_anew(path)
    with Attacker(path) as attacker:
        last = attacker.rows()[-1]
        anchors_of(path).unlink()
        theirs = Signer(path.parent / "theirs")
        line = Anchors(str(path), theirs.sign).append(Head(last.sequence, last.hash), GENESIS)
        attacker.database.execute("UPDATE kept SET anchor = ?", (hash_of_line(line),))


def drops_the_oldest_rows_without_a_checkpoint(path: Path) -> None:
    with Attacker(path) as attacker:
        row = attacker.rows()[7]
        attacker.database.execute("UPDATE kept SET count = 8, last = ?", (row.hash,))
        attacker.database.execute("DELETE FROM record WHERE sequence <= 8")


def hides_rows_from_readers(path: Path) -> None:
    """The indexes by which rows are read lack some, and say that they have all."""
    with Attacker(path) as attacker:
        for name in ("of_namespace", "of_execution"):
            (text,) = attacker.database.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
            attacker.database.execute(f"DROP INDEX {name}")
            attacker.database.execute(f"{text} WHERE execution_id <> 'run 1 0'")
            attacker.database.execute("PRAGMA writable_schema = ON")
            attacker.database.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (text, name))


def has_rows_that_are_to_come_dropped(path: Path) -> None:
    with Attacker(path) as attacker:
        attacker.database.execute(
            "CREATE TRIGGER drops BEFORE INSERT ON record WHEN NEW.detail LIKE '%evil%' BEGIN SELECT RAISE(IGNORE); END"
        )
        attacker.database.execute(
            "CREATE TRIGGER forgets BEFORE UPDATE ON head WHEN NOT EXISTS "
            "(SELECT 1 FROM record WHERE hash = NEW.last) BEGIN SELECT RAISE(IGNORE); END"
        )


def shows_a_view_in_place_of_the_rows(path: Path) -> None:
    with Attacker(path) as attacker:
        attacker.database.execute("ALTER TABLE record RENAME TO rows")
        attacker.database.execute("CREATE VIEW record AS SELECT * FROM rows")
        attacker.database.execute(
            "CREATE TRIGGER takes INSTEAD OF INSERT ON record BEGIN INSERT INTO rows VALUES (NEW.sequence, NEW.wall, "
            "NEW.monotonic, NEW.kind, NEW.execution_id, NEW.namespace, NEW.detail, NEW.previous, NEW.hash); END"
        )


WAYS: list[tuple[Callable[[Path], None], int, str]] = [
    (edits_a_row, 5, "its hash does not match"),
    (edits_a_row_and_its_hash, 6, "hash of the row before"),
    (edits_a_row_and_chains_all_after_it_anew, 5, "up to row 8 they are not the rows that were signed at"),
    (takes_a_row_out_and_chains_all_after_it_anew, 5, "not the rows that were signed"),
    (puts_a_row_in_and_chains_all_after_it_anew, 5, "not the rows that were signed"),
    (cuts_the_end_and_corrects_the_head, 11, "20 rows were signed, 10 are left"),
    (cuts_the_end_and_the_anchors_of_it, 8, "the last lines of the anchors are missing"),
    (rewrites_what_follows_an_anchor_and_takes_the_later_ones_away, 17, "does not carry the hash of the line before"),
    (takes_an_anchor_out, 9, "does not carry the hash of the line before it"),
    (removes_the_anchors, 1, "the first lines of the anchors are missing"),
    (removes_the_database, 1, "20 rows were signed, 0 are left"),
    (puts_an_older_database_back, 13, "20 rows were signed, 12 are left"),
    (signs_a_rewritten_record_with_a_key_of_its_own, 1, "not signed by a known key"),
    (hides_rows_from_readers, 1, "is inconsistent"),
    (has_rows_that_are_to_come_dropped, 1, "a trigger that is not casemate's: 'drops'"),
    (shows_a_view_in_place_of_the_rows, 1, "not casemate's"),
    (drops_the_oldest_rows_without_a_checkpoint, 20, "no anchor says that the rows up to 8 may be dropped"),
]


@pytest.mark.parametrize(("way", "first_bad", "why"), WAYS, ids=[way.__name__ for way, _, _ in WAYS])
def test_it_is_found_and_stays_found(path: Path, way: Callable[[Path], None], first_bad: int, why: str) -> None:
    assert verified(path) == Verdict(verified(path).head, signed=20), "the control"
    way(path)
    verdict = verified(path)
    assert (verdict.ok, verdict.first_bad, why in verdict.reason) == (False, first_bad, True), verdict
    log = opened_log(path)
    log.append("intent", "later", "default", {})
    log.close()
    assert not verified(path).ok, "whatever is written meanwhile"


@pytest.fixture
def copy(path: Path) -> Iterator[str]:
    """What an anchor elsewhere holds."""
    return iter([anchors_of(path).read_text()])


def test_everything_put_back_to_an_earlier_day_is_found_by_a_copy_of_the_anchors_and_by_a_head_alone(
    path: Path, tmp_path: Path
) -> None:
    shutil.copytree(path.parent, tmp_path / "earlier", ignore=shutil.ignore_patterns("earlier"))
    log = opened_log(path)
    log.append("intent", "what nobody is to know", "default", {})
    log.append("outcome", "what nobody is to know", "default", {})
    log.close()
    copy, head = anchors_of(path).read_text(), verified(path).head.last
    assert verified(path, head, copy).ok, "the control"
    for kept in (tmp_path / "earlier").iterdir():
        if kept.is_file():
            shutil.copy(kept, path.parent)
    assert verified(path).ok, "not found: SECURITY.md"
    assert head in verified(path, head).reason
    assert verified(path, anchors=copy).first_bad == 21


def test_everything_signed_anew_by_who_has_the_key_is_found_by_a_copy_of_the_anchors_and_by_a_head_alone(
    path: Path,
) -> None:
    copy, head = anchors_of(path).read_text(), verified(path).head.last
    anchors_of(path).unlink()
    edits_a_row_and_chains_all_after_it_anew(path)
    with Attacker(path) as attacker:
        last = attacker.rows()[-1]
        ours = Signer(path.parent / "signing")
        line = Anchors(str(path), ours.sign).append(Head(last.sequence, last.hash), GENESIS)
        attacker.database.execute("UPDATE kept SET anchor = ?", (hash_of_line(line),))
    assert verified(path).ok, "not found: SECURITY.md"
    assert head in verified(path, head).reason
    assert verified(path, anchors=copy).first_bad == 5


def test_who_puts_another_beginning_there_has_it_signed(path: Path) -> None:
    """The database, the anchors, and what it notes of them are cut to the same row: none."""
    anchors_of(path).unlink()
    edits_a_row_and_chains_all_after_it_anew(path)
    with Attacker(path) as attacker:
        attacker.database.execute("UPDATE kept SET anchor = ?", (GENESIS,))
    assert verified(path).ok, "not found: SECURITY.md"


def test_rows_that_are_added_are_signed_as_any_others(path: Path) -> None:
    with Attacker(path) as attacker:
        attacker.write([*attacker.rows(), attacker.rows()[0]._replace(execution_id="never")])
    assert verified(path).ok, "not found: SECURITY.md"


def test_a_copy_may_lack_lines_and_be_of_keys_that_were_retired_meanwhile(path: Path) -> None:
    lines = anchors_of(path).read_text().splitlines()
    signer = Signer(path.parent / "signing")
    signer.rotate()
    assert verified(path, anchors="\n".join(lines[1:2] + lines[3:])).ok
    forged = lines[3].replace('"count":16', '"count":15')
    assert "not signed by a known key" in verified(path, anchors="\n".join([lines[1], forged])).reason


def test_a_copy_without_a_line_shows_nothing(path: Path) -> None:
    assert "no lines, in the copy" in verified(path, anchors="").reason


def test_what_others_write_and_drop_meanwhile_is_no_change(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = opened_log(path), opened_log(path)
    read_lines, read_rows = lines_in, verifying._read_rows
    before_lines, before_rows = [lambda: write_two_and_sign(other)], [lambda: other.prune(RowRetention(max_size=1))]

    def reads_lines(file: Path) -> Iterator[str]:
        if before_lines:
            before_lines.pop()()
        return read_lines(file)

    def reads_rows(*arguments: Any) -> list[Any]:
        if before_rows:
            before_rows.pop()()
        return read_rows(*arguments)

    monkeypatch.setattr(verifying, "lines_in", reads_lines)
    monkeypatch.setattr(verifying, "_read_rows", reads_rows)
    verdict = log.verify()
    assert (verdict.ok, before_lines, before_rows) == (True, [], []), verdict
    assert verdict.dropped > 0
    assert verdict.signed > 20
    log.close()
    other.close()


def write_two_and_sign(log: AuditLog) -> None:
    for name in ("one", "another"):
        log.append("intent", name, "default", {})
        log.append("outcome", name, "default", {})
        log._settle()


def test_what_is_no_hash_is_a_bad_argument(path: Path) -> None:
    with pytest.raises(InvalidArgument, match="head"):
        verified(path, "nothing of that kind")


def test_without_a_place_for_keys_the_record_is_whole_and_says_that_nothing_is_signed(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.db")
    log.append("intent", "run", "default", {})
    verdict = log.verify()
    log.close()
    assert (verdict.ok, verdict.signed, verdict.reason) == (True, 0, "nothing is signed here")


def test_keys_that_others_can_read_sign_nothing_and_verifying_says_so(path: Path) -> None:
    (path.parent / "signing" / "keys.json").chmod(0o644)
    log = opened_log(path)
    log.append("intent", "run", "default", {})
    log.close()
    assert not verified(path).ok
    (path.parent / "signing" / "keys.json").chmod(0o600)
    assert verified(path) == Verdict(verified(path).head, signed=22)
