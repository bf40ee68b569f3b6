"""Options: keyword arguments that a TypedDict defines, with defaults and bounds.

A field is ``name: Annotated[type, Default(value)]`` with a docstring below it. The type may have bounds (``Between``,
``Most``, ``OneOf`` of ``casemate.model.operation``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from casemate.errors import UnknownArgument

_F = TypeVar("_F", bound=Callable[..., Any])


class ConfigNote(NamedTuple):
    """In the annotation of an option: how the configuration differs from the call."""

    unset: str = "none"  # what no value means, in words
    default: Any = None  # the value in force if none is given
    form: str = ""  # of its values


T = TypeVar("T")
_MARK = "__options__"


class Default(NamedTuple):
    """In the annotation of an option: its value if the caller gives none."""

    value: Any


def find_marker(annotation: Any, kind: type[T]) -> T:
    """The mark of this kind in an annotation."""
    return next(mark for mark in get_args(annotation)[1:] if isinstance(mark, kind))


@cache
def defaults_of(definition: type) -> Mapping[str, Any]:
    """Each option of ``definition`` with its default."""
    return {name: find_marker(annotation, Default).value for name, annotation in definition.__annotations__.items()}


def complete(definition: type, options: Mapping[str, Any], call: str) -> dict[str, Any]:
    """``options`` with all defaults. Raises ``InvalidArgument`` (also a ``TypeError``) naming all unknown options."""
    defaults = defaults_of(definition)
    values = {**defaults, **options}
    if len(values) != len(defaults):
        raise unknown_arguments(call, [name for name in options if name not in defaults], defaults)
    return values


def unknown_arguments(call: str, names: Iterable[str], known: Iterable[str]) -> UnknownArgument:
    """The error for ``names``, which ``call`` does not take, with a suggestion for each."""
    from casemate.model.foreign import equivalent_of

    known, names = list(known), list(names)
    problems = [f"{call} takes no such argument{equivalent_of(name, known)}" for name in names]
    rest = [f"{name[:100]}: {problem}" for name, problem in zip(names[1:], problems[1:], strict=True)]
    remedy = f"It takes: {', '.join(known) or 'none'}."
    return UnknownArgument(names[0][:100], "\n".join([problems[0], *rest]), remediation=remedy)


def takes_options(definition: type) -> Callable[[_F], _F]:
    """Give a function with ``**options: Unpack[definition]`` a signature that shows each option and its default."""

    def mark(function: _F) -> _F:
        parameters = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                kinds = get_type_hints(definition)  # without bounds and defaults
                parameters += [
                    inspect.Parameter(name, parameter.KEYWORD_ONLY, default=value, annotation=kinds[name])
                    for name, value in defaults_of(definition).items()
                ]
            else:
                parameters.append(parameter)
        signature = inspect.Signature(parameters, return_annotation=function.__annotations__.get("return"))
        setattr(function, "__signature__", signature)  # noqa: B010 - mypy does not know the attribute
        setattr(function, _MARK, definition)
        return function

    return mark


def definition_of(function: object) -> type | None:
    """The definition of a function's options; None if it takes none."""
    return getattr(function, _MARK, None)


@cache
def docs_of(definition: type) -> Mapping[str, str]:
    """The docstring of each option, parsed from the source: for reference texts, not for each call."""
    import ast
    import sys

    source = sys.modules[definition.__module__]
    module = ast.parse(inspect.getsource(source))
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}

    def docs_in(name: str) -> dict[str, str]:
        docs: dict[str, str] = {}
        for base in classes[name].bases:
            if isinstance(base, ast.Name) and base.id in classes:
                docs |= docs_in(base.id)
            elif isinstance(base, ast.Name) and isinstance(imported := getattr(source, base.id), type):
                docs |= docs_of(imported)
        for statement, following in zip(classes[name].body, classes[name].body[1:], strict=False):
            match statement, following:
                case ast.AnnAssign(target=ast.Name(id=option)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[option] = inspect.cleandoc(text).replace("\n", " ")
        return docs

    return docs_in(definition.__name__)
