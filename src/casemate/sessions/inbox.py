"""Sorts the output of a session's cell by step."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from casemate.execution.capture import STREAMS, Capture
from casemate.execution.frames import ErrorFrame
from casemate.model.events import Display, Output, ResultEvent
from casemate.model.front_end import Cleared, CommMessage, LineRequest, StepTerms
from casemate.sessions.protocol import (
    CommandRequest,
    Displayed,
    MessageOrder,
    OrderMark,
    Ready,
    Reply,
    StepDone,
    StepMessage,
    Value,
    parse,
)

if TYPE_CHECKING:
    from casemate.languages.session_program import CommandKind
    from casemate.model.front_end import FrontEvent
    from casemate.redaction.redaction import Redaction
    from casemate.walls.wall import SessionCell, StepUsage, Stream

_MOST_BACKGROUND = 1 << 16  # bytes of background text that wait for the next step
_LAST_FRAME = 1 << 16  # bytes of an error or end frame, which is read even after too much output
_MOST_IDLE, _FRAME_COST = 32 << 20, 256  # bytes of frames between two steps, and the overhead added for each
_DEAF_GRACE = 2.0  # seconds a process may live on after closing its pipe, so that its exit gives the cause


class RunningStep:
    def __init__(self, number: int, capture: Capture) -> None:
        self.number = number
        self.capture = capture
        self.order = MessageOrder()
        self.has_begun = False  # the interpreter has its request
        self.on_command: Callable[[CommandRequest], None] | None = None  # called in the wall's thread
        self.asks: tuple[CommandKind, ...] = ()  # the kinds of commands that need approval
        self.done: StepDone | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the interpreter reported the end
        self.used: asyncio.Future[StepUsage] = asyncio.get_running_loop().create_future()  # from the supervisor, later
        self.terms = (capture.emitter.terms if capture.emitter else None) or StepTerms()
        self.displays: dict[str, int] = {}  # indexes of results, by display id
        self.is_clear_due = False  # clear before the next display
        self.background_bytes = 0
        self.takes_background = True

    def clear(self) -> None:
        """Remove what the step has displayed."""
        self.is_clear_due = False
        self.displays.clear()
        self.capture.clear()

    def emit_to_front_end(self, event: FrontEvent, size: int) -> None:
        """Emit an event that only a front end receives."""
        if (emitter := self.capture.emitter) and emitter.terms is not None:
            emitter.emit(event, size)

    def display(self, displayed: Displayed, size: int) -> None:
        """Display a result, or update the one with the same display id."""
        if self.is_clear_due:
            self.clear()
        name, capture = displayed.display_id, self.capture
        known = self.displays.get(name) if name is not None and displayed.update else None
        before = len(capture.results)
        capture.show(displayed.result, size, Display(displayed.result, name, displayed.update), known)
        if name is not None and len(capture.results) > before:
            self.displays[name] = before


class Inbox:
    """Receives the output of one cell of a session."""

    cell: SessionCell  # set once it exists; before that, only `interpreter_closed` may be called

    def __init__(self, redaction: Redaction | None = None) -> None:
        self._clean = redaction.value if redaction else None
        self._redactions = {name: redaction.stream() for name in STREAMS} if redaction else None
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[Ready] = self._loop.create_future()
        self.last_usage: StepUsage | None = None
        self._step: RunningStep | None = None
        self._unsettled: dict[int, RunningStep] = {}  # steps whose usage is not known yet, by number
        self._pipes: dict[int, asyncio.Future[None]] = {}
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._background: list[Output] = []
        self._background_bytes = 0
        self._idle_bytes = 0  # of frames while no step runs

    # -- in the event loop

    def begin_step(self, step: RunningStep) -> None:
        """Make ``step`` the running step. It first takes the waiting background output."""
        was_full = self._is_background_full()
        self._idle_bytes = 0
        if step.takes_background:
            waiting, self._background, self._background_bytes = self._background, [], 0
            _add_to(step, waiting)
        self._step = self._unsettled[step.number] = step
        self._pipes.pop(step.number - 1, None)
        if was_full:
            self.cell.read_on()

    def end(self, step: RunningStep) -> None:
        """Give the cell's last step the waiting background output, and text held back for redaction."""
        waiting, self._background = self._background, []
        for stream, redaction in (self._redactions or {}).items():
            if rest := redaction.finish(cut=True):
                waiting.append(_background_output(stream, rest))
        _add_to(step, waiting)

    def pipes_of(self, step: int) -> asyncio.Future[None]:
        """Return a future that is done when the pipes of ``step`` exist."""
        return self._pipes.setdefault(step, self._loop.create_future())

    def reply_to(self, number: int) -> asyncio.Future[Reply]:
        """Return a future for the answer to request ``number``."""
        return self._replies.setdefault(number, self._loop.create_future())

    # -- in the wall's thread: `SessionSink`

    def output(self, step: int | None, stream: Stream, data: bytes) -> None:
        running = self._step
        if running is None or step != running.number or running.done is not None:
            self._add_background(stream, data)
            return
        for item in running.order.add_text(stream, data):
            self._take(running, item)

    def frame(self, frame: bytes) -> bool:
        running = self._step
        if running is None or running.done is not None:
            self._count_idle(frame)
        elif not running.capture.has_room_for(frame) and len(frame) > _LAST_FRAME:
            return False
        match parse(frame, self._clean):
            case Ready() as ready:
                self._resolve(self.ready, ready)
            case Reply() as reply:
                self._call_in_loop(self._resolve_reply, reply)
            case StepMessage() as message if running is None or not running.capture.was_too_much or message.ends:
                return self._add_message(message)
        return False

    def count_frames(self) -> int:
        return 0 if self._step is None else self._step.order.count

    def settle(self, upto: int = 1 << 62) -> None:
        running = self._step
        if running is not None and running.done is None:
            for item in running.order.settle(upto):
                self._take(running, item)

    def step_ready(self, step: int) -> None:
        self._call_in_loop(lambda: _set_result(self.pipes_of(step), None))

    def step_over(self, step: int, usage: StepUsage) -> None:
        self.last_usage = usage
        if settled := self._unsettled.pop(step, None):
            self._resolve(settled.used, usage)

    def is_full(self, step: int | None) -> bool:
        running = self._step
        if running is None or running.done is not None:
            return step is not None and self._is_background_full()
        if step is None or running.number == step:
            return running.capture.is_full()
        return running.capture.is_full() or self._is_background_full()

    def interpreter_closed(self) -> None:
        self._call_in_loop(self._loop.call_later, _DEAF_GRACE, lambda: self.cell.kill("deaf"))  # may not be set yet

    def _is_background_full(self) -> bool:
        """Whether background output must wait for the next step. A step takes at most `limits.full_output` of it."""
        running = self._step
        is_too_much = running is not None and running.background_bytes >= running.capture.limits.full_output
        return is_too_much or self._background_bytes >= _MOST_BACKGROUND

    def _add_message(self, message: StepMessage) -> bool:
        running = self._step
        if running is None or message.step != running.number or running.done is not None:
            return False
        for item in running.order.add_frame(message):
            self._take(running, item)
        return running.order.waits

    def _take(self, running: RunningStep, item: tuple[Stream, bytes] | StepMessage) -> None:
        if running.done is not None:
            if not isinstance(item, StepMessage):
                self._add_background(*item)
        elif isinstance(item, StepMessage):
            self._apply(running, item)
        else:
            running.capture.output(*item)

    def _apply(self, running: RunningStep, message: StepMessage) -> None:
        match message.content:
            case Displayed() as displayed:
                running.display(displayed, message.size)
            case Value(result):
                running.capture.show(result, message.size, ResultEvent(result))
            case Cleared(wait) as cleared:
                running.is_clear_due = wait
                if not wait:
                    running.clear()
                running.emit_to_front_end(cleared, message.size)
            case LineRequest() | CommMessage() as said:
                running.emit_to_front_end(said, message.size)
            case CommandRequest() as request:
                if running.on_command:
                    running.on_command(request)
            case ErrorFrame(error, number):
                running.capture.fail(error, number, message.size)
            case StepDone() as done:
                self.cell.end_step(running.number)
                running.done = done  # last, because the event loop may then begin the next step
                self._resolve(running.over, None)
            case OrderMark():
                pass

    def _add_background(self, stream: Stream, data: bytes) -> None:
        if self._redactions is not None and not (data := self._redactions[stream].feed(data)):
            return
        running = self._step
        if running is not None and running.takes_background and running.done is None:
            running.background_bytes += len(data)
            _add_to(running, [_background_output(stream, data)])
        elif self._background_bytes < _MOST_BACKGROUND:
            self._background.append(_background_output(stream, data))
            self._background_bytes += len(data)

    def _count_idle(self, frame: bytes) -> None:
        """End a cell that sends too much while no step runs; parsing it would take time from other cells."""
        self._idle_bytes += len(frame) + _FRAME_COST
        if self._idle_bytes > _MOST_IDLE:
            self.cell.kill("output")

    def _resolve_reply(self, reply: Reply) -> None:
        waiting = self._replies.pop(reply.id, None)
        if waiting is not None:
            _set_result(waiting, reply)

    def _resolve(self, future: asyncio.Future[Any], value: object) -> None:
        self._call_in_loop(_set_result, future, value)

    def _call_in_loop(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function`` in the event loop, if the loop still exists."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _add_to(step: RunningStep, outputs: list[Output]) -> None:
    """Add background output to the step's outcome and to its events."""
    for event in outputs:
        step.capture.background.add(event.stream, event.data)
        if emitter := step.capture.emitter:
            emitter.emit(event, len(event.data))


def _background_output(stream: Stream, data: bytes) -> Output:
    return Output(stream, data.decode("utf-8", "replace"), background=True, data=data)


def _set_result(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)
