"""SIGINT: it ends the user's code, and nothing else, ever.

The handler raises only while user code is on the stack, so the session's own control flow cannot be torn. What must be
whole even inside user code (a frame, a write and its count) is done between `hold` and `release`. The functions of
`_signal` are those of `signal` without the translation of what they take and give.
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

__all__ = ["__builtins__", "interrupts", "own"]

# The builtins as they are before any user code runs. The session's modules bind this copy as their ``__builtins__``:
# whatever user code does to the real ones, they go on.
own: "dict[str, object]" = dict(vars(builtins))
__builtins__ = own  # type: ignore[assignment]

REQUESTS = 6
_COROUTINE = 0x20 | 0x80 | 0x100  # of generators, coroutines, and generators that are coroutines
STARTING, USER, OTHER = "starting", "user", "other"
_this_frame, _get_trace, _set_trace = sys._getframe, sys.gettrace, sys.settrace
_set_handler, _get_handler, _SIGINT = _signal.signal, _signal.getsignal, int(_signal.SIGINT)


class _Interrupts:
    """What an interrupt does now.

    ``state``: STARTING from the arrival of a request on, USER while a step's code runs, OTHER after and between steps.
    ``depth``: how many things that must be whole are under way in the main thread.
    ``pending``: an interrupt came that has not been raised yet; ``came``: one has come for the last code called.
    ``callback``: the code that runs callbacks of the event loop, once there is one. An exception anywhere else in the
    loop would lose a callback, and a task would never go on.
    ``cancel``: what ends the step instead, while it runs in the loop.
    """

    __slots__ = ("callback", "came", "cancel", "depth", "main", "pending", "state")

    def __init__(self) -> None:
        self.state, self.depth, self.pending, self.came, self.main = OTHER, 0, False, False, get_ident()
        self.callback: "CodeType | None" = None
        self.cancel: "Callable[[], None] | None" = None

    def install(self) -> None:
        """Take SIGINT, also back from a step that took it. Only for the main thread."""
        self.main = get_ident()
        if _get_handler(_SIGINT) != self._handle_signal:
            _set_handler(_SIGINT, self._handle_signal)

    def watch_finalizers(self) -> None:
        """Python drops what is raised in a finalizer or a weak reference's callback: interrupt once more then."""
        plain = sys.unraisablehook

        def handle_unraisable(what: "Any") -> None:
            if what.exc_type is KeyboardInterrupt and self.state == USER:
                self._interrupt_frame(_this_frame(1))
            else:
                plain(what)

        sys.unraisablehook = handle_unraisable

    def _interrupt_frame(self, frame: "FrameType") -> None:
        """Interrupt ``frame``, which the finalizer has returned to, at its next instruction: as a debugger stops it."""
        if get_ident() == self.main and _get_trace() is None:
            frame.f_trace, frame.f_trace_opcodes = self._raise_at_next_instruction, True
            _set_trace(self._raise_at_next_instruction)

    def _raise_at_next_instruction(self, frame: "FrameType", _event: str, _argument: object) -> None:
        _set_trace(None)
        frame.f_trace, frame.f_trace_opcodes = None, False
        self._handle_signal(_SIGINT, frame)

    def call(self, function: "Callable[..., Any]", *arguments: object) -> "Any":
        """What ``function`` gives; it runs the user's code, and is what an interrupt ends."""
        self.came = self.pending
        self.state = USER
        try:
            return _enter(function, arguments)
        finally:
            self.state = OTHER
            self.pending = False

    def hold(self) -> None:
        """What follows is whole: an interrupt waits for `release`."""
        if get_ident() == self.main:
            self.depth += 1

    def release(self) -> None:
        """Let the interrupt through that has come meanwhile."""
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
            if self.depth or not _is_inside(frame, _ENTERED):
                self.pending = True
            elif self.cancel is not None and not self._is_in_callback(frame):
                self.cancel()
            else:
                raise KeyboardInterrupt
        elif self.state == STARTING:
            self.pending = True
        elif _request_waits():
            # The step before has ended: it is for the next. A task that holds the loop would keep that from starting.
            self.pending = True
            if not self.depth and self._is_in_callback(frame):
                raise KeyboardInterrupt

    def _is_in_callback(self, frame: "FrameType | None") -> bool:
        """Whether the event loop has called code of somebody else's that has not returned."""
        callee = None
        while frame is not None and self.callback is not None:
            if frame.f_code is self.callback:
                return callee is not None and not _is_the_loops(callee)
            callee, frame = frame, frame.f_back
        return False


def _is_the_loops(frame: "FrameType") -> bool:
    """Whether it is asyncio that puts a task back in its queue; what it runs for a task is a coroutine."""
    name = frame.f_globals.get("__name__", "")
    return name.startswith("asyncio.") and not frame.f_code.co_flags & _COROUTINE


def _enter(function: "Callable[..., Any]", arguments: "tuple[object, ...]") -> "Any":
    if interrupts.pending:
        interrupts.pending = False
        raise KeyboardInterrupt
    return function(*arguments)


def _is_inside(frame: "FrameType | None", code: "CodeType") -> bool:
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
