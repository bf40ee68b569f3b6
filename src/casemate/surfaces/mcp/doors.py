"""The two ways to the operations: within this process, or a running service's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio

from casemate.surfaces.mcp.callers import Invoke

if TYPE_CHECKING:
    from starlette.requests import Request

    from casemate.operations.desk import Desk

PRINCIPAL = "casemate.caller"
"""The key of an ASGI scope under which whoever authenticates a request puts the principal's name."""


class _Doors(ABC):
    """``may_approve``: whether the person at the client may answer what its agent asks for."""

    def __init__(self, may_approve: bool) -> None:
        self._may_approve = may_approve

    def who(self, request: Request | None) -> str:
        """The name of whoever has authenticated; the same for all where nobody has to."""
        return str((request.scope.get(PRINCIPAL) if request is not None else None) or "anyone")

    def person(self, name: str, request: Request | None) -> Invoke | None:  # noqa: ARG002 - the same for all
        """The same agent, as one that may approve what is its own."""
        return self._invoke(name, may_approve=True) if self._may_approve else None

    def agent(self, name: str, request: Request | None) -> Invoke:  # noqa: ARG002 - the same for all
        """The agent itself."""
        return self._invoke(name, may_approve=False)

    @abstractmethod
    def _invoke(self, name: str, *, may_approve: bool) -> Invoke: ...


class LocalDoors(_Doors):
    """Operations of a desk in this process, which is made when it is first needed. ``make`` is called once."""

    def __init__(self, make: Callable[[], Awaitable[Desk]], namespace: str = "default", *, may_approve: bool) -> None:
        super().__init__(may_approve)
        self._make = make
        self._namespace = namespace
        self._desk: Desk | None = None
        self._turn = anyio.Lock()

    async def desk(self) -> Desk:
        """The desk."""
        async with self._turn:
            self._desk = self._desk or await self._make()
        return self._desk

    def _invoke(self, name: str, *, may_approve: bool) -> Invoke:
        async def invoke(operation: str, arguments: Mapping[str, Any] = {}) -> Any:
            from casemate.model.operation import Audience, Principal
            from casemate.operations.invoke import local

            desk = self._desk or await self.desk()
            principal = Principal(name, Audience.AGENT, self._namespace, may_approve, "mcp")
            return await local(desk, principal)(operation, arguments)

        return invoke


class RemoteDoors(_Doors):
    """Operations of a service. ``connect`` gives the way of one agent to it, and whether it is to be one that may
    approve; it is called when that is first needed."""

    def __init__(self, connect: Callable[[str, bool], Awaitable[Invoke]], *, may_approve: bool) -> None:
        super().__init__(may_approve)
        self._connect = connect

    def _invoke(self, name: str, *, may_approve: bool) -> Invoke:
        connected: list[Invoke] = []
        turn = anyio.Lock()

        async def invoke(operation: str, arguments: Mapping[str, Any] = {}) -> Any:
            if not connected:
                async with turn:
                    if not connected:
                        connected.append(await self._connect(name, may_approve))
            return await connected[0](operation, arguments)

        return invoke
