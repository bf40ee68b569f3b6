"""The record of an execution: an intent row before it starts, and exactly one outcome row, however it ends."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError
from casemate.evidence.statement import sha256, to_json
from casemate.execution import digests
from casemate.model.operation import caller

if TYPE_CHECKING:
    from casemate.execution.context import ExecutionContext, Planned
    from casemate.model.execution import Execution
    from casemate.model.plan import Plan, Request
    from casemate.redaction.redaction import Redaction


class Record:
    """Collects the outcome row of one execution."""

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self.outcome: dict[str, Any] | None = None
        self.more: dict[str, Any] = {}  # added to the outcome row, however the execution ends
        self.execution: Execution | None = None
        self.ended: float | None = None

    def note_end(self, start: str) -> None:
        """Note that the program has ended. ``start``: how its cell was made; empty for an existing cell."""
        self.more["start"], self.ended = start, time.monotonic()

    def note_execution(self, execution: Execution) -> Execution:
        """Note the outcome, which is written when `record_execution` exits."""
        from casemate.model.execution import Prover

        self.outcome = _outcome(execution)
        sign = self._context.sign
        self.execution = execution if sign is None else replace(execution, prover=Prover(sign))
        return self.execution


@asynccontextmanager
async def record_execution(planned: Planned) -> AsyncIterator[Record]:
    """Write the intent row, then exactly one outcome row. Raises ``RecordUnavailable`` before anything runs."""
    context, request, plan, redaction = planned.context, planned.request, planned.plan, planned.redaction
    log, record = context.log, Record(context)
    known = request, plan, context.policy_sha256()
    if request.files:
        dependencies = await asyncio.to_thread(digests.dependencies, *known)
    else:
        dependencies = digests.dependencies(*known)
    intent = _intent(request, plan) | {"code_sha256": dependencies["code"], "dependencies": dependencies}
    log.append("intent", request.id, request.namespace, _redact_intent(intent, redaction) if redaction else intent)
    try:
        yield record
    except asyncio.CancelledError:
        record.outcome = {"status": "cancelled"}
        raise
    except CasemateError as error:
        message = redaction.text(error.message) if redaction else error.message
        record.outcome = {"status": "error", "kind": error.kind, "message": message}
        raise
    finally:
        outcome = record.outcome or {"status": "error", "kind": "fault"}
        if record.ended is not None:
            record.more["collecting"] = round(time.monotonic() - record.ended, 6)
        log.append("outcome", request.id, request.namespace, {**outcome, **record.more})
    if record.execution is not None:
        context.finished(record.execution)


def _redact_intent(intent: dict[str, Any], redaction: Redaction) -> dict[str, Any]:
    """The row redacted, with the SHA-256 of each original value's canonical JSON (the intent has that of the code)."""
    kept = {name: redaction.value(value) for name, value in intent.items()}
    hashes = {name: sha256(to_json(value)) for name, value in intent.items() if kept[name] != value and name != "code"}
    return {**kept, "sha256_of": hashes} if hashes else kept


def _intent(request: Request, plan: Plan) -> dict[str, Any]:
    return {
        **({"caller": name} if (name := caller()) else {}),
        **({"session": request.session} if request.session else {}),
        "language": request.language,
        "program": request.program_name,
        "code": request.code.decode("utf-8", "replace"),
        "arguments": list(request.arguments),
        "env_names": sorted(request.env),
        **({"secrets": sorted(request.secrets.names)} if request.secrets else {}),
        "files": sorted(request.files),
        "stdin_bytes": len(request.stdin),
        "wall": plan.wall,
        "workspace": plan.workspace.kind,
        "network": plan.network,
        "allowed_domains": list(plan.allowed_domains),
        "deadline": plan.deadline if math.isfinite(plan.deadline) else None,
        "limits": {name: getattr(plan.limits, name) for name in plan.limits.__slots__},
        "metadata": {str(key): str(value) for key, value in request.metadata.items()},
    }


def _outcome(execution: Execution) -> dict[str, Any]:
    return {
        "status": execution.status,
        "exit_code": execution.exit_code,
        "cause": execution.cause.code if execution.cause else None,
        "error": execution.error.name if execution.error else None,
        "duration": execution.duration,
        "cpu_seconds": execution.usage.cpu_seconds,
        "peak_memory": execution.usage.peak_memory,
        **{f"{name}_sha256": digest for name, digest in digests.outputs(execution).items()},
        "artifacts": {artifact.name: artifact.sha256 for artifact in execution.artifacts},
        "skipped": len(execution.skipped),
        **({"crossings": [asdict(crossing) for crossing in execution.crossings]} if execution.crossings else {}),
    }
