"""Values as JSON documents, and executions back from them. Always valid JSON.

A document of a dataclass has its fields by their names, but for those that its ``repr`` leaves out (contents, ways to
answer), and ``ok`` where it has that. Contents of files are had by the id of the run and their name. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache, partial
from pathlib import PurePath
from typing import Any

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
        return partial(_of_fields, _told(kind))
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
    return _of_fields(_told(IsolationReport), report)


@cache
def _told(kind: type) -> tuple[str, ...]:
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
        return Artifact(**known(Artifact, one), content=fetch(run, one["name"]))

    return Execution(
        **{
            **given,
            "results": tuple(Result(one) for one in told["results"]),
            "error": _maybe(ProgramError, told["error"]),
            "artifacts": tuple(artifact(one) for one in told["artifacts"]),
            "full_output": artifact(told["full_output"]) if told["full_output"] else None,
            "usage": Usage(**known(Usage, told["usage"])),
            "cause": _maybe(Cause, told["cause"]),
            "isolation": _report(told["isolation"]),
            "skipped": tuple(SkippedFile(**known(SkippedFile, one)) for one in told.get("skipped", ())),
            "lost_names": tuple(told.get("lost_names", ())),
            "crossings": tuple(Crossing(**known(Crossing, one)) for one in told.get("crossings", ())),
        }
    )


def _report(told: Mapping[str, Any]) -> IsolationReport:
    kept = known(IsolationReport, told)
    kept["proofs"] = tuple(Proof(**known(Proof, one)) for one in told["proofs"])
    kept["limits"] = tuple(Mechanism(**known(Mechanism, one)) for one in told["limits"])
    kept |= {name: tuple(kept[name]) for name in ("layers", "missing", "notes")}
    return IsolationReport(**kept)


def known(kind: Any, told: Mapping[str, Any]) -> dict[str, Any]:
    """What of a document a dataclass is made of: one of a newer service may hold more."""
    return {field.name: told[field.name] for field in fields(kind) if field.name in told and field.repr}


def _maybe(kind: Any, told: Mapping[str, Any] | None) -> Any:
    return None if told is None else kind(**known(kind, told))
