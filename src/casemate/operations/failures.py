"""Errors as documents, and from them: the same class again, with the same words and all that it names. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from casemate import errors
from casemate.errors import CasemateError
from casemate.model.execution import Execution
from casemate.operations.wire import Document, document, execution_of, sound

_TEXTS: Final = ("argument", "problem", "reason", "language", "server")
# What each class names besides its message and its remediation; a class below one of these names the same.
_NAMED: Final[Mapping[type[CasemateError], tuple[str, ...]]] = {
    errors.InvalidArgument: ("argument", "problem"),
    errors.WallUnavailable: ("reason",),
    errors.RuntimeMissing: ("language",),
    errors.VaultUnavailable: ("reason",),
    errors.ToolUnavailable: ("server", "reason"),
    errors.QueueFull: ("retry_after",),
    errors.ExecutionFailed: ("execution",),
    errors.PlanDenied: ("reason",),
}
# For a document that names no class, or one that is not known here: the class of its kind.
_OF_KIND: Final[Mapping[str, type[CasemateError]]] = {
    "invalid": errors.InvalidArgument,
    "not_found": errors.NotFound,
    "denied": errors.Denied,
    "unavailable": errors.Unavailable,
    "busy": errors.QueueFull,
    "record": errors.RecordUnavailable,
    "closed": errors.SandboxClosed,
}


def error_document(error: CasemateError) -> Document:
    """What went wrong: ``kind``; ``type``, its public class; ``message``, ``remediation``, and what the error names
    besides."""
    told: Document = {
        "kind": error.kind,
        "type": next(one.__name__ for one in type(error).__mro__ if one.__module__ == errors.__name__),
        "message": error.message,
        "remediation": error.remediation,
    }
    for name in _TEXTS:
        if isinstance(found := getattr(error, name, None), str):
            told[name] = found
    if isinstance(error, errors.QueueFull):
        told["retry_after"] = error.retry_after
    told = {name: sound(one) for name, one in told.items()}
    if isinstance(error, errors.ExecutionFailed):
        told["execution"] = document(error.execution)
    return told


def error_from(told: Mapping[str, Any]) -> CasemateError:
    """The error that a document of :func:`error_document` is of; one of its kind where its class is not known here, and
    a ``Fault`` for a kind that is not. Contents of the files of an execution in it are not there."""
    kind = _class_of(told)
    made = kind.__new__(kind)
    CasemateError.__init__(made, str(told.get("message", "")), remediation=str(told.get("remediation", "")))
    for name in (name for one in kind.__mro__ for name in _NAMED.get(one, ())):
        setattr(made, name, _value(name, told))
    return made


def _class_of(told: Mapping[str, Any]) -> type[CasemateError]:
    found = vars(errors).get(str(told.get("type")))
    is_whole = found is not errors.ExecutionFailed or isinstance(told.get("execution"), Mapping)
    if isinstance(found, type) and issubclass(found, CasemateError) and is_whole:
        return found
    return _OF_KIND.get(str(told.get("kind")), errors.Fault)


def _value(name: str, told: Mapping[str, Any]) -> str | float | Execution:
    match name:
        case "retry_after":
            return _seconds(told.get(name))
        case "execution":
            return execution_of(told[name], _Elsewhere)
        case "problem":
            return str(told.get(name, told.get("message", "")))
    return str(told.get(name, "argument" if name == "argument" else ""))


def _seconds(told: object) -> float:
    is_one = isinstance(told, int | float) and not isinstance(told, bool) and math.isfinite(told) and told >= 0
    return float(told) if is_one else 1.0  # type: ignore[arg-type]


class _Elsewhere:
    """The content of a file that was not sent along. Implements :class:`casemate.model.execution.Content`."""

    def __init__(self, run: str, name: str) -> None:
        self._missing = errors.Unavailable(
            f"the file {name!r} of run {run} is not in what was told of an error",
            remediation="Ask for it by the run: artifacts.list.",
        )

    def read_bytes(self) -> bytes:
        """Raises ``Unavailable``."""
        raise self._missing

    def save(self, path: object) -> None:  # noqa: ARG002 - as of every content
        """Raises ``Unavailable``."""
        raise self._missing
