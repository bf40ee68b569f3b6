"""Handles by their beginnings: the one that is meant, or an error that names those that could be. Pure.

Only what the caller may see is ever given here, so nobody learns of another's handles by trying beginnings.
"""

from __future__ import annotations

from collections.abc import Iterable

from casemate.errors import InvalidArgument

SHORTEST = 4  # characters: fewer are sooner a name that is gone than a handle (git takes no fewer, either)
_MOST_NAMED = 8  # candidates in an error


def meant(given: str, handles: Iterable[str], argument: str, what: str) -> str | None:
    """The handle among ``handles`` that is ``given``, or the only one that begins so; None where there is none.

    Raises ``InvalidArgument``, about ``argument`` and with the candidates, where several of ``what`` ("runs") begin so.
    """
    known = list(handles)
    if given in known:
        return given
    found = [one for one in known if one.startswith(given)] if len(given) >= SHORTEST else []
    if len(found) > 1:
        named = ", ".join(found[:_MOST_NAMED]) + (", ..." if len(found) > _MOST_NAMED else "")
        raise InvalidArgument(
            argument,
            f"{len(found)} {what} begin with {given[:100]!r}: {named}",
            remediation="Give more of the one that you mean.",
        )
    return found[0] if found else None
