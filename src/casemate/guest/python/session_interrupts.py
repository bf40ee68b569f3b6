"""SIGINT handling: an interrupt ends the user's code and nothing else.

The handler raises only while user code is on the stack, so the session's own control flow stays intact. What must not
be interrupted even inside user code (a frame, a write and its count) happens between `hold` and `release`. The
functions of `_signal` are those of `signal` without conversions.
"""

import _signal  # type: ignore[import-not-found]
import builtins
import sys
from _thread import get_ident
from select import POLLIN, poll

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

__all__ = ["__builtins__", "interrupts", "is_inside", "own"]

# The builtins before any user code runs. The session's modules bind this copy as their ``__builtins__``, so that they
# work whatever user code does to the real ones.
own: "dict[str, object]" = dict(vars(builtins))
__builtins__ = own  # type: ignore[assignment]

REQUESTS = 6
_COROUTINE = 0x20 | 0x80 | 0x100  # of generators, coroutines, and generators that are coroutines
STARTING, USER, OTHER = "starting", "user", "other"
_this_frame, _get_trace, _set_trace = sys._getframe, sys.gettrace, sys.settrace
_set_handler, _get_handler, _SIGINT = _signal.signal, _signal.getsignal, int(_signal.SIGINT)


class _Interrupts:
    """What an interrupt does now.

    ``state``: STARTING from the arrival of a request, USER while a step's code runs, OTHER after and between steps.
    ``depth``: the number of open `hold` blocks in the main thread. ``pending``: an interrupt came and has not been
    raised yet. ``came``: one came for the last code called. ``callback``: the code object that runs callbacks of the
    event loop, if any. An exception anywhere else in the loop would lose a callback, and a task would never continue.
    ``cancel``: called instead of raising, while the step runs in the loop.
    """

    __slots__ = ("callback", "came", "cancel", "depth", "main", "pending", "state")

    def __init__(self) -> None:
        self.state, self.depth, self.pending, self.came, self.main = OTHER, 0, False, False, get_ident()
        self.callback: "CodeType | None" = None
        self.cancel: "Callable[[], None] | None" = None

    def install(self) -> None:
        """Take SIGINT, even from a step that took it. Main thread only."""
        self.main = get_ident()
        if _get_handler(_SIGINT) != self._handle_signal:
            _set_handler(_SIGINT, self._handle_signal)

    def watch_finalizers(self) -> None:
        """Interrupt once more if Python drops the exception, as it does in finalizers and weak reference callbacks."""
        plain = sys.unraisablehook

        def handle_unraisable(what: "Any") -> None:
            if what.exc_type is KeyboardInterrupt and self.state == USER:
                self._interrupt_frame(_this_frame(1))
            else:
                plain(what)

        sys.unraisablehook = handle_unraisable

    def _interrupt_frame(self, frame: "FrameType") -> None:
        """Interrupt ``frame``, which the finalizer returns to, at its next instruction, as a debugger does."""
        if get_ident() == self.main and _get_trace() is None:
            frame.f_trace, frame.f_trace_opcodes = self._raise_at_next_instruction, True
            _set_trace(self._raise_at_next_instruction)

    def _raise_at_next_instruction(self, frame: "FrameType", _event: str, _argument: object) -> None:
        _set_trace(None)
        frame.f_trace, frame.f_trace_opcodes = None, False
        self._handle_signal(_SIGINT, frame)

    def call(self, function: "Callable[..., Any]", *arguments: object) -> "Any":
        """Call ``function``, which runs the user's code and can be interrupted."""
        self.came = self.pending
        self.state = USER
        try:
            return _enter(function, arguments)
        finally:
            self.state = OTHER
            self.pending = False

    def hold(self) -> None:
        """Delay interrupts until `release`."""
        if get_ident() == self.main:
            self.depth += 1

    def release(self) -> None:
        """Raise an interrupt that came meanwhile."""
        if get_ident() == self.main:
            self.depth -= 1
            if self.pending and not self.depth:
                self._raise_pending()

    def _raise_pending(self) -> None:
        if self.state == USER:
            self.pending = False
            raise KeyboardInterrupt
        if self.state == OTHER and self._is_in_callback(_this_frame()):
            raise KeyboardInterrupt

    def _handle_signal(self, _number: int, frame: "FrameType | None") -> None:
        if self.state == USER:
            self.came = True
            if self.depth or not is_inside(frame, _ENTERED):
                self.pending = True
            elif self.cancel is not None and not self._is_in_callback(frame):
                self.cancel()
            else:
                raise KeyboardInterrupt
        elif self.state == STARTING:
            self.pending = True
        elif _request_waits():
            # The last step has ended, so the interrupt is for the next. A task that blocks the loop would delay it.
            self.pending = True
            if not self.depth and self._is_in_callback(frame):
                raise KeyboardInterrupt

    def _is_in_callback(self, frame: "FrameType | None") -> bool:
        """Whether the event loop called code outside asyncio that has not returned."""
        callee = None
        while frame is not None and self.callback is not None:
            if frame.f_code is self.callback:
                return callee is not None and not _is_the_loops(callee)
            callee, frame = frame, frame.f_back
        return False


def _is_the_loops(frame: "FrameType") -> bool:
    """Whether it is asyncio itself, rescheduling a task. Code that asyncio runs for a task is a coroutine."""
    name = frame.f_globals.get("__name__", "")
    return name.startswith("asyncio.") and not frame.f_code.co_flags & _COROUTINE


def _enter(function: "Callable[..., Any]", arguments: "tuple[object, ...]") -> "Any":
    if interrupts.pending:
        interrupts.pending = False
        raise KeyboardInterrupt
    return function(*arguments)


def is_inside(frame: "FrameType | None", code: "CodeType") -> bool:
    """Whether the frame, or one of its callers, runs that code."""
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


def _request_waits() -> bool:
    waiter = poll()
    waiter.register(REQUESTS, POLLIN)
    return any(event & POLLIN for _, event in waiter.poll(0))


_ENTERED = _enter.__code__
interrupts = _Interrupts()
