"""What went through a door, or was refused there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Crossing:
    """What came of all connections to one host and port that were decided alike.

    ``host``: a canonical name, or what was asked for instead, printable, of at most 253 characters; ``port``: 0 where a
    name was asked for and not given; ``reason``: which rule or answer decided, or what went wrong, of at most 200
    characters; ``connections``: how many; ``bytes_out`` and ``bytes_in``: what the cell sent and received;
    ``is_reached``: whether there was a connection: what was allowed may have no address, or not answer.
    """

    host: str
    port: int
    decision: Literal["allowed", "denied"]
    reason: str
    connections: int = 1
    bytes_out: int = 0
    bytes_in: int = 0
    is_reached: bool = False


def not_reached(crossings: Iterable[Crossing]) -> list[tuple[str, str]]:
    """What was tried in vain, and why, in the order in which it was first tried: a host with its port, or ports, once
    for each reason. What was denied, and what was allowed and never reached."""
    known = list(crossings)
    reached = {(one.host, one.port) for one in known if one.is_reached}
    found: dict[tuple[str, str, str], list[int]] = {}
    for one in known:
        if one.decision == "denied":
            found[f"{one.host}:{one.port}" if one.port else one.host, one.reason, one.decision] = []
        elif not one.is_reached and (one.host, one.port) not in reached:
            found.setdefault((one.host, one.reason, one.decision), []).append(one.port)
    return [
        (f"{where}:{','.join(map(str, ports))}" if ports else where, why) for (where, why, _), ports in found.items()
    ]


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
