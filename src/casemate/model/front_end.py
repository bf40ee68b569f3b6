"""Messages between steps and a front end, such as a notebook, in addition to events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Task = Literal["code", "comm", "complete", "look_up", "check"]
CodeStatus = Literal["complete", "incomplete", "invalid", "unknown"]
CommKind = Literal["open", "msg", "close"]


@dataclass(frozen=True, slots=True)
class StepTerms:
    """A front end's terms for a step."""

    task: Task = "code"
    message: str | None = None  # the front end's id for the step's output, by which output widgets find theirs
    remembers: bool = True  # the code is kept as ``In``
    answers: bool = False  # the front end can ask a person for lines
    has_colours: bool = False  # in tracebacks


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A step waits for a line that a person types."""

    id: int
    prompt: str
    hidden: bool  # while it is typed


@dataclass(frozen=True, slots=True)
class CommMessage:
    """A widget's message to its front-end half."""

    kind: CommKind
    comm: str
    target: str
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    buffers: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Cleared:
    """A step clears its display; with ``wait``, once it displays something else."""

    wait: bool


FrontEvent = LineRequest | CommMessage | Cleared


@dataclass(frozen=True, slots=True)
class Completion:
    """What can replace the code from ``start`` to ``end``: each match with its kind, or an empty one."""

    start: int
    end: int
    matches: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CodeState:
    """Whether code is complete, and the indent of the next line if it is not."""

    status: CodeStatus
    indent: str = ""
