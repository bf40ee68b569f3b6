"""The status of each kind of error: the one table. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from casemate.errors import CasemateError

_OF_KIND = {
    "invalid": 400, "denied": 403, "not_found": 404, "failed": 409, "unavailable": 501, "record": 507, "closed": 503,
    "fault": 500, "busy": 429, "refused": 400,
}  # fmt: skip
_RETRY_AFTER = {"closed": "2"}  # seconds; a service that ends is started anew by whoever needs it


def status_of(error: CasemateError) -> int:
    """The HTTP status of an error by its kind."""
    return _OF_KIND.get(error.kind, 500)


def retry_after(told: Mapping[str, Any]) -> str | None:
    """The header of an error by its document: whole seconds, where trying again may help."""
    if "retry_after" in told:
        return str(math.ceil(float(told["retry_after"])))
    return _RETRY_AFTER.get(str(told.get("kind")))
