"""Turns JSON Schemas into the types and names of programming languages.

Types are for people, models and type checkers. They are wider than the schema where they cannot express it. The schema
itself decides whether a value is valid (`casemate.tools.schemas.validation`).
"""

from __future__ import annotations

import json
import keyword
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from casemate.tools.schemas.schema import Document, list_of, mapping_of
from casemate.tools.tool import Json

Plain = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Anything:
    """Any JSON value."""


@dataclass(frozen=True, slots=True)
class Scalar:
    kind: Literal["null", "boolean", "integer", "number", "string"]


@dataclass(frozen=True, slots=True)
class Exact:
    """One of these values. True and 1 are distinct."""

    values: tuple[Plain, ...]


@dataclass(frozen=True, slots=True)
class Array:
    item: Type


@dataclass(frozen=True, slots=True)
class Table:
    """An object whose keys are data."""

    value: Type


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Type, ...]


@dataclass(slots=True, eq=False)
class RecordType:
    name: str
    description: str = ""
    fields: list[Field] = field(default_factory=list)  # filled in later, because a record may contain itself
    extra: Type | None = None  # the type of values under other keys; None if the schema forbids others
    open: bool = False  # the schema describes other keys


Type: TypeAlias = Anything | Scalar | Exact | Array | Table | Choice | RecordType


@dataclass(frozen=True, slots=True)
class Field:
    key: str  # on the wire
    keyword: str  # the name of the parameter
    attribute: str  # the name on an object
    type: Type
    required: bool
    description: str = ""
    default: str = ""  # JSON text; empty if the schema gives none


def union_of(types: list[Type]) -> Type:
    """The narrowest type that covers ``types``."""
    flat: list[Type] = []
    exact: list[Plain] = []
    for one in types:
        for option in one.options if isinstance(one, Choice) else (one,):
            if isinstance(option, Anything):
                return option
            if isinstance(option, Exact):
                exact.extend(option.values)
            elif option not in flat:
                flat.append(option)
    if exact:
        flat.insert(0, Exact(tuple({(type(value), value): value for value in exact}.values())))
    return flat[0] if len(flat) == 1 else Choice(tuple(flat)) if flat else Anything()


def exact_of(values: list[Json]) -> Type:
    """The type of a value that equals one of ``values``."""
    kinds: list[Type] = []
    for value in values:
        if value is None or isinstance(value, str | bool | int):
            kinds.append(Exact((value,)))
        elif isinstance(value, float):
            kinds.append(Scalar("number"))
        else:
            kinds.append(Array(Anything()) if isinstance(value, list) else Table(Anything()))
    return union_of(kinds)


LONGEST = 100  # characters of a module's name, so that every file system accepts it with its ending
# Names that the package `mcptools` defines. A server of such a name gets another package name.
OWN_NAMES = frozenset((
    "Audio", "Blob", "Image", "InvalidArguments", "Link", "Object", "Output", "Resource", "Text", "ToolDenied",
    "ToolError", "ToolTimeout", "ToolUnavailable", "UNSET", "content_of", "on_progress", "register", "search",
))  # fmt: skip


def identifier(text: str, empty: str = "unnamed") -> str:
    """A Python and JavaScript identifier like ``text``, in NFKC form (PEP 3131): no keyword, no leading underscore."""
    normal = unicodedata.normalize("NFKC", text[: 2 * LONGEST])
    name = "".join(c if ("_" + c).isidentifier() else "_" for c in normal).lstrip("_")[:LONGEST].rstrip("_" * LONGEST)
    if name and not name.isidentifier():
        name = f"x{name}"
    name = unicodedata.normalize("NFKC", name)  # again: cutting, stripping or the prefix may have changed the form
    if not name.isidentifier():
        return empty
    return f"{name}_" if keyword.iskeyword(name) else name


def unique_names(
    keys: Iterable[str],
    reserved: Collection[str] = (),
    *,
    empty: str = "unnamed",
    fold: bool = False,
    in_turn: bool = False,
) -> dict[str, str]:
    """A unique identifier for each of ``keys``, in their order. ``reserved`` names are not used.

    The names depend on the set of keys only. With ``in_turn`` they depend on the order, so that a later key never
    changes the name of an earlier one. ``fold``: names must differ by more than case.
    """
    wanted = {key: identifier(key, empty) for key in dict.fromkeys(keys)}

    def alike(name: str) -> str:
        return name.casefold() if fold else name

    taken = {alike(name) for name in reserved}
    given: dict[str, str] = {}
    for key in wanted if in_turn else sorted(wanted, key=lambda key: (wanted[key] != key, key)):
        name, number = wanted[key], 1
        if alike(name) in taken and alike(f"{name}_") not in taken and name in reserved:
            name = f"{name}_"
        while alike(name) in taken:
            number += 1
            name = f"{wanted[key]}_{number}"
        taken.add(alike(name))
        given[key] = name
    return {key: given[key] for key in wanted}


def module_names(tools: Iterable[str]) -> dict[str, str]:
    """A unique module for each tool of one server, even on case-insensitive file systems."""
    return unique_names(tools, fold=True)


def package_names(servers: Iterable[str]) -> dict[str, str]:
    """A unique package for each server, never a name of `mcptools`. A later server cannot take an earlier package."""
    return unique_names(servers, {name.casefold() for name in OWN_NAMES} | OWN_NAMES, fold=True, in_turn=True)


def class_name(text: str, empty: str = "Value") -> str:
    """A class name like ``text``: `list_options` becomes `ListOptions`."""
    words = identifier(text, empty).split("_")
    name = "".join(word[:1].upper() + word[1:] for word in words if word)[:LONGEST]
    return name if name.isidentifier() and not keyword.iskeyword(name) else empty


MOST_STEPS = 50_000
DEEPEST = 48  # records within records
MOST_VALUES = 256  # of an enumeration; a larger one becomes the type of its values
_SCALARS = ("null", "boolean", "integer", "number", "string")
_OBJECT_WORDS = frozenset((
    "additionalProperties", "dependentRequired", "maxProperties", "minProperties", "patternProperties", "properties",
    "propertyNames", "required", "unevaluatedProperties",
))  # fmt: skip
_LIST_WORDS = frozenset(("additionalItems", "contains", "items", "maxItems", "minItems", "prefixItems", "uniqueItems"))


@dataclass(slots=True)
class _Shape:
    properties: dict[str, list[Json]] = field(default_factory=dict)
    sure: set[str] = field(default_factory=set)  # keys described by a part that always applies
    required: set[str] = field(default_factory=set)
    extras: list[Json] = field(default_factory=list)
    closed: bool = False
    description: str = ""


class SchemaReader:
    """Reads the types of one module's schemas. Every record gets a unique name that is not reserved."""

    def __init__(
        self, *, reserved_classes: Collection[str] = (), reserved_attributes: Collection[str] = (),
        reserved_keywords: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.records: list[RecordType] = []
        self._classes = set(reserved_classes)
        self._attributes = reserved_attributes
        self._keywords = reserved_keywords
        self._known: dict[tuple[int, ...], Type] = {}
        self._joins: dict[tuple[int, ...], dict[str, Any]] = {}  # schemas made here, kept so that ids stay unique
        self._left = MOST_STEPS
        self._document = Document(True)

    def parameters(self, document: Document, name: str) -> RecordType:
        """The object that ``document`` describes. Other types that it permits are ignored: arguments are an object."""
        self._document = document
        root = document.root if isinstance(document.root, dict) else {}
        return self._record([root], name, 0)

    def type_of(self, document: Document, name: str) -> Type:
        """The type that ``document`` describes. ``name`` is used if it is a record."""
        self._document = document
        return self._type(document.root, name, 0)

    # ------------------------------------------------------------------------------------------------ any value

    def _type(self, schema: Json, name: str, depth: int) -> Type:
        self._left -= 1
        if not isinstance(schema, dict) or self._left < 0 or depth > DEEPEST:
            return Anything()
        referred = [target for target in self._document.targets_of(schema) if isinstance(target, dict)]
        if len(referred) == 1 and not (set(schema) & (_OBJECT_WORDS | {"allOf", "anyOf", "oneOf", "type"})):
            wanted = class_name(self._document.names.get(id(referred[0]), ""), name)
            return self._type(referred[0], wanted, depth + 1)
        if "const" in schema:
            return exact_of([schema["const"]])
        if isinstance(schema.get("enum"), list):
            return _enumeration(schema["enum"])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return union_of([self._of_kind(schema, kind, name, depth) for kind in kinds[:8]])
        if isinstance(kinds, str):
            return self._of_kind(schema, kinds, name, depth)
        return self._without_kind(schema, referred, name, depth)

    def _of_kind(self, schema: dict[str, Any], kind: Json, name: str, depth: int) -> Type:
        if kind == "object":
            return self._object(schema, name, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind not in _SCALARS:
            return Anything()
        exact = [part for part in self._branches(schema, name, depth, "anyOf", "oneOf") if isinstance(part, Exact)]
        return union_of(list(exact)) if exact else Scalar(kind)

    def _without_kind(self, schema: dict[str, Any], referred: list[Json], name: str, depth: int) -> Type:
        parts = [part for part in (*referred, *list_of(schema, "allOf")) if isinstance(part, dict)]
        if set(schema) & _OBJECT_WORDS:
            return self._object(schema, name, depth)
        if parts and any(self._is_object(part, 0) for part in parts):
            return self._object(schema, name, depth)
        if set(schema) & _LIST_WORDS:
            return self._array(schema, name, depth)
        if parts:
            types = [self._type(part, name, depth + 1) for part in parts]
            return min(types, key=_width)
        options = self._branches(schema, name, depth, "anyOf", "oneOf")
        return union_of(options) if options else Anything()

    def _branches(self, schema: dict[str, Any], name: str, depth: int, *keys: str) -> list[Type]:
        return [self._type(part, name, depth + 1) for key in keys for part in list_of(schema, key)]

    def _is_object(self, schema: Json, depth: int) -> bool:
        if not isinstance(schema, dict) or depth > DEEPEST or self._left < 0:
            return False
        self._left -= 1
        if schema.get("type") == "object" or set(schema) & _OBJECT_WORDS:
            return True
        inner = [*self._document.targets_of(schema), *list_of(schema, "allOf")]
        return any(self._is_object(part, depth + 1) for part in inner)

    def _array(self, schema: dict[str, Any], name: str, depth: int) -> Type:
        item = name[:-1] if name.endswith("s") and not name.endswith("ss") else f"{name}Item"
        places = [*list_of(schema, "prefixItems"), *list_of(schema, "items")]
        rest = schema.get("items") if not isinstance(schema.get("items"), list) else schema.get("additionalItems")
        if places and rest is not False:
            places.append(True if rest is None else rest)
        if places:
            return Array(union_of([self._type(place, item, depth + 1) for place in places[:MOST_VALUES]]))
        return Array(self._type(rest, item, depth + 1))

    # ------------------------------------------------------------------------------------------------- objects

    def _object(self, schema: dict[str, Any], name: str, depth: int) -> Type:
        known = self._known.get((id(schema),))
        if known is not None:
            return known
        options = [part for key in ("oneOf", "anyOf") for part in list_of(schema, key)]
        if options and not (set(schema) & {"properties", "allOf"}) and all(self._is_object(o, 0) for o in options):
            described = [option for option in options if isinstance(option, dict) and set(option) != {"required"}]
            if len(described) == len(options):
                return union_of([self._type(option, name, depth + 1) for option in options])
        shape = self._shape([schema])
        if not shape.properties:
            return Table(union_of([self._type(extra, name, depth + 1) for extra in shape.extras] or [Anything()]))
        return self._record([schema], name, depth)

    def _record(self, parts: list[Json], name: str, depth: int) -> RecordType:
        key = tuple(id(part) for part in parts)
        known = self._known.get(key)
        if isinstance(known, RecordType):
            return known
        record = RecordType(name if depth == 0 else self.free_name(name))  # the root keeps its name
        self._known[key] = record
        self.records.append(record)
        shape = self._shape(parts)
        record.description = shape.description
        if not shape.closed or shape.extras:
            extras = [self._type(extra, f"{name}Extra", depth + 1) for extra in shape.extras]
            record.extra = union_of(extras or [Anything()])
            record.open = bool(shape.extras)
        keywords = unique_names(shape.properties, self._keywords, empty="empty")
        attributes = unique_names(shape.properties, self._attributes, empty="empty")
        for wire, schemas in shape.properties.items():
            schema = schemas[0] if len(schemas) == 1 else self._join(schemas, sure=wire in shape.sure)
            kind = self._type(schema, class_name(wire), depth + 1)
            required = wire in shape.required
            words = schemas[0] if isinstance(schemas[0], dict) else {}
            record.fields.append(
                Field(wire, keywords[wire], attributes[wire], kind, required, self._description(words), _default(words))
            )
        record.fields.sort(key=lambda field: not field.required)
        return record

    def _join(self, schemas: list[Json], *, sure: bool) -> Json:
        """Combine schemas: all must match if one is ``sure`` to apply, otherwise any."""
        key = tuple(map(id, schemas))
        if key not in self._joins:
            self._joins[key] = {"allOf" if sure else "anyOf": schemas}
        return self._joins[key]

    def _shape(self, parts: Iterable[Json]) -> _Shape:
        """Merge a schema's parts that describe an object. Branches that may not apply require nothing."""
        shape = _Shape()
        seen: set[tuple[int, bool]] = set()
        stack = [(part, True) for part in parts]
        while stack and self._left > 0:
            schema, sure = stack.pop(0)
            self._left -= 1
            if not isinstance(schema, dict) or (id(schema), sure) in seen:
                continue
            seen.add((id(schema), sure))
            self._take(shape, schema, sure=sure)
            stack.extend((part, sure) for part in (*self._document.targets_of(schema), *list_of(schema, "allOf")))
            branches = [*list_of(schema, "anyOf"), *list_of(schema, "oneOf"), schema.get("then"), schema.get("else")]
            for key in ("dependentSchemas", "dependencies"):
                branches += mapping_of(schema, key).values()
            stack.extend((part, False) for part in branches)
        for name in sorted(shape.required - shape.properties.keys()):
            shape.properties[name] = [True]
        return shape

    def _take(self, shape: _Shape, schema: dict[str, Any], *, sure: bool) -> None:
        for name, value in mapping_of(schema, "properties").items():
            if value is not False:
                held = shape.properties.setdefault(name, [])
                held.extend([value] if not any(value is one for one in held) else [])
                if sure:
                    shape.sure.add(name)
        if sure:
            shape.required |= {name for name in list_of(schema, "required") if isinstance(name, str)}
            shape.closed |= False in (schema.get("additionalProperties"), schema.get("unevaluatedProperties"))
            shape.description = shape.description or self._description(schema)
            for key in ("additionalProperties", "unevaluatedProperties"):
                if key in schema and schema[key] is not False:
                    shape.extras.append(schema[key])
        shape.extras.extend(mapping_of(schema, "patternProperties").values())

    def _description(self, schema: dict[str, Any]) -> str:
        for place in (schema, *self._document.targets_of(schema)):
            for key in ("description", "title"):
                if isinstance(place, dict) and isinstance(place.get(key), str) and place[key].strip():
                    return str(place[key])
        return ""

    def free_name(self, wanted: str) -> str:
        """Reserve ``wanted``, or a free name like it."""
        name, number = wanted, 1
        while name in self._classes:
            number += 1
            name = f"{wanted}{number}"
        self._classes |= {name, f"{name}Dict"}
        return name


def _enumeration(values: list[Json]) -> Type:
    kinds = exact_of(values)
    if len(values) <= MOST_VALUES:
        return kinds
    names = {str: "string", bool: "boolean", int: "integer", type(None): "null"}
    return union_of([Scalar(names[kind]) if kind in names else Anything() for kind in set(map(type, values))])  # type: ignore[arg-type]


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    text = json.dumps(schema["default"], ensure_ascii=True)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _width(kind: Type) -> int:
    """A rough rank of how wide a type is, to choose the narrowest part of an intersection."""
    return {Exact: 0, RecordType: 1, Scalar: 2, Array: 2, Table: 3, Choice: 4}.get(type(kind), 5)
