"""Changes of a folder that are kept back, on a terminal: shown, applied or given up."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from casemate.model.events import request_of
from casemate.model.review import Applied, Diff, shown_change
from casemate.operations.documents import revive
from casemate.surfaces.cli.answers import print_done, print_json
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, ask, with_service
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.inert import visible
from casemate.surfaces.cli.parameters import Name
from casemate.surfaces.cli.terminal import review_lines

if TYPE_CHECKING:
    from casemate.remote.client import RemoteOperations

_EXIT_CODES = {"applied": 0, "nothing": 0, "denied": 77}  # others are 1


def diff(session: Name, /, *, service: ServiceOptions = PLAIN) -> int:
    """Show what a session has changed in the service's folder and is kept back.

    casemate diff analysis

    Args:
        session: Its handle or name.
    """
    answer = ask(service, "sessions.diff", session=session)
    if service.is_json:
        print_json(answer)
        return 0
    found: Diff = revive(Diff, answer)
    texts = [f"=== {one.path}\n{one.diff}" for one in found.changes if one.diff]
    lines = review_lines(list(map(shown_change, found.changes)), "".join(texts), has_colours=sys.stdout.isatty())
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if not found.changes:
        say("nothing is changed")
    return 0


def apply(session: Name, /, *paths: Name, service: ServiceOptions = PLAIN) -> int:
    """Apply what a session has changed to the service's folder: all of it, or nothing. You are asked here first.

    casemate apply analysis src/report.py

    The exit code is 77 where it was not allowed, and 1 where the folder was changed meanwhile or cannot be written.

    Args:
        session: Its handle or name.
        paths: Only what is changed at these, and in folders there.
    """
    answer = with_service(lambda remote: _apply(remote, session, paths), service)
    if service.is_json:
        print_json(answer)
    outcome: Applied = revive(Applied, answer)
    for line in outcome_lines(outcome):
        say(visible(line))
    return _EXIT_CODES.get(outcome.status, 1)


def discard(session: Name, /, *, service: ServiceOptions = PLAIN) -> int:
    """Give up what a session has changed: its next run has a fresh interpreter, and sees the folder as it is.

    casemate discard analysis

    Args:
        session: Its handle or name.
    """
    ask(service, "sessions.discard", session=session)
    return print_done(is_json=service.is_json)


def outcome_lines(outcome: Applied) -> Iterator[str]:
    """What came of it: what was left out, and how much was written."""
    for one in outcome.skipped:
        yield f"left out: {one.name}: {one.reason}"
    for one in outcome.conflicts:
        yield f"conflict: {one.name}: {one.reason}"
    yield f"wrote {len(outcome.written)}, removed {len(outcome.removed)}" if outcome.ok else outcome.reason


async def _apply(remote: RemoteOperations, session: str, paths: Sequence[str]) -> Mapping[str, Any]:
    arguments = {"session": session, **({"paths": list(paths)} if paths else {})}
    handle = (await remote("inspect", {"session": session}))["id"]
    asking = asyncio.ensure_future(_answer_question(remote, handle))  # noqa: TID251 - ended here in every case
    try:
        answer: Mapping[str, Any] = await remote("sessions.apply", arguments)
        return answer
    finally:
        asking.cancel()
        await asyncio.wait([asking])


async def _answer_question(remote: RemoteOperations, session: str) -> None:
    """Have the question that comes decided here, or say where it can be."""
    from casemate.surfaces.cli.following import answer_request

    async with contextlib.aclosing(remote.stream("approvals.events")) as events:
        async for event in events:
            request = request_of(event["request"]) if event["event"] == "asked" else None
            if request is not None and (request.kind, request.session) == ("files", session):
                await answer_request(remote, request, asyncio.Lock())
