"""What happens while code runs, in the order it happens. ``Done`` is always last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from casemate.model.approval import ApprovalRequest
from casemate.model.execution import Execution, ProgramError, Result


@dataclass(frozen=True, slots=True)
class Output:
    """Text that the program wrote. ``background``: by something an earlier step left running.

    ``data`` is the bytes that ``text`` was decoded from, for those who pass them on.
    """

    stream: Literal["stdout", "stderr"]
    text: str
    background: bool = False
    data: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Display:
    """Something the program displayed.

    ``display_id``: the name that the program gave it, so that it can be shown anew; ``update``: this takes the
    place of what was shown by that name before.
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
