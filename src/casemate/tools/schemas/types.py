"""What JSON Schema says of values, as types that programming languages have. Pure.

Types are for people, models and type checkers; where they cannot say what a schema says they are wider. Whether a value
is right is decided by the schema itself (`casemate.tools.schemas.validation`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

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
class Record:
    """An object whose keys are known. It may contain itself, so that its fields are filled in after it was made.

    ``extra``: the type of values under other keys; None where the schema permits no others. ``open``: it says that
    there are others, so that they are ordinary.
    """

    name: str
    description: str = ""
    fields: list[Field] = field(default_factory=list)
    extra: Type | None = None
    open: bool = False


Type: TypeAlias = Anything | Scalar | Exact | Array | Table | Choice | Record


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
