"""What a step may read: the text that the host gave with it, on descriptor 0, or nothing.

The text lies in a file without a name, so that the step's child processes go on reading where the step itself stopped.
"""

import builtins
import getpass
import io
import os
import sys
import tempfile
from binascii import a2b_base64
from fcntl import F_DUPFD_CLOEXEC, fcntl

from _casemate.session_own import own as __builtins__  # type: ignore[import-not-found,no-redef]
from _casemate.session_steps import out_of_the_way  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["NoStandardInput", "__builtins__", "stdin"]

_PIECE = 8192
_read, _pread, _lseek, _dup2, _close, _write = os.read, os.pread, os.lseek, os.dup2, os.close, os.write
_open = os.open
_plain_input = builtins.input
_memory_file = getattr(os, "memfd_create", None)


class NoStandardInput(EOFError):
    """The step asked for input and was given none."""


def _no_input(what: str) -> NoStandardInput:
    return NoStandardInput(f"{what}: this step was given no standard input; give it with stdin=…")


class _Bytes(io.BufferedIOBase):
    """Descriptor 0, without reading more than was asked for: the rest may be a child's."""

    name = "<stdin>"
    mode = "rb"

    @property
    def raw(self) -> "Any":
        return self

    def readable(self) -> bool:
        """It always is."""
        return True

    def fileno(self) -> int:
        """Descriptor 0."""
        return 0

    def read(self, size: "int | None" = -1) -> bytes:
        """So many bytes, fewer only at the end; all of them by default."""
        pieces, missing = [], -1 if size is None else size
        while missing:
            piece = _read(0, _PIECE if missing < 0 else missing)
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece) if missing > 0 else 0
        return b"".join(pieces)

    def read1(self, size: int = -1) -> bytes:
        """What one read gives."""
        return _read(0, _PIECE if size < 0 else size)

    def readinto(self, buffer: "Any") -> int:
        """As `read`, into ``buffer``."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readline(self, size: "int | None" = -1) -> bytes:
        """The next line, and not a byte more."""
        limit = -1 if size is None else size
        pieces: "list[bytes]" = []
        while limit and not (pieces and pieces[-1].endswith(b"\n")):
            piece = _line_or_part(_PIECE if limit < 0 else min(limit, _PIECE))
            if not piece:
                break
            pieces.append(piece)
            limit -= len(piece) if limit > 0 else 0
        return b"".join(pieces)

    def close(self) -> None:
        """It stays open: later steps need it."""


class _Text(io.TextIOBase):
    """``sys.stdin``."""

    encoding = "utf-8"
    errors = "replace"
    newlines = None
    name = "<stdin>"
    mode = "r"

    def __init__(self) -> None:
        self.buffer = _Bytes()

    def readable(self) -> bool:
        """It always is."""
        return True

    def fileno(self) -> int:
        """Descriptor 0."""
        return 0

    def isatty(self) -> bool:
        """It never is a terminal."""
        return False

    def read(self, size: "int | None" = -1) -> str:
        """So many characters; all by default."""
        if size is None or size < 0:
            return self.buffer.read().decode(self.encoding, self.errors)
        text = ""
        while len(text) < size:
            character = self._character()
            if not character:
                break
            text += character
        return text

    def readline(self, size: "int | None" = -1) -> str:  # type: ignore[override]
        """The next line."""
        if size is not None and size >= 0:
            return self.read(size) if size == 0 else self._line_of_at_most(size)
        return self.buffer.readline().decode(self.encoding, self.errors)

    def close(self) -> None:
        """It stays open: later steps need it."""

    def _line_of_at_most(self, size: int) -> str:
        text = ""
        while len(text) < size and not text.endswith("\n"):
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


class _Standard:
    """Descriptor 0, ``sys.stdin``, and the functions that read from it."""

    def __init__(self) -> None:
        self.text = _Text()
        self.is_given = False
        self._empty = -1

    def install(self) -> None:
        """Remember what empty is, and answer ``getpass`` too."""
        empty = _open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._empty = fcntl(empty, F_DUPFD_CLOEXEC, out_of_the_way())
        _close(empty)
        getpass.getpass = self._ask
        self.give(None)

    def give(self, data: "str | None") -> None:
        """What the next step reads, as base64. Raises ``OSError`` when there is no place to keep it."""
        sys.stdin = sys.__stdin__ = self.text  # type: ignore[misc,assignment]
        builtins.input = self._ask
        self.is_given = data is not None
        if data is None:
            _dup2(self._empty, 0)
        else:
            source = file_of(a2b_base64(data))
            _dup2(source, 0)
            _close(source)

    def _ask(self, prompt: object = "", *_stream: object, **_options: object) -> str:
        """What ``input`` and ``getpass`` do."""
        if sys.stdin is not self.text:
            return _plain_input(prompt)
        if not self.is_given:
            raise _no_input("input()")
        output: "Any" = sys.stdout
        if prompt != "" and output is not None:
            output.write(str(prompt))
            output.flush()
        line: str = self.text.readline()
        if not line:
            raise EOFError("the standard input that this step was given has ended")
        return line.removesuffix("\n")

    def need(self, what: str) -> None:
        """Raise :class:`NoStandardInput` unless the step has some."""
        if not self.is_given and sys.stdin is self.text:
            raise _no_input(what)


def file_of(data: bytes) -> int:
    """A descriptor of a file without a name that holds ``data``, at its beginning."""
    descriptor = _nameless_file()
    view = memoryview(data)
    while view:
        view = view[_write(descriptor, view) :]
    _lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _nameless_file() -> int:
    """In memory where that is allowed, else where temporary files are."""
    try:
        if _memory_file is not None:
            descriptor: int = _memory_file("stdin", os.MFD_CLOEXEC)
            return descriptor
    except OSError:
        pass
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _line_or_part(size: int) -> bytes:
    """At most so many bytes, to the end of the line. From what cannot be sought, one byte."""
    try:
        at = _lseek(0, 0, os.SEEK_CUR)
        piece = _pread(0, size, at)
    except OSError:
        return _read(0, 1)
    end = piece.find(b"\n") + 1
    piece = piece[:end] if end else piece
    _lseek(0, at + len(piece), os.SEEK_SET)
    return piece


stdin = _Standard()
