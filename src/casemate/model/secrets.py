"""Secrets of a run: what a program has, and what it has in place of those that only the egress proxy puts in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn


@dataclass(frozen=True, slots=True)
class Placeholder:
    """What a program has instead of a secret.

    ``text``: what its variable holds. ``value``: what the egress proxy puts in its place, at ``places`` alone
    (canonical name and port), in the field ``header``, whose whole value is ``format`` with ``{}`` for the secret.
    """

    name: str
    text: str
    value: str = field(repr=False)
    places: frozenset[tuple[str, int]]
    header: str
    format: str


class Secrets:
    """Values by name. Only :meth:`reveal` gives them; a repr, a copy as data or JSON of it has the names at most.

    ``placeholders``: of those among the values that the program does not get.
    """

    __slots__ = ("_values", "placeholders")

    def __init__(self, values: Mapping[str, str], placeholders: Sequence[Placeholder] = ()) -> None:
        self._values = dict(values)
        self.placeholders = tuple(placeholders)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def reveal(self) -> dict[str, str]:
        """The values by name, for the program that they are for and for what finds them in its output."""
        return dict(self._values)

    def for_program(self) -> Secrets:
        """What the program gets: placeholders in place of the values that only the egress proxy puts in."""
        return Secrets({**self._values, **{one.name: one.text for one in self.placeholders}})

    def __bool__(self) -> bool:
        return bool(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(self._values)})"

    def __copy__(self) -> Secrets:
        return self

    def __deepcopy__(self, memo: object) -> Secrets:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets are not pickled")


NO_SECRETS = Secrets({})
