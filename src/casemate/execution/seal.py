"""Collected → Execution. `Capture` has redacted the program's output; text that is made here is redacted here."""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate.execution.guarding import note_of
from casemate.execution.request import redacted_crossings
from casemate.model.execution import Cause, Execution, SkippedFile, Status, Usage
from casemate.model.limits import format_size
from casemate.model.plan import ReadyStart

if TYPE_CHECKING:
    from casemate.execution.capture import Capture
    from casemate.execution.collect import Collected
    from casemate.execution.context import ExecutionContext
    from casemate.model.execution import Artifact, ProgramError
    from casemate.model.isolation import IsolationReport
    from casemate.model.limits import Limits
    from casemate.model.plan import Plan, Request
    from casemate.walls.wall import CellEnding, SessionCell


def seal(collected: Collected) -> Execution:
    """Make the execution that the caller gets and the record describes."""
    finished, planned = collected.finished, collected.finished.planned
    ending, capture = finished.ending, finished.capture
    evidence = Evidence(
        ending=ending,
        limits=planned.plan.limits,
        deadline=planned.plan.deadline,
        output_bytes=capture.output_bytes,
        error=capture.error,
        errno=capture.errno,
    )
    verdict = diagnose(evidence)
    crossings = redacted_crossings(finished.crossings, capture.redaction)
    report = report_for(planned.plan, planned.context, planned.report, ending)
    return execution_of(
        planned.request, capture, ending, verdict, report, collected.artifacts, collected.skipped, crossings=crossings
    )


_DIRECT = (
    "The workspace is written through: programs change its files at once, also files that the host runs later, "
    "except setuid bits; they can reach the host's sockets in it; its size is not limited."
)


_SIBLINGS = (
    "The cell was forked from a warmed interpreter: it shares its memory layout and the hashes of str values "
    "with other cells of this environment."
)


def report_for(
    plan: Plan, context: ExecutionContext, report: IsolationReport, ending: CellEnding | SessionCell
) -> IsolationReport:
    """The wall's report with the notes of this plan, sandbox and cell."""
    notes = (*report.notes, *context.approvals().notes)
    if plan.workspace.kind == "direct":
        notes = (*notes, _DIRECT)
    if plan.workspace.hidden:
        notes = (*notes, note_of(plan.workspace.hidden))
    if ending.start != "exec" and isinstance(plan.waiting, ReadyStart) and plan.waiting.preload is not None:
        notes = (*notes, _SIBLINGS)
    return replace(report, notes=notes, start=ending.start, start_reason=ending.start_reason)


def execution_of(
    request: Request,
    capture: Capture,
    ending: CellEnding,
    verdict: EndDiagnosis,
    report: IsolationReport,
    artifacts: tuple[Artifact, ...],
    skipped: tuple[SkippedFile, ...],
    **more: Any,
) -> Execution:
    """Put together an execution. ``more``: further fields, as they are."""
    transcript = capture.transcript
    text = transcript.merge([result.text or "" for result in capture.results])
    error = None if verdict.status == "ok" else capture.error
    if error and (lines := error.traceback.splitlines()) and lines[-1] not in text:
        text = f"{text}\n{error.traceback}".strip()  # a session's interpreter does not print it
    skipped = (*skipped, *capture.list_lost())
    if redaction := capture.redaction:
        text = redaction.text(text)  # a secret may be half in stdout and half in stderr
        skipped = tuple(SkippedFile(redaction.text(one.name), redaction.text(one.reason)) for one in skipped)
    return Execution(
        id=request.id,
        status=verdict.status,
        exit_code=verdict.exit_code,
        stdout=transcript.text_of("stdout"),
        stderr=transcript.text_of("stderr"),
        text=text,
        results=tuple(capture.results),
        error=error,
        artifacts=artifacts,
        full_output=capture.full_output(),
        truncated=transcript.is_truncated or capture.results_dropped,
        usage=Usage(ending.cpu_seconds, ending.peak_memory, ending.tasks),
        duration=ending.seconds,
        cause=verdict.cause,
        isolation=report,
        skipped=skipped,
        metadata=request.metadata,
        background=capture.background.merge([]),
        **more,
    )


# Signals by which runtimes die when memory is refused: V8 traps or aborts, C code aborts or faults.
_SELF_ENDED = {signal.SIGABRT, signal.SIGTRAP, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGKILL}
_NEAR = 0.7  # share of the memory limit; with more in use, such a death counts as out of memory
_WHY_ENDED = {
    "silent": "its interpreter did not answer",
    "deaf": "its interpreter closed a pipe that it is talked to through",
    "uncovered": "a file in the workspace that is hidden from it was replaced, and the new one would not be hidden",
    "terminals": "it had more than 64 pseudo-terminals open",
    "pipes": "no pipes could be made for its next step",
}
_CPU_SLACK = 0.9  # the kernel counts cpu time for RLIMIT_CPU in ticks


class EndDiagnosis(NamedTuple):
    status: Status
    exit_code: int | None  # None if casemate or a limit ended the program
    cause: Cause | None


class Evidence(NamedTuple):
    ending: CellEnding
    limits: Limits
    deadline: float
    output_bytes: int
    error: ProgramError | None
    errno: int | None


def diagnose(evidence: Evidence) -> EndDiagnosis:
    """Find the status, exit code and cause."""
    ending = evidence.ending
    if ending.reason is not None:
        return _ended_by_casemate(ending.reason, evidence)
    if evidence.output_bytes > evidence.limits.full_output:
        return _ended_by_casemate("output", evidence)
    if ending.oom:
        return EndDiagnosis("out_of_memory", None, _memory(evidence))
    if ending.wait_status is None:
        return EndDiagnosis("killed", None, Cause("killed", "The cell was killed from outside.", retryable=True))
    code = _exit_code(ending.wait_status)
    if code == 0:
        return EndDiagnosis("ok", 0, None)
    return _ended_by_itself(code, evidence)


def _exit_code(wait_status: int) -> int:
    if os.WIFSIGNALED(wait_status):
        return 128 + os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status)


def _ended_by_casemate(reason: str, evidence: Evidence) -> EndDiagnosis:
    limits = evidence.limits
    match reason:
        case "timeout":
            message = f"It ran for {evidence.ending.seconds:.2f} s; the time limit is {evidence.deadline:g} s."
            remedy = f"Give a longer timeout, up to the {limits.wall:g} s of limits.wall, or do less at once."
            if evidence.deadline >= limits.wall:
                remedy = "Do less at once. A longer timeout needs limits.wall to be raised, which is that time limit."
            return EndDiagnosis("timeout", None, Cause("timeout", message, remedy))
        case "memory":
            return EndDiagnosis("out_of_memory", None, _memory(evidence))
        case "cpu":
            return EndDiagnosis("killed", None, _cpu(evidence))
        case "disk":
            return EndDiagnosis("killed", None, _disk(evidence))
        case "processes":
            message = f"It had {evidence.ending.tasks} processes and threads; limits.processes is {limits.processes}."
            return EndDiagnosis("killed", None, Cause("process_limit", message, "Start fewer, or raise it."))
        case "output":
            message = (
                f"It wrote {format_size(evidence.output_bytes)}; "
                f"limits.full_output is {format_size(limits.full_output)}."
            )
            return EndDiagnosis(
                "killed", None, Cause("output_limit", message, "Write less, or into a file, or raise it.")
            )
        case "cancelled":
            return EndDiagnosis("cancelled", None, Cause("cancelled", "The caller cancelled it.", retryable=True))
    message = f"Casemate ended it: {_WHY_ENDED.get(reason, reason)}."
    return EndDiagnosis("killed", None, Cause("killed", message, retryable=reason != "terminals"))


def _ended_by_itself(code: int, evidence: Evidence) -> EndDiagnosis:
    signalled = os.WIFSIGNALED(evidence.ending.wait_status or 0)
    number = code - 128 if signalled else 0
    if number == signal.SIGXCPU or (number == signal.SIGKILL and _cpu_is_used_up(evidence)):
        return EndDiagnosis("killed", None, _cpu(evidence))
    if _wanted_memory(code, evidence):
        return EndDiagnosis("out_of_memory", code, _memory(evidence))
    return EndDiagnosis("failed", code, _met_limit(evidence))


def _cpu_is_used_up(evidence: Evidence) -> bool:
    limit = evidence.limits.cpu_time
    return limit is not None and evidence.ending.cpu_seconds >= limit * _CPU_SLACK


def _wanted_memory(code: int, evidence: Evidence) -> bool:
    if evidence.errno == errno.ENOMEM or (evidence.error is not None and evidence.error.name == "MemoryError"):
        return True
    near = evidence.ending.peak_memory >= _NEAR * evidence.limits.memory
    return near and code - 128 in _SELF_ENDED


def _met_limit(evidence: Evidence) -> Cause | None:
    """The limit that made the program fail, if the evidence shows one."""
    ending, limits, number = evidence.ending, evidence.limits, evidence.errno
    if ending.inodes_left <= 0 or number in (errno.ENOSPC, errno.EFBIG) or ending.space_left < 4096:
        return _disk(evidence)
    if number == errno.EMFILE:
        message = f"No more files could be opened; limits.open_files is {limits.open_files}."
        remedy = "Close files, or raise it. A cell gets at most the application's `ulimit -Hn` less 512, or half."
        return Cause("open_files_limit", message, remedy)
    # A known error without an errno has another cause, whatever the number of tasks.
    many = ending.tasks >= limits.processes and (evidence.error is None or number is not None)
    limit = f"limits.processes is {limits.processes}"
    if many or _no_thread(evidence.error):
        message = f"No more processes or threads could be started; {limit}."
        return Cause("process_limit", message, "Start fewer, or raise it.")
    # EAGAIN may also mean a full pipe. A program that catches it and exits has started exactly as many as the limit.
    caught = evidence.error is None and ending.begun == limits.processes
    if caught or (number == errno.EAGAIN and ending.begun >= limits.processes):
        message = f"It failed after it had started {ending.begun} processes and threads; {limit}."
        return Cause("process_limit", message, "If it started too many at once, start fewer, or raise it.")
    return None


def _disk(evidence: Evidence) -> Cause:
    limits = evidence.limits
    if evidence.ending.inodes_left <= 0:
        return Cause(
            "inode_limit", f"No more files could be made; limits.inodes is {limits.inodes}.", "Make fewer, or raise it."
        )
    used = f"limits.disk is {format_size(limits.disk)}, and all of it was used."
    return Cause("disk_limit", f"No more could be written; {used}", "Write less, or raise it.")


def _no_thread(error: ProgramError | None) -> bool:
    """Python's own error for a refused thread carries no errno."""
    return error is not None and (error.name, error.value) == ("RuntimeError", "can't start new thread")


def _memory(evidence: Evidence) -> Cause:
    limit, seen = evidence.limits.memory, evidence.ending.peak_memory
    if seen < _NEAR * limit:  # one allocation was too large and was refused
        had = f"; it had {format_size(seen)}" if seen else ""
        message = f"It asked for more memory than limits.memory, {format_size(limit)}, allows{had}."
    else:
        message = f"It needed more memory than limits.memory, {format_size(limit)}; {format_size(seen)} were in use."
    return Cause("memory_limit", message, "Work on less data at once, or raise the limit.")


def _cpu(evidence: Evidence) -> Cause:
    message = f"It used {evidence.ending.cpu_seconds:.2f} s of cpu; limits.cpu_time is {evidence.limits.cpu_time} s."
    return Cause("cpu_limit", message, "Compute less, or raise it.")
