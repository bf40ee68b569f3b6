"""Between a server and the MCP SDK: malformed tools are taken out of lists before the SDK sees them, a server that
sends too many messages is cut off, and the end of the connection is noticed."""

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

Streams = tuple[Any, Any]  # a reader and a writer of messages, as the SDK's transports give them

_AT_ONCE = 10_000.0
_PER_SECOND = 500.0


class MessageBudget:
    """A bucket that fills by 500 in each second, up to 10,000; a server that empties it says too much."""

    def __init__(self, now: float) -> None:
        self._left = _AT_ONCE
        self._then = now

    def spend(self, now: float, cost: float = 1.0) -> bool:
        """Whether this much more is bearable at ``now`` (seconds of a clock that only goes on)."""
        self._left = min(_AT_ONCE, self._left + (now - self._then) * _PER_SECOND) - cost
        self._then = now
        return self._left >= 0


Judge = Callable[[Any], list[dict[str, Any]]]  # the tools of a page to those that the SDK may see


class MessageFilter:
    """Sees all messages of one connection. ``judge``: takes the tools of each page of tools/list; ``on_end`` is called
    when the server says no more, and when it says too much."""

    def __init__(self, words: OutputTail, on_end: Callable[[], None]) -> None:
        self.judge: Judge = lambda _tools: []
        self._words = words
        self._on_end = on_end
        self._listings: set[object] = set()

    @asynccontextmanager
    async def wrap(self, transport: AbstractAsyncContextManager[Streams]) -> AsyncGenerator[Streams]:
        """``transport``, with this in between."""
        async with transport as (read, write):
            yield CheckedReader(read, self), CheckedWriter(write, self)

    def note_request(self, message: Any) -> None:
        """Something is sent to the server."""
        if getattr(message, "method", "") == "tools/list" and hasattr(message, "id"):
            self._listings.add(message.id)

    def check_answer(self, message: Any) -> None:
        """Something came from it."""
        from mcp_types import JSONRPCError, JSONRPCResponse

        if isinstance(message, JSONRPCResponse | JSONRPCError):
            was_list = message.id in self._listings
            self._listings.discard(message.id)
            if was_list and isinstance(message, JSONRPCResponse):
                message.result["tools"] = self.judge(message.result.get("tools"))
                if not isinstance(message.result.get("nextCursor", ""), str):
                    del message.result["nextCursor"]
            if isinstance(message, JSONRPCResponse) and not isinstance(message.result.get(STRUCTURED, {}), dict):
                # Before MCP 2026-07-28 it was an object, and the SDK takes no other from a server of that time.
                message.result[ANY_STRUCTURED] = message.result.pop(STRUCTURED)

    def end(self, why: str = "") -> None:
        """It says no more."""
        if why:
            self._words.note(why)
        self._on_end()


class CheckedReader:
    """What a server says, as a stream of the SDK's."""

    def __init__(self, inner: Any, messages: MessageFilter) -> None:
        self._inner = inner
        self._filter = messages
        self._budget = MessageBudget(time.monotonic())

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
        if not self._budget.spend(time.monotonic()):
            self._filter.end("it says more than anybody can listen to")
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

    async def aclose(self) -> None:
        """Listen no more."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class CheckedWriter:
    """What is said to a server, as a stream of the SDK's."""

    def __init__(self, inner: Any, messages: MessageFilter) -> None:
        self._inner = inner
        self._filter = messages

    async def send(self, item: SessionMessage, /) -> None:
        """Say it."""
        self._filter.note_request(item.message)
        await self._inner.send(item)

    async def aclose(self) -> None:
        """Say no more."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
