"""The secrets of a run: names to values that nothing shows by accident."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn


class Secrets:
    """Values by name. Only :meth:`revealed` gives them; a repr, a copy as data or JSON of it has the names at most."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = dict(values)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def revealed(self) -> dict[str, str]:
        """The values by name, for the program that they are for and for what finds them in its output."""
        return dict(self._values)

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
