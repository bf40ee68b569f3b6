"""A filter between a server and the MCP SDK. It removes malformed tools from lists, cuts off a server that sends too
many messages, and notices the end of the connection."""

from __future__ import annotations

import contextvars
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from casemate.tools.connections.answers import ANY_STRUCTURED, STRUCTURED
from casemate.tools.connections.reports import OutputTail

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

Streams = tuple[Any, Any]  # a reader and a writer of messages, as the SDK's transports make them

_AT_ONCE = 10_000.0
_PER_SECOND = 500.0


class MessageBudget:
    """A token bucket: 500 messages a second, up to 10,000."""

    def __init__(self, now: float) -> None:
        self._left = _AT_ONCE
        self._then = now

    def spend(self, now: float, cost: float = 1.0) -> bool:
        """Take ``cost`` at ``now`` (monotonic seconds). False if the budget is exceeded."""
        self._left = min(_AT_ONCE, self._left + (now - self._then) * _PER_SECOND) - cost
        self._then = now
        return self._left >= 0


Judge = Callable[[Any], list[dict[str, Any]]]  # maps the tools of a page to those that the SDK may see


class MessageFilter:
    """Filters all messages of one connection. ``judge`` gets the tools of each page of tools/list."""

    def __init__(self, words: OutputTail, on_end: Callable[[], None]) -> None:
        """``on_end`` is called when the server's messages end or are too many."""
        self.judge: Judge = lambda _tools: []
        self.budget = MessageBudget(time.monotonic())
        self._words = words
        self._on_end = on_end
        self._listings: set[object] = set()

    @asynccontextmanager
    async def wrap(self, transport: AbstractAsyncContextManager[Streams]) -> AsyncGenerator[Streams]:
        """Open ``transport`` with this filter."""
        async with transport as (read, write):
            yield CheckedReader(read, self), CheckedWriter(write, self)

    def note_request(self, message: Any) -> None:
        """Note a message to the server."""
        if getattr(message, "method", "") == "tools/list" and hasattr(message, "id"):
            self._listings.add(message.id)

    def check_answer(self, message: Any) -> None:
        """Filter a message from the server."""
        from mcp_types import JSONRPCError, JSONRPCResponse

        if isinstance(message, JSONRPCResponse | JSONRPCError):
            was_list = message.id in self._listings
            self._listings.discard(message.id)
            if was_list and isinstance(message, JSONRPCResponse):
                message.result["tools"] = self.judge(message.result.get("tools"))
                if not isinstance(message.result.get("nextCursor", ""), str):
                    del message.result["nextCursor"]
            if isinstance(message, JSONRPCResponse) and not isinstance(message.result.get(STRUCTURED, {}), dict):
                # Before MCP 2026-07-28 it was an object, and the SDK accepts only that from an older server.
                message.result[ANY_STRUCTURED] = message.result.pop(STRUCTURED)

    def end(self, why: str = "") -> None:
        """Note the end of the server's messages."""
        if why:
            self._words.note(why)
        self._on_end()


class _CheckedStream:
    def __init__(self, inner: Any, messages: MessageFilter) -> None:
        self._inner = inner
        self._filter = messages

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class CheckedReader(_CheckedStream):
    """A server's messages as a stream for the SDK."""

    @property
    def last_context(self) -> contextvars.Context | None:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message. Raises ``anyio.EndOfStream`` after the last."""
        import anyio

        try:
            item: SessionMessage | Exception = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._filter.end()
            raise
        if not isinstance(item, Exception):
            self._filter.check_answer(item.message)
        if not self._filter.budget.spend(time.monotonic()):
            self._filter.end("it sends too many messages")
            raise anyio.EndOfStream
        return item

    def __aiter__(self) -> CheckedReader:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        import anyio

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class CheckedWriter(_CheckedStream):
    """Messages to a server as a stream for the SDK."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        self._filter.note_request(item.message)
        await self._inner.send(item)
