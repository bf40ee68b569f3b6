"""What happens while code runs, in the order it happens, and its form as JSON. ``Done`` is always last. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from casemate.model.approval import ApprovalRequest, Decision
from casemate.model.execution import Execution, ProgramError, Result


@dataclass(frozen=True, slots=True)
class Output:
    """Text that the program wrote.

    ``data`` is the bytes that ``text`` was decoded from, for those who pass them on.

    Attributes:
        background: By something an earlier step left running.
    """

    stream: Literal["stdout", "stderr"]
    text: str
    background: bool = False
    data: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Display:
    """Something the program displayed.

    Attributes:
        display_id: The name that the program gave it, so that it can be shown anew.
        update: This takes the place of what was shown by that name before.
    """

    result: Result
    display_id: str | None = None
    update: bool = False


@dataclass(frozen=True, slots=True)
class ResultEvent:
    """The value of a step's last expression (sessions)."""

    result: Result


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """The program's uncaught exception."""

    error: ProgramError


@dataclass(frozen=True, slots=True)
class Done:
    """The end of the stream, with the whole outcome."""

    execution: Execution


Event = Output | Display | ResultEvent | ErrorEvent | ApprovalRequest | Done


Document = dict[str, Any]
Answer = Callable[[str], Callable[[Decision], bool]]  # how a request, by its id, is answered

_REQUEST = tuple(field.name for field in fields(ApprovalRequest) if field.repr)
_ERROR = tuple(field.name for field in fields(ProgramError))


def event_document(event: Event) -> Document:
    """The document of an event; ``Done`` has none of its own."""
    match event:
        case Output(stream, text, background):
            return {"event": "output", "stream": stream, "text": text, "background": background}
        case Display(result, display_id, update):
            return {"event": "display", "result": dict(result), "display_id": display_id, "update": update}
        case ResultEvent(result):
            return {"event": "result", "result": dict(result)}
        case ErrorEvent(error):
            return {"event": "error", "error": {name: getattr(error, name) for name in _ERROR}}
        case ApprovalRequest():
            return {"event": "approval", "request": {name: getattr(event, name) for name in _REQUEST}}
        case Done():
            raise TypeError("the end of a run has no document of its own")


def event_of(document: Mapping[str, Any], answer: Answer | None = None) -> Event:
    """The event that a document is of; one of a newer service may hold more. ``answer``: how requests are answered."""
    match document["event"]:
        case "output":
            text = document["text"]
            return Output(document["stream"], text, document["background"], text.encode())
        case "display":
            return Display(Result(document["result"]), document["display_id"], document["update"])
        case "result":
            return ResultEvent(Result(document["result"]))
        case "error":
            return ErrorEvent(ProgramError(*(document["error"][name] for name in _ERROR)))
        case "approval":
            return request_of(document["request"], answer)
    raise ValueError(f"{document['event']!r} is no event")


def request_of(document: Mapping[str, Any], answer: Answer | None = None) -> ApprovalRequest:
    """The request for approval that a document is of."""
    known = {name: document[name] for name in _REQUEST if name in document}
    return ApprovalRequest(**known, _answer=answer(document["id"]) if answer else None)
