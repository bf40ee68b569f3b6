"""What ``--format json`` prints: plain values of executions, plans, diagnoses and errors."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from casemate.errors import CasemateError
from casemate.model.execution import Execution
from casemate.model.isolation import Diagnosis
from casemate.model.plan import Bind, Entry, MountPoint, Plan, Symlink
from casemate.operations import documents

Document = dict[str, Any]


def execution_document(execution: Execution) -> Document:
    """Everything of an execution but the contents of its files."""
    told: Document = documents.document(execution)
    return told


def error_document(error: CasemateError) -> Document:
    """An error of casemate's own, told from an execution by its status."""
    return {"status": "error", "kind": error.kind, "message": error.message, "remediation": error.remediation}


def diagnosis_document(diagnosis: Diagnosis) -> Document:
    """Everything that doctor found."""
    document = asdict(diagnosis)
    document["ok"] = diagnosis.ok
    for wall, state in zip(document["walls"], diagnosis.walls, strict=True):
        wall["available"] = state.available
    return document


def plan_document(plan: Plan) -> Document:
    """Everything that is decided before a cell starts; given contents by their size only."""
    return {
        "wall": plan.wall,
        "language": plan.language,
        "program": plan.program_name,
        "program_bytes": len(plan.code),
        "argv": list(plan.argv),
        "cwd": plan.cwd,
        "env": dict(plan.env),
        "secrets": list(plan.secrets.names),
        "stdin_bytes": len(plan.stdin),
        "workspace": plan.workspace._asdict(),
        "files": {name: _content(content) for name, content in plan.files.items()},
        "mounts": [
            *(mount_document(entry) for entry in plan.entries if not isinstance(entry, MountPoint)),
            *(
                {"target": place, "kind": "copy" if one.copied else "read-only", "source": one.source}
                for one in plan.shown
                for place in one.places
            ),
        ],
        "limits": asdict(plan.limits),
        "deadline": plan.deadline if math.isfinite(plan.deadline) else None,
        "network": plan.network,
        "layers": list(plan.layers),
    }


def mount_document(entry: Entry) -> Document:
    """One thing that a cell can read."""
    if isinstance(entry, Bind):
        return {"target": entry.target, "kind": "device" if entry.device else "read-only", "source": entry.source}
    if isinstance(entry, Symlink):
        return {"target": entry.target, "kind": "link", "source": entry.points_to}
    if isinstance(entry, MountPoint):
        return {"target": entry.target, "kind": "made", "source": "to be mounted over"}
    return {"target": entry.target, "kind": "made", "source": f"{len(entry.content.encode())} bytes"}


def _content(content: bytes | Path) -> str:
    return str(content) if isinstance(content, Path) else f"{len(content)} bytes"
