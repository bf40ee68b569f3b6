"""Operations called by name with JSON values, here or in a service. Surfaces are written against this."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, get_args

from casemate.errors import Denied, InvalidArgument, NotFound, Unavailable
from casemate.model.foreign import key_hint, suggest
from casemate.model.limits import Limits
from casemate.model.operation import called_by
from casemate.model.options import unknown_arguments
from casemate.operations.documents import Document, document

if TYPE_CHECKING:
    from casemate.model.operation import Principal
    from casemate.operations.catalogue import Operation
    from casemate.operations.operations import Operations

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_PLAIN = (str, float, int, bool, type(None))
_MOST_WORDS = 500  # characters of the message about an argument


class Invoke(Protocol):
    """Takes and returns JSON values. Raises ``casemate.CasemateError``."""

    async def __call__(self, operation: str, arguments: Mapping[str, Any] = _NOTHING) -> Any:
        """Call an operation by name, and return its result."""

    def stream(
        self, operation: str, arguments: Mapping[str, Any] = _NOTHING, *, cursor: int | None = None
    ) -> AsyncGenerator[Document]:
        """Stream the events of an operation. Each has a ``cursor``; pass it here to continue after that event."""


def local(operations: Operations, principal: Principal) -> Invoke:
    """The operations, called as ``principal`` of the same namespace. Raises ``Denied``."""
    if principal.namespace != operations.sandbox.namespace:
        raise InvalidArgument("namespace", f"{principal.name!r} is of another namespace than these operations")
    return _Local(operations, principal)


class _Local:
    def __init__(self, operations: Operations, principal: Principal) -> None:
        self._operations = operations
        self._principal = principal

    async def __call__(self, operation: str, arguments: Mapping[str, Any] = _NOTHING) -> Any:
        target = self._admit(operation)
        if target.streams:
            raise InvalidArgument("operation", f"{operation} streams events; use stream")
        with contextlib.ExitStack() as uploads:
            values = self._read(target, arguments, uploads)
            with called_by(self._principal):
                value = self._method(target, values)(**values)
                if inspect.isawaitable(value):
                    value = await value
        try:
            return document(value if target.gives is None else target.gives(value))
        except RecursionError:
            raise Unavailable(f"the result of {operation} is nested too deep for JSON") from None

    async def stream(
        self, operation: str, arguments: Mapping[str, Any] = _NOTHING, *, cursor: int | None = None
    ) -> AsyncGenerator[Document]:
        target = self._admit(operation)
        if not target.streams:
            raise InvalidArgument("operation", f"{operation} does not stream events; call it")
        with contextlib.ExitStack() as uploads:
            values = self._read(target, arguments if cursor is None else {**arguments, "cursor": cursor}, uploads)
            async with contextlib.aclosing(self._method(target, values)(**values)) as events:
                async for event in events:
                    yield event if isinstance(event, dict) else document(event)

    def _admit(self, name: str) -> Operation:
        from casemate.operations.catalogue import catalogue

        target = catalogue().get(name)
        if target is None:
            raise no_operation(name)
        if not target.is_for(self._principal):
            raise Denied(
                f"{name} is only for operators, and {self._principal.name!r} is an agent",
                remediation="Call it from the user's command line, or with an operator's token.",
            )
        return target

    def _method(self, target: Operation, values: dict[str, Any]) -> Callable[..., Any]:
        """The method to call with ``values``, in which it replaces sessions by their ids. Raises ``NotFound``."""
        for name in target.sessions:
            if values.get(name) is not None:
                values[name] = self._operations.sessions.find(values[name], self._principal).session.id
        owner: Any = self._operations
        if target.place.partition(".")[0] == "session":
            owner = self._operations.sessions.find(values.pop("session"), self._principal)
        method: Callable[..., Any] = attrgetter(f"{target.place}.{target.method.__name__}".lstrip("."))(owner)
        return method

    def _read(self, target: Operation, arguments: Mapping[str, Any], uploads: contextlib.ExitStack) -> dict[str, Any]:
        from pydantic import ValidationError

        try:
            model = target.params.model_validate(dict(arguments))
        except ValidationError as error:
            raise _wrong(error, target) from None
        values = {name: self._revive(getattr(model, name), uploads) for name in model.model_fields_set}
        if target.has_principal:
            values["principal"] = self._principal
        return values

    def _revive(self, value: Any, uploads: contextlib.ExitStack) -> Any:
        """The value that the method takes, for a validated one."""
        if type(value) in _PLAIN:
            return value
        from casemate.operations.catalogue import BinaryFile, LimitValues, TextFile, UploadedFile
        from casemate.operations.files import decode_base64

        match value:
            case LimitValues():
                return Limits(**value.model_dump(exclude_none=True))
            case TextFile():
                return value.text
            case BinaryFile():
                return decode_base64("files", value.base64)
            case UploadedFile():
                return uploads.enter_context(self._operations.uploads.use_upload(value.handle, self._principal))
            case dict():
                return {name: self._revive(one, uploads) for name, one in value.items()}
        return value


def no_operation(name: str) -> NotFound:
    """The error for an unknown operation, with the nearest name."""
    from casemate.operations.catalogue import catalogue

    return NotFound(
        "operation",
        f"there is no operation {name[:100]!r}{suggest(name, catalogue())}",
        remediation="docs/reference/operations.md lists all of them; so does GET /openapi.json of a service.",
    )


def _wrong(error: Any, operation: Operation) -> InvalidArgument:
    """The error for invalid arguments, without their values. Unknown names come first, because one may be a misspelt
    name of a missing argument; else the first problem."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    unknown = [one["loc"][0] for one in errors if one["type"] == "extra_forbidden" and len(one["loc"]) == 1]
    if unknown:
        return unknown_arguments(operation.name, unknown, operation.params.model_fields)
    parts = [(*one["loc"], names) for one in errors if (names := _unknown_part(one, operation)) is not None]
    if parts:
        problems = [f"takes no {name[:100]!r}{key_hint(name, names)}" for _, name, names in parts]
        remedy = f"It takes: {', '.join(parts[0][-1])}."
        return InvalidArgument(parts[0][0], "\n".join(problems), remediation=remedy)
    first = errors[0]
    argument = str(first["loc"][0]) if first["loc"] else "arguments"
    place = ".".join(str(one) for one in first["loc"][1:] if "[" not in str(one))  # not the type that was tried
    words = f"{f'{place}: ' if place else ''}{first['msg']}"
    field = operation.params.model_fields.get(argument)
    about = f"{argument} of {operation.name}: {field.description}" if field else ""
    return InvalidArgument(argument[:100], words[:_MOST_WORDS], remediation=about)


def _unknown_part(error: Mapping[str, Any], operation: Operation) -> list[str] | None:
    """The known parts of an argument, if the problem is an unknown part; else None."""
    if error["type"] != "extra_forbidden" or len(error["loc"]) != 2:
        return None
    kind = operation.params.model_fields[error["loc"][0]].annotation
    models = [one for one in (kind, *get_args(kind)) if hasattr(one, "model_fields")]
    return list(models[0].model_fields) if models else None
