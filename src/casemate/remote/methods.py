"""Methods of a sandbox as operations of a service: their arguments as JSON, and their results."""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, get_type_hints

from casemate.errors import InvalidArgument
from casemate.model.foreign import no_attribute
from casemate.model.limits import Limits
from casemate.model.operation import mark_of
from casemate.model.options import complete
from casemate.model.shown import ShownSession
from casemate.operations.documents import revive, type_named
from casemate.remote.client import RemoteOperations

if TYPE_CHECKING:
    from casemate.model.kinds import Content

Results = Mapping[str, Callable[[Any, RemoteOperations], Any]]
_INLINE = 128 * 1024  # bytes of a file that travel with the arguments; larger ones are uploaded
_INLINE_ALL = 1024 * 1024  # of all files together
_TEXTS = ("code", "stdin")
_LISTS = ("allowed_domains", "arguments", "packages", "paths", "secrets")


class RemotePart:
    """A part of a sandbox in a service. It has the methods of a class of this process that are operations: they take
    the same arguments and give the same results. They raise what the service says, and ``Unavailable`` where it is
    gone.

    A method that is marked as an operation needs nothing here. A subclass defines what is different.

    Attributes:
        also: Further methods that are operations of their own names.
        results: What makes the result of a method from the service's answer. For others its annotation says how.
    """

    also: ClassVar[tuple[str, ...]] = ()
    results: ClassVar[Results] = MappingProxyType({})

    def __init__(self, remote: RemoteOperations, local: str, group: str = "", **bound: Any) -> None:
        """``local``: the class, as ``module:name``. ``group``: the beginning of its operations' names, such as
        "vault.". ``bound``: arguments that all of them have."""
        self._remote, self._local, self._group, self._bound = remote, local, group, bound

    if not TYPE_CHECKING:  # a type checker knows it as the class of this process

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            method = getattr(type_named(self._local), name, None)
            mark = mark_of(method)
            if mark is None and name not in self.also:
                owner = type(self).__name__ if type(self) is not RemotePart else self._local.rpartition(":")[2]
                raise no_attribute(owner, name, dir(self))
            operation = self._group + (mark.name if mark and mark.name else name)
            return MethodType(_make_call(method, operation, self.results.get(name)), self)

    def __dir__(self) -> list[str]:
        local = type_named(self._local)
        return [*super().__dir__(), *self.also, *(name for name in dir(local) if mark_of(getattr(local, name)))]


def _make_call(method: Callable[..., Any], operation: str, made: Callable[..., Any] | None) -> Callable[..., Any]:
    """Make a part's ``method``, which calls an operation. If it is not async, it blocks for a round trip."""
    signature = inspect.signature(method)

    async def ask(part: RemotePart, arguments: Any, named: Any, remote: RemoteOperations) -> Any:
        given = signature.bind(part, *arguments, **named).arguments
        del given["self"]
        answer = await remote(operation, {**part._bound, **_json_values(given)})
        return revive(result_type(method), answer) if made is None else made(answer, part._remote)

    @functools.wraps(method)
    async def call(self: RemotePart, /, *arguments: Any, **named: Any) -> Any:
        return await ask(self, arguments, named, self._remote)

    @functools.wraps(method)
    def call_blocking(self: RemotePart, /, *arguments: Any, **named: Any) -> Any:
        return self._remote.block(functools.partial(ask, self, arguments, named))

    return call if inspect.iscoroutinefunction(method) else call_blocking


@functools.cache
def result_type(method: Callable[..., Any]) -> Any:
    """What a method of the local API gives, from its annotation, which may name anything that is public."""
    annotation: str = method.__annotations__["return"]
    public = type_named("casemate:__all__")
    known = {name: type_named(f"casemate:{name}") for name in re.findall(r"\w+", annotation) if name in public}
    holder: Any = type("Annotated", (), {"__annotations__": {"return": annotation}})
    return get_type_hints(holder, {**known, **method.__globals__})["return"]


async def call_with_options(
    remote: RemoteOperations, operation: str, call: str, definition: type, options: Mapping[str, Any], **given: Any
) -> Any:
    """The answer to ``operation`` with the options of ``call``, their defaults, and what else was ``given``. Files are
    uploaded before. An option that is None was not given, but for ``timeout``. Raises ``InvalidArgument``, and what the
    service says."""
    values = complete(definition, options, call)
    sent = {name: value for name, value in values.items() if value is not None or name == "timeout"}
    if isinstance(sent.get("files"), Mapping):
        sent["files"] = await _upload_files(remote, sent["files"])
    return await remote(operation, _json_values({**given, **sent}))


def _json_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their names, as JSON values. Raises ``InvalidArgument``."""
    return {name: _json_value(name, value) for name, value in arguments.items()}


def _json_value(name: str, value: Any) -> Any:
    if isinstance(value, ShownSession):
        return value.id
    if isinstance(value, Limits):
        return limits_of(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):
        return [value] if name == "packages" else value
    if name in _TEXTS and isinstance(value, bytes | bytearray | memoryview):
        return _text_of(name, bytes(value))
    return list(value) if name in _LISTS and isinstance(value, Iterable) else value


def limits_of(limits: Limits) -> dict[str, Any]:
    """The limits that were given, as a document."""
    return {name: getattr(limits, name) for name in sorted(limits.given)}


def _text_of(argument: str, value: bytes) -> str:
    """Programs and standard input travel as text. Raises ``InvalidArgument`` for other bytes."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(
            argument, "a service takes text or UTF-8 only", remediation="Give other bytes as a file (files=...)."
        ) from None


async def _upload_files(remote: RemoteOperations, files: Mapping[str, Content]) -> dict[str, Any]:
    """Files as the service takes them: small ones as they are, others uploaded first. Raises ``InvalidArgument``."""
    space, sent = _INLINE_ALL, dict[str, Any]()
    for name, content in files.items():
        data = await asyncio.to_thread(_bytes_of, name, content)
        if len(data) > min(_INLINE, space):
            sent[name] = {"handle": await remote.upload(data)}
        else:
            space -= len(data)
            sent[name] = {"text": content} if isinstance(content, str) else {"base64": base64.b64encode(data).decode()}
    return sent


def _bytes_of(name: str, content: Content) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    if not isinstance(content, os.PathLike):
        raise InvalidArgument("files", f"{name!r} is neither bytes, str nor a path")
    try:
        return Path(content).read_bytes()
    except OSError as error:
        raise InvalidArgument("files", f"{name!r}: {os.fspath(content)!r}: {error.strerror}") from None
