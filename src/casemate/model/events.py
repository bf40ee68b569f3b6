"""The events of a run, in the order in which they happen, and their JSON documents. ``Done`` is always last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from casemate.model.approval import ApprovalRequest, Decision
from casemate.model.execution import Execution, ProgramError, Result


@dataclass(frozen=True, slots=True)
class Output:
    """Text that the program wrote. ``data`` is the bytes that ``text`` was decoded from.

    Attributes:
        background: Whether something that an earlier step left running wrote it.
    """

    stream: Literal["stdout", "stderr"]
    text: str
    background: bool = False
    data: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Display:
    """Something that the program displayed.

    Attributes:
        display_id: The program's name for it, so that it can update it.
        update: This replaces what was displayed under the same name.
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
Answer = Callable[[str], Callable[[Decision], bool]]  # from a request's id to the function that answers it

_REQUEST = tuple(field.name for field in fields(ApprovalRequest) if field.repr)
_ERROR = tuple(field.name for field in fields(ProgramError))


def event_document(event: Event) -> Document:
    """The document of an event. ``Done`` has none."""
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
            raise TypeError("the end of a run has no document")


def event_of(document: Mapping[str, Any], answer: Answer | None = None) -> Event:
    """The event of a document; a newer service may send more fields. ``answer``: how approval requests are answered."""
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
    raise ValueError(f"{document['event']!r} is not an event")


def request_of(document: Mapping[str, Any], answer: Answer | None = None) -> ApprovalRequest:
    """The approval request of a document."""
    known = {name: document[name] for name in _REQUEST if name in document}
    return ApprovalRequest(**known, _answer=answer(document["id"]) if answer else None)
