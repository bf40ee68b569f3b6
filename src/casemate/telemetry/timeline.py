"""Derives the phases of an execution from its rows. Pure.

It copies facts from rows by name. No such fact holds code, output, arguments or secrets. The name of the program's
exception is left out, because the program chooses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Detail = Mapping[str, Any]
_NANO = 1_000_000_000
_CONNECTIONS = ("host", "port", "decision", "reason")  # connections that agree in these are one phase
TOLD = ("request", "kind", "server", "tool", "outcome", "seconds", *_CONNECTIONS)
"""The fields of a row kept until its execution ends. Arguments of calls are left out: each may be 1 MiB."""


class Phase(NamedTuple):
    """A part of an execution. Names: "queue", "start", "execution" (in the cell), "approval", "decision" (denied by a
    rule), "tool", "egress", "collection". Times are nanoseconds of Unix time."""

    name: str
    start: int
    stop: int
    facts: dict[str, Any]
    error: str = ""  # the class of the error


@dataclass(slots=True, eq=False)
class Timeline:
    """The rows of a running execution."""

    asked: int  # when it joined the queue, in nanoseconds of Unix time
    turn: int  # when it left the queue
    facts: dict[str, Any]  # known at the start
    span: Any = None  # set if an SDK records spans
    rows: list[tuple[int, str, Detail]] = field(default_factory=list)  # time, kind, fields

    def phases(self, now: int, outcome: Detail) -> Iterator[Phase]:
        """The phases of an execution that ended at ``now``. Connections that agree in host, port, decision and reason
        are one phase, from the first connection to the end of the program."""
        stopped = now - int(outcome.get("collecting", 0) * _NANO)
        started = max(self.turn, stopped - int(outcome.get("duration", 0) * _NANO))
        facts = self.facts | some_of(outcome, "status", "start", "cause")
        yield Phase("queue", self.asked, self.turn, {})
        if outcome.get("start"):
            yield Phase("start", self.turn, started, some_of(facts, "start", "language", "wall"))
        if "duration" in outcome:
            yield Phase("execution", started, stopped, facts)
        seen: dict[tuple[Any, ...], int] = {}
        yield from self._in_rows(seen)
        for row in outcome.get("crossings", ()):
            error = "denied" if row["decision"] == "denied" else "" if row["is_reached"] else "unreachable"
            told = some_of(row, "host", "port", "decision", "connections", "bytes_out", "bytes_in")
            yield Phase("egress", seen.get(_kind_of(row), started), stopped, told, error)
        if "collecting" in outcome:
            yield Phase("collection", stopped, now, {})

    def _in_rows(self, seen: dict[tuple[Any, ...], int]) -> Iterator[Phase]:
        """The phases of single rows. Notes in ``seen`` when each kind of connection first appeared."""
        asked: dict[str, int] = {}
        for at, kind, row in self.rows:
            if kind == "request":
                asked[row["request"]] = at
            elif kind == "decision" and "kind" in row:
                since = asked.get(row.get("request", ""))
                if since or row["decision"] != "allowed":
                    name = "approval" if since else "decision"
                    yield Phase(name, since or at, at, some_of(row, "kind", "decision"))
            elif kind == "crossing" and row.get("kind") == "tool":
                error = {"ok": "", "error": "tool_error"}.get(row["outcome"], str(row["outcome"]))
                told = some_of(row, "server", "tool", "outcome")
                yield Phase("tool", at - int(row["seconds"] * _NANO), at, told, error)
            elif kind == "crossing" and "host" in row:
                seen.setdefault(_kind_of(row), at)


def some_of(row: Detail, *names: str) -> dict[str, Any]:
    """The fields of a row with these names, without None."""
    return {name: row[name] for name in names if row.get(name) is not None}


def _kind_of(row: Detail) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in _CONNECTIONS)
