"""``sys.stdout`` and ``sys.stderr`` of a session: one object each for its whole life, which writes into the pipes of
the step that the writing code belongs to.

A line is written when it ends. That costs a system call each, so a program that prints thousands in a row without a
pause is in flood: its lines are collected, for a fiftieth of a second at most.
"""

import _signal  # type: ignore[import-not-found]
import io
import sys
from _thread import _count as _count_threads
from _thread import get_ident
from time import monotonic

from _casemate.session_interrupts import USER, interrupts  # type: ignore[import-not-found]
from _casemate.session_own import own as __builtins__  # type: ignore[import-not-found,no-redef]
from _casemate.session_steps import ERR, OUT, steps  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["__builtins__", "install", "streams"]

_FLOOD_LINES, _FLOOD_SECONDS = 4096, 0.1  # so many lines in less than so long
_COLLECTED_BYTES, _COLLECTED_SECONDS = 1 << 16, 0.02
_setitimer, _getitimer, _TIMER = _signal.setitimer, _signal.getitimer, _signal.ITIMER_REAL
_set_handler, _get_handler, _ALARM = _signal.signal, _signal.getsignal, int(_signal.SIGALRM)


class _Stream(io.TextIOBase):
    """A text stream that cannot fail: what is no UTF-8 is written as an escape, what nobody reads is dropped."""

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None
    line_buffering = True
    write_through = False
    mode = "w"

    def __init__(self, which: int, name: str) -> None:
        self._which, self.name = which, name
        self.buffer = _Bytes(which, name)
        self._lines, self._since = _FLOOD_LINES, 0.0

    def write(self, text: str) -> int:
        """Write to the current step."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        step = steps.current()
        step.text(self._which, text)
        self._lines -= 1
        if not self._lines:
            self._look_for_a_flood(step)
        return len(text)

    def writelines(self, lines: "Iterable[str]") -> None:  # type: ignore[override]
        """Write them all at once."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Put what was written without a line's end."""
        steps.current().flush()

    def fileno(self) -> int:
        """The descriptor that child processes write to."""
        return self._which + 1

    def isatty(self) -> bool:
        """It never is a terminal."""
        return False

    def writable(self) -> bool:
        """It always is."""
        return True

    def close(self) -> None:
        """It stays open: later steps need it."""
        self.flush()

    def detach(self) -> "Any":
        """Not possible."""
        raise io.UnsupportedOperation("the standard streams of a session cannot be detached")

    def reconfigure(self, **_options: object) -> None:
        """It stays as it is."""
        self.flush()

    def __repr__(self) -> str:
        return f"<session stream name={self.name!r} mode='w' encoding='utf-8'>"

    def _look_for_a_flood(self, step: "Any") -> None:
        before, self._since, self._lines = self._since, monotonic(), _FLOOD_LINES
        if self._since - before < _FLOOD_SECONDS and _can_flood(step):
            _Flood(self, self._which, step)


class _Bytes(io.BufferedIOBase):
    """The stream's ``buffer``: bytes go to the pipe as they are, at once."""

    mode = "wb"

    def __init__(self, which: int, name: str) -> None:
        self._which, self.name = which, name

    @property
    def raw(self) -> "Any":
        return self

    def write(self, data: "Any") -> int:
        """Write to the current step."""
        view = memoryview(data)
        step = steps.current()
        step.flush()
        step.data(self._which, bytes(view))
        return view.nbytes

    def flush(self) -> None:
        """Put what was written as text."""
        steps.current().flush()

    def fileno(self) -> int:
        """As the stream's."""
        return self._which + 1

    def writable(self) -> bool:
        """It always is."""
        return True

    def close(self) -> None:
        """It stays open."""
        self.flush()


class _Flood:
    """Collects lines: the stream's ``write`` is that of a C text stream meanwhile. A timer ends it when the lines stop.

    Whatever else writes to the step, or sends a frame, or starts a thread or a process by fork, ends it first.
    """

    def __init__(self, stream: _Stream, which: int, step: "Any") -> None:
        self._stream, self._which, self._step = stream, which, step
        self._had_more, self._is_over = True, False
        text: "Any" = io.TextIOWrapper(_Collected(self), encoding="utf-8", errors="backslashreplace", newline="\n")
        text._CHUNK_SIZE = _COLLECTED_BYTES
        self._text = text
        step.flood = self
        stream.write = self._text.write  # type: ignore[method-assign]
        _set_handler(_ALARM, self._look)
        _setitimer(_TIMER, _COLLECTED_SECONDS)

    def put(self, data: bytes) -> None:
        """Into the step's pipe."""
        self._had_more = True
        step = steps.current() if self._is_over else self._step
        step.data(self._which, data)

    def end(self) -> None:
        """Put what was collected, and let the stream write its lines again.

        Who has looked up ``write`` before may call it only now: `print` does, which looks for signals in between. What
        comes that way from here on is put at once.
        """
        self._step.flood = None
        vars(self._stream).pop("write", None)
        self._text.reconfigure(write_through=True)
        self._is_over = True
        if get_ident() == interrupts.main and _get_handler(_ALARM) == self._look:
            _setitimer(_TIMER, 0)
            _set_handler(_ALARM, _signal.SIG_DFL)

    def _look(self, _number: int, frame: "Any") -> None:
        if self._step.flood is not self:
            return
        if interrupts.depth or _is_being_put(frame):
            _setitimer(_TIMER, _COLLECTED_SECONDS)
        elif self._had_more:
            self._text.flush()
            self._had_more = False
            _setitimer(_TIMER, _COLLECTED_SECONDS)
        else:
            self._step.flush()


def _is_being_put(frame: "Any") -> bool:
    """Whether what was collected is on its way: what the text stream is just given it keeps only after that, and in a
    flood that was ended meanwhile nobody would come for it."""
    while frame is not None and frame.f_code is not _Collected.write.__code__:
        frame = frame.f_back
    return frame is not None


class _Collected(io.BufferedIOBase):
    """Takes what a flood has collected."""

    def __init__(self, flood: _Flood) -> None:
        self._put = flood.put

    def writable(self) -> bool:
        """It always is."""
        return True

    def write(self, data: "Any") -> int:
        """Into the pipe."""
        self._put(data)
        return len(data)


def _can_flood(step: "Any") -> bool:
    """Only where nobody else can write meanwhile, and where the timer is not the program's."""
    return (
        interrupts.state == USER
        and get_ident() == interrupts.main
        and step is steps.running
        and step.flood is None
        and not _count_threads()
        and _loop_rests()
        and _get_handler(_ALARM) == _signal.SIG_DFL
        and not any(_getitimer(_TIMER))
    )


def _loop_rests() -> bool:
    """Whether no task can run before the program's next line."""
    running = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return running is None or running() is None


streams = (_Stream(OUT, "<stdout>"), _Stream(ERR, "<stderr>"))


_untouched = [dict(vars(stream)) for stream in streams]


def install() -> None:
    """Make them the standard streams, as they were, whatever a step has put in their place."""
    for stream, attributes in zip(streams, _untouched):  # noqa: B905 - strict is not known before 3.10
        if len(vars(stream)) != len(attributes):
            vars(stream).clear()
            vars(stream).update(attributes)
    sys.stdout = sys.__stdout__ = streams[OUT]  # type: ignore[misc,assignment]
    sys.stderr = sys.__stderr__ = streams[ERR]  # type: ignore[misc,assignment]
