"""Captures a cell's output within bounds and emits it as events, in order, from any thread to one event loop.

The modules of events and frames are loaded while the cell starts, or when the first one comes.
"""

from __future__ import annotations

import asyncio
import codecs
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from casemate.artifacts.content import Spool
    from casemate.model.events import Event
    from casemate.model.execution import Artifact, ProgramError, Result, SkippedFile
    from casemate.model.front_end import FrontEvent, StepTerms
    from casemate.model.limits import Limits
    from casemate.redaction.redaction import Redaction
    from casemate.walls.wall import Reason

_HIGH_WATER = 1 << 20  # bytes of waiting events; beyond this the cell's pipes are not read


class Emitter:
    """A queue of events for one consumer, until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._arrived = asyncio.Event()
        self.terms: StepTerms | None = None  # of a front end, which also gets front-end events
        self._events: deque[tuple[Any, int]] = deque()  # None: the end
        self._waiting = 0  # bytes
        self._lock = threading.Lock()
        self.on_room: Callable[[], None] | None = None  # called when a full queue has room again
        self.is_followed = True  # a consumer can answer approval requests
        self.on_unfollowed: Callable[[], None] | None = None  # called when the last consumer has left
        self.has_begun = False  # the run has started
        self.end_cell: Callable[[], None] | None = None  # ends a run (not a step) as cancelled

    def set_followed(self, is_followed: bool) -> None:
        """Note whether a consumer that can answer approval requests follows the events."""
        was_followed, self.is_followed = self.is_followed, is_followed
        if was_followed and not is_followed and self.on_unfollowed:
            self.on_unfollowed()

    def emit(self, event: Event | FrontEvent | None, size: int) -> None:
        """Add ``event`` of about ``size`` bytes. Callable from any thread; never blocks."""
        with self._lock:
            self._events.append((event, size))
            self._waiting += size
        if threading.get_ident() == self._thread:
            self._arrived.set()
        else:
            self._loop.call_soon_threadsafe(self._arrived.set)

    def is_full(self) -> bool:
        return self._waiting > _HIGH_WATER

    async def events(self) -> AsyncIterator[Any]:
        """Every event in order, until the end."""
        while (event := await self._next()) is not None:
            yield event

    async def _next(self) -> Any:
        while not self._events:
            await self._arrived.wait()
            self._arrived.clear()
        with self._lock:
            event, size = self._events.popleft()
            was_full = self.is_full()
            self._waiting -= size
        if was_full and not self.is_full() and self.on_room:
            self.on_room()
        return event


async def stream_events(work: Callable[[Emitter], Coroutine[Any, Any, object]]) -> AsyncGenerator[Event]:
    """The events of ``work``, then its exception if it raises one. Its task is cancelled when the consumer leaves."""
    emitter = Emitter()
    task = asyncio.ensure_future(work(emitter))  # noqa: TID251 - awaited or cancelled below
    task.add_done_callback(lambda _: emitter.emit(None, 0))  # ends the events
    try:
        async for event in emitter.events():
            yield event
        await task
    finally:
        task.cancel()
        await asyncio.wait([task])


_MAX_RESULTS = 1000
_PART_COST = 100  # bytes of the host's memory that one value in a frame may take
_FRAME_COST = 256  # bytes added to each frame's size, because reading even an empty one takes time
_FULL_OUTPUT = "output.txt"
STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")


class Capture:
    """A wall's sink. Output over ``limits.output`` goes to a spool; over ``limits.full_output`` the cell is ended.
    ``redaction`` is applied before output is stored, cut or emitted."""

    def __init__(self, limits: Limits, emitter: Emitter | None, redaction: Redaction | None = None) -> None:
        self.transcript = Transcript(limits.output)
        self.background = Transcript(limits.output)  # output of processes that earlier steps left running
        self.results: list[Result] = []
        self.results_dropped = False
        self.error: ProgramError | None = None
        self.errno: int | None = None
        self.output_bytes = 0
        self.spool_failed = ""
        self.kill: Callable[[Reason], None] | None = None
        self.limits = limits
        self.redaction = redaction
        self._clean = redaction.value if redaction else None
        self._redactions = {name: redaction.stream() for name in STREAMS} if redaction else None
        self.emitter = emitter  # None once no consumer follows the events
        self.was_too_much = False  # it wrote more than the limit, and its end was requested
        self._result_bytes = 0
        self._frame_bytes = 0
        self._spool: Spool | None = None
        self._decoders: dict[Stream, codecs.IncrementalDecoder] = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in STREAMS
        }

    def output(self, stream: Stream, data: bytes) -> None:
        space = max(0, self.limits.full_output - self.output_bytes)
        self.output_bytes += len(data)
        data = data[:space]  # the program may write more until it is dead
        if self._redactions is None:
            self._keep(stream, data)
        elif clean := self._redactions[stream].feed(data):
            self._keep(stream, clean)
        if self.output_bytes > self.limits.full_output:
            self._end_program()

    def _keep(self, stream: Stream, data: bytes) -> None:
        if self._spool is None and self.transcript.would_cut(stream, len(data)):
            from casemate.artifacts.content import Spool

            self._spool = Spool()
            self._write_spool(self.transcript.raw())
        if self._spool is not None and not self.spool_failed:
            self._write_spool(data)
        self.transcript.add(stream, data)
        if emitter := self.emitter:
            from casemate.model.events import Output

            text = self._decoders[stream].decode(data)
            emitter.emit(Output(stream, text, data=data), len(data))

    def frame(self, frame: bytes) -> None:
        if not self.has_room_for(frame):
            return
        from casemate.execution import frames
        from casemate.model.events import Display

        said = frames.parse(frame, self._clean)
        if isinstance(said, frames.ErrorFrame):
            self.fail(said.error, said.errno, len(frame))
        elif said is not None:
            self.show(said, len(frame), Display(said))

    def has_room_for(self, frame: bytes) -> bool:
        """Count one more frame. Too many end the program and return False."""
        from casemate.execution import frames

        self._frame_bytes += len(frame) + _FRAME_COST + _PART_COST * frames.parts_of(frame)
        if self._frame_bytes > self.limits.full_output:
            self._end_program()
            return False
        return True

    def fail(self, error: ProgramError, number: int | None, size: int) -> None:
        """Note the program's uncaught exception, of ``size`` bytes. ``number`` is its errno, if it has one."""
        self.error, self.errno = error, number
        if emitter := self.emitter:
            from casemate.model.events import ErrorEvent

            emitter.emit(ErrorEvent(error), size)

    def is_full(self) -> bool:
        emitter = self.emitter  # another thread may set it to None
        return emitter is not None and emitter.is_full()

    def finish(self, *, cut: bool) -> None:
        """Flush bytes held back for an incomplete secret or character. ``cut``: the program may have been ended."""
        for stream, redaction in (self._redactions or {}).items():
            if rest := redaction.finish(cut=cut):
                self._keep(stream, rest)
        if emitter := self.emitter:
            for stream, decoder in self._decoders.items():
                text = decoder.decode(b"", final=True)
                if text:
                    from casemate.model.events import Output

                    emitter.emit(Output(stream, text), len(text))

    def list_lost(self) -> tuple[SkippedFile, ...]:
        """Output that could not be stored, and why."""
        if not self.spool_failed:
            return ()
        from casemate.model.execution import SkippedFile

        return (SkippedFile(_FULL_OUTPUT, self.spool_failed),)

    def full_output(self) -> Artifact | None:
        """All output as an artifact, if the transcript has only a part of it."""
        if self._spool is None or self.spool_failed:
            return None
        return self._spool.artifact(_FULL_OUTPUT, "text/plain")

    def _end_program(self) -> None:
        if self.kill and not self.was_too_much:
            self.was_too_much = True
            self.results_dropped = True
            self.kill("output")

    def show(self, result: Result, size: int, event: Event, number: int | None = None) -> None:
        """Note a result of ``size`` bytes and emit ``event``. ``number``: the earlier result to replace, from 0."""
        self._result_bytes += size
        if self._result_bytes > self.limits.full_output:
            self.results_dropped = True
            return
        if emitter := self.emitter:
            emitter.emit(event, size)
        if number is not None:
            self.results[number] = result
        elif len(self.results) >= _MAX_RESULTS:
            self.results_dropped = True
        else:
            self.transcript.add_result()
            self.results.append(result)

    def clear(self) -> None:
        """Drop the results so far; the text stays."""
        self.results.clear()
        self.transcript.forget_results()

    def _write_spool(self, data: bytes) -> None:
        assert self._spool is not None
        space = self.limits.full_output - self._spool.size
        try:
            self._spool.write(data[:space])
        except OSError as error:
            self.spool_failed = f"the rest of the output could not be kept: {error.strerror}"


Stream = Literal["stdout", "stderr"]
_MAX_SEGMENTS = 20_000  # switches between streams whose order is kept; later text is ordered by stream


class _StreamText:
    """The first and last bytes of one stream."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self.head = bytearray()
        self.tail = bytearray()
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2

    def add(self, data: bytes) -> None:
        self.total += len(data)
        space = self._head_limit - len(self.head)
        if space > 0:
            self.head += data[:space]
            data = data[space:]
        self.tail += data[-self._tail_limit :] if len(data) > self._tail_limit else data
        if len(self.tail) > 2 * self._tail_limit:
            del self.tail[: -self._tail_limit]

    @property
    def cut(self) -> int:
        """The number of bytes cut between head and tail."""
        return max(0, self.total - len(self.head) - self._tail_limit)

    def slice(self, start: int, end: int) -> bytes:
        """The stored bytes among those from ``start`` to ``end`` of the stream."""
        head = self.head[start : min(end, len(self.head))]
        if end <= len(self.head):
            return bytes(head)
        tail_start = len(self.head) + self.cut
        kept_from = self.total - len(self.tail)
        first = max(start, tail_start)
        return bytes(head) + bytes(self.tail[max(0, first - kept_from) : max(0, end - kept_from)])


class Transcript:
    """Both streams, at most ``limit`` bytes of each, and the results between them."""

    def __init__(self, limit: int) -> None:
        self._streams: dict[Stream, _StreamText] = {"stdout": _StreamText(limit), "stderr": _StreamText(limit)}
        self._limit = limit
        self._order: list[tuple[Stream, int]] = []  # stream and bytes
        self._results: list[
            tuple[int, int]
        ] = []  # for each: the length of `_order`, and the bytes of its last entry, when it came

    def add(self, stream: Stream, data: bytes) -> None:
        """Add output."""
        self._streams[stream].add(data)
        if self._order and self._order[-1][0] == stream:
            self._order[-1] = (stream, self._order[-1][1] + len(data))
        elif len(self._order) < _MAX_SEGMENTS:
            self._order.append((stream, len(data)))

    def would_cut(self, stream: Stream, amount: int) -> bool:
        """Whether ``amount`` more bytes would exceed the stream's limit."""
        return self._streams[stream].total + amount > self._limit

    def add_result(self) -> None:
        """Note the place of a result."""
        self._results.append((len(self._order), self._order[-1][1] if self._order else 0))

    def forget_results(self) -> None:
        """Drop the results so far."""
        self._results.clear()

    @property
    def is_truncated(self) -> bool:
        return any(kept.cut for kept in self._streams.values())

    def text_of(self, stream: Stream) -> str:
        """The stream as text. A line says how much was cut."""
        kept = self._streams[stream]
        if not kept.cut:
            return _decode(kept.slice(0, kept.total))
        head, tail = kept.slice(0, len(kept.head)), kept.slice(len(kept.head), kept.total)
        return _decode(head) + f"\n[... {kept.cut} bytes cut ...]\n" + _decode(tail)

    def merge(self, results: list[str]) -> str:
        """All text in order, with ``results`` in their places. If output was cut: stream by stream, results last."""
        if self.is_truncated:
            texts = [self.text_of("stdout"), self.text_of("stderr"), *results]
            return "\n".join(text.strip() for text in texts if text.strip())
        parts: list[str] = []
        left = iter(results)
        for piece in self._pieces():
            parts.append(_own_line(parts, next(left)) if piece is None else _decode(piece))
        return "".join(parts).strip()

    def raw(self) -> bytes:
        """All bytes in order. Only while nothing is cut."""
        return b"".join(piece for piece in self._pieces() if piece)

    def _pieces(self) -> Iterator[bytes | None]:
        """The output in order, with None in place of each result."""
        at: dict[Stream, int] = {"stdout": 0, "stderr": 0}
        results = deque(self._results)
        before_all: tuple[Stream, int] = "stdout", 0
        for number, (stream, amount) in enumerate([before_all, *self._order]):
            start = at[stream]
            while results and results[0][0] == number:
                place = start + results.popleft()[1]
                yield self._streams[stream].slice(at[stream], place)
                yield None
                at[stream] = place
            yield self._streams[stream].slice(at[stream], start + amount)
            at[stream] = start + amount
        for stream, start in at.items():
            yield self._streams[stream].slice(start, self._streams[stream].total)


def _own_line(parts: list[str], text: str) -> str:
    begins_line = not parts or parts[-1].endswith("\n") or not parts[-1]
    return ("" if begins_line else "\n") + text + "\n"


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")
