"""The plan of a cell of a service, as the object that a sandbox of this process gives."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.execution.request import code_of, stdin_of
from casemate.model.plan import ListeningSocket, Plan, ReadyStart, Secrets, Workspace
from casemate.operations.cell_plan import CellPlan, CellWait
from casemate.operations.documents import revive
from casemate.sessions.inspection import MASK

if TYPE_CHECKING:
    from casemate.execution.request import Content


def plan_from(
    told: Mapping[str, Any], code: str | bytes, files: Mapping[str, Content] | None, stdin: str | bytes | None
) -> Plan:
    """``told`` by the service about a run of ``code`` with ``files`` and ``stdin``, which it does not tell again. Each
    secret's value is a mask, and the order of ``waiting`` empty."""
    cell: CellPlan = revive(CellPlan, told)
    as_they_are = {field.name: getattr(cell, field.name) for field in fields(Plan) if field.name in told}
    return Plan(
        **{
            **as_they_are,
            "workspace": Workspace(**_field_values(cell.workspace)),
            "deadline": math.inf if cell.deadline is None else cell.deadline,
            "listeners": tuple(ListeningSocket(**_field_values(one)) for one in cell.listeners),
            "waiting": _ready_start(cell.waiting),
            "secrets": Secrets(dict.fromkeys(cell.secrets, MASK)),
            "code": code_of(code),
            "files": {name: _content(content) for name, content in (files or {}).items()},
            "stdin": stdin_of(stdin),
        }
    )


def _ready_start(cell: CellWait | str) -> ReadyStart | str:
    if isinstance(cell, str):
        return cell
    return ReadyStart(**_field_values(cell), order=b"")


def _field_values(told: Any) -> dict[str, Any]:
    """The values of a dataclass by its fields, not looked into."""
    return {field.name: getattr(told, field.name) for field in fields(told)}


def _content(content: Content) -> bytes | Path:
    if isinstance(content, os.PathLike):
        return Path(content)
    return os.fsencode(content) if isinstance(content, str) else bytes(content)
