"""Values, errors and events as JSON documents, and back from them. Always valid JSON. Pure.

A document of a dataclass has its fields by their names, but for those that its ``repr`` leaves out (contents, ways to
answer), and ``ok`` where it has that. Contents of files are had by the id of the run and their name.
"""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache, lru_cache, partial
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin, get_type_hints

from casemate import errors
from casemate.errors import CasemateError
from casemate.model.execution import (
    Artifact,
    Content,
    Execution,
    Result,
)
from casemate.model.isolation import IsolationReport

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

    def artifact(one: Mapping[str, Any]) -> Artifact:
        return Artifact(**known_fields(Artifact, one), content=fetch(str(told["id"]), one["name"]))

    execution: Execution = revive(Execution, {**told, "artifacts": [], "full_output": None})
    full_output = artifact(told["full_output"]) if told["full_output"] else None
    return replace(execution, artifacts=tuple(map(artifact, told["artifacts"])), full_output=full_output)


def known_fields(kind: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """What of a document a dataclass is made of: one of a newer service may hold more."""
    return {field.name: told[field.name] for field in fields(kind) if field.name in told and field.repr}


def revive(kind: Any, told: Any) -> Any:
    """``told`` as a ``kind``: a dataclass, a list, tuple or mapping of such, or whatever it is. What a newer service
    says besides is left out."""
    way = _revival_of(kind)
    return told if told is None or way is None else way(told)


@cache
def _revival_of(kind: Any) -> Callable[[Any], Any] | None:
    """How a document becomes one of these; None for as it is."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return lambda told: _revive_fields(kind, told) if isinstance(told, Mapping) else told
    if origin in (Union, types.UnionType):
        inner = [one for one in arguments if one is not type(None)]
        return _revival_of(inner[0]) if len(inner) == 1 else lambda told: revive(_choice(inner, told), told)
    if origin in (list, Sequence, tuple):
        make = tuple if origin is tuple else list
        return lambda told: make([revive(arguments[0], one) for one in told]) if isinstance(told, list) else told
    if origin in (dict, Mapping) and _revival_of(arguments[1]) is not None:
        return lambda told: {name: revive(arguments[1], one) for name, one in told.items()}
    return Result if kind is Result else None


def _revive_fields(kind: type, told: Mapping[str, Any]) -> Any:
    return kind(**{name: revive(one, told[name]) for name, one in _types_of(kind).items() if name in told})


@cache
def _types_of(kind: type) -> Mapping[str, Any]:
    """The types of what a document has of a dataclass."""
    hints = get_type_hints(kind, globalns=vars(sys.modules[kind.__module__]))
    return {field.name: hints[field.name] for field in fields(kind) if field.init and field.repr}


def _choice(kinds: Sequence[Any], told: Any) -> Any:
    """Which of these a document is of: for a mapping the first dataclass all whose fields it has, else the first
    dataclass or mapping; list or tuple for a list."""
    if isinstance(told, Mapping):
        fits = [one for one in kinds if is_dataclass(one) or get_origin(one) in (dict, Mapping)]
        fits.sort(key=lambda one: not (is_dataclass(one) and all(field.name in told for field in fields(one))))
    elif isinstance(told, list):
        fits = [one for one in kinds if get_origin(one) in (list, tuple, Sequence)]
    else:
        fits = []
    return fits[0] if fits else Any


def type_named(place: str) -> Any:
    """The type that lies at ``module:name``, loaded when it is needed."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


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
