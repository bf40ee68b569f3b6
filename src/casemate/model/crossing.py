"""What went through a door, or was refused there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Crossing:
    """What came of all connections to one host and port that were decided alike.

    ``host``: a canonical name, or what was asked for instead, printable, of at most 253 characters; ``port``: 0 where a
    name was asked for and not given; ``reason``: which rule or answer decided, or what went wrong, of at most 200
    characters; ``connections``: how many; ``bytes_out`` and ``bytes_in``: what the cell sent and received.
    """

    host: str
    port: int
    decision: Literal["allowed", "denied"]
    reason: str
    connections: int = 1
    bytes_out: int = 0
    bytes_in: int = 0


def since(before: Sequence[Crossing], now: Sequence[Crossing]) -> tuple[Crossing, ...]:
    """What is in ``now`` and was not ``before``: each host, port and decision is in a list once."""
    known = {(one.host, one.port, one.decision, one.reason): one for one in before}
    return tuple(
        new for one in now if (new := _less(one, known.get((one.host, one.port, one.decision, one.reason)))) is not None
    )


def _less(now: Crossing, before: Crossing | None) -> Crossing | None:
    if before is None:
        return now
    if now == before:
        return None
    return replace(
        now,
        connections=now.connections - before.connections,
        bytes_out=now.bytes_out - before.bytes_out,
        bytes_in=now.bytes_in - before.bytes_in,
    )
