"""A session's ears: sorts what its cell says to the step it belongs to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from casemate.execution.capture import STREAMS, Capture
from casemate.execution.frames import Failed
from casemate.model.events import Display, Output, ResultEvent
from casemate.sessions.order import Order
from casemate.sessions.protocol import Asked, Cleared, Displayed, Finished, Mark, Ready, Reply, Said, Value, parse

if TYPE_CHECKING:
    from casemate.execution.emitter import Emitter
    from casemate.redaction.redaction import Redaction
    from casemate.walls.ending import StepUsage
    from casemate.walls.wall import SessionCell, Stream

_MOST_BACKGROUND = 1 << 16  # bytes of text from the background that wait for a step to tell of them
_LAST_WORDS = 1 << 16  # bytes of an error or an end, which is still heard when a step has said too much
_MOST_IDLE, _FRAME_COST = 32 << 20, 256  # bytes of frames between two steps, and what each counts for besides
_DEAF_GRACE = 2.0  # seconds from the end of a pipe to that of its process, which tells how; both may wait for a core


class Heard:
    """What has been heard of one step. ``over`` is done when the interpreter says so; ``used`` has what the supervisor
    says of it, a little later."""

    def __init__(self, number: int, capture: Capture, emitter: Emitter | None) -> None:
        self.number = number
        self.capture = capture
        self.emitter = emitter
        self.order = Order()
        self.has_begun = False  # the interpreter was told
        self.asks: Callable[[Asked], None] | None = None  # called in the wall's thread with what the step asks for
        self.must_ask = False  # before it runs a shell command
        self.finished: Finished | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.used: asyncio.Future[StepUsage] = asyncio.get_running_loop().create_future()
        self.displays: dict[str, int] = {}  # results by the names that the step gave them
        self.clears = False
        self.background_bytes = 0  # that it has told of

    def leave(self) -> None:
        """Nobody follows its events any more, and nothing waits for them."""
        self.emitter = None
        self.capture.leave()


class Inbox:
    """What is heard from one cell of a session, until that cell ends. ``cell`` must be set before it can speak."""

    cell: SessionCell

    def __init__(self, redaction: Redaction | None = None) -> None:
        """``redaction``: of the session's secrets, where it has any."""
        self._clean = redaction.value if redaction else None
        self._redacted = {name: redaction.stream() for name in STREAMS} if redaction else None
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Ready] = self._loop.create_future()
        self.last_usage: StepUsage | None = None
        self._step: Heard | None = None
        self._pipes: dict[int, asyncio.Future[None]] = {}
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._background: list[Output] = []
        self._background_bytes = 0
        self._idle_bytes = 0  # of frames while no step runs

    # -- in the event loop

    def listen(self, step: Heard) -> None:
        """From now on ``step`` is the one that runs; what waits from the background is told to it first."""
        was_full = self._is_background_full()
        waiting, self._background, self._background_bytes, self._idle_bytes = self._background, [], 0, 0
        if step.emitter:
            for event in waiting:
                step.emitter.emit(event, len(event.data))
        self._step = step
        self._pipes.pop(step.number - 1, None)
        if was_full:
            self.cell.resume()

    def end(self, step: Heard) -> None:
        """The cell has ended, and ``step`` is the last one: it tells of what waits from the background, and of what
        waited there for the rest of a secret."""
        waiting, self._background = self._background, []
        for stream, redacted in (self._redacted or {}).items():
            if rest := redacted.finish(cut=True):
                waiting.append(_background(stream, rest))
        if step.emitter:
            for event in waiting:
                step.emitter.emit(event, len(event.data))

    def pipes(self, step: int) -> asyncio.Future[None]:
        """Done when the pipes of ``step`` are there."""
        return self._pipes.setdefault(step, self._loop.create_future())

    def reply(self, number: int) -> asyncio.Future[Reply]:
        """The answer to request ``number``."""
        return self._replies.setdefault(number, self._loop.create_future())

    # -- in the wall's thread

    def output(self, step: int | None, stream: Stream, data: bytes) -> None:
        heard = self._step
        if heard is None or step != heard.number or heard.finished is not None:
            self._from_background(stream, data)
            return
        for item in heard.order.text(stream, data):
            self._take(heard, item)

    def frame(self, frame: bytes) -> bool:
        heard = self._step
        if heard is None or heard.finished is not None:
            self._count_idle(frame)
        elif not heard.capture.has_room_for(frame) and len(frame) > _LAST_WORDS:
            return False
        match parse(frame, self._clean):
            case Ready() as ready:
                self._resolve(self.ready, ready)
            case Reply() as reply:
                self._soon(self._answer, reply)
            case Said() as said if heard is None or not heard.capture.was_too_much or said.ends:
                return self._said(said)
        return False

    def heard(self) -> int:
        """How many frames the step that runs has said."""
        return 0 if self._step is None else self._step.order.heard

    def settle(self, upto: int = 1 << 62) -> None:
        heard = self._step
        if heard is not None and heard.finished is None:
            for item in heard.order.settle(upto):
                self._take(heard, item)

    def step_ready(self, step: int) -> None:
        self._soon(lambda: _done(self.pipes(step), None))

    def step_over(self, step: int, usage: StepUsage) -> None:
        self.last_usage = usage
        heard = self._step
        if heard is not None and heard.number == step:
            self._resolve(heard.used, usage)

    def is_full(self, step: int | None) -> bool:
        heard = self._step
        if heard is None or heard.finished is not None:
            return step is not None and self._is_background_full()
        if step is None or heard.number == step:
            return heard.capture.is_full()
        return heard.capture.is_full() or self._is_background_full()

    def _is_background_full(self) -> bool:
        """Whether the background must wait for the next step: a step tells of as much as it may say itself."""
        heard = self._step
        too_much = heard is not None and heard.background_bytes >= heard.capture.limits.full_output
        return too_much or self._background_bytes >= _MOST_BACKGROUND

    def deaf(self) -> None:
        self._soon(self._loop.call_later, _DEAF_GRACE, self.cell.kill, "deaf")

    def _said(self, said: Said) -> bool:
        heard = self._step
        if heard is None or said.step != heard.number or heard.finished is not None:
            return False
        for item in heard.order.said(said):
            self._take(heard, item)
        return heard.order.waits

    def _take(self, heard: Heard, item: tuple[Stream, bytes] | Said) -> None:
        if heard.finished is not None:
            if not isinstance(item, Said):
                self._from_background(*item)
        elif isinstance(item, Said):
            self._hear(heard, item)
        else:
            heard.capture.output(*item)

    def _hear(self, heard: Heard, said: Said) -> None:
        match said.what:
            case Displayed() as shown:
                self._show(heard, shown, said.size)
            case Value(result):
                heard.capture.show(result, said.size, ResultEvent(result))
            case Cleared(wait):
                heard.clears = wait
                if not wait:
                    _clear(heard)
            case Asked() as asked:
                if heard.asks:
                    heard.asks(asked)
            case Failed(error, number):
                heard.capture.fail(error, number, said.size)
            case Finished() as finished:
                heard.finished = finished
                self.cell.end_step(heard.number)
                self._resolve(heard.over, None)
            case Mark():
                pass

    def _show(self, heard: Heard, shown: Displayed, size: int) -> None:
        if heard.clears:
            _clear(heard)
        name, capture = shown.display_id, heard.capture
        event = Display(shown.result, name, shown.update)
        known = heard.displays.get(name) if name is not None else None
        if shown.update and known is not None:
            capture.replace(known, shown.result, size, event)
            return
        before = len(capture.results)
        capture.show(shown.result, size, event)
        if name is not None and len(capture.results) > before:
            heard.displays[name] = before

    def _from_background(self, stream: Stream, data: bytes) -> None:
        if self._redacted is not None and not (data := self._redacted[stream].feed(data)):
            return
        heard = self._step
        if heard is not None and heard.emitter is not None and heard.finished is None:
            heard.background_bytes += len(data)
            heard.emitter.emit(_background(stream, data), len(data))
        elif self._background_bytes < _MOST_BACKGROUND:
            self._background.append(_background(stream, data))
            self._background_bytes += len(data)

    def _count_idle(self, frame: bytes) -> None:
        """What a session says while no step runs is little; one that does not stop would take time from the others."""
        self._idle_bytes += len(frame) + _FRAME_COST
        if self._idle_bytes > _MOST_IDLE:
            self.cell.kill("output")

    def _answer(self, reply: Reply) -> None:
        waiting = self._replies.pop(reply.id, None)
        if waiting is not None:
            _done(waiting, reply)

    def _resolve(self, future: asyncio.Future[Any], value: object) -> None:
        self._soon(_done, future, value)

    def _soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function`` in the event loop, as long as there is one; without it nobody waits any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _background(stream: Stream, data: bytes) -> Output:
    return Output(stream, data.decode("utf-8", "replace"), background=True, data=data)


def _clear(heard: Heard) -> None:
    heard.clears = False
    heard.displays.clear()
    heard.capture.clear()


def _done(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)
