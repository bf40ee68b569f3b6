"""Values, errors and events as JSON documents, and back from them. Always valid JSON. Pure.

A document of a dataclass has its fields by their names, but for those that its ``repr`` leaves out (contents, ways to
answer), and ``ok`` where it has that. Contents of files are had by the id of the run and their name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from casemate import errors
from casemate.errors import CasemateError
from casemate.model.execution import (
    Artifact,
    Cause,
    Content,
    Crossing,
    Execution,
    ProgramError,
    Result,
    SkippedFile,
    Usage,
)
from casemate.model.isolation import IsolationReport, Mechanism, Proof

if TYPE_CHECKING:
    from casemate.model.events import Event

Document = dict[str, Any]
_AS_THEY_ARE = (bool, int, type(None))
Fetch = Callable[[str, str], Content]  # the content of a file, by the id of its execution and its name


def document(value: Any) -> Any:
    """``value`` as JSON values. Raises ``TypeError`` for what has no document."""
    kind: type = type(value)
    return _way_of(kind)(value)


@cache
def _way_of(kind: type) -> Callable[[Any], Any]:
    """How values of this very type become documents; looked for once. Raises ``TypeError`` where they do not."""
    for kinds, way in _WAYS:
        if issubclass(kind, kinds):
            return way
    if is_dataclass(kind):
        return partial(_of_fields, _field_names(kind))
    raise TypeError(f"a {kind.__name__} has no document")


def _of_fields(names: tuple[str, ...], value: Any) -> Document:
    told: Document = {}
    for name in names:
        one = getattr(value, name)
        kind: type = type(one)
        told[name] = one if kind in _AS_THEY_ARE else _way_of(kind)(one)
    return told


@lru_cache(maxsize=16)
def _of_report(report: IsolationReport) -> Document:
    """The largest part of a small run's document, and the same for all runs that begin alike."""
    return _of_fields(_field_names(IsolationReport), report)


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """What a document of a dataclass has."""
    names = tuple(field.name for field in fields(kind) if field.repr)
    return (*names, "ok") if isinstance(getattr(kind, "ok", None), property) else names


def bundle(shown: Mapping[str, Any]) -> Document:
    """A displayed object, without what is nested deeper than JSON can be written."""
    kept: Document = {}
    for media_type, data in shown.items():
        try:
            kept[str(media_type)] = sound(data)
            if not isinstance(data, str):
                json.dumps(kept[str(media_type)])
        except RecursionError:
            kept.pop(str(media_type), None)
    return kept


def sound(value: Any) -> Any:
    """``value`` without what JSON has no words for: lone surrogates, infinities, keys that are not text."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {sound(str(key)): sound(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [sound(one) for one in value]
    if value is None or isinstance(value, bool | int):
        return value
    return sound(str(value))


_WAYS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (  # the first that fits
    (str | bool | int | float | None, sound),
    (Result, lambda value: bundle(dict(value))),
    (IsolationReport, lambda value: dict(_of_report(value))),
    (Mapping, lambda value: {sound(str(key)): document(one) for key, one in value.items()}),
    (list | tuple | set | frozenset, lambda value: [document(one) for one in value]),
    (Enum, lambda value: document(value.value)),
    (PurePath, lambda value: sound(str(value))),
)


def execution_of(told: Mapping[str, Any], fetch: Fetch) -> Execution:
    """The execution that a document is of; ``fetch`` gets the contents of its files when they are wanted."""
    given = {field.name: told[field.name] for field in fields(Execution) if field.name in told}
    run = str(told["id"])

    def artifact(one: Mapping[str, Any]) -> Artifact:
        return Artifact(**known_fields(Artifact, one), content=fetch(run, one["name"]))

    return Execution(
        **{
            **given,
            "results": tuple(Result(one) for one in told["results"]),
            "error": _maybe(ProgramError, told["error"]),
            "artifacts": tuple(artifact(one) for one in told["artifacts"]),
            "full_output": artifact(told["full_output"]) if told["full_output"] else None,
            "usage": Usage(**known_fields(Usage, told["usage"])),
            "cause": _maybe(Cause, told["cause"]),
            "isolation": _report(told["isolation"]),
            "skipped": tuple(SkippedFile(**known_fields(SkippedFile, one)) for one in told.get("skipped", ())),
            "lost_names": tuple(told.get("lost_names", ())),
            "crossings": tuple(Crossing(**known_fields(Crossing, one)) for one in told.get("crossings", ())),
        }
    )


def _report(told: Mapping[str, Any]) -> IsolationReport:
    kept = known_fields(IsolationReport, told)
    kept["proofs"] = tuple(Proof(**known_fields(Proof, one)) for one in told["proofs"])
    kept["limits"] = tuple(Mechanism(**known_fields(Mechanism, one)) for one in told["limits"])
    kept |= {name: tuple(kept[name]) for name in ("layers", "missing", "notes")}
    return IsolationReport(**kept)


def known_fields(kind: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """What of a document a dataclass is made of: one of a newer service may hold more."""
    return {field.name: told[field.name] for field in fields(kind) if field.name in told and field.repr}


def _maybe(kind: Any, told: Mapping[str, Any] | None) -> Any:
    return None if told is None else kind(**known_fields(kind, told))


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
            return execution_of(told[name], _UnsentContent)
        case "problem":
            return str(told.get(name, told.get("message", "")))
    return str(told.get(name, "argument" if name == "argument" else ""))


def _seconds(told: object) -> float:
    is_one = isinstance(told, int | float) and not isinstance(told, bool) and math.isfinite(told) and told >= 0
    return float(told) if is_one else 1.0  # type: ignore[arg-type]


class _UnsentContent:
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


def event_of(document: Mapping[str, Any], fetch: Fetch) -> Event:
    """The event that a document is of. Raises what became of a run that has no execution."""
    from casemate.model import events

    if document["event"] != "done":
        return events.event_of(document)
    if document["execution"] is None:
        raise error_from(document["error"])
    return events.Done(execution_of(document["execution"], fetch))
