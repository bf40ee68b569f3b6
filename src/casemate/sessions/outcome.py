"""The outcome of a step: the names it bound or lost, and its output as an `Execution`. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Literal

from casemate.artifacts.collect import CollectedFiles
from casemate.execution import seal
from casemate.execution.capture import Capture
from casemate.execution.seal import EndDiagnosis, Evidence, diagnose
from casemate.model import approval
from casemate.model.execution import Cause, Crossing, Execution
from casemate.model.isolation import IsolationReport
from casemate.model.limits import Limits
from casemate.model.plan import Request
from casemate.sessions.protocol import StepDone
from casemate.walls.wall import CellEnding, StepUsage

_CLOSED = Cause("cancelled", "Its session was closed.")
_INTERRUPTED = Cause("cancelled", "It was interrupted.", retryable=True)
_MOST_NAMES = 10_000  # names reported as lost if the interpreter dies


InterpreterState = tuple[Literal["kept", "lost"], tuple[str, ...]]  # as in an execution, with the names lost


class BoundNames:
    """Names that the session's programs bound, and names lost with an interpreter until a step reports them."""

    def __init__(self) -> None:
        self._bound: dict[str, None] = {}
        self._lost: tuple[str, ...] | None = None

    def update(self, done: StepDone) -> None:
        """Take the names of a step that is over."""
        for name in done.gone:
            self._bound.pop(name, None)
        self._bound.update(dict.fromkeys(done.new[: _MOST_NAMES - len(self._bound)]))

    def add(self, name: str) -> None:
        """Add a name that was bound from outside."""
        self._bound[name] = None

    def lose(self) -> None:
        """Mark all bound names as lost, because the interpreter has ended."""
        self._lost = tuple(dict.fromkeys((*(self._lost or ()), *self._bound)))[:_MOST_NAMES]
        self._bound.clear()

    def forget(self) -> None:
        """Forget all names after a deliberate reset. No step reports them as lost."""
        self._bound.clear()
        self._lost = None

    def state_after(self, done: StepDone | None) -> InterpreterState:
        """Return what a step reports: "lost" if its interpreter ended during the step or before it, else "kept"."""
        lost, self._lost = self._lost, None
        if done is None:
            self.lose()
            return "lost", tuple(dict.fromkeys((*(lost or ()), *(self._lost or ()))))
        self.update(done)
        return ("kept", ()) if lost is None else ("lost", lost)


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How a step ended: by itself (``done`` and ``usage``), or with its cell (``ending``)."""

    seconds: float  # since its start
    deadline: float  # seconds it was allowed
    interrupted: bool  # by a caller
    done: StepDone | None = None
    usage: StepUsage | None = None
    ending: CellEnding | None = None
    denied: EndDiagnosis | None = None  # why it did not start


def denied_end(deadline: float, why: approval.ApprovalVerdict, *, interrupted: bool, closed: bool) -> StepEnd:
    """The end of a step that was denied, or that was interrupted or closed while it waited for approval."""
    message = f"The step was not run: {why.reason or 'it was denied'} (decided by: {why.by})."
    cause = Cause("denied", message, "Do without it, or have an approver allow it.")
    verdict = EndDiagnosis("denied", None, cause)
    if interrupted or closed:
        verdict = EndDiagnosis("cancelled", None, _INTERRUPTED if interrupted else _CLOSED)
    usage = StepUsage(0.0, 0, 0, 0, 0, 0, 0, interrupted=False)
    return StepEnd(0.0, deadline, False, StepDone(0, (), ()), usage, denied=verdict)


def outcome_of(
    request: Request,
    capture: Capture,
    limits: Limits,
    end: StepEnd,
    state: InterpreterState,
    files: CollectedFiles,
    report: IsolationReport,
    crossings: tuple[Crossing, ...],
) -> Execution:
    """The outcome of a step, for the caller and the record."""
    ending = replace(end.ending, seconds=end.seconds) if end.ending else _ending_of_step(end)
    if capture.was_too_much and ending.reason in (None, "timeout"):  # too much output interrupts it
        ending = replace(ending, reason="output")
    evidence = Evidence(ending, limits, end.deadline, capture.output_bytes, capture.error, capture.errno)
    verdict = end.denied or _verdict(end, diagnose(evidence))
    return seal.execution_of(
        request, capture, ending, verdict, report, files.files, files.skipped,
        crossings=crossings, state=state[0], lost_names=state[1],
    )  # fmt: skip


def _ending_of_step(end: StepEnd) -> CellEnding:
    assert end.done is not None
    assert end.usage is not None
    usage = end.usage
    return CellEnding(
        wait_status=end.done.exit << 8,
        reason="timeout" if usage.interrupted and not end.interrupted else None,
        seconds=end.seconds,
        cpu_seconds=usage.cpu_seconds,
        peak_memory=usage.peak_memory,
        tasks=usage.tasks,
        begun=usage.tasks,
        oom=False,
        space_left=usage.space_left,
        inodes_left=usage.inodes_left,
        tree_fd=-1,
    )


def _verdict(end: StepEnd, verdict: EndDiagnosis) -> EndDiagnosis:
    """Correct a program's verdict for a step: it may be interrupted, and must not end its interpreter."""
    if end.interrupted and (end.ending is None or end.ending.reason in ("timeout", "cancelled")):
        return EndDiagnosis("cancelled", None, _INTERRUPTED)
    if end.ending is not None and end.ending.reason == "closed":
        return EndDiagnosis("cancelled", None, _CLOSED)
    if end.ending is not None and end.ending.reason is None and verdict.cause is None:
        return _ended_itself(verdict)
    return verdict


def _ended_itself(verdict: EndDiagnosis) -> EndDiagnosis:
    code = verdict.exit_code
    if code is not None and code > 128:
        how, remedy = (
            f"{_signal_name(code - 128)} ended it",
            "What it wrote into files is still in the workspace.",
        )
    else:
        how, remedy = f"it exited with code {code}", "A step that calls exit ends its interpreter: leave that out."
    message = f"The session's interpreter ended during this step: {how}. The next step has a fresh one."
    cause = Cause("interpreter_ended", message, remedy)
    return verdict._replace(status="failed", cause=cause)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
