"""The standard streams of a session. Each is one object for the session's whole life.

Output goes to the pipes of the step that the writing code belongs to. A line is written when it ends, which costs a
system call. So when a program prints thousands of lines without a pause, they are collected into batches, for at most
20 ms.

A step can read the text that the host gave with it, on descriptor 0, or nothing. The text is in an unnamed file, so
that child processes continue to read where the step stopped.
"""

import _signal  # type: ignore[import-not-found]
import builtins
import getpass
import io
import os
import sys
import tempfile
from _thread import _count as _count_threads
from _thread import get_ident
from binascii import a2b_base64
from fcntl import F_DUPFD_CLOEXEC, fcntl
from time import monotonic

from _casemate.session_interrupts import USER, interrupts, is_inside  # type: ignore[import-not-found]
from _casemate.session_interrupts import own as __builtins__  # type: ignore[no-redef]
from _casemate.session_steps import ERR, OUT, first_high_descriptor, steps  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["NoStandardInput", "__builtins__", "file_of", "install", "stdin", "streams"]

_BATCH_LINES, _BATCH_SECONDS = 4096, 0.1  # this many lines within this time start a batch
_COLLECTED_BYTES, _COLLECTED_SECONDS = 1 << 16, 0.02
_setitimer, _getitimer, _TIMER = _signal.setitimer, _signal.getitimer, _signal.ITIMER_REAL
_set_handler, _get_handler, _ALARM = _signal.signal, _signal.getsignal, int(_signal.SIGALRM)
_PIECE = 8192
_read, _pread, _lseek, _dup2, _close, _write = os.read, os.pread, os.lseek, os.dup2, os.close, os.write
_open = os.open
_plain_input = builtins.input
_memory_file = getattr(os, "memfd_create", None)


class _ToStep:
    """The common part of a stream and its ``buffer``."""

    _which: int

    def flush(self) -> None:
        """Write out an incomplete line."""
        steps.current().flush()

    def fileno(self) -> int:
        """Return the descriptor that child processes write to."""
        return self._which + 1

    def writable(self) -> bool:
        """It always is."""
        return True

    def close(self) -> None:
        """Only flush, because later steps need the stream."""
        self.flush()


class _OutputStream(_ToStep, io.TextIOBase):
    """A text stream that cannot fail. Invalid characters are written as escapes; output without a reader is dropped."""

    encoding = "utf-8"
    errors = "backslashreplace"
    line_buffering = True
    write_through = False
    mode = "w"

    def __init__(self, which: int, name: str) -> None:
        self._which, self.name = which, name
        self.buffer = _OutputBytes(which, name)
        self._lines, self._since = _BATCH_LINES, 0.0

    def write(self, text: str) -> int:
        """Write to the current step."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        step = steps.current()
        step.write_text(self._which, text)
        self._lines -= 1
        if not self._lines:
            self._start_batch_when_fast(step)
        return len(text)

    def writelines(self, lines: "Iterable[str]") -> None:  # type: ignore[override]
        """Write them all at once."""
        self.write("".join(lines))

    def detach(self) -> "Any":
        """Refuse."""
        raise io.UnsupportedOperation("the standard streams of a session cannot be detached")

    def reconfigure(self, **_options: object) -> None:
        """Only flush."""
        self.flush()

    def __repr__(self) -> str:
        return f"<session stream name={self.name!r} mode='w' encoding='utf-8'>"

    def _start_batch_when_fast(self, step: "Any") -> None:
        before, self._since, self._lines = self._since, monotonic(), _BATCH_LINES
        if self._since - before < _BATCH_SECONDS and _can_batch(step):
            _Batch(self, self._which, step)


class _OutputBytes(_ToStep, io.BufferedIOBase):
    """The stream's ``buffer``. Bytes go to the pipe unchanged and at once."""

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
        step.write_bytes(self._which, bytes(view))
        return view.nbytes


class _Batch:
    """Collects lines: the stream's ``write`` is temporarily that of a C text stream. A timer ends the batch when no
    more lines come.

    Any other write to the step, a frame, a new thread or a fork ends it first.
    """

    def __init__(self, stream: _OutputStream, which: int, step: "Any") -> None:
        self._stream, self._which, self._step = stream, which, step
        self._has_new_lines, self._is_over = True, False
        text: "Any" = io.TextIOWrapper(_BatchBuffer(self), encoding="utf-8", errors="backslashreplace", newline="\n")
        text._CHUNK_SIZE = _COLLECTED_BYTES
        self._text = text
        step.batch = self
        stream.write = self._text.write  # type: ignore[method-assign]
        _set_handler(_ALARM, self._look)
        _setitimer(_TIMER, _COLLECTED_SECONDS)

    def write(self, data: bytes) -> None:
        """Write to the step's pipe."""
        self._has_new_lines = True
        step = steps.current() if self._is_over else self._step
        step.write_bytes(self._which, data)

    def end(self) -> None:
        """Write what was collected, and restore the stream's ``write``.

        Code that looked up ``write`` earlier may call it only now, as `print` does, which handles signals in between.
        Such text is written at once.
        """
        self._step.batch = None
        vars(self._stream).pop("write", None)
        self._text.reconfigure(write_through=True)
        self._is_over = True
        if get_ident() == interrupts.main and _get_handler(_ALARM) == self._look:
            _setitimer(_TIMER, 0)
            _set_handler(_ALARM, _signal.SIG_DFL)

    def _look(self, _number: int, frame: "Any") -> None:
        if self._step.batch is not self:
            return
        # The text stream stores text only after the current write, so text would be stuck in a batch ended now.
        if interrupts.depth or is_inside(frame, _BatchBuffer.write.__code__):
            _setitimer(_TIMER, _COLLECTED_SECONDS)
        elif self._has_new_lines:
            self._text.flush()
            self._has_new_lines = False
            _setitimer(_TIMER, _COLLECTED_SECONDS)
        else:
            self._step.flush()


class _BatchBuffer(io.BufferedIOBase):
    """Receives what a batch has collected."""

    def __init__(self, batch: _Batch) -> None:
        self._put = batch.write

    def writable(self) -> bool:
        """It always is."""
        return True

    def write(self, data: "Any") -> int:
        """Write to the pipe."""
        self._put(data)
        return len(data)


def _can_batch(step: "Any") -> bool:
    """Whether no other code can write meanwhile, and the program does not use the timer."""
    return (
        interrupts.state == USER
        and get_ident() == interrupts.main
        and step is steps.running
        and step.batch is None
        and not _count_threads()
        and _is_loop_idle()
        and _get_handler(_ALARM) == _signal.SIG_DFL
        and not any(_getitimer(_TIMER))
    )


def _is_loop_idle() -> bool:
    """Whether no task can run before the program's next line."""
    running = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return running is None or running() is None


streams = (_OutputStream(OUT, "<stdout>"), _OutputStream(ERR, "<stderr>"))


_original_attributes = [dict(vars(stream)) for stream in streams]


def install() -> None:
    """Make them the standard streams in their original state, whatever a step put in their place."""
    for stream, attributes in zip(streams, _original_attributes):  # noqa: B905 - strict is not known before 3.10
        if len(vars(stream)) != len(attributes):
            vars(stream).clear()
            vars(stream).update(attributes)
    sys.stdout = sys.__stdout__ = streams[OUT]  # type: ignore[misc,assignment]
    sys.stderr = sys.__stderr__ = streams[ERR]  # type: ignore[misc,assignment]


class NoStandardInput(EOFError):
    """The step asked for input and was given none."""


def _no_input(what: str) -> NoStandardInput:
    return NoStandardInput(f"{what}: this step was given no standard input; give it with stdin=…")


class _FromStep:
    """The common part of ``sys.stdin`` and its ``buffer``."""

    name = "<stdin>"

    def readable(self) -> bool:
        """It always is."""
        return True

    def fileno(self) -> int:
        """Descriptor 0."""
        return 0

    def close(self) -> None:
        """Stay open, because later steps need it."""


class _InputBytes(_FromStep, io.BufferedIOBase):
    """Reads descriptor 0, and never more than requested, because a child may read the rest."""

    mode = "rb"

    @property
    def raw(self) -> "Any":
        return self

    def read(self, size: "int | None" = -1) -> bytes:
        """Read ``size`` bytes, fewer only at the end; all by default."""
        pieces, missing = [], -1 if size is None else size
        while missing:
            piece = _read(0, _PIECE if missing < 0 else missing)
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece) if missing > 0 else 0
        return b"".join(pieces)

    def read1(self, size: int = -1) -> bytes:
        """Return the result of one read."""
        return _read(0, _PIECE if size < 0 else size)

    def readinto(self, buffer: "Any") -> int:
        """Like `read`, into ``buffer``."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readline(self, size: "int | None" = -1) -> bytes:
        """Read the next line, and not a byte more."""
        limit = -1 if size is None else size
        pieces: "list[bytes]" = []
        while limit and not (pieces and pieces[-1].endswith(b"\n")):
            piece = _line_or_part(_PIECE if limit < 0 else min(limit, _PIECE))
            if not piece:
                break
            pieces.append(piece)
            limit -= len(piece) if limit > 0 else 0
        return b"".join(pieces)


class _InputText(_FromStep, io.TextIOBase):
    """``sys.stdin``."""

    encoding = "utf-8"
    errors = "replace"
    mode = "r"

    def __init__(self) -> None:
        self.buffer = _InputBytes()

    def read(self, size: "int | None" = -1) -> str:
        """Read ``size`` characters; all by default."""
        if size is None or size < 0:
            return self.buffer.read().decode(self.encoding, self.errors)
        return self._characters(size)

    def readline(self, size: "int | None" = -1) -> str:  # type: ignore[override]
        """The next line."""
        if size is None or size < 0:
            return self.buffer.readline().decode(self.encoding, self.errors)
        return self._characters(size, "\n")

    def _characters(self, most: int, last: "str | None" = None) -> str:
        """Read ``most`` characters; fewer at the end, or after ``last``."""
        text = ""
        while len(text) < most and not (last and text.endswith(last)):
            character = self._character()
            if not character:
                break
            text += character
        return text

    def _character(self) -> str:
        data = _read(0, 1)
        while data and data[0] >= 0xC0 and len(data) < 2 + (data[0] >= 0xE0) + (data[0] >= 0xF0):
            more = _read(0, 1)
            if not more:
                break
            data += more
        return data.decode(self.encoding, self.errors)


class _StandardInput:
    """Descriptor 0, ``sys.stdin``, and the functions that read from it."""

    def __init__(self) -> None:
        self.text = _InputText()
        self.has_text = False
        self.ask: "Callable[[str, bool], str | None] | None" = None  # asks a person for a line, if allowed
        self._empty = -1

    def install(self) -> None:
        """Open the empty input, and replace ``getpass`` too."""
        empty = _open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._empty = fcntl(empty, F_DUPFD_CLOEXEC, first_high_descriptor())
        _close(empty)
        getpass.getpass = self._read_hidden
        self.set_text(None)

    def set_text(self, data: "str | None") -> None:
        """Set what the next step reads, as base64. Raises ``OSError`` if it cannot be stored."""
        sys.stdin = sys.__stdin__ = self.text  # type: ignore[misc,assignment]
        builtins.input = self._read_line
        self.has_text = data is not None
        if data is None:
            _dup2(self._empty, 0)
        else:
            source = file_of(a2b_base64(data))
            _dup2(source, 0)
            _close(source)

    def _read_line(self, prompt: object = "", *_stream: object, **_options: object) -> str:
        """Implement ``input``."""
        if sys.stdin is not self.text:
            return _plain_input(prompt)
        if not self.has_text:
            return self._ask(str(prompt), hidden=False)
        output: "Any" = sys.stdout
        if prompt != "" and output is not None:
            output.write(str(prompt))
            output.flush()
        line: str = self.text.readline()
        if not line:
            raise EOFError("the standard input that this step was given has ended")
        return line.removesuffix("\n")

    def _read_hidden(self, prompt: object = "", *_stream: object, **_options: object) -> str:
        """Implement ``getpass``."""
        if self.has_text or sys.stdin is not self.text:
            return self._read_line(prompt)
        return self._ask(str(prompt), hidden=True)

    def _ask(self, prompt: str, hidden: bool) -> str:
        if self.ask is None:
            raise _no_input("input()")
        for stream in streams:
            stream.flush()
        line = self.ask(prompt, hidden)
        if line is None:
            raise EOFError("nobody has typed anything in")
        return line

    def require(self, what: str) -> None:
        """Raise :class:`NoStandardInput` unless the step has input."""
        if not self.has_text and self.ask is None and sys.stdin is self.text:
            raise _no_input(what)


def file_of(data: bytes) -> int:
    """Return a descriptor of an unnamed file that holds ``data``, positioned at its start."""
    descriptor = _nameless_file()
    view = memoryview(data)
    while view:
        view = view[_write(descriptor, view) :]
    _lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _nameless_file() -> int:
    """Open an unnamed file: in memory if allowed, else among the temporary files."""
    try:
        if _memory_file is not None:
            descriptor: int = _memory_file("stdin", os.MFD_CLOEXEC)
            return descriptor
    except OSError:
        pass
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _line_or_part(size: int) -> bytes:
    """Read up to ``size`` bytes, to the end of the line at most. Reads one byte if the input cannot seek."""
    try:
        at = _lseek(0, 0, os.SEEK_CUR)
        piece = _pread(0, size, at)
    except OSError:
        return _read(0, 1)
    end = piece.find(b"\n") + 1
    piece = piece[:end] if end else piece
    _lseek(0, at + len(piece), os.SEEK_SET)
    return piece


stdin = _StandardInput()
