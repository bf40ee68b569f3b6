"""Makes an in-toto statement with SLSA provenance from the record's rows of one execution. Pure.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.0/provenance
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from casemate.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from casemate.audit.chain import Row

STATEMENT = "application/vnd.in-toto+json"  # the payload type of an envelope
FILES = "artifacts/"  # the prefix of artifacts' names
_PARAMETERS = ("language", "program", "arguments", "env_names", "secrets", "session", "metadata")
_INTERNAL = ("workspace", "network", "allowed_domains", "deadline", "limits")
_OUTCOME = ("status", "exit_code", "cause", "error", "duration")


def statement_of(rows: Sequence[Row], files: Mapping[str, str] | None = None) -> bytes:
    """The statement for the execution in ``rows``. Pass ``files`` (SHA-256 of every artifact by name) if the rows may
    have only some of them. Raises ``NotFound`` and ``Unavailable``."""
    by_kind = {row.kind: row for row in rows}
    if not {"intent", "outcome"} <= by_kind.keys():
        raise NotFound("run", "no such run is on record, or it is not over")
    intent, outcome = (json.loads(by_kind[kind].detail) for kind in ("intent", "outcome"))
    if "dependencies" not in intent or "artifacts_sha256" not in outcome:
        raise _unavailable("it came to no outcome, or an older casemate has recorded it")
    files = outcome["artifacts"] if files is None else files
    if sha256(to_json(files)) != outcome["artifacts_sha256"]:
        raise _unavailable("the record has only some of the files that it left, and not these")
    named = ("stdout", "stderr", "full_output", "artifacts")
    outputs = {name: outcome[f"{name}_sha256"] for name in named if f"{name}_sha256" in outcome}
    outputs |= {f"{FILES}{name}": digest for name, digest in files.items()}
    decided = [json.loads(row.detail) for row in rows if row.kind == "decision"]
    predicate = {
        "buildDefinition": {
            "buildType": "urn:casemate:execution:1",
            "externalParameters": {name: intent[name] for name in _PARAMETERS if name in intent},
            "internalParameters": {name: intent[name] for name in _INTERNAL},
            "resolvedDependencies": _descriptors_of({**intent["dependencies"], "wall": outcome["wall_sha256"]}),
        },
        "runDetails": {
            "builder": {"id": f"urn:casemate:wall:{intent['wall']}"},
            "metadata": {
                "invocationId": by_kind["intent"].execution_id,
                "startedOn": _time(by_kind["intent"]),
                "finishedOn": _time(by_kind["outcome"]),
            },
            "byproducts": _descriptors_of({f"record/{row.sequence}/{row.kind}": row.hash for row in rows}),
        },
        "casemate_who": {"caller": intent.get("caller", ""), "namespace": by_kind["intent"].namespace},
        "casemate_outcome": {name: outcome[name] for name in _OUTCOME},
        "casemate_approvals": decided,
    }
    return make_statement("https://slsa.dev/provenance/v1", outputs, predicate)


def make_statement(kind: str, subjects: Mapping[str, str], predicate: Mapping[str, Any]) -> bytes:
    """A statement about ``subjects``, the SHA-256 by name."""
    about = {"_type": "https://in-toto.io/Statement/v1", "subject": _descriptors_of(subjects)}
    return to_json({**about, "predicateType": kind, "predicate": predicate})


def subjects_of(statement: Any) -> dict[str, str]:
    """The subjects of a statement: the SHA-256 by name. Raises ``KeyError`` and ``TypeError`` for malformed input."""
    return {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}


def to_json(value: object) -> bytes:
    """Canonical JSON: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sha256(data: bytes) -> str:
    """The SHA-256 of ``data`` in hex."""
    return hashlib.sha256(data).hexdigest()


def _descriptors_of(digests: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(digests.items())]


def _time(row: Row) -> str:
    return datetime.fromtimestamp(row.wall / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _unavailable(why: str) -> Unavailable:
    return Unavailable(f"this run cannot be signed: {why}")
