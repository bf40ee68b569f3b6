"""A tool, as its server describes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

# A JSON value: None, bool, int, float, str, list, or dict with str keys.
Json = Any


def parts_of(value: Json) -> Iterator[tuple[Json, int]]:
    """``value`` and everything in it, each with its depth. It may be deep and wide: no recursion, no copies."""
    levels: list[Iterator[Json]] = [iter((value,))]
    while levels:
        for part in levels[-1]:
            yield part, len(levels) - 1
            if isinstance(part, dict | list):
                levels.append(iter(part.values() if isinstance(part, dict) else part))
                break
        else:
            levels.pop()


@dataclass(frozen=True, slots=True)
class Hints:
    """A server's hints on a tool's behaviour (MCP's annotations). They are untrusted. None: not given."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. All but ``server`` comes from the server and is untrusted; schemas are unchecked JSON Schema."""

    server: str  # the name under which the user added it
    name: str  # as sent in ``tools/call``
    description: str = ""
    input_schema: Json = field(default_factory=lambda: {"type": "object"})
    output_schema: Json = None  # None without one
    title: str = ""
    hints: Hints = Hints()
    samples: Json = None  # a schema inferred from earlier results, if there were any
    asks_itself: bool = False  # a built-in tool, which sends its own approval requests


@dataclass(frozen=True, slots=True)
class Problem:
    tool: str
    code: str  # for programs
    message: str  # for people
