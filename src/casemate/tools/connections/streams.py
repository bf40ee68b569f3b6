"""Between a server and the MCP SDK: malformed tools are taken out of lists before the SDK sees them, a flood is ended,
and the end of the connection is noticed."""

from __future__ import annotations

import contextvars
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from casemate.tools.connections.flood import Flood
from casemate.tools.connections.last_words import LastWords

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, TransportStreams, WriteStream
    from mcp.shared.message import SessionMessage

Judge = Callable[[Any], list[dict[str, Any]]]  # the tools of a page to those that the SDK may see


class Line:
    """One connection's line. ``judge``: takes the tools of each page of tools/list; ``over`` is called when the server
    says no more, and when it says too much."""

    def __init__(self, words: LastWords, over: Callable[[], None]) -> None:
        self.judge: Judge = lambda _tools: []
        self._words = words
        self._over = over
        self._listings: set[object] = set()

    @asynccontextmanager
    async def through(
        self, transport: AbstractAsyncContextManager[TransportStreams]
    ) -> AsyncGenerator[TransportStreams]:
        """``transport``, with this in between."""
        async with transport as (read, write):
            yield Heard(read, self), Told(write, self)

    def asked(self, message: Any) -> None:
        """Something is sent to the server."""
        if getattr(message, "method", "") == "tools/list" and hasattr(message, "id"):
            self._listings.add(message.id)

    def answered(self, message: Any) -> None:
        """Something came from it."""
        from mcp_types import JSONRPCError, JSONRPCResponse

        if isinstance(message, JSONRPCResponse | JSONRPCError):
            was_list = message.id in self._listings
            self._listings.discard(message.id)
            if was_list and isinstance(message, JSONRPCResponse):
                message.result["tools"] = self.judge(message.result.get("tools"))
                if not isinstance(message.result.get("nextCursor", ""), str):
                    del message.result["nextCursor"]

    def ended(self, why: str = "") -> None:
        """It says no more."""
        if why:
            self._words.note(why)
        self._over()


class Heard:
    """What a server says, as a stream of the SDK's."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception], line: Line) -> None:
        self._inner = inner
        self._line = line
        self._flood = Flood(time.monotonic())

    @property
    def last_context(self) -> contextvars.Context | None:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message. Raises ``anyio.EndOfStream`` after the last."""
        import anyio

        try:
            item = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._line.ended()
            raise
        if not isinstance(item, Exception):
            self._line.answered(item.message)
        if not self._flood.takes(time.monotonic()):
            self._line.ended("it says more than anybody can listen to")
            raise anyio.EndOfStream
        return item

    def __aiter__(self) -> Heard:
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


class Told:
    """What is said to a server, as a stream of the SDK's."""

    def __init__(self, inner: WriteStream[SessionMessage], line: Line) -> None:
        self._inner = inner
        self._line = line

    async def send(self, item: SessionMessage, /) -> None:
        """Say it."""
        self._line.asked(item.message)
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
