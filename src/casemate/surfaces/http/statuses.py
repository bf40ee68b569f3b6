"""The status of each kind of error: the one table. Pure."""

from __future__ import annotations

from casemate.errors import CasemateError

_OF_KIND = {
    "invalid": 400, "denied": 403, "not_found": 404, "failed": 409, "unavailable": 501, "record": 507, "closed": 503,
    "fault": 500,
}  # fmt: skip
RETRY_AFTER = {"closed": "2"}  # seconds; a service that ends is started anew by whoever needs it


def status_of(error: CasemateError) -> int:
    """The HTTP status of an error by its kind."""
    return _OF_KIND.get(error.kind, 500)
