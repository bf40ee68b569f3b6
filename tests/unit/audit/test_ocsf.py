"""Rows as events of the Open Cybersecurity Schema Framework, judged by its own schema as others publish it."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema_rs
import pytest
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema

from casemate.audit.chain import AuditRow
from casemate.audit.ocsf import event_of

ROWS: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
    ("intent", {"code": "print(1)", "program": "main.py", "caller": "an agent"}, (100701, 1, 1)),
    ("intent", {}, (100701, 1, 1)),
    ("outcome", {"status": "ok", "exit_code": 0}, (100702, 1, 1)),
    ("outcome", {"status": "timeout", "exit_code": None}, (100702, 2, 2)),
    ("crossing", {"host": "a.example", "port": 443, "decision": "allowed"}, (400101, 1, 1)),
    ("crossing", {"host": "a.example", "port": "?", "decision": "denied"}, (400105, 2, 2)),
    ("crossing", {"server": "files", "tool": "read"}, (600399, 1, 1)),
    ("decision", {"decision": "denied", "arguments": {"deep": [1]}}, (600399, 2, 2)),
    ("pruned", {"dropped": 5}, (600399, 1, 1)),
]


@cache
def schema(class_uid: int) -> Any:
    published = OcsfJsonSchemaEmbedded(get_ocsf_schema("1.5.0"))
    return published.get_class_schema(published.lookup_class_name_from_uid(class_uid))


@pytest.mark.parametrize(("kind", "detail", "expected"), ROWS, ids=str)
def test_each_kind_of_row_is_an_event_that_the_schema_knows(
    kind: str, detail: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    event = event_of(AuditRow(7, 1700000000.25, kind, "run", "default", "a" * 64, "b" * 64, detail))
    jsonschema_rs.validate(schema(event["class_uid"]), event)
    assert (event["type_uid"], event["severity_id"], event["status_id"]) == expected
    assert (event["time"], event["metadata"]["uid"], event["unmapped"]["detail"]) == (1700000000250, "a" * 64, detail)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema(event["class_uid"]), {**event, "metadata": {}})
