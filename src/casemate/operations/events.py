"""Events and requests as documents, and from them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from casemate.model.approval import ApprovalRequest, Decision
from casemate.model.events import Display, Done, ErrorEvent, Event, Output, ResultEvent
from casemate.model.result import ProgramError, Result
from casemate.operations.failures import error_from
from casemate.operations.wire import Document, Fetch, document, execution_of, known


def event_document(event: Event) -> Document:
    """An event; ``event`` in it says which: output, display, result, error, approval or done."""
    match event:
        case Output():
            return {"event": "output", **document(event)}
        case Display():
            return {"event": "display", **document(event)}
        case ResultEvent():
            return {"event": "result", **document(event)}
        case ErrorEvent():
            return {"event": "error", **document(event)}
        case ApprovalRequest():
            return {"event": "approval", "request": document(event)}
        case Done():
            return {"event": "done", "execution": document(event.execution), "error": None}
    raise TypeError(f"a {type(event).__name__} is no event")


def event_of(
    told: Mapping[str, Any], fetch: Fetch, answerer: Callable[[str], Callable[[Decision], bool]] | None = None
) -> Event:
    """The event that a document is of. ``answerer``: how a request, by its id, is answered. Raises what became of a run
    that has no execution."""
    match told["event"]:
        case "output":
            return Output(told["stream"], told["text"], told["background"], told["text"].encode())
        case "display":
            return Display(Result(told["result"]), told["display_id"], told["update"])
        case "result":
            return ResultEvent(Result(told["result"]))
        case "error":
            return ErrorEvent(ProgramError(**known(ProgramError, told["error"])))
        case "approval":
            return request_of(told["request"], answerer)
    if told["execution"] is None:
        raise error_from(told["error"])
    return Done(execution_of(told["execution"], fetch))


def request_of(
    told: Mapping[str, Any], answerer: Callable[[str], Callable[[Decision], bool]] | None = None
) -> ApprovalRequest:
    """The request for approval that a document is of."""
    answer = answerer(told["id"]) if answerer else None
    return ApprovalRequest(**known(ApprovalRequest, told), _answer=answer)
