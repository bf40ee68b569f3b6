"""Reading JSON Schema from a stranger: bounded, and nothing outside the schema itself is ever looked up. Pure.

Only ``$ref`` that begin with ``#`` are followed: a generator or validator that resolves others reads files and makes
requests for whoever wrote the schema. A schema is refused as a whole, as a :class:`Problem`, where it cannot be checked
in bounded time (`casemate.tools.schemas.validation`), so that one tool is lost and never its server. For tools that
promise no schema one is inferred from what they returned before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from casemate.tools.tool import Json

MOST_NODES = 20_000
DEEPEST = 100
LONGEST_TEXT = 2**20  # characters of keys and texts together

# Keywords by what their values are: JSON Schema 2020-12, chapters 10 and 11, and the older dialects' names.
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
    """A schema that cannot be used: ``code`` for programs, the text for people, ``where`` a JSON pointer."""

    def __init__(self, code: str, message: str, where: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.where = where


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A schema whose size, depth and references were checked. ``root`` is what came; nobody changes it.

    ``nodes``: every subschema by identity. ``targets``: what each referring subschema refers to, by the same.
    """

    root: Json
    nodes: Mapping[int, Json] = field(default_factory=dict)
    targets: Mapping[int, tuple[Json, ...]] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)

    def targets_of(self, schema: Mapping[str, Any]) -> tuple[Json, ...]:
        """The subschemas that ``schema`` refers to by ``$ref`` and its like, in the order of `REFERENCES`."""
        return self.targets.get(id(schema), ())

    def name_of(self, schema: Json) -> str:
        """The key under which ``schema`` stands in its definitions or properties; empty for another."""
        return self.names.get(id(schema), "")


def read(schema: Json) -> Document:
    """``schema`` as a document. Raises :class:`Unreadable` for one that cannot be used."""
    if not isinstance(schema, dict | bool):
        raise Unreadable("not_a_schema", f"a schema is an object, true or false, not {type(schema).__name__}")
    _measure(schema)
    nodes: dict[int, Json] = {}
    names: dict[int, str] = {}
    anchors: dict[str, Json] = {}
    references: list[tuple[dict[str, Any], str]] = []
    stack: list[tuple[Json, str, str]] = [(schema, "", "")]
    while stack:
        node, where, name = stack.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise Unreadable("malformed", f"a schema is expected, not {type(node).__name__}", where)
        if id(node) in nodes:
            continue
        nodes[id(node)], names[id(node)] = node, name
        _note_identity(node, where, anchors)
        references.extend((node, where) for key in REFERENCES if key in node)
        stack.extend(children_of(node, where))
    targets = _resolve(schema, references, anchors, nodes)
    return Document(schema, nodes, targets, names)


def children_of(node: Mapping[str, Any], where: str = "") -> Iterator[tuple[Json, str, str]]:
    """The subschemas that stand in ``node``, each with its pointer and its key. Raises :class:`Unreadable`."""
    for key, value in node.items():
        place = f"{where}/{_escape(key)}"
        if key in LIST_KEYWORDS and isinstance(value, list):
            yield from ((item, f"{place}/{n}", "") for n, item in enumerate(value))
        elif key in MAP_KEYWORDS:
            if not isinstance(value, dict):
                raise Unreadable("malformed", f"{key} is an object, not {type(value).__name__}", place)
            for name, item in value.items():
                if not (key == "dependencies" and isinstance(item, list)):
                    yield item, f"{place}/{_escape(name)}", name
        elif key in SCHEMA_KEYWORDS:
            yield value, place, ""
        elif key in LIST_KEYWORDS:
            raise Unreadable("malformed", f"{key} is a list, not {type(value).__name__}", place)


def _measure(schema: Json) -> None:
    """Size and depth of all of it, whatever it means."""
    left, text = MOST_NODES, LONGEST_TEXT
    stack: list[tuple[Json, int]] = [(schema, 0)]
    while stack:
        value, depth = stack.pop()
        left -= 1
        if isinstance(value, dict):
            text -= sum(map(len, value))
            stack.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list):
            stack.extend((item, depth + 1) for item in value)
        elif isinstance(value, str):
            text -= len(value)
        if not _is_text(value):
            raise Unreadable("not_unicode", "the schema has a text that is no Unicode")
        if left < 0 or text < 0 or len(stack) > MOST_NODES:
            raise Unreadable("too_large", f"the schema has more than {MOST_NODES} values or {LONGEST_TEXT} characters")
        if depth > DEEPEST:
            raise Unreadable("too_deep", f"the schema is nested more than {DEEPEST} deep")


def _is_text(value: Json) -> bool:
    """Whether its own texts can be written as UTF-8, as half of a surrogate pair cannot."""
    texts = value if isinstance(value, dict) else (value,) if isinstance(value, str) else ()
    return all(text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text) for text in texts)


def _note_identity(node: dict[str, Any], where: str, anchors: dict[str, Json]) -> None:
    """Names that references may use. An address of its own inside another would change what ``#`` means."""
    for key in ("$id", "id"):
        named = node.get(key)
        if isinstance(named, str) and where:
            if named.startswith("#"):
                anchors.setdefault(named[1:], node)
            elif key == "$id":
                raise Unreadable("embedded_id", "a schema inside the schema has an address ($id) of its own", where)
    for key in ("$anchor", "$dynamicAnchor"):
        if isinstance(node.get(key), str):
            anchors.setdefault(node[key], node)


def _resolve(
    root: Json, references: list[tuple[dict[str, Any], str]], anchors: Mapping[str, Json], nodes: dict[int, Json]
) -> dict[int, tuple[Json, ...]]:
    targets: dict[int, tuple[Json, ...]] = {}
    for node, where in references:
        if id(node) not in targets:
            keys = [key for key in REFERENCES if key in node]
            targets[id(node)] = tuple(_target(root, node[key], anchors, f"{where}/{key}") for key in keys)
            for target in targets[id(node)]:
                if isinstance(target, dict) and id(target) not in nodes:
                    message = "a reference leads to a place where no schema is"
                    raise Unreadable("no_such_reference", message, where)
    return targets


def _target(root: Json, reference: Json, anchors: Mapping[str, Json], where: str) -> Json:
    if not isinstance(reference, str):
        raise Unreadable("malformed", "a reference is a text", where)
    if not reference.startswith("#"):
        raise Unreadable("external_reference", "a reference leads out of the schema, and is not followed", where)
    fragment = _unquote(reference[1:])
    if fragment and not fragment.startswith("/"):
        if fragment in anchors:
            return anchors[fragment]
        raise Unreadable("no_such_reference", "a reference leads to an anchor that is not there", where)
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
            raise Unreadable("no_such_reference", "a reference leads to a place that is not there", where)
    if not isinstance(value, dict | bool):
        raise Unreadable("no_such_reference", "a reference leads to something that is no schema", where)
    return value


def _unquote(fragment: str) -> str:
    """A fragment of a URI without its escapes (RFC 3986, 2.1), as UTF-8."""
    if "%" not in fragment:
        return fragment
    raw = re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes([int(found[1], 16)]), fragment.encode("utf-8", "replace"))
    return raw.decode("utf-8", "replace")


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


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
