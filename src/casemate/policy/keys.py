"""The keys of files: their types, bounds and meanings, and the check of a document. Pure.

Annotations here are evaluated at import, for the check reads them: no ``from __future__ import annotations``.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Required, TypedDict, Union, get_args, get_origin, is_typeddict

from casemate.errors import InvalidArgument
from casemate.model.call_options import USUAL_SECONDS, Seconds
from casemate.model.foreign import key_hint, suggest
from casemate.model.kinds import Effect, FilePath, Names, Strength
from casemate.model.limits import LimitOptions, parse_size
from casemate.model.operation import Between, Matches, Most
from casemate.model.options import ConfigNote, Default
from casemate.model.sandbox_options import SandboxOptions
from casemate.policy.document import Path, PolicyDocument
from casemate.policy.host import HostTerms
from casemate.visible import brief

_MUST = "must be "
_IN_FILE = ConfigNote(form="in file")
_Method = Annotated[str, Matches("[A-Z]{1,20}", "method, such as GET")]
_RequestPath = Annotated[str, Matches("/[!-~]{0,999}", "path that begins with /")]


class RequestOptions(TypedDict, total=False):
    """One of ``requests:``: the requests allowed to a host whose requests are read."""

    host: Required[str]
    methods: Annotated[Sequence[_Method], Most(20)]
    path: _RequestPath


class WebOptions(TypedDict, total=False):
    """``web:``: the search services."""

    searxng: Annotated[str, Most(1000)]
    engines: Sequence[Literal["brave", "duckduckgo", "grokipedia", "mojeek", "startpage", "wikipedia", "yahoo"]]


class IsolationOptions(TypedDict):
    """The weakest acceptable wall."""

    at_least: Strength


class FileOptions(TypedDict, total=False):
    """Options of a file that a sandbox does not have, or has in another form."""

    policy: Annotated[str, Default(None), ConfigNote("what this section says", form="path")]
    """A file with the policy, which replaces the keys of this section."""
    denied_domains: Annotated[Names, Default(None), _IN_FILE]
    """Hosts that programs may never reach. This takes precedence over all other keys."""
    requests: Annotated[Sequence[RequestOptions], Most(1000), Default(None), _IN_FILE]
    """The requests allowed to hosts whose requests are read."""
    web: Annotated[WebOptions, Default(None), _IN_FILE]
    """The services for web searches."""
    host: Annotated[HostTerms, Default(None), _IN_FILE]
    """Commands and files of this machine that agents may request."""
    previews: Annotated[bool, Default(None), ConfigNote("true", form="in file")]
    """False disables previews of servers in sessions."""
    rules: Annotated[Sequence[Mapping[str, Any]], Most(2000), Default(None), _IN_FILE]
    """What is allowed, denied, or asked about."""
    defaults: Annotated[
        Mapping[str, Effect], Default(None), ConfigNote("as docs/how-to/policy.md says", form="in file")
    ]
    """The effect for a kind of request if no rule covers it."""
    timeout: Annotated[Seconds, Default(USUAL_SECONDS)]
    """Seconds that a program may take in `run` and `wrap` without an option; elsewhere `limits.wall` applies."""
    vault: Annotated[
        str, Default(None), ConfigNote("user on the command line, memory in a program of yours", form="path")
    ]
    """Where secrets are stored: user (as in casemate vault), memory (variables only), or a file."""


# The options about what crosses the wall, in display order. A policy has no other options of a sandbox.
POLICY_NAMES = (
    "network", "allowed_domains", "denied_domains", "allow_local", "requests", "web", "intercept", "trust", "workspace",
    "workspace_mode", "allow_read", "isolation", "host", "previews", "rules", "defaults",
)  # fmt: skip
SANDBOX_NAMES = tuple(
    name
    for name in SandboxOptions.__annotations__
    if name not in (*POLICY_NAMES, "policy", "limits", "approve", "vault")
)
_KINDS: Mapping[str, Any] = {**SandboxOptions.__annotations__, **FileOptions.__annotations__}
POLICY_KINDS: Mapping[str, Any] = {
    **{name: _KINDS[name] for name in POLICY_NAMES}, "isolation": str | IsolationOptions, "limits": LimitOptions,
}  # fmt: skip
SANDBOX_KINDS: Mapping[str, Any] = {
    **POLICY_KINDS,
    **{name: _KINDS[name] for name in SANDBOX_NAMES},
    "tools": FilePath | Mapping[str, Mapping[str, Any]],
}
MAY_BE_SECRET = ("package_indexes", "audit_anchors", "tools")  # may hold passwords, so not in messages
_ON_DISK = get_args(FilePath)[1]  # never in a document


class Problem(NamedTuple):
    path: Path
    value: Any
    text: str
    known: tuple[str, ...] = ()  # the allowed keys, if the key is unknown

    def __str__(self) -> str:
        is_shown = not self.known and self.value is not None and self.path[0] not in MAY_BE_SECRET
        return f"{brief(self.value)} {self.text}" if is_shown else self.text


def check_document(document: PolicyDocument, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Check ``document`` against the keys ``kinds`` and return its values. Raises ``InvalidArgument`` with file, line,
    key and remedy: for all unknown keys, else for the first wrong value."""
    problems = list(problems_in_section(kinds, (), document.values))
    unknown = [one for one in problems if one.known]
    for one in unknown:
        if one.path[0] in SANDBOX_KINDS and one.path[0] not in kinds:
            raise InvalidArgument(
                "policy",
                f"{document.where(one.path)}: {one.path[0]}: is an option of a sandbox, not of a policy",
                remediation="Omit it, or use the file as configuration (CASEMATE_CONFIG).",
            )
    if problems:
        told = (f"{document.where(one.path)}: {'.'.join(map(str, one.path))}: {one}" for one in unknown or problems[:1])
        raise InvalidArgument("policy", "\n".join(told))
    return {name: value for name, value in document.values.items() if value is not None}


def bare(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type in an annotation, and its markers."""
    marks: list[Any] = []
    while get_origin(annotation) in (Annotated, Required):
        annotation, *more = get_args(annotation)
        marks += more
    return annotation, tuple(marks)


def problems_in_section(
    kinds: Mapping[str, Any], needed: Iterable[str], value: Any, path: Path = ()
) -> Iterator[Problem]:
    """Yield the problems of ``value`` at ``path``, which must be a mapping with the keys ``kinds``."""
    if not isinstance(value, Mapping):
        yield Problem(path, value, "must be a mapping of keys to values")
        return
    for name, one in value.items():
        if name not in kinds:
            yield Problem((*path, name), one, _unknown(name, kinds), tuple(kinds))
        elif isinstance(one, str) and (not one or "\0" in one):
            problem = "holds a NUL character" if one else "is empty; give a value, or omit it"
            yield Problem((*path, name), one, problem)
        elif one is not None:
            yield from _problems_in(kinds[name], one, (*path, name))
    yield from (Problem((*path, name), None, "is missing") for name in needed if value.get(name) is None)


def _problems_in(annotation: Any, value: Any, path: Path) -> Iterator[Problem]:
    kind, marks = bare(annotation)
    if get_origin(kind) in (Union, UnionType):
        tried = [list(_problems_in(one, value, path)) for one in get_args(kind) if one not in (NoneType, _ON_DISK)]
        problems = [] if [] in tried else max(tried, key=lambda found: len(found[0].path))
        if problems and problems[0].path == path:
            texts = [found[0].text for found in tried]
            types = _MUST + " or ".join(dict.fromkeys(text.removeprefix(_MUST) for text in texts))
            problems = [Problem(path, value, next((text for text in texts if not text.startswith(_MUST)), types))]
    else:
        problems = list(_problems_of_type(kind, value, path))
    if not problems and (text := _beyond(marks, value)):
        problems = [Problem(path, value, text)]
    yield from problems


def _unknown(name: object, kinds: Mapping[str, Any]) -> str:
    below = [f"{outer}.{inner}" for outer, kind in kinds.items() for inner in _section(bare(kind)[0])[0]]
    likely = key_hint(str(name), [*kinds, *below])
    stop = "" if likely.endswith("?") else ";"
    return f"is not a known key{likely}{stop} the keys here are {', '.join(kinds)}"


def _section(kind: Any) -> tuple[Mapping[str, Any], Iterable[str]]:
    """Return the keys of a mapping type and those that are required; none for other types."""
    if kind is LimitOptions:  # `Limits` checks the values
        return dict.fromkeys(kind.__annotations__, Any), ()
    if is_typeddict(kind):
        return kind.__annotations__, kind.__required_keys__
    if not is_dataclass(kind):
        return {}, ()
    keys = [one for one in fields(kind) if one.name != "where"]
    needed = (one.name for one in keys if one.default is MISSING and get_origin(one.type) is not Annotated)
    return {one.name: one.type for one in keys}, needed


def _problems_of_type(kind: Any, value: Any, path: Path) -> Iterator[Problem]:
    origin, arguments, (keys, needed) = get_origin(kind) or kind, get_args(kind), _section(kind)
    if keys:
        yield from problems_in_section(keys, needed, value, path)
    elif origin in (Sequence, tuple):
        if not isinstance(value, list | tuple | set | frozenset):
            yield Problem(path, value, "must be a list")
            return
        for place, one in enumerate(value):
            yield from _problems_in(arguments[0], one, (*path, place))
    elif origin is Mapping:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            yield Problem(path, value, "must be a mapping of names to values")
            return
        for name, one in value.items():
            yield from _problems_in(arguments[1], one, (*path, name))
    elif origin is Literal:
        if value not in arguments:
            likely = suggest(value, arguments) if isinstance(value, str) else ""
            yield Problem(path, value, f"is not known{likely or ';'} choose one of {', '.join(arguments)}")
    elif kind in _SIMPLE and (text := _SIMPLE[kind](value)):
        yield Problem(path, value, text)


def _number(value: Any) -> str:
    is_one = isinstance(value, int | float) and not isinstance(value, bool) and -math.inf < value < math.inf
    return "" if is_one else "must be a number"


_SIMPLE: Mapping[Any, Callable[[Any], str]] = {
    str: lambda value: "" if isinstance(value, str) else "must be a text",
    float: _number,
    int: lambda value: "" if type(value) is int else "must be an integer",
    bool: lambda value: "" if type(value) is bool else "must be true or false",
}


def _beyond(marks: Sequence[Any], value: Any) -> str:
    """Return which of its bounds a value violates; empty if none."""
    for mark in marks:
        match mark:
            case Between(low, high) if not low <= value <= high:
                return f"is out of range; give {low:.10g} to {high:.10g}"
            case Most(number) if len(value) > number:
                return f"is too long: more than {number}"
            case Matches(pattern, what) if not re.fullmatch(pattern, value):
                return f"must be a {what}"
            case ConfigNote(form="size"):
                try:
                    parse_size(value)
                except ValueError:
                    return "is not a size; write a number of bytes or e.g. '512MiB'"
    return ""
