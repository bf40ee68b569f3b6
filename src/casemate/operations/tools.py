"""``tools``: MCP servers, whose tools programs call as functions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal
from weakref import WeakValueDictionary

from casemate.api.options import Name, Seconds
from casemate.approvals.requester import Origin
from casemate.errors import Denied
from casemate.model.approval import Question
from casemate.model.caller import called_by
from casemate.model.operation import Audience, Most, Principal, operation
from casemate.tools.tools import ToolSummary

if TYPE_CHECKING:
    from casemate.operations.desk import Desk

Definition = Annotated[Mapping[str, Any], Most(100)]
Words = Annotated[str, Most(2000)]
_MOST_ASKED_AT_ONCE = 16  # servers that one account waits for; its others are asked for when these are answered


class Tools:
    """The servers of the desk's sandbox."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by account

    @operation()
    async def add(self, name: Name, definition: Definition) -> None:
        """Add a server, which is started when it is first needed. ``name``: what programs call it. ``definition``: as
        in other programs' "mcpServers": command, args and env, or url and headers."""
        await self._desk.sandbox.tools.add(name, definition)

    @operation(audience=Audience.AGENT)
    async def register(self, name: Name, definition: Definition, *, principal: Principal) -> list[ToolSummary]:
        """Ask for a server to be added: somebody has to allow exactly that. The answer is its tools.

        ``name``: what programs call it. ``definition``: command, args and env, or url and headers; it gets none of the
        user's variables, secrets and files.
        """
        from casemate.tools.calls import Refused, check_registration

        try:
            shown = await asyncio.to_thread(check_registration, name, definition)
        except Refused as refused:
            raise Denied(f"the server {name!r} cannot be added: {refused}") from None
        turn = self._turns.setdefault(principal.payer, asyncio.Semaphore(_MOST_ASKED_AT_ONCE))
        async with turn:
            await self._ask_for(name, shown, principal)
        await self._desk.sandbox.tools.add(name, shown)
        return [one for one in await self._desk.sandbox.tools.list() if one.server == name]

    async def _ask_for(self, name: str, shown: dict[str, Any], principal: Principal) -> None:
        """Raises ``Denied``."""
        with called_by(principal.name):
            approvals = self._desk.sandbox.approvals
            of = Origin(self._desk.sandbox.namespace, None, os.urandom(16).hex())
            asker = approvals.requester(of, None)
            try:
                question = Question("server", f"add the MCP server {name}", shown, server=name)
                verdict = await asyncio.wrap_future(asker.decide(question))
            finally:
                await asker.end()
        if not verdict.allow:
            raise Denied(f"the server {name!r} was not added: {verdict.reason or 'it was asked for and not approved'}")

    @operation()
    async def remove(self, name: Name) -> None:
        """Forget a server, and end what runs of it. ``name``: the server's."""
        await self._desk.sandbox.tools.remove(name)

    @operation()
    async def reset(self, name: Name | None = None) -> None:
        """End a server, which is started anew when it is next needed. ``name``: the server's; nothing for all."""
        await self._desk.sandbox.tools.reset(name)

    @operation(audience=Audience.AGENT)
    async def list(self) -> list[ToolSummary]:
        """Every tool of every server; "problems" says why others are not there."""
        return await self._desk.sandbox.tools.list()

    @operation(audience=Audience.AGENT)
    async def problems(self) -> Mapping[str, str]:
        """Why servers, and single tools, are not there."""
        return await self._desk.sandbox.tools.problems()

    @operation(audience=Audience.AGENT)
    async def search(self, query: Words, *, detail: Literal["names", "brief", "full"] = "brief") -> str:
        """The tools that fit some words best, as a text. ``query``: the words. ``detail``: "names" alone, a line each
        ("brief"), or all about them."""
        return await self._desk.sandbox.tools.search(query, detail=detail)

    @operation(audience=Audience.AGENT)
    async def describe(self, server: Name, tool: Name) -> str:
        """All that a program needs to know in order to call a tool, as a text. ``server``: its server's name. ``tool``:
        its own."""
        return await self._desk.sandbox.tools.describe(server, tool)

    @operation()
    async def call(
        self,
        server: Name,
        tool: Name,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - the server has it, too
    ) -> dict[str, Any]:
        """Call a tool; nobody is asked. The answer has "content", "is_error", and "structured" where there is any.

        ``server``: the name of its server. ``tool``: its own. ``arguments``: as its schema says. ``timeout``: seconds
        that it may take.
        """
        answer = await self._desk.sandbox.tools.call(server, tool, arguments, timeout=timeout)
        structured = {"structured": answer.structured} if answer.has_structured else {}
        return {"content": answer.content, "is_error": answer.is_error, **structured}
