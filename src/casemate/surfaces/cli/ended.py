"""What is said of a program that has ended, whoever began it: why casemate ended it, and what it has not got."""

from __future__ import annotations

import re
from collections.abc import Iterator

from casemate.model.execution import Execution, not_reached
from casemate.surfaces.cli.failures import OPTION_OF_CAUSE, option_of
from casemate.surfaces.cli.terminal.inert import visible

MOST_NAMES = 8  # of files or hosts in one go
# What the resolvers of Python and Node say where there is nobody to ask (EAI_AGAIN, getaddrinfo(3)).
_NOBODY_TO_ASK = ("Temporary failure in name resolution", "getaddrinfo EAI_AGAIN")


def outcome(execution: Execution) -> Iterator[str]:
    """Why casemate ended it, what of a folder was not written, and what was not reached."""
    if execution.cause is not None:
        yield why(execution)
    yield from not_done(execution)


def not_done(execution: Execution) -> Iterator[str]:
    """What of a folder was not written, and what was not reached."""
    for skipped in execution.skipped:
        yield f"left out: {visible(skipped.name)}: {visible(skipped.reason)}"
    if _asked_in_vain(execution):
        when = "" if execution.state is None else " when a session is opened"
        yield f"hosts are found and reached only where they are allowed: --allow HOST allows one{when}"
    in_vain = not_reached(execution.crossings)
    for where, reason in in_vain[:MOST_NAMES]:
        yield f"not reached: {visible(where)}: {visible(reason)}"
    if len(in_vain) > MOST_NAMES:
        yield f"not reached: {len(in_vain) - MOST_NAMES} more"


def _asked_in_vain(execution: Execution) -> bool:
    """Whether a program that ended says that a name was not found, and no door has told of it as a crossing. It is only
    what the program says: what is told for it holds in any case."""
    error = execution.error
    if error is None or execution.ok or execution.crossings:
        return False
    return any(said in error.value for said in _NOBODY_TO_ASK)


def why(execution: Execution) -> str:
    """Why casemate ended it, which has a cause, and what would help."""
    cause = execution.cause
    assert cause is not None
    option = OPTION_OF_CAUSE.get(cause.code)
    remedy = f"Raise it with {option}, or do less." if option else cause.remediation
    message = re.sub(r"limits\.\w+", lambda found: option_of(found[0]), cause.message)
    status = execution.status.replace("_", " ")
    return visible(f"{status}: {message} {remedy}".strip())
