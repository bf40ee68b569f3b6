"""Values from their documents, by the type that they had. Pure."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any, Union, get_args, get_origin, get_type_hints


def revive(kind: Any, told: Any) -> Any:
    """``told`` as a ``kind``: a dataclass, a list, tuple or mapping of such, or whatever it is. What a newer service
    says besides is left out."""
    origin, arguments = get_origin(kind), get_args(kind)
    if told is None or kind is Any:
        return told
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(told, Mapping):
        hints = get_type_hints(kind, globalns=vars(sys.modules[kind.__module__]))
        known = [field for field in fields(kind) if field.init and field.repr and field.name in told]
        return kind(**{field.name: revive(hints[field.name], told[field.name]) for field in known})
    if origin in (Union, types.UnionType):
        return revive(_choice(arguments, told), told)
    if origin in (list, Sequence) and isinstance(told, list):
        return [revive(arguments[0], one) for one in told]
    if origin is tuple and isinstance(told, list):
        return tuple(revive(arguments[0], one) for one in told)
    if origin in (dict, Mapping) and isinstance(told, Mapping):
        return {name: revive(arguments[1], one) for name, one in told.items()}
    return told


def _choice(kinds: Sequence[Any], told: Any) -> Any:
    """Which of these a document is of: for a mapping the first dataclass all whose fields it has, else the first
    dataclass or mapping; list or tuple for a list."""
    if isinstance(told, Mapping):
        fits = [one for one in kinds if is_dataclass(one) or get_origin(one) in (dict, Mapping)]
        fits.sort(key=lambda one: not (is_dataclass(one) and all(field.name in told for field in fields(one))))
    elif isinstance(told, list):
        fits = [one for one in kinds if get_origin(one) in (list, tuple, Sequence)]
    else:
        fits = []
    return fits[0] if fits else Any


def type_named(place: str) -> Any:
    """The type that lies at ``module:name``, loaded when it is needed."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
