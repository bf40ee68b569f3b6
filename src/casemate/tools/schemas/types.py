"""What JSON Schema says of values, as types and names that programming languages have. Pure.

Types are for people, models and type checkers; where they cannot say what a schema says they are wider. Whether a value
is right is decided by the schema itself (`casemate.tools.schemas.validation`).
"""

from __future__ import annotations

import json
import keyword
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from casemate.tools.schemas.schema import Document
from casemate.tools.tool import Json

Plain = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Anything:
    """Any JSON value."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value without parts."""

    kind: Literal["null", "boolean", "integer", "number", "string"]


@dataclass(frozen=True, slots=True)
class Exact:
    """One of these values; True and 1 are two."""

    values: tuple[Plain, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """A list."""

    item: Type


@dataclass(frozen=True, slots=True)
class Table:
    """An object whose keys are data."""

    value: Type


@dataclass(frozen=True, slots=True)
class Choice:
    """Any of these."""

    options: tuple[Type, ...]


@dataclass(slots=True, eq=False)
class RecordType:
    """An object whose keys are known. It may contain itself, so that its fields are filled in after it was made.

    ``extra``: the type of values under other keys; None where the schema permits no others. ``open``: it says that
    there are others, so that they are ordinary.
    """

    name: str
    description: str = ""
    fields: list[Field] = field(default_factory=list)
    extra: Type | None = None
    open: bool = False


Type: TypeAlias = Anything | Scalar | Exact | Array | Table | Choice | RecordType


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a record: ``key`` on the wire, ``keyword`` as a parameter, ``attribute`` of an object.

    ``default`` is what the server does without it, as JSON text; empty where it does not say.
    """

    key: str
    keyword: str
    attribute: str
    type: Type
    required: bool
    description: str = ""
    default: str = ""


def union_of(types: list[Type]) -> Type:
    """The narrowest of these types for a value that is of any of ``types``."""
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


LONGEST = 100  # characters of a module's name: with its ending it must be a file's name everywhere
# What the package `mcptools` defines itself: a server of that name is another module.
OWN_NAMES = frozenset((
    "Audio", "Blob", "Image", "InvalidArguments", "Link", "Object", "Output", "Resource", "Text", "ToolDenied",
    "ToolError", "ToolTimeout", "ToolUnavailable", "UNSET", "content_of", "on_progress", "register", "search",
))  # fmt: skip


def identifier(text: str, empty: str = "unnamed") -> str:
    """An identifier of Python and JavaScript that resembles ``text``; no keyword, and it begins with no underscore.

    Python reads identifiers in Unicode's form NFKC (PEP 3131), so that is the form of the result.
    """
    normal = unicodedata.normalize("NFKC", text[: 2 * LONGEST])
    name = "".join(c if ("_" + c).isidentifier() else "_" for c in normal).lstrip("_")[:LONGEST].rstrip("_" * LONGEST)
    if name and not name.isidentifier():
        name = f"x{name}"
    name = unicodedata.normalize("NFKC", name)  # what was cut, stripped or begun anew may have another form
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
    """An identifier for each of ``keys``, none twice and none of ``reserved``, in the order of ``keys``.

    The result depends on the set of keys, not on their order; ``in_turn``: on their order, so that no key takes its
    name from one that came before. ``fold``: names that differ only by case are too alike.
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
    """The module of each tool of one server: one to one, also where a file system does not know case."""
    return unique_names(tools, fold=True)


def package_names(servers: Iterable[str]) -> dict[str, str]:
    """The package of each server, in the order in which they came: one to one, and none hides what `mcptools` defines
    itself. One that comes later changes no name: else it could take the place of another."""
    return unique_names(servers, {name.casefold() for name in OWN_NAMES} | OWN_NAMES, fold=True, in_turn=True)


def class_name(text: str, empty: str = "Value") -> str:
    """A class's name that resembles ``text``: `list_options` is `ListOptions`."""
    words = identifier(text, empty).split("_")
    name = "".join(word[:1].upper() + word[1:] for word in words if word)[:LONGEST]
    return name if name.isidentifier() and not keyword.iskeyword(name) else empty


MOST_STEPS = 50_000
DEEPEST = 48  # records within records
MOST_VALUES = 256  # of an enumeration: beyond, it is the kind of its values
_SCALARS = ("null", "boolean", "integer", "number", "string")
_OBJECT_WORDS = frozenset((
    "additionalProperties", "dependentRequired", "maxProperties", "minProperties", "patternProperties", "properties",
    "propertyNames", "required", "unevaluatedProperties",
))  # fmt: skip
_LIST_WORDS = frozenset(("additionalItems", "contains", "items", "maxItems", "minItems", "prefixItems", "uniqueItems"))


@dataclass(slots=True)
class _Shape:
    """What all parts of a schema together say of an object."""

    properties: dict[str, list[Json]] = field(default_factory=dict)
    sure: set[str] = field(default_factory=set)  # keys that a part which always applies describes
    required: set[str] = field(default_factory=set)
    extras: list[Json] = field(default_factory=list)
    closed: bool = False
    description: str = ""


class SchemaReader:
    """Types of the schemas of one module: every record has a name that no other has.

    ``reserved_classes`` and ``reserved_attributes`` are names that the module and its objects use.
    """

    def __init__(
        self, *, reserved_classes: Collection[str] = (), reserved_attributes: Collection[str] = (),
        reserved_keywords: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.records: list[RecordType] = []
        self._classes = set(reserved_classes)
        self._attributes = reserved_attributes
        self._keywords = reserved_keywords
        self._known: dict[tuple[int, ...], Type] = {}
        self._joins: dict[tuple[int, ...], dict[str, Any]] = {}  # schemas made here: their identities stay theirs
        self._left = MOST_STEPS
        self._document = Document(True)

    def parameters(self, document: Document, name: str) -> RecordType:
        """The object that ``document`` describes, whatever else it permits: arguments are an object."""
        self._document = document
        root = document.root if isinstance(document.root, dict) else {}
        return self._record([root], name, 0)

    def type_of(self, document: Document, name: str) -> Type:
        """What ``document`` describes; ``name`` is for the record that it is, if it is one."""
        self._document = document
        return self._type(document.root, name, 0)

    # ------------------------------------------------------------------------------------------------ any value

    def _type(self, schema: Json, name: str, depth: int) -> Type:
        self._left -= 1
        if not isinstance(schema, dict) or self._left < 0 or depth > DEEPEST:
            return Anything()
        referred = [target for target in self._document.targets_of(schema) if isinstance(target, dict)]
        if len(referred) == 1 and not (set(schema) & (_OBJECT_WORDS | {"allOf", "anyOf", "oneOf", "type"})):
            return self._type(referred[0], class_name(self._document.name_of(referred[0]), name), depth + 1)
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
        parts = [part for part in (*referred, *_list_of(schema, "allOf")) if isinstance(part, dict)]
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
        return [self._type(part, name, depth + 1) for key in keys for part in _list_of(schema, key)]

    def _is_object(self, schema: Json, depth: int) -> bool:
        if not isinstance(schema, dict) or depth > DEEPEST or self._left < 0:
            return False
        self._left -= 1
        if schema.get("type") == "object" or set(schema) & _OBJECT_WORDS:
            return True
        inner = [*self._document.targets_of(schema), *_list_of(schema, "allOf")]
        return any(self._is_object(part, depth + 1) for part in inner)

    def _array(self, schema: dict[str, Any], name: str, depth: int) -> Type:
        item = name[:-1] if name.endswith("s") and not name.endswith("ss") else f"{name}Item"
        places = [*_list_of(schema, "prefixItems"), *_list_of(schema, "items")]
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
        options = [part for key in ("oneOf", "anyOf") for part in _list_of(schema, key)]
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
        record = RecordType(name if depth == 0 else self.free_name(name))  # the root has the name that it was given
        self._known[key] = record
        self.records.append(record)
        shape = self._shape(parts)
        record.description = shape.description
        if not shape.closed or shape.extras:
            record.extra = self._extra(shape, name, depth)
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

    def _extra(self, shape: _Shape, name: str, depth: int) -> Type:
        return union_of([self._type(extra, f"{name}Extra", depth + 1) for extra in shape.extras] or [Anything()])

    def _join(self, schemas: list[Json], *, sure: bool) -> Json:
        """One schema of several: all of them hold where one is sure, else any."""
        key = tuple(map(id, schemas))
        if key not in self._joins:
            self._joins[key] = {"allOf" if sure else "anyOf": schemas}
        return self._joins[key]

    def _shape(self, parts: Iterable[Json]) -> _Shape:
        """All that a schema and what it includes say of an object; branches that may not apply require nothing."""
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
            stack.extend((part, sure) for part in (*self._document.targets_of(schema), *_list_of(schema, "allOf")))
            branches = [*_list_of(schema, "anyOf"), *_list_of(schema, "oneOf"), schema.get("then"), schema.get("else")]
            branches += [
                *_mapping_of(schema, "dependentSchemas").values(),
                *_mapping_of(schema, "dependencies").values(),
            ]
            stack.extend((part, False) for part in branches)
        known = [name for name in shape.required if name not in shape.properties]
        for name in sorted(known):
            shape.properties[name] = [True]
        return shape

    def _take(self, shape: _Shape, schema: dict[str, Any], *, sure: bool) -> None:
        for name, value in _mapping_of(schema, "properties").items():
            if value is not False:
                held = shape.properties.setdefault(name, [])
                held.extend([value] if not any(value is one for one in held) else [])
                shape.sure |= {name} if sure else set()
        if sure:
            required = schema.get("required")
            shape.required |= (
                {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
            )
            shape.closed |= False in (schema.get("additionalProperties"), schema.get("unevaluatedProperties"))
            shape.description = shape.description or self._description(schema)
            for key in ("additionalProperties", "unevaluatedProperties"):
                if key in schema and schema[key] is not False:
                    shape.extras.append(schema[key])
        shape.extras.extend(_mapping_of(schema, "patternProperties").values())

    def _description(self, schema: dict[str, Any]) -> str:
        for place in (schema, *self._document.targets_of(schema)):
            for key in ("description", "title"):
                if isinstance(place, dict) and isinstance(place.get(key), str) and place[key].strip():
                    return str(place[key])
        return ""

    def free_name(self, wanted: str) -> str:
        """``wanted``, or a name like it that no record has; it is taken then."""
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
    """How much of everything a type is, roughly: an intersection is no wider than its narrowest part."""
    return {Exact: 0, RecordType: 1, Scalar: 2, Array: 2, Table: 3, Choice: 4}.get(type(kind), 5)


def _list_of(schema: dict[str, Any], key: str) -> list[Json]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _mapping_of(schema: dict[str, Any], key: str) -> dict[str, Json]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}
