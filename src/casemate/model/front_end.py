"""What steps say to a front end, such as a notebook, besides their events; and what it asks about code. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Task = Literal["code", "comm", "complete", "look_up", "check"]
CodeStatus = Literal["complete", "incomplete", "invalid", "unknown"]
CommKind = Literal["open", "msg", "close"]


@dataclass(frozen=True, slots=True)
class StepTerms:
    """What a front end has a step do, and with what: ``message``, its name for what the step answers, so that widgets
    of output find theirs; ``remembers``: the code is kept as ``In``; ``answers``: somebody may be asked for lines;
    ``has_colours``: tracebacks have colours."""

    task: Task = "code"
    message: str | None = None
    remembers: bool = True
    answers: bool = False
    has_colours: bool = False


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A step wants a line that a person types in, and waits for the answer to its request ``id``. ``hidden``: as it is
    typed."""

    id: int
    prompt: str
    hidden: bool


@dataclass(frozen=True, slots=True)
class CommMessage:
    """A widget's message to its other half in the front end."""

    kind: CommKind
    comm: str
    target: str
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    buffers: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Cleared:
    """A step takes back what it displayed; with ``wait`` when it displays something else."""

    wait: bool


FrontEvent = LineRequest | CommMessage | Cleared


@dataclass(frozen=True, slots=True)
class Completion:
    """What may stand in the code from ``start`` to ``end``: each match with its kind, where that is known."""

    start: int
    end: int
    matches: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CodeState:
    """Whether code can be run as it stands, and what the next line begins with where it cannot."""

    status: CodeStatus
    indent: str = ""
