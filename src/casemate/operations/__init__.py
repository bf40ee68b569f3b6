"""The operations that a sandbox offers, called by name: in this process, or over a service."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

# Where the classes of a sandbox's parts, and of a session, are. Their marked methods are operations.
PARTS = {
    "approvals": "casemate.approvals.approvals:Approvals",
    "artifacts": "casemate.artifacts.kept:Artifacts",
    "audit": "casemate.audit.reading:Audit",
    "egress": "casemate.execution.egress_request:Egress",
    "evidence": "casemate.execution.evidence:Evidence",
    "host": "casemate.host.host:Host",
    "packages": "casemate.sessions.packages:Packages",
    "sessions": "casemate.sessions.registry:Sessions",
    "tools": "casemate.tools.tools:Tools",
    "vault": "casemate.vault.vault:Vault",
    "web": "casemate.web.web:Web",
}
SESSION = "casemate.sessions.session:Session"


@cache
def table() -> dict[str, Any]:
    """Each operation by name: its description, its audience, and the schemas of its arguments and result."""
    operations: dict[str, Any] = json.loads(Path(__file__).with_name("table.json").read_bytes())["operations"]
    return operations
