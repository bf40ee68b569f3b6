"""Collected → Execution: what is handed out, in its final form.

What the program said has had its secrets taken out where it came in, before any of it was kept; here the same is done
with what was put together since. Signing comes here when there are keys: it needs everything of an execution in one
place."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate.execution.request import redacted_crossings
from casemate.model.execution import Cause, Execution, SkippedFile, Status, Usage
from casemate.model.limits import format_size

if TYPE_CHECKING:
    from casemate.execution.capture import Capture
    from casemate.execution.collect import Collected
    from casemate.model.execution import Artifact, ProgramError
    from casemate.model.isolation import IsolationReport
    from casemate.model.limits import Limits
    from casemate.model.plan import Request
    from casemate.walls.wall import CellEnding


def seal(collected: Collected, request: Request, report: IsolationReport) -> Execution:
    """Make the execution of what was collected, as it is handed out and recorded."""
    finished = collected.finished
    ending, capture = finished.ending, finished.capture
    evidence = Evidence(
        ending=ending,
        limits=finished.plan.limits,
        deadline=finished.plan.deadline,
        output_bytes=capture.output_bytes,
        error=capture.error,
        errno=capture.errno,
    )
    verdict = diagnose(evidence)
    crossings = redacted_crossings(finished.crossings, capture.redaction)
    return execution_of(
        request, capture, ending, verdict, report, collected.artifacts, collected.skipped, crossings=crossings
    )


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
    """What was read, measured and collected as one value; ``more`` fields are given as they are."""
    transcript = capture.transcript
    text = transcript.merge([result.text or "" for result in capture.results])
    error = None if verdict.status == "ok" else capture.error
    if error and (lines := error.traceback.splitlines()) and lines[-1] not in text:
        text = f"{text}\n{error.traceback}".strip()  # a session's interpreter prints none
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


# Signals by which runtimes end themselves when memory is refused: V8 traps or aborts, C code aborts or faults.
_SELF_ENDED = {signal.SIGABRT, signal.SIGTRAP, signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGKILL}
_NEAR = 0.7  # share of the memory limit from which such an end is taken for want of memory
_WHY_ENDED = {
    "silent": "its interpreter did not answer",
    "deaf": "its interpreter closed a pipe that it is talked to through",
    "uncovered": "a file in the workspace that is hidden from it was replaced, and the new one would not be hidden",
    "terminals": "it had more than 64 pseudo-terminals open",
    "pipes": "no pipes could be made for its next step",
}
_CPU_SLACK = 0.9  # the kernel counts cpu time for RLIMIT_CPU in ticks


class EndDiagnosis(NamedTuple):
    """``exit_code`` is None where casemate, or a limit, ended the program."""

    status: Status
    exit_code: int | None
    cause: Cause | None


class Evidence(NamedTuple):
    """Everything a verdict rests on."""

    ending: CellEnding
    limits: Limits
    deadline: float
    output_bytes: int
    error: ProgramError | None
    errno: int | None


def diagnose(evidence: Evidence) -> EndDiagnosis:
    """The verdict on an execution."""
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
    """The limit that made the program fail, where the evidence shows one."""
    ending, limits, number = evidence.ending, evidence.limits, evidence.errno
    if ending.inodes_left <= 0 or number in (errno.ENOSPC, errno.EFBIG) or ending.space_left < 4096:
        return _disk(evidence)
    if number == errno.EMFILE:
        message = f"No more files could be opened; limits.open_files is {limits.open_files}."
        remedy = "Close files, or raise it. A cell gets at most the application's `ulimit -Hn` less 512, or half."
        return Cause("open_files_limit", message, remedy)
    # An error that is known and has no number is about something else, however many there were.
    many = ending.tasks >= limits.processes and (evidence.error is None or number is not None)
    limit = f"limits.processes is {limits.processes}"
    if many or _no_thread(evidence.error):
        message = f"No more processes or threads could be started; {limit}."
        return Cause("process_limit", message, "Start fewer, or raise it.")
    if number == errno.EAGAIN and ending.begun >= limits.processes:  # which the kernel may say of a full pipe, too
        message = f"It was told to try again (EAGAIN) after {ending.begun} processes and threads were begun; {limit}."
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
    if seen < _NEAR * limit:  # it asked for too much at once, and did not get it
        had = f"; it had {format_size(seen)}" if seen else ""
        message = f"It asked for more memory than limits.memory, {format_size(limit)}, allows{had}."
    else:
        message = f"It needed more memory than limits.memory, {format_size(limit)}; {format_size(seen)} were in use."
    return Cause("memory_limit", message, "Work on less data at once, or raise the limit.")


def _cpu(evidence: Evidence) -> Cause:
    message = f"It used {evidence.ending.cpu_seconds:.2f} s of cpu; limits.cpu_time is {evidence.limits.cpu_time} s."
    return Cause("cpu_limit", message, "Compute less, or raise it.")
