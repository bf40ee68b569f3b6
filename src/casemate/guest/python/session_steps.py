"""The steps whose pipes are still open, and which of them the running code belongs to.

A thread belongs to the step that started it. A task of asyncio belongs to the step that created it, through a context
variable. A thread unknown to Python belongs to the step in which it was first seen.
"""

import functools
import os
from _thread import RLock, get_ident
from collections import deque
from contextvars import ContextVar
from fcntl import F_DUPFD_CLOEXEC, fcntl
from resource import RLIMIT_NOFILE, getrlimit
from select import POLLOUT, poll

from _casemate.session_frames import encode, pipes  # type: ignore[import-not-found]
from _casemate.session_interrupts import interrupts  # type: ignore[import-not-found]
from _casemate.session_interrupts import own as __builtins__  # type: ignore[no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["ERR", "OUT", "Step", "__builtins__", "steps"]

OUT, ERR = 0, 1
_MOST_OPEN = 16
_MOST_PENDING = 8192  # characters without a newline
_SLICE = 1 << 17
_HIGH_DESCRIPTOR = 200  # the lowest descriptor of a step's pipes, at most; programs expect low ones to be free
_write, _open, _close, _dup2 = os.write, os.open, os.close, os.dup2
_HOW = os.O_WRONLY | os.O_CLOEXEC
_mine: "ContextVar[Step]" = ContextVar("casemate_step")


class _PipeWriter:
    """One of a step's two pipes. ``written`` counts this process's bytes; ``pending`` is text still to be written."""

    __slots__ = ("descriptor", "pending", "pending_size", "written")

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.written = descriptor, 0
        self.pending: "list[str]" = []
        self.pending_size = 0

    def write(self, data: bytes) -> None:
        """Write everything. If the pipe has no reader, drop this and all later data."""
        if self.descriptor < 0:
            return
        try:
            count = _write(self.descriptor, data)
            self.written += count
            if count != len(data):
                self._write_rest(memoryview(data)[count:])
        except BlockingIOError:  # a child process can make the pipe non-blocking for all that share it
            self._write_rest(memoryview(data))
        except OSError:
            self.close()

    def _write_rest(self, data: memoryview) -> None:
        while data and self.descriptor >= 0:
            try:
                count = _write(self.descriptor, data)
            except BlockingIOError:
                waiter = poll()
                waiter.register(self.descriptor, POLLOUT)
                waiter.poll()
            except OSError:
                self.close()
            else:
                self.written += count
                data = data[count:]

    def write_text(self, text: str) -> None:
        """Write ``text`` at once, or keep it until its line ends."""
        size = len(text)
        if size > _SLICE:
            self.flush()
            for at in range(0, size, _SLICE):  # encoding all at once would double its memory
                self.write(text[at : at + _SLICE].encode("utf-8", "backslashreplace"))
            return
        self.pending.append(text)
        self.pending_size += size
        if "\n" in text or not size or self.pending_size > _MOST_PENDING:
            self.flush()

    def flush(self) -> None:
        """Write text that waits for the end of its line."""
        if self.pending:
            text = "".join(self.pending)
            self.pending.clear()
            self.pending_size = 0
            self.write(text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        if self.descriptor > ERR + 1:
            try:
                _close(self.descriptor)
            except OSError:
                pass
        self.descriptor = -1


class Step:
    """A step's output: text into its two pipes, and frames with its number.

    ``last`` is the stream written last; ``batch`` collects lines while many come at once.
    """

    __slots__ = ("_lock", "batch", "is_open", "last", "number", "writers")

    def __init__(self, number: int, out: int, err: int) -> None:
        self.number, self.is_open = number, True
        self.writers = (_PipeWriter(out), _PipeWriter(err))
        self.last: "int | None" = None
        self.batch: "Any" = None
        self._lock = RLock()

    @property
    def has_more(self) -> bool:
        """Whether something must be flushed."""
        return self.batch is not None or any(writer.pending for writer in self.writers)

    def write_text(self, which: int, text: str) -> None:
        """Write ``text``; complete lines at once. Empty text (from ``print(end="")``) flushes."""
        interrupts.hold()
        try:
            with self._lock:
                if self.batch is not None:
                    self.batch.end()
                if self.last != which:
                    self._switch_stream(which)
                writer = self.writers[which]
                writer.write_text(text)
        finally:
            interrupts.release()

    def write_bytes(self, which: int, data: bytes) -> None:
        """Write bytes, after all earlier text."""
        interrupts.hold()
        try:
            with self._lock:
                if self.last != which:
                    self._switch_stream(which)
                writer = self.writers[which]
                writer.flush()
                writer.write(data)
        finally:
            interrupts.release()

    def flush(self) -> None:
        """Write out everything that is pending."""
        interrupts.hold()
        try:
            with self._lock:
                self._flush()
        finally:
            interrupts.release()

    def send_frame(self, kind: str, rest: str) -> bool:
        """Send a frame, after all earlier text. ``rest``: its other fields as JSON, without the braces."""
        if not self.number:
            return False
        interrupts.hold()
        try:
            with self._lock:
                self._flush()
                out, err = self.writers
                comma = "," if rest else ""
                sent: bool = pipes.send(
                    f'{{"type":"{kind}","step":{self.number},"at":[{out.written},{err.written}]{comma}{rest}}}'
                )
                return sent
        finally:
            interrupts.release()

    def send_fields(self, kind: str, /, **fields: object) -> bool:
        """Like `send_frame`, from values."""
        return self.send_frame(kind, encode(fields)[1:-1])

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, where its holder does not exist."""
        self._lock = RLock()

    def close(self) -> None:
        """Close the pipes. Later output goes to another step."""
        self.flush()
        self.is_open = False
        for writer in self.writers:
            writer.close()

    def _flush(self) -> None:
        if self.batch is not None:
            self.batch.end()
        for writer in self.writers:
            writer.flush()

    def _switch_stream(self, which: int) -> None:
        before, self.last = self.last, which
        if before is not None:
            self.writers[before].flush()
            self.send_frame("mark", "")


class _Steps:
    """The last steps, whose pipes are open. Output of older steps goes to the oldest of these."""

    def __init__(self) -> None:
        self.running = Step(0, 1, 2)  # before the first step: the cell's own streams, no frames
        self._open_steps: "deque[Step]" = deque([self.running])
        self._threads: "dict[int, Any]" = {}

    def begin(self, number: int, out: str, err: str) -> Step:
        """Make the step's pipes the standard ones, and the main thread part of the step.

        Raises ``OSError`` if the pipes cannot be opened; the step's output is then dropped.
        """
        step = Step(number, -1, -1)
        self.running = step
        _mine.set(step)
        self._open_steps.append(step)
        while len(self._open_steps) > min(_MOST_OPEN, _most_open() // 8):
            self._open_steps.popleft().close()
        for which, path in ((OUT, out), (ERR, err)):
            step.writers[which].descriptor = _open_pipe(path, which + 1)
        return step

    def current(self) -> Step:
        """Return the step that the running code belongs to."""
        step = _mine.get(None)
        if step is None:
            thread = self._threads.get(get_ident())
            step = getattr(thread, "_casemate_step", None) or self.running
            _mine.set(step)
        return step if step.is_open else self._open_steps[0]

    def flush(self) -> None:
        """Flush all steps."""
        for step in self._open_steps:
            if step.has_more:
                step.flush()

    def renew_locks(self) -> None:
        """Replace the locks in a forked child."""
        for step in self._open_steps:
            step.renew_lock()

    def rehearse(self, step: Step) -> None:
        """Make ``step`` the only step."""
        self.running = step
        self._open_steps = deque([step])
        _mine.set(step)

    def watch_threads(self) -> None:
        """Make new threads remember the step that started them."""
        import threading

        self._threads = threading._active  # type: ignore[attr-defined]
        threading.Thread.start = _start_with_step(threading.Thread.start)  # type: ignore[method-assign]


def _most_open() -> int:
    """Return how many descriptors the process may have."""
    most: int = getrlimit(RLIMIT_NOFILE)[0]
    return most if most > 0 else 1 << 20


def first_high_descriptor() -> int:
    """Return the first descriptor above those that programs expect."""
    return min(_HIGH_DESCRIPTOR, max(8, _most_open() // 2))


def _start_with_step(start: "Callable[..., None]") -> "Callable[..., None]":
    @functools.wraps(start)
    def start_thread(self: "Any") -> None:
        step = steps.current()
        step.flush()
        self._casemate_step = step
        start(self)

    return start_thread


def _open_pipe(path: str, standard: int) -> int:
    """Open the pipe at ``path``, and make it the ``standard`` descriptor too."""
    descriptor = _open(path, _HOW)
    try:
        _dup2(descriptor, standard)
        return fcntl(descriptor, F_DUPFD_CLOEXEC, first_high_descriptor())
    finally:
        _close(descriptor)


steps = _Steps()
