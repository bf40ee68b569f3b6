"""The cost of the record for one execution: its intent and outcome rows, against plain inserts into SQLite.

The rows are in the journal when the call returns, so even SIGKILL of the application loses none. Another thread chains
and signs them. The time to verify a million rows is measured, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Series, Thing
from casemate import Limits
from casemate.audit.log import AuditLog
from casemate.evidence.keys import Signer

_CODE = "import math\nprint(sum(math.sqrt(n) for n in range(1000)))\n" * 8
_DIGEST = hashlib.sha256(_CODE.encode()).hexdigest()
_LIMITS = Limits()
_REST = 0.05  # seconds
_MILLION_WITHIN = 20.0  # seconds
_INTENT: dict[str, Any] = {
    "language": "python",
    "program": "main.py",
    "code": _CODE,
    "code_sha256": _DIGEST,
    "arguments": [],
    "env_names": ["LANGUAGE"],
    "files": ["input.csv"],
    "stdin_bytes": 0,
    "wall": "native",
    "workspace": "private",
    "network": "none",
    "deadline": 60.0,
    "limits": {name: getattr(_LIMITS, name) for name in Limits.__slots__},
    "metadata": {"conversation": "4711"},
}
_OUTCOME: dict[str, Any] = {
    "status": "ok",
    "exit_code": 0,
    "cause": None,
    "error": None,
    "duration": 0.0187,
    "cpu_seconds": 0.0161,
    "peak_memory": 9437184,
    "stdout_sha256": _DIGEST,
    "stderr_sha256": _DIGEST,
    "artifacts": {"output/plot.png": _DIGEST},
    "skipped": 0,
}


def main() -> None:
    run = measure.Run("record", __doc__ or "")
    with tempfile.TemporaryDirectory(prefix="casemate-record-") as folder:
        signer = Signer(Path(folder) / "signing")
        log = AuditLog(f"{folder}/audit.db", signer=signer)
        plain = _plain(f"{folder}/plain.db")
        things = {
            "two plain inserts": plain,
            "intent + outcome": lambda: _write(log),
        }
        goals = {"intent + outcome": Goal(plus=0.2e-3)}
        rounds = run.rounds(5000, 50)
        run.compare("both rows of one execution", measure.in_turn(things, rounds, goals))
        run.compare("each row alone", _each(log, rounds))
        rested = {"two plain inserts": _rested(plain), **{name: _rested(row) for name, row in _rows(log).items()}}
        goals = dict.fromkeys(("intent", "outcome"), Goal(plus=0.15e-3))
        run.compare("after a rest of 50 ms", measure.in_turn(rested, run.rounds(300, 3), goals))
        with contextlib.closing(AuditLog(f"{folder}/slow.db", signer=signer, sync="row")) as slow:
            run.compare("each row waits for the disk", measure.in_turn(_rows(slow), run.rounds(200, 3)))
        _verify(run, log, run.rounds(1_000_000, 2_000))
        log.close()
    run.finish()


def _write(log: AuditLog) -> None:
    name = os.urandom(16).hex()
    log.append("intent", name, "default", _INTENT)
    log.append("outcome", name, "default", _OUTCOME)


def _plain(path: str) -> Thing:
    """Insert the same text into a table without index, chain or triggers. Each row is one transaction."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE record (id TEXT, detail TEXT)")
    details = [json.dumps(_INTENT), json.dumps(_OUTCOME)]

    def write() -> None:
        name = os.urandom(16).hex()
        for detail in details:
            database.execute("INSERT INTO record VALUES (?, ?)", (name, detail))

    return write


def _each(log: AuditLog, rounds: int) -> list[Series]:
    return measure.in_turn(_rows(log), rounds)


def _rested(thing: Thing) -> Thing:
    """``thing`` after a rest, which leaves the processor's caches cold."""

    def measured() -> float:
        time.sleep(_REST)
        start = time.perf_counter()
        thing()
        return time.perf_counter() - start

    return measured


def _verify(run: measure.Run, log: AuditLog, rows: int) -> None:
    """Fill the record up to ``rows`` rows, and measure its verification."""
    for _ in range((rows - log.head().count) // 2 + 1):
        _write(log)
    count = log.head().count
    start = time.perf_counter()
    verdict = log.verify()
    seconds = time.perf_counter() - start
    assert verdict.ok
    assert verdict.signed == count
    per_million = seconds / count * 1e6
    table: list[tuple[str, ...]] = [
        ("rows", "", "of a million", "goal", ""),
             (str(count), measure.duration(seconds), measure.duration(per_million), "20 s",
              measure.word(per_million < _MILLION_WITHIN))]  # fmt: skip
    run.table("verifying", table, [{"rows": count, "seconds": seconds, "per_million": per_million}])


def _rows(log: AuditLog) -> dict[str, Thing]:
    """Time the intent and the outcome separately. An outcome needs its intent first."""
    pending: list[str] = []

    def intent() -> None:
        pending.append(os.urandom(16).hex())
        log.append("intent", pending[-1], "default", _INTENT)

    def outcome() -> None:
        log.append("outcome", pending.pop() if pending else os.urandom(16).hex(), "default", _OUTCOME)

    return {"intent": intent, "outcome": outcome}


if __name__ == "__main__":
    main()
