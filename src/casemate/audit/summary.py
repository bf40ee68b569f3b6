"""Summaries of rows: what each program used outside its cell, and the activity of each minute."""

from __future__ import annotations

import json
import math
import sqlite3
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from casemate.policy.proposal import Row, Use, uses_in

MOST_MINUTES = 24 * 60  # of one chart
_MOST_ROWS = 200_000  # of a chart: an hour of fifty executions a second
_MOST_USED_ROWS, _MOST_USED_BYTES = 10_000, 16 << 20  # of what programs used: the newest
_MOST_LABEL = 80  # characters
_AFTER = "sequence > coalesce((SELECT sequence FROM record WHERE wall < ? ORDER BY sequence DESC LIMIT 1), 0)"


@dataclass(frozen=True, slots=True)
class ProgramUses:
    """What one program used, or was denied, in all its runs.

    Attributes:
        program: Its first line, or its name; empty for uses without a program.
        sha256: Of its code.
        run: Its newest run.
        runs: How many there were.
    """

    program: str
    language: str
    sha256: str
    run: str
    runs: int
    time: float
    uses: tuple[Use, ...]


@dataclass(frozen=True, slots=True)
class Minute:
    """The activity of one minute, which starts at ``time`` (Unix time).

    Attributes:
        by_status: How many executions ended, by status.
        seconds: The median of their durations, and ``slowest`` the longest.
        peak_memory: Bytes, of the largest one.
        allowed: How much was allowed to cross, and ``denied`` how much was not.
        asked: How many approval requests there were.
    """

    time: float
    by_status: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    slowest: float = 0.0
    peak_memory: int = 0
    allowed: int = 0
    denied: int = 0
    asked: int = 0


def uses_by_program(database: sqlite3.Connection, namespace: str, since: float) -> list[ProgramUses]:
    """The programs with uses on record since then, newest first. Raises ``sqlite3.Error``."""
    query = (
        "SELECT wall, kind, execution_id, detail FROM record WHERE namespace = ? AND kind IN ('crossing', 'decision')"  # noqa: S608 - constants
        f" AND {_AFTER} ORDER BY sequence DESC LIMIT ?"
    )
    rows_of: dict[str, list[Row]] = {}
    newest: dict[str, float] = {}
    size = 0
    for wall, kind, run, detail in database.execute(query, (namespace, _nanoseconds(since), _MOST_USED_ROWS)):
        size += len(detail)
        if size > _MOST_USED_BYTES:
            break
        rows_of.setdefault(run, []).insert(0, (kind, detail_of(detail) or {}))
        newest.setdefault(run, wall / 1e9)
    programs: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for run in rows_of:
        intent = _intent(database, namespace, run)
        programs.setdefault(str(intent.get("code_sha256", "")), []).append((run, intent))
    found = [_of_program(sha256, runs, rows_of, newest) for sha256, runs in programs.items()]
    return sorted((one for one in found if one.uses), key=lambda one: -one.time)


def _of_program(
    sha256: str,
    runs: list[tuple[str, Mapping[str, Any]]],
    rows_of: Mapping[str, list[Row]],
    newest: Mapping[str, float],
) -> ProgramUses:
    run, intent = runs[0]
    uses = uses_in(row for one, _ in reversed(runs) for row in rows_of[one])
    language = str(intent.get("language", ""))
    return ProgramUses(_label(intent), language, sha256, run, len(runs), newest[run], tuple(uses))


def _label(intent: Mapping[str, Any]) -> str:
    code = intent.get("code", "")
    lines = code.split("\n") if isinstance(code, str) else [str(code)]
    first = next((line.strip() for line in lines if line.strip()), "")
    return str(first or intent.get("program", ""))[:_MOST_LABEL]


def _intent(database: sqlite3.Connection, namespace: str, run: str) -> Mapping[str, Any]:
    query = "SELECT detail FROM record WHERE execution_id = ? AND kind = 'intent' AND namespace = ?"
    found = database.execute(query, (run, namespace)).fetchone()
    return detail_of(found[0]) or {} if found else {}


def chart_of(database: sqlite3.Connection, namespace: str, since: float, minutes: int) -> list[Minute]:
    """This many minutes from ``since`` on, including idle ones. Raises ``sqlite3.Error``."""
    names = ("status", "duration", "peak_memory", "decision")
    values = ", ".join(f"CASE WHEN json_valid(detail) THEN json_extract(detail, '$.{name}') END" for name in names)
    query = (
        f"SELECT wall, kind, {values} FROM record WHERE namespace = ? AND {_AFTER}"  # noqa: S608 - constants
        " AND kind IN ('outcome', 'crossing', 'decision', 'request') LIMIT ?"
    )
    rows: list[list[Any]] = [[] for _ in range(minutes)]
    for row in database.execute(query, (namespace, _nanoseconds(since), _MOST_ROWS)):
        place = int((row[0] / 1e9 - since) // 60)
        if 0 <= place < minutes:
            rows[place].append(row[1:])
    return [_minute(since + 60 * place, of_minute) for place, of_minute in enumerate(rows)]


def _minute(time: float, rows: Iterable[tuple[Any, ...]]) -> Minute:
    by_status: Counter[str] = Counter()
    told: Counter[str] = Counter()
    seconds: list[float] = []
    peak = 0
    for kind, status, duration, memory, decision in rows:
        if kind == "outcome":
            by_status[str(status)] += 1
            seconds += [duration] if isinstance(duration, int | float) else []
            peak = max(peak, memory) if isinstance(memory, int) else peak
        else:
            told["asked" if kind == "request" else "allowed" if decision in ("allowed", None) else "denied"] += 1
    middle = statistics.median(seconds) if seconds else 0.0
    slowest = max(seconds, default=0.0)
    return Minute(time, dict(by_status), middle, slowest, peak, told["allowed"], told["denied"], told["asked"])


def _nanoseconds(time: float) -> int:
    return math.floor(min(max(time, 0.0), 2**33) * 1e9)


def detail_of(text: str) -> dict[str, Any] | None:
    """A row's detail; None if it cannot be parsed."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
