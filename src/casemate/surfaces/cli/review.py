"""Changes of a folder that wait for review: shown, applied or discarded, on a terminal."""

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
from casemate.surfaces.cli.commands import asks, row
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, with_service
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.inert import visible
from casemate.surfaces.cli.terminal import review_lines

if TYPE_CHECKING:
    from casemate.remote.client import RemoteOperations

_NOBODY = "nobody is at a terminal to be asked; apply it at one, or allow it by a rule for files in the policy"
_EXIT_CODES = {"applied": 0, "nothing": 0, "denied": 77}  # any other is 1


def _print_diff(answer: dict[str, Any], *, is_json: bool) -> int:
    if is_json:
        print_json(answer)
        return 0
    found: Diff = revive(Diff, answer)
    texts = [f"=== {one.path}\n{one.diff}" for one in found.changes if one.diff]
    lines = review_lines(list(map(shown_change, found.changes)), "".join(texts), has_colours=sys.stdout.isatty())
    sys.stdout.writelines(f"{line}\n" for line in lines)
    if not found.changes:
        say("nothing has changed")
    return 0


diff = row("sessions.diff", "session", _print_diff, "casemate diff analysis")
discard = row("sessions.discard", "session", print_done, "casemate discard analysis")


@asks("sessions.apply", "session *paths")
def apply(given: dict[str, Any], *, service: ServiceOptions = PLAIN) -> int:
    """Apply a session's changes to the service's folder: all of them, or nothing. You are asked here first.

    casemate apply analysis src/report.py

    The exit code is 77 if it was denied, and 1 if the folder was changed since or cannot be written.
    """
    answer = with_service(lambda remote: _apply(remote, given["session"], given["paths"]), service)
    if service.is_json:
        print_json(answer)
    outcome: Applied = revive(Applied, answer)
    for line in outcome_lines(outcome):
        say(visible(line))
    return _EXIT_CODES.get(outcome.status, 1)


def outcome_lines(outcome: Applied) -> Iterator[str]:
    """Lines about what was left out, and how much was written."""
    for one in outcome.skipped:
        yield f"left out: {one.name}: {one.reason}"
    for one in outcome.conflicts:
        yield f"conflict: {one.name}: {one.reason}"
    yield f"wrote {len(outcome.written)}, removed {len(outcome.removed)}" if outcome.ok else outcome.reason


async def _apply(remote: RemoteOperations, session: str, paths: Sequence[str]) -> Mapping[str, Any]:
    arguments = {"session": session, **({"paths": list(paths)} if paths else {})}
    handle = (await remote("inspect", {"session": session}))["id"]
    others = await remote("approvals.pending", {"filters": {"kind": ["files"], "session": [handle]}})
    known = [one["id"] for one in others]
    asking = asyncio.ensure_future(_answer_question(remote, handle, known))  # noqa: TID251 - always ended here
    try:
        answer: Mapping[str, Any] = await remote("sessions.apply", arguments)
        return answer
    finally:
        asking.cancel()
        await asyncio.wait([asking])


async def _answer_question(remote: RemoteOperations, session: str, known: Sequence[str]) -> None:
    """Answer the request of this apply, which is not in ``known``; deny it if no person is at a terminal. Programs
    choose the arguments of tool calls, so only those of a request about files tell what it is."""
    from casemate.surfaces.cli.following import answer_request
    from casemate.surfaces.cli.terminal import somebody_is_there

    async with contextlib.aclosing(remote.stream("approvals.events", {"told": list(known)})) as events:
        async for event in events:
            request = request_of(event["request"]) if event["event"] == "asked" else None
            if request is None or (request.kind, request.session) != ("files", session):
                continue
            if "changes" not in request.arguments:  # it is about a file of the host
                continue
            if somebody_is_there():
                await answer_request(remote, request, asyncio.Lock())
            else:
                await remote("approvals.decide", {"request": request.id, "reason": _NOBODY})
