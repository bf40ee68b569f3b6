"""``casemate stats``, ``queue``, ``limits``, ``runtimes`` and ``egress``: what the service has, and may do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from casemate.errors import InvalidArgument
from casemate.model.limits import parse_size
from casemate.surfaces.cli.answers import print_document, print_json, print_table
from casemate.surfaces.cli.over_service.connection import PLAIN, Asked, ask, served
from casemate.surfaces.cli.over_service.limit_options import NO_LIMITS, LimitOptions
from casemate.surfaces.cli.parameters import Flag, Name
from casemate.surfaces.cli.terminal.words import say

if TYPE_CHECKING:
    from casemate.remote.client import Remote

_PATIENCE = 1.0  # seconds after which whoever asks is told where the answer is given
_DENIED = 77  # the exit code of what was refused (surfaces/cli/failures.py)


def stats(*, asked: Asked = PLAIN) -> int:
    """Show what the service has going on: queue, cells, sessions, memory and cpu."""
    return print_document(ask(asked, "stats"), is_json=asked.is_json)


def queue(action: Annotated[str | None, Parameter(show=False)] = None, /, *, asked: Asked = PLAIN) -> int:  # noqa: ARG001 - "queue status" is what people type
    """Show how many programs run, how many wait for their turn, and how many may run at once."""
    found = ask(asked, "stats")
    return print_document({name: found[name] for name in ("running", "waiting", "concurrency")}, is_json=asked.is_json)


def limits(
    *,
    within: LimitOptions = NO_LIMITS,
    timeout: float | None = None,
    reset: Flag = False,
    caller: str | None = None,
    asked: Asked = PLAIN,
) -> int:
    """Show the limits of what you run in the service; with options, narrow them from now on.

    casemate limits --memory 256MiB --processes 16

    casemate limits --reset

    Parameters
    ----------
    timeout
        The most seconds of a run.
    reset
        Undo what was narrowed before, and then narrow what the other options say.
    caller
        With --reset: undo what another has narrowed for itself, by the name that ps shows as its owner.
    """
    narrowed = within.given(wall=timeout)
    if caller is not None and (not reset or narrowed):
        raise InvalidArgument("caller", "is for --reset alone: others narrow their limits themselves")

    async def told(remote: Remote) -> dict[str, Any]:
        in_force = await remote("reset_limits", {} if caller is None else {"caller": caller}) if reset else {}
        return dict(in_force if caller is not None else await remote("set_limits", {"limits": narrowed}))

    in_force = served(told, asked)
    for name, value in narrowed.items():
        if in_force[name] is not None and _number(value) > in_force[name]:
            named = {"wall": "timeout", "output": "output-limit"}.get(name, name.replace("_", "-"))
            say(f"{named} stays as it is: limits are only narrowed; casemate limits --reset undoes that")
    return print_document(in_force, is_json=asked.is_json)


def _number(value: str | float) -> float:
    return parse_size(value) if isinstance(value, str) else value


def runtimes(*, asked: Asked = PLAIN) -> int:
    """List the languages that there are, with their versions, and the wall that is in force."""
    found = ask(asked, "runtimes")
    if asked.is_json:
        print_json(found)
        return 0
    rows = [{**one, "version": one["version"] or one["problem"]} for one in found]
    print_table(("language", "available", "version", "executable", "source", "wall"), rows, "")
    return 0


def egress(domain: Name, /, *, port: int = 443, reason: str = "", asked: Asked = PLAIN) -> int:
    """Ask whether a host may be reached, and wait for the answer; the exit code is 77 where it may not.

    Parameters
    ----------
    domain
        The host's name.
    port
        The port; 443 unless given.
    reason
        Shown to whoever decides.
    """
    arguments = {"domain": domain, "port": port, "reason": reason}

    async def answered(remote: Remote) -> dict[str, Any]:
        asking = asyncio.ensure_future(remote("egress.request", arguments))  # noqa: TID251 - ended here in every case
        try:
            if not (await asyncio.wait([asking], timeout=_PATIENCE))[0]:
                say("waits for an answer: casemate approvals, in another terminal")
            return dict(await asking)
        finally:
            asking.cancel()

    answer = served(answered, asked)
    print_document(answer, is_json=asked.is_json)
    return 0 if answer.get("allowed") else _DENIED
