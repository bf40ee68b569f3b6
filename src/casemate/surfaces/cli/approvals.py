"""``casemate approvals``: pending approval requests, and their answers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from cyclopts import App

from casemate.errors import InvalidArgument, Unavailable
from casemate.model.events import request_of
from casemate.surfaces.cli.answers import print_json
from casemate.surfaces.cli.commands import asks, lists, row
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, with_service
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.following import FOR_LATER, TOO_LATE, decide_at_terminal, explain_withdrawn

if TYPE_CHECKING:
    from casemate.remote.client import RemoteOperations


app = App(name="approvals", help="List and answer approval requests.")


def _print_request(found: dict[str, Any], *, is_json: bool) -> int:
    from casemate.surfaces.cli.terminal import request_lines

    if is_json:
        print_json(found)
    else:
        waiting = request_of(found)
        print(request_lines(waiting), end="")  # noqa: T201 - escaped there
        if waiting.state == "withdrawn":
            print(f"{FOR_LATER.capitalize()}.")  # noqa: T201
        print(f"casemate approvals approve {found['id']} allows it; casemate approvals deny {found['id']} does not.")  # noqa: T201
    return 0


list_requests = lists(
    "approvals.pending", "id kind what session run state", "No approval request is pending.",
    lambda one: {**one, "what": one["summary"]}, "casemate approvals list --filter kind=egress",
)  # fmt: skip
app.default(list_requests)
app.command(list_requests, name="list")
app.command(row("approvals.get", "request", _print_request), name="show")


@app.command
@asks("approvals.decide", "*requests=request --scope --uses --expires --reason")
def approve(given: dict[str, Any], *, service: ServiceOptions = PLAIN) -> int:
    """Allow requests.

    casemate approvals approve 1ceca2 --scope session --uses 10 --expires 600
    """
    return _decide_requests({**given, "allow": True}, service)


@app.command
@asks("approvals.decide", "*requests=request --reason")
def deny(given: dict[str, Any], *, service: ServiceOptions = PLAIN) -> int:
    """Refuse requests.

    casemate approvals deny $(casemate approvals -q) --reason 'use the mirror'
    """
    return _decide_requests({**given, "allow": False}, service)


@app.command
def watch(*, service: ServiceOptions = PLAIN) -> int:
    """Ask about each request as it comes, until Ctrl-C.

    Needs a terminal. A question that is answered elsewhere is withdrawn here.
    """
    from casemate.surfaces.cli.terminal import somebody_is_there

    if not somebody_is_there():
        raise Unavailable(
            "no person can be asked here: standard input and standard error are not one terminal of casemate's own",
            remediation="Use casemate approvals list, approve and deny.",
        )
    with_service(_watch_requests, service)
    return 0


async def _watch_requests(remote: RemoteOperations) -> None:
    from casemate.surfaces.cli.terminal import Terminal

    terminal = Terminal(asyncio.Lock())
    questions: dict[str, asyncio.Task[None]] = {}
    say("asking about approval requests as they come; Ctrl-C ends it")
    try:
        async with (
            contextlib.aclosing(remote.stream("approvals.events")) as events,
            asyncio.TaskGroup() as group,
        ):
            async for event in events:
                if event["event"] == "over":
                    if (question := questions.pop(event["id"], None)) is not None:
                        question.cancel()
                elif event["request"]["kind"] == "elicitation":
                    say(f"{event['id']} asks for a form to be filled in, which cannot be done here")
                else:
                    request = request_of(event["request"])
                    questions[request.id] = group.create_task(decide_at_terminal(remote, request, terminal))
    except BaseExceptionGroup as failed:  # raise the error itself, without its group
        raise failed.exceptions[0] from None


def _decide_requests(decision: dict[str, Any], service: ServiceOptions) -> int:
    if not (requests := decision.pop("request")):
        raise InvalidArgument("request_id", "name one or more; casemate approvals list shows them")

    async def decide_each(remote: RemoteOperations) -> list[dict[str, Any]]:
        answers = []
        for request in requests:
            found = await remote("approvals.get", {"request": request})
            taken = await remote("approvals.decide", {"request": found["id"], **decision})
            answers.append({"id": found["id"], "decided": taken, "state": request_of(found).state})
        return answers

    answers = with_service(decide_each, service)
    if service.is_json:
        print_json(answers)
    for one in answers:
        if not one["decided"]:
            say(f"{one['id']}: {TOO_LATE}")
        elif one["state"] == "withdrawn":
            say(f"{one['id']}: {explain_withdrawn(allow=decision['allow'])}")
    return 0 if all(one["decided"] for one in answers) else 1
