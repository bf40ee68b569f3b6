"""What the rows of an execution tell of its course. Pure.

Facts are taken by name, each known to hold no code, no output, no argument and no secret. The name of the program's
exception is not among them: the program chose it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Detail = Mapping[str, Any]
_NANO = 1_000_000_000
_CONNECTIONS = ("host", "port", "decision", "reason")  # what those of one kind have in common
TOLD = ("request", "kind", "server", "tool", "outcome", "seconds", *_CONNECTIONS)
"""What of a row is kept until its execution ends: not the arguments of what was asked, which may be a MiB each."""


class Phase(NamedTuple):
    """A part of an execution: "queue", "start", "approval", "decision" (no, by a rule), "tool", "egress", "collection",
    and "execution", all that its cell did. Times are nanoseconds of Unix time; ``error``: its class, or empty."""

    name: str
    start: int
    stop: int
    facts: dict[str, Any]
    error: str = ""


@dataclass(slots=True, eq=False)
class Timeline:
    """The rows of an execution that goes on, each with its time and kind. ``asked``, ``turn``: when it asked for its
    turn, and had it; ``facts``: known from the beginning; ``span``: where somebody follows it."""

    asked: int
    turn: int
    facts: dict[str, Any]
    span: Any = None
    rows: list[tuple[int, str, Detail]] = field(default_factory=list)

    def phases(self, now: int, outcome: Detail) -> Iterator[Phase]:
        """What there was, now that it has ended. All connections of one kind are one phase, from the first to the end
        of the program."""
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
        """``seen`` takes when each kind of connection was first there."""
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
    """What a row has under these names."""
    return {name: row[name] for name in names if row.get(name) is not None}


def _kind_of(row: Detail) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in _CONNECTIONS)
