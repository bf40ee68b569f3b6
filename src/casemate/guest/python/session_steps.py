"""The steps that can still speak, each with pipes of its own; and which of them the code that runs now belongs to.

A thread belongs to the step that started it, a task of asyncio to the step that created it (a context variable goes
with it), a thread that Python knows nothing of to the step in which it was first seen.
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
_MOST_PENDING = 8192  # characters without a line's end
_SLICE = 1 << 17
_HIGH_DESCRIPTOR = 200  # the first descriptor that a step's pipes may have, at most: programs expect low ones
_write, _open, _close, _dup2 = os.write, os.open, os.close, os.dup2
_HOW = os.O_WRONLY | os.O_CLOEXEC
_mine: "ContextVar[Step]" = ContextVar("casemate_step")


class _PipeWriter:
    """One of a step's two pipes. ``written``: how many bytes this process has put there; ``pending``: text to come."""

    __slots__ = ("descriptor", "pending", "pending_size", "written")

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.written = descriptor, 0
        self.pending: "list[str]" = []
        self.pending_size = 0

    def write(self, data: bytes) -> None:
        """Write everything. When nobody reads any more it is dropped, now and from then on."""
        if self.descriptor < 0:
            return
        try:
            count = _write(self.descriptor, data)
            self.written += count
            if count != len(data):
                self._write_rest(memoryview(data)[count:])
        except BlockingIOError:  # a child process can make the pipe so, for all that have it open
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
        """Put ``text`` at once, or keep it until its line ends."""
        size = len(text)
        if size > _SLICE:
            self.flush()
            for at in range(0, size, _SLICE):  # to encode it whole would take its memory once more
                self.write(text[at : at + _SLICE].encode("utf-8", "backslashreplace"))
            return
        self.pending.append(text)
        self.pending_size += size
        if "\n" in text or not size or self.pending_size > _MOST_PENDING:
            self.flush()

    def flush(self) -> None:
        """Write out the text that waits for its line's end."""
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
    """What one step says: text into its two pipes, and frames that name it.

    ``last``: the stream that spoke last; ``batch``: what collects lines just now, when many come at once.
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
        """Whether something waits to be flushed."""
        return self.batch is not None or any(writer.pending for writer in self.writers)

    def write_text(self, which: int, text: str) -> None:
        """Write ``text``: at once to its last line's end. Nothing at all (what ``print(end="")`` ends with) flushes."""
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
        """Write bytes, after what was written before."""
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
        """Send a frame, after what was written before. ``rest``: its other fields as JSON, without the braces."""
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
        """`send_frame`, from values."""
        return self.send_frame(kind, encode(fields)[1:-1])

    def renew_lock(self) -> None:
        """In a forked child: whoever held it is not there."""
        self._lock = RLock()

    def close(self) -> None:
        """Close the pipes: what comes now goes elsewhere."""
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
    """The last steps, which hold their pipes open; what older ones say goes into the oldest of these."""

    def __init__(self) -> None:
        self.running = Step(0, 1, 2)  # before the first: the cell's own streams, and no frames
        self._open_steps: "deque[Step]" = deque([self.running])
        self._threads: "dict[int, Any]" = {}

    def begin(self, number: int, out: str, err: str) -> Step:
        """Make the step's pipes the standard ones, and what runs from now on in the main thread its own.

        Raises ``OSError`` when there are no such pipes; then what is written reaches nobody.
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
        """The step that the code which runs now belongs to."""
        step = _mine.get(None)
        if step is None:
            thread = self._threads.get(get_ident())
            step = getattr(thread, "_casemate_step", None) or self.running
            _mine.set(step)
        return step if step.is_open else self._open_steps[0]

    def flush(self) -> None:
        """Put everything that any step has written."""
        for step in self._open_steps:
            if step.has_more:
                step.flush()

    def renew_locks(self) -> None:
        """In a forked child."""
        for step in self._open_steps:
            step.renew_lock()

    def rehearse(self, step: Step) -> None:
        """Let ``step`` be all there is."""
        self.running = step
        self._open_steps = deque([step])
        _mine.set(step)

    def watch_threads(self) -> None:
        """From now on a thread that starts remembers whose it is."""
        import threading

        self._threads = threading._active  # type: ignore[attr-defined]
        threading.Thread.start = _start_with_step(threading.Thread.start)  # type: ignore[method-assign]


def _most_open() -> int:
    """How many descriptors the process may have."""
    most: int = getrlimit(RLIMIT_NOFILE)[0]
    return most if most > 0 else 1 << 20


def first_high_descriptor() -> int:
    """The first descriptor for what must not be among the low ones that programs expect."""
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
    """A descriptor for the pipe at ``path``, which becomes the ``standard`` one too."""
    descriptor = _open(path, _HOW)
    try:
        _dup2(descriptor, standard)
        return fcntl(descriptor, F_DUPFD_CLOEXEC, first_high_descriptor())
    finally:
        _close(descriptor)


steps = _Steps()
