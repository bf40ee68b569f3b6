"""One service as all parts of a connected sandbox use it: awaited, or blocking."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from casemate.event_loop import run_in_loop
from casemate.model.foreign import no_attribute
from casemate.model.shown import ShownSession
from casemate.operations.documents import revive, type_named
from casemate.remote.client import RemoteOperations

if TYPE_CHECKING:
    from casemate.model.execution import Execution

R = TypeVar("R")


class ServiceConnection:
    """``remote``: the connection of the event loop that awaits."""

    def __init__(self, remote: RemoteOperations) -> None:
        self.remote = remote

    async def call(self, operation: str, **arguments: Any) -> Any:
        """The result of an operation; None is what nobody gave. Raises what the service says."""
        return await self.remote(operation, {name: value for name, value in arguments.items() if value is not None})

    async def read(self, kind: str, operation: str, **arguments: Any) -> Any:
        """The result of an operation as the type at ``kind``, ``module:name``. Raises as :meth:`call`."""
        return revive(type_named(kind), await self.call(operation, **arguments))

    def block(self, action: Callable[[RemoteOperations], Awaitable[R]]) -> R:
        """What ``action`` gives, for methods that are not awaited: it has a thread, an event loop and a connection of
        its own. Raises as it does."""

        async def act() -> R:
            remote = self.remote.duplicate()
            try:
                return await action(remote)
            finally:
                await remote.close()

        with ThreadPoolExecutor(1) as threads:
            return threads.submit(run_in_loop, act()).result()

    def call_blocking(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """The result of an operation. Raises what the service says, and ``Unavailable``."""
        return self.block(lambda remote: remote(operation, arguments))

    def sign(self, execution: Execution) -> Any:
        """What came of a run, signed by the service."""
        return self.call_blocking("evidence.statement", {"run": execution.id})

    def content(self, run: str, name: str) -> RemoteContent:
        """The content of a file that a run has left."""
        return RemoteContent(self, ("artifacts", run, name))


@dataclass(frozen=True, slots=True)
class RemoteContent:
    """Bytes that the service keeps, fetched when they are wanted. Implements
    :class:`casemate.model.execution.Content`; blocks, and raises what the service says."""

    service: ServiceConnection
    parts: tuple[str, ...]

    def read_bytes(self) -> bytes:
        """All of it."""
        return self.service.block(lambda remote: remote.download(*self.parts))

    def save(self, path: str | PathLike[str]) -> None:
        """Copy it to ``path``, replacing what is there. Raises ``OSError``, too."""
        self.service.block(lambda remote: remote.save(self.parts, Path(path)))


def result_type(method: Callable[..., Any]) -> Any:
    """What a method of the local API gives, from its annotation."""
    returned = {"return": method.__annotations__["return"]}
    holder: Any = type("Annotated", (), {"__annotations__": returned})
    return get_type_hints(holder, method.__globals__)["return"]


class RemotePart:
    """A part whose methods have the arguments and results of those of ``local_class``, and are operations of the same
    name in ``group``, which have ``bound`` as arguments, too. They raise what the service says, and ``Unavailable``
    where it is gone."""

    local_class: str  # module:name
    operations: frozenset[str]
    group = ""  # the name of the class unless given
    bound: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, service: ServiceConnection) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        if name not in self.operations:
            raise no_attribute(type(self).__name__, name, [*self.operations, *dir(type(self))])
        operation = f"{self.group or type(self).__name__.lower()}.{name}"
        return self._proxy(operation, getattr(type_named(self.local_class), name))

    def _proxy(self, operation: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            values = signature.bind(None, *arguments, **named).arguments
            values.pop("self")
            sent = {**self.bound, **{name: json_argument(name, value) for name, value in values.items()}}
            return revive(result_type(method), await self._service.remote(operation, sent))

        signature = inspect.signature(method)
        call.__name__, call.__doc__ = method.__name__, method.__doc__
        return call


def json_argument(name: str, value: Any) -> Any:
    """An argument as JSON: a session by its id, packages as a list, a mapping as a dict."""
    if isinstance(value, ShownSession):
        return value.id
    if name == "packages":
        return [value] if isinstance(value, str) else list(value)
    return dict(value) if isinstance(value, Mapping) else value
