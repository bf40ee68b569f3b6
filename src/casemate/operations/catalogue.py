"""Every operation there is, described by its own method: made once, from signatures and docstrings.

The only place where pydantic is imported for operations, when one is first asked for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model

from casemate.api.sandbox import Sandbox
from casemate.model.operation import Audience, Mark, Principal, mark_of
from casemate.model.options import defaults_of, definition_of, docs_of
from casemate.operations.approvals import Approvals
from casemate.operations.archives import Archives
from casemate.operations.audit import Audit
from casemate.operations.desk import Desk
from casemate.operations.egress import Egress
from casemate.operations.files import Artifacts, Files
from casemate.operations.packages import Packages
from casemate.operations.plans import Plans
from casemate.operations.runs import Runs
from casemate.operations.schemas import event_type, given_type, names, result_type
from casemate.operations.sessions import Sessions
from casemate.operations.tools import Tools
from casemate.operations.vault import Vault

_FILLED_IN = ("self", "principal", "desk")
_NAMED = re.compile(r"``(\w+)``:\s")
Call = Callable[..., Awaitable[Any]]

# Where operations stand: the room's name, as which attribute of a desk it is found, and its class.
_ROOMS: tuple[tuple[str, str, type], ...] = (
    ("", "", Desk),
    ("runs", "runs", Runs),
    ("sessions", "sessions", Sessions),
    ("files", "files", Files),
    ("artifacts", "artifacts", Artifacts),
    ("archives", "archives", Archives),
    ("approvals", "approvals", Approvals),
    ("audit", "audit", Audit),
    ("egress", "egress", Egress),
    ("packages", "packages", Packages),
    ("plans", "plans", Plans),
    ("tools", "tools", Tools),
    ("vault", "vault", Vault),
    ("", "sandbox", Sandbox),
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that can be asked: ``name`` such as "sessions.open"; ``summary``: the first line of ``description``.

    ``params``: the model of its arguments, which refuses unknown ones; ``result``: describes the document that comes
    back, or each event where it ``streams``. ``changes``: False where it only looks. ``room``: the attribute of a desk
    that ``method`` is called on, the desk itself where it is empty; ``wants``: which of its parameters are filled in.
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
    room: str
    wants: frozenset[str]

    def is_for(self, principal: Principal) -> bool:
        """Whether ``principal`` may call it."""
        if principal.audience is Audience.OPERATOR or self.audience is Audience.AGENT:
            return True
        return self.approver and principal.may_approve

    def params_schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return self.params.model_json_schema()

    def result_schema(self) -> dict[str, Any]:
        """The JSON schema of what comes back, or of each event."""
        return self.result.json_schema(mode="serialization")


@cache
def catalogue() -> Mapping[str, Operation]:
    """All operations by their names, in the order of these."""
    found = {}
    for room, attribute, where in _ROOMS:
        for name, method in inspect.getmembers(where, callable):
            if mark := mark_of(method):
                full = f"{room}.{name}" if room else name
                found[full] = _described(full, method, mark, attribute)
    return MappingProxyType(dict(sorted(found.items())))


def _described(name: str, method: Callable[..., Any], mark: Mark, room: str) -> Operation:
    hints = get_type_hints(method, globalns={**names(), **inspect.unwrap(method).__globals__}, include_extras=True)
    parameters = inspect.signature(method).parameters
    definition = definition_of(method)
    options = {} if definition is None else _fields_of(definition)
    description, docs = _documented(inspect.getdoc(method) or "")
    fields: dict[str, Any] = {}
    for parameter in parameters.values():
        if parameter.name in _FILLED_IN or parameter.name in options:
            continue
        about = docs.get(parameter.name)
        if not about:
            raise TypeError(f"{name}: nothing is said about {parameter.name}")
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
        params=create_model(
            f"{title}Arguments", __config__=ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True), **fields
        ),
        result=TypeAdapter(_given_back(hints["return"], streams)),
        method=method,
        streams=streams,
        room=room,
        wants=frozenset(_FILLED_IN[1:]) & parameters.keys(),
    )


def _fields_of(definition: type) -> dict[str, Any]:
    """The options of a method as fields of its model."""
    docs, hints = docs_of(definition), definition.__annotations__
    return {
        name: (given_type(hints[name]), Field(_plain(default), description=docs[name]))
        for name, default in defaults_of(definition).items()
    }


def _given_back(told: Any, streams: bool) -> Any:
    """The type of the documents that come back: of the value, or of each event, which may be a run's."""
    one = get_args(told)[0] if streams else told
    return event_type() if streams and get_origin(one) is dict else result_type(one)


def _plain(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default


def _documented(text: str) -> tuple[str, dict[str, str]]:
    """The description without its parameters, and what is said about each of these."""
    said: dict[str, str] = {}
    kept = []
    for paragraph in text.split("\n\n"):
        pieces = _NAMED.split(" ".join(paragraph.split()))
        if pieces[0]:
            kept.append(pieces[0].strip())
        for name, about in zip(pieces[1::2], pieces[2::2], strict=True):
            said[name] = about.strip()[:1].upper() + about.strip()[1:]
    said = {name: about.replace("``", "`") for name, about in said.items()}
    return "\n\n".join(kept).replace("``", "`"), said
