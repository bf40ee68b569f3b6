"""Follows a run of the service from a terminal: prints its output, and asks its approval requests."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from casemate.model.approval import ApprovalRequest
from casemate.model.events import Display, Done, ErrorEvent, Output, ResultEvent
from casemate.operations.documents import UnsentContent, event_of
from casemate.surfaces.cli import failures
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.progress import Progress
from casemate.surfaces.cli.terminal import Streams, is_picture

if TYPE_CHECKING:
    from casemate.model.execution import Execution, ProgramError
    from casemate.remote.client import RemoteOperations
    from casemate.surfaces.cli.terminal import Terminal


TOO_LATE = "too late: it was answered elsewhere, or the run is over"
_GONE = "the requester is gone, because the service was stopped"
FOR_LATER = f"{_GONE}; an answer applies when exactly the same is asked again"


def explain_withdrawn(*, allow: bool) -> str:
    """The effect of an answer to a request whose requester is gone."""
    then = "the same caller may do exactly the same once, within an hour" if allow else "it is no longer listed"
    return f"{_GONE}; {then}"


async def follow(remote: RemoteOperations, run: str, *, raw: bool = False) -> int:
    """Print a run's output until it ends. Returns its exit code. Its approval requests are asked here if a person is
    at the terminal; otherwise the command that answers them is named. Raises ``ReaderGone``."""
    try:
        with Progress(shows=True) as progress:
            progress.wait("running")
            return await _print_events(remote, run, progress, raw=raw)
    except BaseExceptionGroup as failed:  # raise the error itself, without its group
        raise failed.exceptions[0] from None


async def _print_events(remote: RemoteOperations, run: str, progress: Progress, *, raw: bool) -> int:
    streams, screen = Streams(raw=raw), asyncio.Lock()
    documents = remote.stream("runs.stream", {"run": run})
    async with contextlib.aclosing(documents), asyncio.TaskGroup() as questions:
        async for document in documents:
            progress.end()
            match event_of(document, UnsentContent):
                case Output() as event:
                    async with screen:
                        await streams.output(event)
                case Display(result) | ResultEvent(result):
                    async with screen:
                        await streams.result(result)
                case ErrorEvent(error) if not _is_exit(error) and await _is_step(remote, run):
                    async with screen:
                        await streams.error(error)
                case ApprovalRequest() as request if await _waits_for(remote, run, request.id):
                    questions.create_task(answer_request(remote, request, screen))
                case Done(execution):
                    await streams.end()
                    return report_outcome(execution, run)
    raise AssertionError("a stream ends with Done")


def report_outcome(execution: Execution, run: str) -> int:
    """Print notes on a finished run that was not ordinary. Returns its exit code."""
    from casemate.surfaces.cli.inert import visible
    from casemate.surfaces.cli.outcome import count_of, outcome

    for line in outcome(execution):
        say(line)
    if pictures := sum(map(is_picture, execution.results)):
        shown = count_of(pictures, "picture")
        say(f"displayed but not saved: {shown}; --format json has what a program displays, and saved files are kept")
    if execution.artifacts:
        names = ", ".join(visible(artifact.name) for artifact in execution.artifacts[:8])
        say(f"left {count_of(len(execution.artifacts), 'file')}: {names}; casemate cp {run}:NAME . copies one out")
    return failures.exit_code_of(execution)


def _is_exit(error: ProgramError) -> bool:
    return error.name == "SystemExit" and error.value.lstrip("-").isdecimal()


async def _is_step(remote: RemoteOperations, run: str) -> bool:
    """Whether a run belongs to a session, whose interpreter does not print errors itself."""
    return (await remote("runs.get", {"run": run}))["session"] is not None


async def _waits_for(remote: RemoteOperations, run: str, request: str) -> bool:
    """Whether a run still waits for this answer; its stream also has requests that were answered long ago."""
    return any(one["id"] == request for one in (await remote("runs.get", {"run": run}))["approvals"])


async def answer_request(remote: RemoteOperations, request: ApprovalRequest, screen: asyncio.Lock) -> None:
    """Ask about a request here, until it is answered elsewhere; or say which command answers it."""
    from casemate.surfaces.cli.terminal import Terminal, somebody_is_there

    if request.kind == "elicitation" or not somebody_is_there():
        say(f"waits for an approval: casemate approvals show {request.id}")
        return
    here = decide_at_terminal(remote, request, Terminal(screen))
    asking = asyncio.ensure_future(here)  # noqa: TID251 - awaited or cancelled below
    elsewhere = asyncio.ensure_future(_over(remote, request.id))  # noqa: TID251 - the same
    try:
        first, _ = await asyncio.wait([asking, elsewhere], return_when=asyncio.FIRST_COMPLETED)
        for one in first:
            one.result()
    finally:
        for one in (asking, elsewhere):
            one.cancel()
        await asyncio.wait([asking, elsewhere])


async def decide_at_terminal(remote: RemoteOperations, request: ApprovalRequest, terminal: Terminal) -> None:
    """Ask the person at the terminal and tell the service. Cancelling withdraws the question."""
    if request.state == "withdrawn":
        say(f"{request.id}: {FOR_LATER}")
    allow = await terminal.ask(request)
    if not await remote("approvals.decide", {"request": request.id, "allow": allow}):
        say(TOO_LATE)
    elif request.state == "withdrawn":
        say(f"{request.id}: {explain_withdrawn(allow=allow)}")


async def _over(remote: RemoteOperations, request: str) -> None:
    """Wait until a request needs no answer."""
    async with contextlib.aclosing(remote.stream("approvals.events", {"told": [request]})) as events:
        async for event in events:
            if event["event"] == "over" and event["id"] == request:
                return
    raise AssertionError("a lost stream ends with an error")
