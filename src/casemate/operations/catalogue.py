"""Describes every operation, from its method's signature and docstring.

It loads pydantic, so it is imported only when needed.
"""

from __future__ import annotations

import collections.abc
import inspect
import os
import re
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from types import MappingProxyType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, create_model
from pydantic_core import PydanticCustomError

import casemate
from casemate.model.approval import ApprovalRequest
from casemate.model.events import Display, ErrorEvent, Output, ResultEvent
from casemate.model.execution import Execution, Result
from casemate.model.kinds import Name
from casemate.model.limits import LimitOptions, Limits
from casemate.model.operation import Audience, Between, Mark, Most, OneOf, OrNone, Principal, mark_of
from casemate.model.options import ConfigNote, Default, defaults_of, definition_of, docs_of
from casemate.model.plan import Secrets
from casemate.operations import PARTS, SESSION
from casemate.operations.documents import document_fields, document_properties, is_record, type_named
from casemate.operations.operations import Operations
from casemate.sessions.files import SessionFiles
from casemate.sessions.session import Session

_STRICT = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)
_MOST_TEXT = 90 << 20  # characters of a file's content: 64 MiB as base64
_MOST = {True: 8 << 20, False: 10_000}  # characters of a text; entries of anything else
_TITLES = {  # names of documents that are not named after their classes
    "BrowsedPage": "RenderedPage", "Plan": "CellPlan", "ReadyStart": "CellWait", "ListeningSocket": "CellSocket",
    "Workspace": "CellWorkspace",
}  # fmt: skip
_WRITTEN = {bytes: str, Secrets: list[str], Result: dict[str, Any]}  # base64; names of secrets; contents by media type
_PLAIN = (str, int, float, bool, type(None), Any)


class TextFile(BaseModel):
    """A file of text."""

    model_config = _STRICT
    text: str = Field(max_length=_MOST_TEXT, description="The content.")


class BinaryFile(BaseModel):
    """A file of bytes."""

    model_config = _STRICT
    base64: str = Field(max_length=_MOST_TEXT, description="The content, in base64.")


class UploadedFile(BaseModel):
    """A file that was uploaded before."""

    model_config = _STRICT
    handle: str = Field(max_length=200, description="The handle that the upload returned.")


Given = TextFile | BinaryFile | UploadedFile


def _limit_fields() -> dict[str, Any]:
    """Each limit as a field that may be left out; ``Limits`` checks the bounds."""
    docs, annotations = docs_of(LimitOptions), LimitOptions.__annotations__
    return {name: (annotations[name].__origin__ | None, Field(None, description=docs[name])) for name in annotations}


class LimitValues(BaseModel):
    """Limits that only narrow the present ones. A limit left out keeps its value."""

    model_config = _STRICT


LimitsGiven = create_model("LimitsGiven", __base__=LimitValues, __doc__=LimitValues.__doc__, **_limit_fields())


def given_type(annotation: Any, *, is_bounded: bool = False) -> Any:
    """The type of a parameter's JSON value. Unless ``is_bounded``, a text, list or mapping gets a default bound.
    Raises ``TypeError`` for a type that cannot be given as JSON."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        words = next((mark.words for mark in arguments[1:] if isinstance(mark, OneOf)), None)
        if words is not None:
            return Literal[words]
        has_bound = any(isinstance(one, Most) for one in arguments[1:])
        kind = given_type(arguments[0], is_bounded=has_bound)
        bounds = [bound for mark in arguments[1:] for bound in _bounds(mark)]
        return Annotated[kind, *bounds] if bounds else kind
    if not is_bounded and (annotation is str or origin in (Sequence, list, tuple, Mapping, dict)):
        return Annotated[given_type(annotation, is_bounded=True), *_bounds(Most(_MOST[annotation is str]))]
    if annotation in _PLAIN or origin is Literal:
        return annotation
    if annotation is Limits:
        return LimitsGiven
    if origin in (Union, types.UnionType):
        arguments = tuple(one for one in arguments if one not in (bytes, Session))  # in JSON they are text
        return Union[tuple(given_type(one) for one in arguments)]  # noqa: UP007 - made at run time
    if origin in (Sequence, list, tuple):
        return list[given_type(arguments[0])]  # type: ignore[misc]
    if origin in (Mapping, dict):
        return dict[str, Given if _is_content(arguments[1]) else given_type(arguments[1])]  # type: ignore[misc]
    raise TypeError(f"a {annotation} cannot be given as JSON")


def _is_content(annotation: Any) -> bool:
    return any(get_origin(one) is os.PathLike for one in get_args(annotation))


def _bounds(mark: Any) -> tuple[Any, ...]:
    match mark:
        case Between(low, high):
            return (Field(ge=low, le=high),)
        case Most(most):
            return (Field(max_length=most), BeforeValidator(partial(_few, most)))
        case Default() | ConfigNote():
            return ()
    return (mark,)


def _few(count: int, value: Any) -> Any:
    """Return ``value``. Refuses more than ``count`` entries before any of them is validated."""
    if isinstance(value, dict | list) and len(value) > count:
        raise PydanticCustomError(
            "too_long", "has {actual} entries; the limit is {count}", {"actual": len(value), "count": count}
        )
    return value


def result_type(annotation: Any) -> Any:
    """The type of a result's document. Raises ``TypeError`` if there is none."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return result_type(arguments[0] | None if OrNone() in arguments else arguments[0])
    if annotation in _PLAIN or origin is Literal:
        return annotation
    if annotation in _WRITTEN:
        return _WRITTEN[annotation]
    if origin in (Union, types.UnionType):
        return Union[tuple(result_type(one) for one in arguments)]  # noqa: UP007 - made at run time
    if origin in (Sequence, list, set, frozenset) or (origin is tuple and arguments[1:] == (...,)):
        return list[result_type(arguments[0])]  # type: ignore[misc]
    if origin is tuple:
        return list[Union[tuple(result_type(one) for one in arguments)]]  # type: ignore[misc] # noqa: UP007
    if origin in (Mapping, dict):
        return dict[str, result_type(arguments[1])]  # type: ignore[misc]
    if annotation in (Mapping, dict):
        return dict[str, Any]
    if isinstance(annotation, type) and issubclass(annotation, os.PathLike):
        return str
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Literal[tuple(one.value for one in annotation)]
    if is_record(annotation):
        return _document_type(annotation)
    raise TypeError(f"a {annotation} has no document")


@cache
def _document_type(kind: type) -> type[BaseModel]:
    """The same fields as ``document`` writes."""
    hints = get_type_hints(kind, globalns={**names(), **vars(sys.modules[kind.__module__])}, include_extras=True)
    members: dict[str, Any] = {name: (result_type(hints[name]), ...) for name in document_fields(kind)}
    members |= {name: (bool if name == "ok" else str, ...) for name in document_properties(kind)}
    config = ConfigDict(protected_namespaces=())
    return create_model(
        _TITLES.get(kind.__name__, kind.__name__), __config__=config, __doc__=(kind.__doc__ or "").strip(), **members
    )


def names() -> dict[str, Any]:
    """Names that annotations use and that modules may import only for type checkers."""
    public = {name: getattr(casemate, name) for name in dir(casemate)}
    return {**vars(typing), **vars(collections.abc), **public}


def _event_type(name: str, kind: type | None, **more: Any) -> type[BaseModel]:
    hints = get_type_hints(kind, globalns={**names(), **vars(sys.modules[kind.__module__])}) if kind else {}
    members: dict[str, Any] = {one: (result_type(hints[one]), ...) for one in document_fields(kind)} if kind else {}
    number = Field(description="The number of events up to and including this one. Pass it to get later ones.")
    members |= {"cursor": (int, number), "event": (Literal[name], ...), **more}
    return create_model(f"{name.title()}Event", **members)


@cache
def event_type() -> Any:
    """The type of the events in a run's stream."""
    execution = result_type(Execution) | None
    return Union[  # noqa: UP007 - made at run time
        _event_type("output", Output),
        _event_type("display", Display),
        _event_type("result", ResultEvent),
        _event_type("error", ErrorEvent),
        _event_type("approval", None, request=(result_type(ApprovalRequest), ...)),
        _event_type("done", None, execution=(execution, ...), error=(dict[str, Any] | None, ...)),
    ]


_FILLED_IN = ("self", "principal")
_NAMED = re.compile(r"``(\w+)``:\s")  # how a paragraph of a docstring names an argument
_ROLE = re.compile(r":\w+:`([^`]+)`")  # of Sphinx
_ENTRY = re.compile(r"^ {4}(\w+):\s", re.MULTILINE)  # of a section of a docstring in Google style
Call = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation. ``name``: such as "sessions.open". ``summary``: the first paragraph of ``description``.

    ``params``: the model of its arguments, which refuses unknown ones. ``result``: the type of the result's document,
    or of each event if it ``streams``. ``place``: the attribute of :class:`Operations` that has ``method``, or empty
    for :class:`Operations` itself; ``"session"`` for the session in the argument of that name; ``"session.files"`` for
    that session's files. ``sessions``: the arguments that are handles or names of sessions. ``gives``: turns the value
    from ``method`` into the result. ``has_principal``: whether ``method`` takes the caller's principal.
    """

    name: str
    audience: Audience
    approver: bool
    summary: str
    description: str
    params: type[BaseModel]
    result: TypeAdapter[Any]
    method: Callable[..., Any]
    streams: bool
    place: str
    sessions: tuple[str, ...]
    gives: Callable[[Any], Any] | None
    has_principal: bool
    while_draining: bool

    def is_for(self, principal: Principal) -> bool:
        """Whether ``principal`` may call it."""
        if principal.audience is Audience.OPERATOR or self.audience is Audience.AGENT:
            return True
        return self.approver and principal.may_approve

    def params_schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return self.params.model_json_schema()

    def result_schema(self) -> dict[str, Any]:
        """The JSON schema of its result, or of each event."""
        return self.result.json_schema(mode="serialization")


@cache
def catalogue() -> Mapping[str, Operation]:
    """All operations by name, sorted."""
    operations = {}
    parts = {f"sandbox.{name}": type_named(kind) for name, kind in PARTS.items()}
    parts |= {"session": type_named(SESSION), "session.files": SessionFiles}
    for place, owner in {"": Operations, **get_type_hints(Operations), **parts}.items():
        group = "sessions" if place == "session" else place.rpartition(".")[2]
        prefix = f"{group}." if group not in ("", "sandbox") else ""
        for name, method in inspect.getmembers(owner, callable):
            if mark := mark_of(method):
                full = mark.name if "." in mark.name else f"{prefix}{mark.name or name}"
                if full in operations:
                    raise TypeError(f"two methods are the operation {full}")
                operations[full] = _describe(full, method, mark, place)
    return MappingProxyType(dict(sorted(operations.items())))


_OF_SESSION = (given_type(Name), Field(description="The session's handle or name."))


def _describe(name: str, method: Callable[..., Any], mark: Mark, place: str) -> Operation:
    hints = _hints_of(method)
    parameters = inspect.signature(method).parameters
    definition = definition_of(method)
    options = {} if definition is None else _fields_of(definition)
    description, docs = _split_docstring(inspect.getdoc(method) or "")
    fields: dict[str, Any] = {"session": _OF_SESSION} if place.partition(".")[0] == "session" else {}
    for parameter in parameters.values():
        if parameter.name in _FILLED_IN or parameter.name in options:
            continue
        about = docs.get(parameter.name)
        if not about:
            raise TypeError(f"{name}: the docstring does not describe {parameter.name}")
        default = ... if parameter.default is parameter.empty else _plain(parameter.default)
        fields[parameter.name] = (given_type(hints[parameter.name]), Field(default, description=about))
    fields |= options
    streams = inspect.isasyncgenfunction(method)
    title = "".join(part.title() for part in re.split(r"[._]", name))
    return Operation(
        name=name,
        audience=mark.audience,
        approver=mark.approver,
        summary=description.partition("\n\n")[0].replace("\n", " "),
        description=description,
        params=create_model(f"{title}Arguments", __config__=_STRICT, **fields),
        result=TypeAdapter(_given_back((_hints_of(mark.gives) if mark.gives else hints)["return"], streams)),
        method=method,
        streams=streams,
        place=place,
        sessions=tuple(one for one, hint in hints.items() if one != "return" and _has_session(hint)),
        gives=mark.gives,
        has_principal="principal" in parameters,
        while_draining=mark.while_draining,
    )


def _has_session(annotation: Any) -> bool:
    return annotation is Session or any(map(_has_session, get_args(annotation)))


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(function, globalns={**names(), **inspect.unwrap(function).__globals__}, include_extras=True)


def _fields_of(definition: type) -> dict[str, Any]:
    """The options of a method as fields of its model."""
    docs, hints = docs_of(definition), definition.__annotations__
    return {
        name: (given_type(hints[name]), Field(_plain(default), description=docs[name]))
        for name, default in defaults_of(definition).items()
    }


def _given_back(annotation: Any, streams: bool) -> Any:
    """The type of the result's document, or of each event of a stream. A stream of dicts has a run's events."""
    one = get_args(annotation)[0] if streams else annotation
    return event_type() if streams and get_origin(one) is dict else result_type(one)


def _plain(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default


def _split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description without its parameters, and each parameter's description by name."""
    parameters: dict[str, str] = {}
    paragraphs = []
    for paragraph in _ROLE.sub(r"``\1``", text).split("\n\n"):
        section, _, entries = paragraph.partition(":\n")
        if section == "Raises":
            continue
        paragraph = " ".join(paragraph.split()) if section == "Returns" else paragraph  # noqa: PLW2901
        named = _ENTRY.split(entries) if section == "Args" else _NAMED.split(" ".join(paragraph.split()))
        if named[0]:
            paragraphs.append(named[0].strip())
        for name, about in zip(named[1::2], (" ".join(one.split()) for one in named[2::2]), strict=True):
            parameters[name] = about[:1].upper() + about[1:]
    parameters = {name: about.replace("``", "`") for name, about in parameters.items()}
    return "\n\n".join(paragraphs).replace("``", "`"), parameters
