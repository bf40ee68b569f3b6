"""Collected → Sealed: what is handed out, in its final form.

Redaction and signing come between these two when there are secrets and keys; both need
everything of an execution in one place, which is here.
"""

from __future__ import annotations

from dataclasses import dataclass

from casemate.execution.collect import Collected
from casemate.execution.diagnose import Evidence, diagnose
from casemate.model.execution import Execution, Usage
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
    transcript = capture.transcript
    execution = Execution(
        id=request.id,
        status=verdict.status,
        exit_code=verdict.exit_code,
        stdout=transcript.text_of("stdout"),
        stderr=transcript.text_of("stderr"),
        text=transcript.merged([result.text or "" for result in capture.results]),
        results=tuple(capture.results),
        error=None if verdict.status == "ok" else capture.error,
        artifacts=collected.artifacts,
        full_output=capture.full_output(),
        truncated=transcript.truncated or capture.results_dropped,
        usage=Usage(ending.cpu_seconds, ending.peak_memory, ending.tasks),
        duration=ending.seconds,
        cause=verdict.cause,
        isolation=report,
        skipped=(*collected.skipped, *capture.lost()),
        metadata=request.metadata,
    )
    return Sealed(execution)
