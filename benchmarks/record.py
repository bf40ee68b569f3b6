"""What the record of one execution costs: its intent row and its outcome row, against plain inserts into SQLite.

The rows are durable as the record promises: in the write-ahead log when the call returns, so that the
application's own end, SIGKILL included, loses none of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Series, Thing
from casemate import Limits
from casemate.audit.log import AuditLog

_CODE = "import math\nprint(sum(math.sqrt(n) for n in range(1000)))\n" * 8
_DIGEST = hashlib.sha256(_CODE.encode()).hexdigest()
_LIMITS = Limits()
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
        log = AuditLog(f"{folder}/audit.db")
        loop = asyncio.new_event_loop()
        things = {
            "two plain inserts": _plain(f"{folder}/plain.db"),
            "intent + outcome": lambda: _write(log),
            "the same by asyncio.to_thread": lambda: loop.run_until_complete(_in_thread(log)),
        }
        goals = {"intent + outcome": Goal(plus=0.2e-3)}
        rounds = run.rounds(5000, 50)
        run.compare("both rows of one execution", measure.in_turn(things, rounds, goals))
        run.compare("each row alone", _each(log, rounds))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        log.close()
    run.finish()


def _write(log: AuditLog) -> None:
    name = os.urandom(16).hex()
    log.append("intent", name, "default", _INTENT)
    log.append("outcome", name, "default", _OUTCOME)


async def _in_thread(log: AuditLog) -> None:
    name = os.urandom(16).hex()
    await asyncio.to_thread(log.append, "intent", name, "default", _INTENT)
    await asyncio.to_thread(log.append, "outcome", name, "default", _OUTCOME)


def _plain(path: str) -> Thing:
    """The same words into a table without an index, a chain or a rule; each row a transaction of its own."""
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
    """The intent and the outcome by themselves: an outcome needs the intent before it."""
    pending: list[str] = []

    def intent() -> None:
        pending.append(os.urandom(16).hex())
        log.append("intent", pending[-1], "default", _INTENT)

    def outcome() -> None:
        log.append("outcome", pending.pop() if pending else os.urandom(16).hex(), "default", _OUTCOME)

    things: dict[str, Callable[[], float | None]] = {"intent": intent, "outcome": outcome}
    return measure.in_turn(things, rounds)


if __name__ == "__main__":
    main()
