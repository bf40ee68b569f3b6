"""Reads untrusted JSON Schemas, within bounds and without any look-up outside the schema.

Only a ``$ref`` that begins with ``#`` is followed. A tool that resolves others reads files and makes requests for the
schema's author. A schema that cannot be checked in bounded time (`casemate.tools.schemas.validation`) is refused, which
loses one tool and not its server. For tools without an output schema one is inferred from earlier results.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from casemate.tools.tool import Json, parts_of

MOST_NODES = 20_000
DEEPEST = 100
LONGEST_TEXT = 2**20  # characters of keys and texts together

# Keywords whose values are schemas, lists or maps of schemas: JSON Schema 2020-12, chapters 10 and 11, and older names.
SCHEMA_KEYWORDS = frozenset((
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
))  # fmt: skip
LIST_KEYWORDS = frozenset(("allOf", "anyOf", "items", "oneOf", "prefixItems"))
MAP_KEYWORDS = frozenset(
    ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
)
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


class Unreadable(ValueError):
    """The schema cannot be used: ``code`` for programs, the text for people."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A schema whose size, depth and references were checked."""

    root: Json  # as received; never changed
    nodes: Mapping[int, Json] = field(default_factory=dict)  # every subschema, by identity
    targets: Mapping[int, tuple[Json, ...]] = field(default_factory=dict)  # the targets of its references, by identity
    names: Mapping[int, str] = field(default_factory=dict)  # its key in definitions or properties, or ""

    def targets_of(self, schema: Mapping[str, Any]) -> tuple[Json, ...]:
        """The subschemas that ``schema`` refers to by ``$ref`` and its like, in the order of `REFERENCES`."""
        return self.targets.get(id(schema), ())


def read(schema: Json) -> Document:
    """Check ``schema``. Raises :class:`Unreadable` if it cannot be used."""
    if not isinstance(schema, dict | bool):
        raise Unreadable("not_a_schema", f"a schema is an object, true or false, not {type(schema).__name__}")
    _measure(schema)
    nodes: dict[int, Json] = {}
    names: dict[int, str] = {}
    anchors: dict[str, Json] = {}
    stack: list[tuple[Json, str]] = [(schema, "")]
    while stack:
        node, name = stack.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise Unreadable("malformed", f"a schema is expected, not {type(node).__name__}")
        if id(node) in nodes:
            continue
        nodes[id(node)], names[id(node)] = node, name
        _note_identity(node, anchors, is_root=node is schema)
        stack.extend(_children_of(node))
    targets = _resolve(schema, anchors, nodes)
    return Document(schema, nodes, targets, names)


def _children_of(node: Mapping[str, Any]) -> Iterator[tuple[Json, str]]:
    for key, value in node.items():
        if key in LIST_KEYWORDS and isinstance(value, list):
            yield from ((item, "") for item in value)
        elif key in MAP_KEYWORDS:
            if not isinstance(value, dict):
                raise Unreadable("malformed", f"{key} is an object, not {type(value).__name__}")
            for name, item in value.items():
                if not (key == "dependencies" and isinstance(item, list)):
                    yield item, name
        elif key in SCHEMA_KEYWORDS:
            yield value, ""
        elif key in LIST_KEYWORDS:
            raise Unreadable("malformed", f"{key} is a list, not {type(value).__name__}")


def list_of(schema: Mapping[str, Any], key: str) -> list[Json]:
    """The list under ``key``; empty if there is none."""
    value = schema.get(key)
    return value if isinstance(value, list) else []


def mapping_of(schema: Mapping[str, Any], key: str) -> dict[str, Json]:
    """The object under ``key``; empty if there is none."""
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def _measure(schema: Json) -> None:
    left, text = MOST_NODES, LONGEST_TEXT
    for value, depth in parts_of(schema):
        left -= 1
        texts = value if isinstance(value, dict) else (value,) if isinstance(value, str) else ()
        text -= sum(map(len, texts))
        if not all(one.isascii() or not any("\ud800" <= c <= "\udfff" for c in one) for one in texts):
            raise Unreadable("not_unicode", "the schema has a string that is not valid Unicode")
        if left < 0 or text < 0:
            raise Unreadable("too_large", f"the schema has more than {MOST_NODES} values or {LONGEST_TEXT} characters")
        if depth > DEEPEST:
            raise Unreadable("too_deep", f"the schema is nested more than {DEEPEST} deep")


def _note_identity(node: dict[str, Any], anchors: dict[str, Json], *, is_root: bool) -> None:
    """Note names for references. An ``$id`` in a subschema is refused: it would change what ``#`` means."""
    for key in ("$id", "id"):
        named = node.get(key)
        if isinstance(named, str) and not is_root:
            if named.startswith("#"):
                anchors.setdefault(named[1:], node)
            elif key == "$id":
                raise Unreadable("embedded_id", "a subschema has its own address ($id)")
    for key in ("$anchor", "$dynamicAnchor"):
        if isinstance(node.get(key), str):
            anchors.setdefault(node[key], node)


def _resolve(
    root: Json, anchors: Mapping[str, Json], nodes: Mapping[int, Mapping[str, Any]]
) -> dict[int, tuple[Json, ...]]:
    targets: dict[int, tuple[Json, ...]] = {}
    for number, node in nodes.items():
        keys = [key for key in REFERENCES if key in node]
        if keys:
            targets[number] = tuple(_target(root, node[key], anchors) for key in keys)
            if any(isinstance(target, dict) and id(target) not in nodes for target in targets[number]):
                raise Unreadable("no_such_reference", "a reference leads to something that is not a schema")
    return targets


def _target(root: Json, reference: Json, anchors: Mapping[str, Json]) -> Json:
    if not isinstance(reference, str):
        raise Unreadable("malformed", "a reference must be a string")
    if not reference.startswith("#"):
        raise Unreadable("external_reference", "a reference leads out of the schema; only references within it work")
    fragment = _unquote(reference[1:])
    if fragment and not fragment.startswith("/"):
        if fragment in anchors:
            return anchors[fragment]
        raise Unreadable("no_such_reference", "a reference leads to an anchor that does not exist")
    value = root
    for token in fragment.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif (
            isinstance(value, list) and name.isdecimal() and name.isascii() and len(name) < 6 and int(name) < len(value)
        ):
            value = value[int(name)]
        else:
            raise Unreadable("no_such_reference", "a reference leads to a place that does not exist")
    if not isinstance(value, dict | bool):
        raise Unreadable("no_such_reference", "a reference leads to something that is not a schema")
    return value


def _unquote(fragment: str) -> str:
    """A URI's fragment with its escapes (RFC 3986, 2.1) decoded as UTF-8."""
    if "%" not in fragment:
        return fragment
    raw = re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), fragment.encode("utf-8", "replace"))
    return raw.decode("utf-8", "replace")


_DEEPEST = 12
_MOST_ITEMS = 100  # examined items of one list
_MOST_KEYS = 64  # an object with more keys is a table, whose keys are data
_ORDER = ("null", "boolean", "integer", "number", "string", "array", "object")


def infer_schema(values: list[Json], depth: int = 0) -> dict[str, Any]:
    """A JSON Schema that all ``values`` match; ``{}`` without values or beyond the depth limit."""
    kinds = {_kind(value) for value in values}
    if not kinds or depth > _DEEPEST:
        return {}
    if "number" in kinds:
        kinds.discard("integer")
    named = [kind for kind in _ORDER if kind in kinds]
    schema: dict[str, Any] = {"type": named[0] if len(named) == 1 else named}
    if "array" in kinds:
        items = [item for value in values if isinstance(value, list) for item in value[:_MOST_ITEMS]]
        schema["items"] = infer_schema(items, depth + 1)
    if "object" in kinds:
        schema.update(_object([value for value in values if isinstance(value, dict)], depth))
    return schema


def _object(values: list[Mapping[str, Json]], depth: int) -> dict[str, Any]:
    keys = dict.fromkeys(key for value in values for key in list(value)[: _MOST_KEYS + 1])
    if len(keys) > _MOST_KEYS:
        found = [item for value in values for item in list(value.values())[:_MOST_ITEMS]]
        return {"additionalProperties": infer_schema(found, depth + 1)}
    properties = {key: infer_schema([value[key] for value in values if key in value], depth + 1) for key in keys}
    return {"properties": properties, "required": [key for key in keys if all(key in value for value in values)]}


def _kind(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = ((type(None), "null"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")
