"""``casemate approvals``: what programs wait for, and its answers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App

from casemate.errors import InvalidArgument, Unavailable
from casemate.model.events import request_of
from casemate.surfaces.cli.answers import print_json
from casemate.surfaces.cli.connection import PLAIN, Filter, Quiet, ServiceOptions, ask, list_rows, with_service
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.following import FOR_LATER, TOO_LATE, decide_at_terminal, explain_withdrawn
from casemate.surfaces.cli.parameters import Name

if TYPE_CHECKING:
    from casemate.remote.client import RemoteOperations


app = App(name="approvals", help="See what programs wait for, and answer it.")


@app.default
@app.command(name="list")
def list_requests(*, filters: Filter = (), quiet: Quiet = False, service: ServiceOptions = PLAIN) -> int:
    """List the requests that wait for an answer, the oldest first.

    One whose state is withdrawn has nobody that waits: what asked has ended with the service. It can be answered for
    when exactly the same is asked again.

    Args:
        filters: Only those with KEY=VALUE: kind, server, tool, state (asked or withdrawn), session or run (the
            beginning of its handle), or namespace. May be repeated: of one key any of the values, of several keys all.
        quiet: Only their ids.
    """
    return list_rows(
        "approvals.pending", filters, service, quiet=quiet, row=lambda one: {**one, "what": one["summary"]},
        columns=("id", "kind", "what", "session", "run", "state"), empty="Nothing waits for an approval.",
    )  # fmt: skip


@app.command
def show(request: Name, /, *, service: ServiceOptions = PLAIN) -> int:
    """Show everything of a request: exactly what would cross.

    Args:
        request: Its id, or the beginning of it.
    """
    from casemate.surfaces.cli.terminal import request_lines

    found = ask(service, "approvals.get", request=request)
    if service.is_json:
        print_json(found)
    else:
        waiting = request_of(found)
        print(request_lines(waiting), end="")  # noqa: T201 - escaped there
        if waiting.state == "withdrawn":
            print(f"{FOR_LATER.capitalize()}.")  # noqa: T201
        print(f"casemate approvals approve {found['id']} allows it; casemate approvals deny {found['id']} does not.")  # noqa: T201
    return 0


@app.command
def approve(
    *requests: Name,
    scope: Literal["once", "run", "session"] = "once",
    uses: int | None = None,
    expires: float | None = None,
    reason: str = "",
    service: ServiceOptions = PLAIN,
) -> int:
    """Allow requests.

    casemate approvals approve 1ceca2

    casemate approvals approve 1ceca2 --scope session --uses 10 --expires 600

    Args:
        requests: Their ids, or the beginnings of them.
        scope: For how long the same may cross again without asking: once (unless given), for the rest of the run, or of
            the session.
        uses: How often it may, with this time.
        expires: Seconds from now after which it may no more.
        reason: Recorded, and told to the program.
    """
    more = {"scope": scope, "uses": uses, "expires": expires, "reason": reason}
    return _decide_requests(
        requests, {"allow": True, **{name: one for name, one in more.items() if one is not None}}, service
    )


@app.command
def deny(*requests: Name, reason: str = "", service: ServiceOptions = PLAIN) -> int:
    """Refuse requests.

    casemate approvals deny 1ceca2 --reason 'use the mirror'

    casemate approvals deny $(casemate approvals -q)

    Args:
        requests: Their ids, or the beginnings of them.
        reason: Recorded, and told to the program.
    """
    return _decide_requests(requests, {"allow": False, "reason": reason}, service)


@app.command
def watch(*, service: ServiceOptions = PLAIN) -> int:
    """Be asked about each request as it comes, until Ctrl-C.

    Needs a terminal; what is answered elsewhere meanwhile is taken back here.
    """
    from casemate.surfaces.cli.terminal import somebody_is_there

    if not somebody_is_there():
        raise Unavailable(
            "nobody can be asked here: standard input and standard error are no terminal of casemate's own",
            remediation="Use casemate approvals list, approve and deny.",
        )
    with_service(_watch_requests, service)
    return 0


async def _watch_requests(remote: RemoteOperations) -> None:
    from casemate.surfaces.cli.terminal import Terminal

    terminal = Terminal(asyncio.Lock())
    questions: dict[str, asyncio.Task[None]] = {}
    say("asking about what programs want, as it comes; Ctrl-C ends it")
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
                    say(f"{event['id']} waits for something to be filled in, which cannot be done here")
                else:
                    request = request_of(event["request"])
                    questions[request.id] = group.create_task(decide_at_terminal(remote, request, terminal))
    except BaseExceptionGroup as failed:  # what went wrong, and not that it did so beside questions
        raise failed.exceptions[0] from None


def _decide_requests(requests: tuple[str, ...], decision: dict[str, Any], service: ServiceOptions) -> int:
    if not requests:
        raise InvalidArgument("request_id", "name one or more; casemate approvals list has them")

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
