"""The name that somebody may have meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable

_ALIKE = 0.65  # of 1; below it two names have nothing to do with each other


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that is most like ``name``, or None where none is; ``memory`` is like ``limits.memory``."""
    from difflib import get_close_matches

    names = list(known)
    by_last = {one.rpartition(".")[2]: one for one in reversed(names)}
    if found := get_close_matches(name[:100], names, 1, _ALIKE):
        return found[0]
    last = get_close_matches(name[:100].rpartition(".")[2], by_last, 1, _ALIKE)
    return by_last[last[0]] if last else None


def suggest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean x?"``, or nothing."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""
