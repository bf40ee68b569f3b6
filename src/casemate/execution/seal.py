"""Collected → Sealed: what is handed out, in its final form.

What the program said has had its secrets taken out where it came in, before any of it was kept; here the same is done
with what was put together since. Signing comes here when there are keys: it needs everything of an execution in one
place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from casemate.execution.diagnose import EndDiagnosis, Evidence, diagnose
from casemate.execution.redact import redacted_crossings
from casemate.model.execution import Execution, SkippedFile, Usage

if TYPE_CHECKING:
    from casemate.execution.capture import Capture
    from casemate.execution.collect import Collected
    from casemate.model.execution import Artifact
    from casemate.model.isolation import IsolationReport
    from casemate.model.plan import Request
    from casemate.walls.wall import CellEnding


class Sealed(NamedTuple):
    """The execution as it is handed out and recorded."""

    execution: Execution


def seal(collected: Collected, request: Request, report: IsolationReport) -> Sealed:
    """Make the execution of what was collected."""
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
    made = execution_of(request, capture, ending, verdict, report, collected.artifacts, collected.skipped)
    return Sealed(replace(made, crossings=redacted_crossings(finished.crossings, capture.redaction)))


def execution_of(
    request: Request,
    capture: Capture,
    ending: CellEnding,
    verdict: EndDiagnosis,
    report: IsolationReport,
    artifacts: tuple[Artifact, ...],
    skipped: tuple[SkippedFile, ...],
) -> Execution:
    """What was read, measured and collected as one value."""
    transcript = capture.transcript
    text = transcript.merge([result.text or "" for result in capture.results])
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
        error=None if verdict.status == "ok" else capture.error,
        artifacts=artifacts,
        full_output=capture.full_output(),
        truncated=transcript.is_truncated or capture.results_dropped,
        usage=Usage(ending.cpu_seconds, ending.peak_memory, ending.tasks),
        duration=ending.seconds,
        cause=verdict.cause,
        isolation=report,
        skipped=skipped,
        metadata=request.metadata,
    )
