"""A full repr of values: an execution's own repr is only one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def whole(value: object) -> str:
    """The repr of all fields, nested ones included, except those that must not be in a repr."""
    return repr(_fields_of(value))


def _fields_of(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _fields_of(getattr(value, field.name)) for field in fields(value) if field.repr}
    if isinstance(value, Mapping):
        return {key: _fields_of(one) for key, one in value.items()}
    return [_fields_of(one) for one in value] if isinstance(value, list | tuple | set | frozenset) else value
