"""What a program has in place of a secret that only the door puts in."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What a program has instead of a secret.

    ``text``: what its variable holds. ``value``: what the door puts in its place, at ``places`` alone (canonical name
    and port), in the field ``header``, whose whole value is ``format`` with ``{}`` for the secret.
    """

    name: str
    text: str
    value: str = field(repr=False)
    places: frozenset[tuple[str, int]]
    header: str
    format: str
