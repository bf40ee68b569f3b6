"""Event streams that a client can resume (MCP 2025-11-25, transports, "Resumability and Redelivery").

A call continues while its stream is broken. Its messages are kept until a minute after its answer.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

RETRY = 1000  # milliseconds after which a client reconnects
KEPT_SECONDS = 60.0
MOST_EVENTS, MOST_BYTES = 1000, 16 << 20  # of one stream; the oldest go first
_MOST_STREAMS, _MOST_IN_ALL = 1000, 64 << 20  # streams of one server, and their bytes


@dataclass(slots=True, eq=False)
class _KeptStream:
    number: int
    events: deque[tuple[int, JSONRPCMessage, int]] = field(default_factory=deque)  # number, message, bytes
    bytes: int = 0
    last: int = 0
    is_answered: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, message: JSONRPCMessage | None) -> str:
        """Add a message, and return the event's id. None takes an id but stores nothing."""
        self.last += 1
        if message is not None:
            self.events.append((self.last, message, size := len(message.model_dump_json())))
            self.bytes += size
            while len(self.events) > MOST_EVENTS or self.bytes > MOST_BYTES:
                self.bytes -= self.events.popleft()[2]
            self.is_answered = isinstance(message, JSONRPCResponse | JSONRPCError)
        self.changed.set()
        self.changed = asyncio.Event()
        return f"{self.number}-{self.last}"


class _SessionStreams(EventStore):
    """The streams of one MCP session. The SDK names them by request numbers, which other sessions also use."""

    def __init__(self, sessions: ResumingSessions) -> None:
        self._sessions = sessions
        self._own: dict[str, _KeptStream] = {}

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        stream = self._own.get(stream_id)
        if stream is None or message is None:  # a request begins, perhaps with a number used before
            stream = self._own[stream_id] = self._sessions.begin(self._own, stream_id)
        event = stream.add(message)
        self._sessions.keep_bounds(stream)
        return event

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        """Send the messages after an event, then new ones until the answer; the SDK would miss some in between."""
        stream, seen = self._sessions.find(last_event_id)
        while stream is not None and stream in self._own.values():
            changed = stream.changed
            for number, message, _ in [one for one in stream.events if one[0] > seen]:
                await send_callback(EventMessage(message, f"{stream.number}-{number}"))
                seen = number
            if stream.is_answered:
                return
            await changed.wait()


class ResumingSessions(StreamableHTTPSessionManager):
    """The SDK's manager, which reads ``event_store`` whenever a session begins."""

    def __init__(self, *given: Any, **terms: Any) -> None:
        self._numbers = itertools.count(1)
        self._streams: dict[_KeptStream, tuple[dict[str, _KeptStream], str]] = {}  # the oldest first
        super().__init__(*given, **terms)

    @property
    def event_store(self) -> EventStore | None:
        """A new store for each session."""
        return _SessionStreams(self)

    @event_store.setter
    def event_store(self, _given: EventStore | None) -> None:
        """Ignore what the SDK sets."""

    def begin(self, own: dict[str, _KeptStream], name: str) -> _KeptStream:
        """Start the stream ``name`` of the session with the streams ``own``."""
        stream = _KeptStream(next(self._numbers))
        self._streams[stream] = own, name
        return stream

    def find(self, event: str) -> tuple[_KeptStream | None, int]:
        """The stream of an event, None if it is not kept, and the event's number in it."""
        found = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", event)
        number, place = map(int, found.groups()) if found else (0, 0)
        return next((one for one in self._streams if one.number == number), None), place

    def keep_bounds(self, stream: _KeptStream) -> None:
        """Forget the stream a minute after its answer, and the oldest if there are too many."""
        if stream.is_answered:
            asyncio.get_running_loop().call_later(KEPT_SECONDS, self._forget, stream)
        while len(self._streams) > _MOST_STREAMS or sum(one.bytes for one in self._streams) > _MOST_IN_ALL:
            self._forget(next(iter(self._streams)))

    def _forget(self, stream: _KeptStream) -> None:
        own, name = self._streams.pop(stream, ({}, ""))
        if own.get(name) is stream:
            del own[name]
        stream.changed.set()  # ends waiting replays
