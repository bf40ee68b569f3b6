"""Errors from their documents: of the same class where it can be made, else of one of the same kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casemate import errors


def error_from(told: Mapping[str, Any]) -> errors.CasemateError:
    """The error that a document of ``wire.error_document`` is of."""
    kind, message = str(told.get("kind")), str(told.get("message", ""))
    help_ = str(told.get("remediation", ""))
    match kind:
        case "invalid" | "not_found":
            maker = errors.NotFound if kind == "not_found" else errors.InvalidArgument
            argument = str(told.get("argument", "argument"))
            return maker(argument, str(told.get("problem", message)), remediation=help_)
        case "denied":
            return errors.Denied(message, remediation=help_)
        case "unavailable":
            return _unavailable(told, message, help_)
        case "busy":
            return errors.QueueFull(message, retry_after=float(told.get("retry_after", 1)), remediation=help_)
        case "record":
            return errors.RecordUnavailable(message, remediation=help_)
        case "closed":
            return errors.SandboxClosed(message, remediation=help_)
    return errors.Fault(message, remediation=help_)


def _unavailable(told: Mapping[str, Any], message: str, help_: str) -> errors.Unavailable:
    reason = str(told.get("reason", ""))
    if "server" in told:
        return errors.ToolUnavailable(str(told["server"]), message, reason=reason, remediation=help_)
    if "language" in told:
        return errors.RuntimeMissing(str(told["language"]), message, remediation=help_)
    return errors.Unavailable(message, remediation=help_)
