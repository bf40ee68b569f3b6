"""Collected → Sealed: what is handed out, in its final form.

Redaction and signing come between these two when there are secrets and keys; both need
everything of an execution in one place, which is here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from casemate.execution.capture import Capture
from casemate.execution.collect import Collected
from casemate.execution.diagnose import Evidence, Verdict, diagnose
from casemate.isolation.wall import Ending
from casemate.model.artifact import Artifact
from casemate.model.execution import Execution, SkippedFile, Usage
from casemate.model.isolation import IsolationReport
from casemate.model.request import Request


@dataclass(frozen=True, slots=True)
class Sealed:
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
    return Sealed(replace(made, crossings=finished.crossings))


def execution_of(
    request: Request,
    capture: Capture,
    ending: Ending,
    verdict: Verdict,
    report: IsolationReport,
    artifacts: tuple[Artifact, ...],
    skipped: tuple[SkippedFile, ...],
) -> Execution:
    """What was heard, measured and collected as one value."""
    transcript = capture.transcript
    return Execution(
        id=request.id,
        status=verdict.status,
        exit_code=verdict.exit_code,
        stdout=transcript.text_of("stdout"),
        stderr=transcript.text_of("stderr"),
        text=transcript.merged([result.text or "" for result in capture.results]),
        results=tuple(capture.results),
        error=None if verdict.status == "ok" else capture.error,
        artifacts=artifacts,
        full_output=capture.full_output(),
        truncated=transcript.truncated or capture.results_dropped,
        usage=Usage(ending.cpu_seconds, ending.peak_memory, ending.tasks),
        duration=ending.seconds,
        cause=verdict.cause,
        isolation=report,
        skipped=(*skipped, *capture.lost()),
        metadata=request.metadata,
    )
