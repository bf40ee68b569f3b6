"""The record of a sandbox, as its options say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from casemate.api.arguments import checked_path
from casemate.audit.log import AuditLog, default_path
from casemate.audit.retention import RowRetention
from casemate.errors import InvalidArgument
from casemate.execution.request import check_timeout
from casemate.model.limits import parse_size

if TYPE_CHECKING:
    from casemate.evidence.keys import Signer


def open_log(options: Mapping[str, Any]) -> AuditLog:
    """Open it. Raises ``RecordUnavailable``, and ``InvalidArgument`` for an option that cannot be used."""
    audit, sync, places = options["audit"], options["audit_sync"], options["audit_anchors"]
    path = str(default_path(os.environ) if audit is None else checked_path("audit", audit))
    if sync not in ("grouped", "row"):
        raise InvalidArgument("audit_sync", f"{sync!r} is neither 'grouped' nor 'row'")
    if isinstance(places, str) or not all(isinstance(place, str) for place in places):
        raise InvalidArgument("audit_anchors", "is no list of texts")
    outside = None
    if places:
        from casemate.audit.outside import Outside

        outside = Outside(places, path)
    return AuditLog(
        path, signer=partial(signer_in, os.environ), outside=outside, sync=sync,
        retention=retention_of(options["audit_max_age"], options["audit_max_size"]),
    )  # fmt: skip


def retention_of(max_age: float | None, max_size: int | str | None) -> RowRetention:
    """How long rows are kept. Raises ``InvalidArgument``."""
    try:
        size = None if max_size is None else parse_size(max_size)
    except ValueError as error:
        raise InvalidArgument("audit_max_size", str(error)) from None
    return RowRetention(check_timeout(max_age, "audit_max_age"), size)


def signer_in(environ: Mapping[str, str]) -> Signer:
    """The keys of the installation, which take a while to load. Raises ``Unavailable`` where they have no place."""
    from casemate.evidence.keys import own_signer

    return own_signer(environ)
