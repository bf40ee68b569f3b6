"""Rows of the record as events of the Open Cybersecurity Schema Framework, for security programs.

https://schema.ocsf.io/1.5.0: executions are Process Activity, connections Network Activity, all other rows API
Activity. ``unmapped`` has the detail of the row and the hash of the previous one, unchanged.
"""

from __future__ import annotations

from typing import Any

from casemate.audit.chain import AuditRow
from casemate.version import __version__

_VERSION = "1.5.0"
_PROCESS, _NETWORK, _API = 1007, 4001, 6003  # classes; the first digit is their category
_LAUNCH, _TERMINATE, _OPEN, _REFUSE, _OTHER = 1, 2, 1, 5, 99  # activities
_INFORMATIONAL, _LOW = 1, 2  # severities
_SUCCESS, _FAILURE = 1, 2  # statuses
_PRODUCT = {"name": "casemate", "vendor_name": "casemate", "version": __version__}


def event_of(row: AuditRow) -> dict[str, Any]:
    """The event of a row."""
    detail = row.detail
    actor = {"app_name": "casemate", "user": {"name": str(detail.get("caller") or row.namespace)}}
    match row.kind:
        case "intent":
            return _event(row, _PROCESS, _LAUNCH, actor=actor, device=_DEVICE, process=_process(row))
        case "outcome":
            code = detail.get("exit_code")
            more = {"exit_code": code} if type(code) is int else {}
            is_good = detail.get("status") == "ok"
            return _event(
                row, _PROCESS, _TERMINATE, is_good, actor=actor, device=_DEVICE, process=_process(row), **more
            )
        case "crossing" if "host" in detail:
            is_good = detail.get("decision") == "allowed"
            port = detail.get("port")
            end = {"hostname": str(detail["host"]), **({"port": port} if type(port) is int else {})}
            return _event(row, _NETWORK, _OPEN if is_good else _REFUSE, is_good, dst_endpoint=end)
    call = {"operation": row.kind, "service": {"name": "casemate"}}
    return _event(row, _API, _OTHER, detail.get("decision") != "denied", actor=actor, api=call, src_endpoint=_HERE)


_DEVICE = {"type_id": 0, "uid": "casemate", "name": "casemate"}  # the record does not name the machine
_HERE = {"name": "casemate"}


def _process(row: AuditRow) -> dict[str, Any]:
    names = {
        name: str(row.detail[key]) for name, key in (("name", "program"), ("cmd_line", "code")) if key in row.detail
    }
    return {"uid": row.run, "name": "program", **names}


def _event(row: AuditRow, kind: int, activity: int, is_good: bool = True, **fields: Any) -> dict[str, Any]:
    return {
        "activity_id": activity,
        **({"activity_name": row.kind} if activity == _OTHER else {}),
        "category_uid": kind // 1000,
        "class_uid": kind,
        "type_uid": kind * 100 + activity,
        "severity_id": _INFORMATIONAL if is_good else _LOW,
        "status_id": _SUCCESS if is_good else _FAILURE,
        "time": int(row.time * 1000),
        "metadata": {
            "version": _VERSION,
            "product": _PRODUCT,
            "uid": row.hash,
            "sequence": row.sequence,
            "event_code": row.kind,
            "correlation_uid": row.run,
            "tenant_uid": row.namespace,
        },
        "unmapped": {"detail": row.detail, "previous": row.previous},
        **fields,
    }
