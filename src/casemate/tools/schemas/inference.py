"""A schema of what a tool returned before, for tools that promise none. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from casemate.tools.tool import Json

MOST_SAMPLES = 32
_DEEPEST = 12
_MOST_ITEMS = 100  # of one list that are looked at
_MOST_KEYS = 64  # an object with more is a table, whose keys are data
_ORDER = ("null", "boolean", "integer", "number", "string", "array", "object")


def infer_schema(samples: Iterable[Json]) -> dict[str, Any]:
    """A JSON Schema that every one of ``samples`` (the last `MOST_SAMPLES`) fits; ``{}`` where there is none.

    A key is required when every sample has it. It describes what was seen, and promises nothing.
    """
    return _schema(list(samples)[-MOST_SAMPLES:], 0)


def _schema(values: list[Json], depth: int) -> dict[str, Any]:
    kinds = {_kind(value) for value in values}
    if not kinds or depth > _DEEPEST:
        return {}
    if "number" in kinds:
        kinds.discard("integer")
    named = [kind for kind in _ORDER if kind in kinds]
    schema: dict[str, Any] = {"type": named[0] if len(named) == 1 else named}
    if "array" in kinds:
        items = [item for value in values if isinstance(value, list) for item in value[:_MOST_ITEMS]]
        schema["items"] = _schema(items, depth + 1)
    if "object" in kinds:
        schema.update(_object([value for value in values if isinstance(value, dict)], depth))
    return schema


def _object(values: list[Mapping[str, Json]], depth: int) -> dict[str, Any]:
    keys = dict.fromkeys(key for value in values for key in list(value)[: _MOST_KEYS + 1])
    if len(keys) > _MOST_KEYS:
        found = [item for value in values for item in list(value.values())[:_MOST_ITEMS]]
        return {"additionalProperties": _schema(found, depth + 1)}
    properties = {key: _schema([value[key] for value in values if key in value], depth + 1) for key in keys}
    return {"properties": properties, "required": [key for key in keys if all(key in value for value in values)]}


def _kind(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = ((type(None), "null"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")
