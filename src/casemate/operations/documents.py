"""Values, errors and events as JSON documents, and back. Documents are always valid JSON.

A document of a dataclass or a named tuple has its fields by name, and the properties ``ok`` and ``base64``. It omits
fields that the ``repr`` omits (contents, ways to answer), unless their metadata says ``in_document``. Bytes are base64.
File contents are fetched by the run's id and the file's name.
"""

from __future__ import annotations

import base64
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
from casemate.model.plan import Secrets

if TYPE_CHECKING:
    from casemate.model.events import Event

Document = dict[str, Any]
_AS_THEY_ARE = (bool, int, type(None))
Fetch = Callable[[str, str], Content]  # takes the id of an execution and the name of its file


def document(value: Any) -> Any:
    """``value`` as JSON values. Raises ``TypeError`` for types without a document."""
    kind: type = type(value)
    return _writer_of(kind)(value)


@cache
def _writer_of(kind: type) -> Callable[[Any], Any]:
    """The writer for exactly this type, cached. Raises ``TypeError`` if the type has none."""
    for kinds, way in _WRITERS:
        if issubclass(kind, kinds) and not hasattr(kind, "_fields"):
            return way
    if is_record(kind):
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
    """Cached: the report is most of a small run's document, and the same for similar runs."""
    return _of_fields(_field_names(IsolationReport), report)


def is_record(kind: Any) -> bool:
    """Whether its document has its fields: it is a dataclass or a named tuple."""
    return isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields"))


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return (*document_fields(kind), *document_properties(kind))


def document_fields(kind: Any) -> tuple[str, ...]:
    """The fields that a record's document has."""
    if not is_dataclass(kind):
        return tuple(kind._fields)
    return tuple(field.name for field in fields(kind) if field.repr or field.metadata.get("in_document"))


def document_properties(kind: type) -> list[str]:
    """The properties that its document has in addition to fields."""
    return [name for name in ("ok", "base64") if isinstance(getattr(kind, name, None), property)]


def bundle(shown: Mapping[str, Any]) -> Document:
    """A displayed object, without data nested too deep for JSON."""
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
    """``value`` without what JSON cannot express: lone surrogates, infinities, keys that are not text."""
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
    (bytes, lambda value: base64.b64encode(value).decode()),
    (Result, lambda value: bundle(dict(value))),
    (IsolationReport, lambda value: dict(_of_report(value))),
    (Mapping, lambda value: {sound(str(key)): document(one) for key, one in value.items()}),
    (list | tuple | set | frozenset, lambda value: [document(one) for one in value]),
    (Secrets, lambda value: [*value.names]),
    (Enum, lambda value: document(value.value)),
    (PurePath, lambda value: sound(str(value))),
)


def execution_of(source: Mapping[str, Any], fetch: Fetch) -> Execution:
    """The execution of a document. ``fetch`` gets the contents of its files when they are read."""

    def artifact(one: Mapping[str, Any]) -> Artifact:
        return Artifact(**known_fields(Artifact, one), content=fetch(str(source["id"]), one["name"]))

    execution: Execution = revive(Execution, {**source, "artifacts": [], "full_output": None})
    full_output = artifact(source["full_output"]) if source["full_output"] else None
    return replace(execution, artifacts=tuple(map(artifact, source["artifacts"])), full_output=full_output)


def known_fields(kind: Any, source: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass in a document; a newer service may send more."""
    return {name: source[name] for name in document_fields(kind) if name in source}


def revive(kind: Any, source: Any) -> Any:
    """``source`` as a ``kind``: a dataclass, a list, tuple or mapping of them, or any other value. Ignores fields that
    only a newer service has."""
    way = _revival_of(kind)
    return source if source is None or way is None else way(source)


@cache
def _revival_of(kind: Any) -> Callable[[Any], Any] | None:
    """How to revive this type; None to keep values as they are."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_record(kind):
        return lambda source: revive_fields(kind, source) if isinstance(source, Mapping) else source
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
    if kind is bytes:
        return base64.b64decode
    return Result if kind is Result else None


def revive_fields(kind: Any, source: Mapping[str, Any], **other: Any) -> Any:
    """A record from its fields in ``source``, and the ``other`` values given."""
    told = {name: one for name, one in _types_of(kind).items() if name in source and name not in other}
    return kind(**{name: revive(one, source[name]) for name, one in told.items()}, **other)


@cache
def _types_of(kind: type) -> Mapping[str, Any]:
    hints = get_type_hints(kind, globalns=vars(sys.modules[kind.__module__]))
    return {name: hints[name] for name in document_fields(kind)}


def _choice(kinds: Sequence[Any], source: Any) -> Any:
    """The type that a document has. For a mapping: the first dataclass with all its fields in it, else the first
    dataclass or mapping. For a list: list or tuple."""
    if isinstance(source, Mapping):
        fits = [one for one in kinds if is_dataclass(one) or get_origin(one) in (dict, Mapping)]
        fits.sort(key=lambda one: not (is_dataclass(one) and all(field.name in source for field in fields(one))))
    elif isinstance(source, list):
        fits = [one for one in kinds if get_origin(one) in (list, tuple, Sequence)]
    else:
        fits = []
    return fits[0] if fits else Any


def type_named(place: str) -> Any:
    """The type at ``module:name``, imported on demand."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


# Attributes of each error class beyond message and remediation. Subclasses inherit them.
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
# The class for a kind, if a document names no known class.
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
    """An error: ``kind``; ``type``, its public class; ``message``, ``remediation``, and the attributes of its class."""
    public = next(one.__name__ for one in type(error).__mro__ if one.__module__ == errors.__name__)
    named = {name: getattr(error, name) for name in _names_of(type(error))}
    words = {"kind": error.kind, "type": public, "message": error.message, "remediation": error.remediation}
    return {name: document(value) for name, value in {**words, **named}.items()}


def error_from(source: Mapping[str, Any]) -> CasemateError:
    """The error of a document of :func:`error_document`. An unknown class becomes the one of its kind, an unknown kind
    a ``Fault``. An execution in it has no file contents."""
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
    """The content of a file that was not sent. Implements :class:`casemate.model.execution.Content`."""

    def __init__(self, run: str, name: str) -> None:
        self._missing = errors.Unavailable(
            f"the file {name!r} of run {run} was not sent with the error",
            remediation="Ask for it by its run: artifacts.list.",
        )

    def read_bytes(self) -> bytes:
        """Raises ``Unavailable``."""
        raise self._missing

    def save(self, path: object) -> None:  # noqa: ARG002 - as for every content
        """Raises ``Unavailable``."""
        raise self._missing


def event_of(document: Mapping[str, Any], fetch: Fetch) -> Event:
    """The event of a document. Raises the error of a run that has no execution."""
    from casemate.model import events

    if document["event"] != "done":
        return events.event_of(document)
    if document["execution"] is None:
        raise error_from(document["error"])
    return events.Done(execution_of(document["execution"], fetch))
