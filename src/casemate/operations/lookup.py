"""Handles by their beginnings, and filters of lists."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from casemate.errors import InvalidArgument
from casemate.model.operation import Most

SHORTEST = 4  # characters of a handle's beginning, as in git: shorter text is more likely an old name
_MOST_CANDIDATES = 8  # candidates in an error


def match_handle(text: str, handles: Iterable[str], argument: str, what: str) -> str | None:
    """The handle that equals ``text``, or the only one that starts with it; None if there is none.

    Raises ``InvalidArgument`` about ``argument``, with the candidates, if several of ``what`` ("runs") start with it.
    """
    names = list(handles)
    if text in names:
        return text
    candidates = [one for one in names if one.startswith(text)] if len(text) >= SHORTEST else []
    if len(candidates) > 1:
        listed = ", ".join(candidates[:_MOST_CANDIDATES]) + (", ..." if len(candidates) > _MOST_CANDIDATES else "")
        raise InvalidArgument(
            argument,
            f"{len(candidates)} {what} begin with {text[:100]!r}: {listed}",
            remediation="Give more characters of the one that you mean.",
        )
    return candidates[0] if candidates else None


T = TypeVar("T")
Filters = Annotated[Mapping[str, Sequence[str]], Most(20)]
_MOST_NAMED = 100  # characters of a caller's value in an error


@dataclass(frozen=True, slots=True)
class FilterKey(Generic[T]):
    """A key of a filter."""

    values: Callable[[T], Iterable[str | None]]  # of one item; any of them may match
    known: tuple[str, ...] = ()  # all possible values, if they are fixed
    begins: bool = False  # the beginning of a value is enough, as for a handle

    def fits(self, one: T, wanted: Sequence[str]) -> bool:
        """Whether one of its values is wanted."""
        values = [value for value in self.values(one) if value is not None]
        if self.begins:
            return any(value.startswith(beginning) for value in values for beginning in wanted if beginning)
        return any(value in wanted for value in values)


def apply_filters(
    all_of: Iterable[T], filters: Filters | None, keys: Mapping[str, FilterKey[T]], namespace: str
) -> list[T]:
    """The items that match every key of ``filters``, by any of its values. All items are in ``namespace``, which is a
    key, too.

    Raises ``InvalidArgument`` for an unknown key, or an unknown value of a key with known ones, and names the nearest.
    """
    by_key = filters or {}
    keys = {**keys, "namespace": FilterKey(lambda _: (namespace,))}
    for name, values in by_key.items():
        if name not in keys:
            raise _unknown_name(name, tuple(keys), "key")
        for value in values:
            if keys[name].known and value not in keys[name].known:
                raise _unknown_name(value, keys[name].known, f"value of {name}")
    return [one for one in all_of if all(keys[name].fits(one, values) for name, values in by_key.items())]


def _unknown_name(name: str, known: tuple[str, ...], what: str) -> InvalidArgument:
    near = difflib.get_close_matches(name[:_MOST_NAMED], known, n=1, cutoff=0.5)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return InvalidArgument(
        "filters", f"there is no {what} {name[:_MOST_NAMED]!r}{meant}", remediation=f"There are: {', '.join(known)}."
    )
