"""Makes commands from the table of operations, which has their parameters, types, defaults and help.

Reading the table takes 2 ms. Loading the catalogue of operations, from which it is written, takes 0.4 s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal, NamedTuple

import cyclopts

from casemate.errors import InvalidArgument
from casemate.operations import table
from casemate.surfaces.cli.connection import PLAIN, Quiet, ServiceOptions, ask, ask_patiently, list_rows
from casemate.surfaces.cli.parameters import option_help

Command = Callable[..., int]
Read = Callable[[Any], Any]
Row = Callable[[dict[str, Any]], dict[str, Any]]
_SHORT = {"filter": "-f"}
_WORD = re.compile(r"(?P<kind>\*|--|)(?P<name>[a-z-]+)(?P<unset>\??)(?:=(?P<argument>\w+))?")
_PLACES = {"": Parameter.POSITIONAL_ONLY, "*": Parameter.VAR_POSITIONAL, "--": Parameter.KEYWORD_ONLY}
_MANY = tuple[str, ...]
_KINDS = {"boolean": bool, "integer": int, "number": float, "array": _MANY, "object": _MANY}  # objects as KEY=VALUE


def row(operation: str, words: str, show: Command, more: str = "", *, may_wait: bool = False, **reads: Read) -> Command:
    """Make the command that asks one operation and prints its answer. ``show`` prints it, as JSON if ``is_json``, and
    returns the exit code. ``may_wait``: it may need an approval first. The other parameters are those of `asks`."""

    @asks(operation, words, more, **reads)
    def command(given: dict[str, Any], *, service: ServiceOptions = PLAIN) -> int:
        answer = (ask_patiently if may_wait else ask)(service, operation, **given)
        return show(answer, is_json=service.is_json)

    return command


def lists(operation: str, columns: str, empty: str, row: Row, more: str = "") -> Command:
    """Make the command that prints an operation's list with `list_rows`. ``more``: as in `asks`."""

    @asks(operation, "--filter=filters", more)
    def command(given: dict[str, Any], *, quiet: Quiet = False, service: ServiceOptions = PLAIN) -> int:
        return list_rows(operation, **given, quiet=quiet, service=service, columns=columns, empty=empty, row=row)

    return command


def asks(operation: str, words: str, more: str = "", **reads: Read) -> Callable[[Command], Command]:
    """Give a command the parameters of an operation, and its help. The first parameter of the command becomes a dict of
    the arguments for the operation; the others stay.

    Args:
        operation: Its name.
        words: The parameters. ``name`` is one word, ``*name`` all remaining words, ``--name`` an option. ``name?`` is
            None by default. ``name=argument`` gives the operation's name for it.
        more: Follows the help of the operation. A docstring of the command replaces both.
        reads: For an argument, the function that parses its text.
    """
    described = table()[operation]
    taken = [_take(word, described["params"]["properties"], reads) for word in words.split()]

    def mark(command: Command) -> Command:
        _given, *own = signature(command).parameters.values()
        whole = Signature(sorted([*(one.parameter for one in taken), *own], key=lambda one: one.kind))

        @wraps(command)
        def call(*values: Any, **options: Any) -> int:
            bound = whole.bind(*values, **options)
            bound.apply_defaults()
            found = {one.argument: bound.arguments.pop(one.parameter.name) for one in taken}
            given = {one.argument: one.read(found[one.argument]) for one in taken if found[one.argument] is not None}
            try:
                return command(given, **bound.arguments)
            except InvalidArgument as error:
                error.argument = next((one.shown for one in taken if one.argument == error.argument), error.argument)
                raise

        setattr(call, "__signature__", whole)  # noqa: B010 - no attribute mypy knows
        call.__doc__ = command.__doc__ or f"{_help_of(described['description'])}\n\n{more}"
        return call

    return mark


class _Taken(NamedTuple):
    """An argument of an operation as a parameter of a command."""

    argument: str
    parameter: Parameter
    read: Read
    shown: str  # its name in errors


def _take(word: str, arguments: Mapping[str, Any], reads: Mapping[str, Read]) -> _Taken:
    found = _WORD.fullmatch(word)
    assert found is not None
    place, name = _PLACES[found["kind"]], found["name"].replace("-", "_")
    argument = found["argument"] or name
    schema, is_option = arguments[argument], place is Parameter.KEYWORD_ONLY
    kind: Any = str if argument in reads or place is Parameter.VAR_POSITIONAL else _kind_of(schema)
    default: Any = Parameter.empty
    if found["unset"] or (is_option and argument in reads):
        default = None
    elif is_option:
        default = () if kind == _MANY else schema["default"]
    how = cyclopts.Parameter(
        alias=_SHORT.get(name),
        help=option_help(schema["description"], schema["default"] if is_option else None, many=kind == _MANY),
        allow_leading_hyphen=(kind is str and not is_option) or name in _SHORT,
    )
    annotation: Any = Annotated[kind | None if default is None else kind, how]
    parameter = Parameter(name, place, default=default, annotation=annotation)
    shown: dict[object, str] = {Parameter.POSITIONAL_ONLY: name.upper(), Parameter.KEYWORD_ONLY: name}
    return _Taken(argument, parameter, reads.get(argument, lambda value: value), shown.get(place, argument))


def _kind_of(schema: Mapping[str, Any]) -> Any:
    kind = next(one for one in schema.get("anyOf", [schema]) if one.get("type") != "null")
    return Literal[tuple(kind["enum"])] if "enum" in kind else _KINDS.get(kind.get("type"), str)


def _help_of(description: str) -> str:
    paragraphs = description.replace("`", "").split("\n\n")
    return "\n\n".join(one for one in paragraphs if not one.startswith("Returns:"))
