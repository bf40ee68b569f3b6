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
    return _writer_of(kind)(value)


@cache
def _writer_of(kind: type) -> Callable[[Any], Any]:
    """How values of this very type become documents; looked for once. Raises ``TypeError`` where they do not."""
    for kinds, way in _WRITERS:
        if issubclass(kind, kinds):
            return way
    if is_dataclass(kind):
        return partial(_of_fields, _field_names(kind))
    raise TypeError(f"a {kind.__name__} has no document")


def _of_fields(names: tuple[str, ...], value: Any) -> Document:
    values: Document = {}
    for name in names:
        one = getattr(value, name)
        kind: type = type(one)
        values[name] = one if kind in _AS_THEY_ARE else _writer_of(kind)(one)
    return values


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
    kept_data: Document = {}
    for media_type, data in shown.items():
        try:
            kept_data[str(media_type)] = sound(data)
            if not isinstance(data, str):
                json.dumps(kept_data[str(media_type)])
        except RecursionError:
            kept_data.pop(str(media_type), None)
    return kept_data


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


_WRITERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (  # the first that fits
    (str | bool | int | float | None, sound),
    (Result, lambda value: bundle(dict(value))),
    (IsolationReport, lambda value: dict(_of_report(value))),
    (Mapping, lambda value: {sound(str(key)): document(one) for key, one in value.items()}),
    (list | tuple | set | frozenset, lambda value: [document(one) for one in value]),
    (Enum, lambda value: document(value.value)),
    (PurePath, lambda value: sound(str(value))),
)


def execution_of(source: Mapping[str, Any], fetch: Fetch) -> Execution:
    """The execution that a document is of; ``fetch`` gets the contents of its files when they are wanted."""

    def artifact(one: Mapping[str, Any]) -> Artifact:
        return Artifact(**known_fields(Artifact, one), content=fetch(str(source["id"]), one["name"]))

    execution: Execution = revive(Execution, {**source, "artifacts": [], "full_output": None})
    full_output = artifact(source["full_output"]) if source["full_output"] else None
    return replace(execution, artifacts=tuple(map(artifact, source["artifacts"])), full_output=full_output)


def known_fields(kind: Any, source: Mapping[str, Any]) -> dict[str, Any]:
    """What of a document a dataclass is made of: one of a newer service may hold more."""
    return {field.name: source[field.name] for field in fields(kind) if field.name in source and field.repr}


def revive(kind: Any, source: Any) -> Any:
    """``source`` as a ``kind``: a dataclass, a list, tuple or mapping of such, or whatever it is. What a newer service
    says besides is left out."""
    way = _revival_of(kind)
    return source if source is None or way is None else way(source)


@cache
def _revival_of(kind: Any) -> Callable[[Any], Any] | None:
    """How a document becomes one of these; None for as it is."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return lambda source: _revive_fields(kind, source) if isinstance(source, Mapping) else source
    if origin in (Union, types.UnionType):
        inner = [one for one in arguments if one is not type(None)]
        return _revival_of(inner[0]) if len(inner) == 1 else lambda source: revive(_choice(inner, source), source)
    if origin in (list, Sequence, tuple):
        make = tuple if origin is tuple else list
        return lambda source: (
            make([revive(arguments[0], one) for one in source]) if isinstance(source, list) else source
        )
    if origin in (dict, Mapping) and _revival_of(arguments[1]) is not None:
        return lambda source: {name: revive(arguments[1], one) for name, one in source.items()}
    return Result if kind is Result else None


def _revive_fields(kind: type, source: Mapping[str, Any]) -> Any:
    return kind(**{name: revive(one, source[name]) for name, one in _types_of(kind).items() if name in source})


@cache
def _types_of(kind: type) -> Mapping[str, Any]:
    """The types of what a document has of a dataclass."""
    hints = get_type_hints(kind, globalns=vars(sys.modules[kind.__module__]))
    return {field.name: hints[field.name] for field in fields(kind) if field.init and field.repr}


def _choice(kinds: Sequence[Any], source: Any) -> Any:
    """Which of these a document is of: for a mapping the first dataclass all whose fields it has, else the first
    dataclass or mapping; list or tuple for a list."""
    if isinstance(source, Mapping):
        fits = [one for one in kinds if is_dataclass(one) or get_origin(one) in (dict, Mapping)]
        fits.sort(key=lambda one: not (is_dataclass(one) and all(field.name in source for field in fields(one))))
    elif isinstance(source, list):
        fits = [one for one in kinds if get_origin(one) in (list, tuple, Sequence)]
    else:
        fits = []
    return fits[0] if fits else Any


def type_named(place: str) -> Any:
    """The type that lies at ``module:name``, loaded when it is needed."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


# What each class names besides its message and its remediation; a class below one of these names the same.
_NAMED: Final[Mapping[type[CasemateError], tuple[str, ...]]] = {
    errors.InvalidArgument: ("argument", "problem"),
    errors.WallUnavailable: ("reason",),
    errors.RuntimeMissing: ("language",),
    errors.VaultUnavailable: ("reason",),
    errors.ToolUnavailable: ("server", "reason"),
    errors.WebUnavailable: ("url", "reason"),
    errors.QueueFull: ("retry_after", "missing"),
    errors.ExecutionFailed: ("execution",),
    errors.PlanDenied: ("reason",),
}
# For a document that names no class, or one that is not known here: the class of its kind.
_OF_KIND: Final[Mapping[str, type[CasemateError]]] = {
    "invalid": errors.InvalidArgument,
    "not_found": errors.NotFound,
    "denied": errors.Denied,
    "not_proved": errors.NotProved,
    "unavailable": errors.Unavailable,
    "busy": errors.QueueFull,
    "record": errors.RecordUnavailable,
    "closed": errors.SandboxClosed,
}


def _names_of(kind: type) -> list[str]:
    return [name for one in kind.__mro__ for name in _NAMED.get(one, ())]


def error_document(error: CasemateError) -> Document:
    """What went wrong: ``kind``; ``type``, its public class; ``message``, ``remediation``, and what the error names
    besides."""
    public = next(one.__name__ for one in type(error).__mro__ if one.__module__ == errors.__name__)
    named = {name: getattr(error, name) for name in _names_of(type(error))}
    words = {"kind": error.kind, "type": public, "message": error.message, "remediation": error.remediation}
    return {name: document(value) for name, value in {**words, **named}.items()}


def error_from(source: Mapping[str, Any]) -> CasemateError:
    """The error that a document of :func:`error_document` is of; one of its kind where its class is not known here, and
    a ``Fault`` for a kind that is not. Contents of the files of an execution in it are not there."""
    kind = _class_of(source)
    error = kind.__new__(kind)
    CasemateError.__init__(error, str(source.get("message", "")), remediation=str(source.get("remediation", "")))
    for name in _names_of(kind):
        setattr(error, name, _value(name, source))
    return error


def _class_of(source: Mapping[str, Any]) -> type[CasemateError]:
    named_class = vars(errors).get(str(source.get("type")))
    is_whole = named_class is not errors.ExecutionFailed or isinstance(source.get("execution"), Mapping)
    if isinstance(named_class, type) and issubclass(named_class, CasemateError) and is_whole:
        return named_class
    return _OF_KIND.get(str(source.get("kind")), errors.Fault)


def _value(name: str, source: Mapping[str, Any]) -> str | float | Execution:
    match name:
        case "retry_after":
            return _seconds(source.get(name))
        case "execution":
            return execution_of(source[name], UnsentContent)
        case "problem":
            return str(source.get(name, source.get("message", "")))
    return str(source.get(name, "argument" if name == "argument" else ""))


def _seconds(value: object) -> float:
    is_one = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return float(value) if is_one else 1.0  # type: ignore[arg-type]


class UnsentContent:
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
