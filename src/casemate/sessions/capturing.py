"""What takes in the output of a session's step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from casemate.execution.capture import Capture
from casemate.sessions.interpreter_cell import GRACE

if TYPE_CHECKING:
    from casemate.execution.emitter import Emitter
    from casemate.model.limits import Limits
    from casemate.redaction.redaction import Redaction
    from casemate.sessions.interpreter_cell import InterpreterCell
    from casemate.walls.wall import Reason


def capture_of(life: InterpreterCell, limits: Limits, emitter: Emitter | None, redaction: Redaction | None) -> Capture:
    """It; too much output interrupts the step, and its state is kept."""
    capture = Capture(limits, emitter, redaction)

    def too_much(_reason: Reason) -> None:
        life.cell.interrupt(GRACE)

    capture.kill = too_much
    if emitter:
        emitter.on_room = life.cell.resume
    return capture
