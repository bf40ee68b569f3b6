"""Lists of system calls. The supervisor prepares a list, and a process that becomes a cell makes its calls.

Init must be small and fast. It decides nothing: it makes one call after the other, in machine code (init.c) or, if that
was not built, with `perform`, which does the same.

A list is a count, that many records of ten words, and the bytes that arguments point to. A word is a number, points to
bytes, or names a register: a descriptor that comes with the list, or the result of an earlier call.
"""

from __future__ import annotations

import array
import ctypes
import os
import struct
from stat import S_ISDIR

from casemate.supervisor import kernel, syscall_numbers

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Sequence

    Argument = int | str | bytes | None

# Keep in sync with init.c.
_PHASE, _CALL, _ATTEMPT, _RULE, _FILTER = range(5)
_VALUE, _BYTES, _REGISTER = range(3)
_BITS = 2  # bits for the kind of one argument
_ARGUMENTS = 6
_WORDS = 4 + _ARGUMENTS
RESULTS = 64  # first register of results; the message's descriptors have the lower ones
_ALIGNED = 8
_LANDLOCK_PATH_BENEATH = 1
# Loaded now: a zygote's cells cannot import casemate.
_NUMBERS = syscall_numbers.numbers(kernel.machine)


class Reference(int):
    """A register: a descriptor that comes with the list, by number, or a result."""


class SetupPhase:
    """The current phase of a cell's set-up, which a failure reports."""

    name = "start"


class CallList:
    def __init__(self) -> None:
        self._records = array.array("q")
        self._bytes = bytearray()
        self._places: dict[bytes, int] = {}

    def phase(self, name: str) -> None:
        """Name the phase of the calls that follow, for failure reports."""
        self._add(_PHASE, 0, name)

    def call(self, name: str, *arguments: Argument) -> Reference:
        """Add a system call. If it fails, the whole list fails. Returns the register of its result."""
        label = " ".join((name, *(argument for argument in arguments if isinstance(argument, str))))
        return self._add(_CALL, _NUMBERS[name], label, *arguments)

    def attempt(self, name: str, *arguments: Argument) -> None:
        """Add a system call that may fail."""
        self._add(_ATTEMPT, _NUMBERS[name], name, *arguments)

    def add_rule(self, ruleset: Reference, path: str, rights: int, rights_of_files: int) -> None:
        """Landlock: grant ``rights`` beneath ``path``, or ``rights_of_files`` if it is a file. Skips a missing path."""
        self._add(_RULE, _NUMBERS["landlock_add_rule"], f"landlock {path}", ruleset, path, rights, rights_of_files)

    def install_filter(self) -> None:
        """Install the seccomp filter, which is not part of the list."""
        self._add(_FILTER, _NUMBERS["seccomp"], "seccomp")

    def encode(self) -> bytes:
        """The list as bytes. Another list may follow it."""
        data = self._bytes + bytes(-len(self._bytes) % _ALIGNED)
        return struct.pack("=q", len(self._records) // _WORDS) + self._records.tobytes() + data

    def _add(self, kind: int, number: int, label: str, *arguments: Argument) -> Reference:
        kinds, words = 0, [0] * _ARGUMENTS
        for position, argument in enumerate(arguments):
            if isinstance(argument, str | bytes):
                words[position] = self._place(argument)
                kinds |= _BYTES << _BITS * position
            elif argument is not None:
                words[position] = argument
                kinds |= (_REGISTER if isinstance(argument, Reference) else _VALUE) << _BITS * position
        result = Reference(RESULTS + len(self._records) // _WORDS)
        self._records.extend((kind, number, kinds, self._place(label), *words))
        return result

    def _place(self, value: str | bytes) -> int:
        data = os.fsencode(value) + b"\0" if isinstance(value, str) else value
        if data not in self._places:
            self._bytes += bytes(-len(self._bytes) % _ALIGNED)
            self._places[data] = len(self._bytes)
            self._bytes += data
        return self._places[data]


def perform(
    data: bytes, descriptors: Sequence[int] = (), program: bytes = b"", phase: SetupPhase | None = None
) -> None:
    """Make the calls of a list. ``program``: the seccomp filter. Raises ``OSError``, but not for a failed attempt."""
    (count,) = struct.unpack_from("=q", data)
    end = struct.calcsize("=q") * (1 + count * _WORDS)
    buffer = ctypes.create_string_buffer(data[end:], len(data) - end)
    base = ctypes.addressof(buffer)
    results: list[int] = []

    def value(word: int, kind: int) -> int:
        if kind == _BYTES:
            return base + word
        if kind == _REGISTER:
            return descriptors[word] if word < RESULTS else results[word - RESULTS]
        return word

    for kind, number, kinds, label, *words in struct.iter_unpack(f"={_WORDS}q", data[struct.calcsize("=q") : end]):
        text = ctypes.string_at(base + label).decode("utf-8", "replace")
        arguments = [value(word, kinds >> _BITS * position & 3) for position, word in enumerate(words)]
        result = 0
        if kind == _PHASE:
            if phase is not None:
                phase.name = text
        elif kind == _RULE:
            _add_rule(number, text, *arguments[:4])
        elif kind == _FILTER:
            kernel.install_filter(program)
        else:
            result = kernel.raw_call(number, *arguments)
            if kind == _CALL:
                kernel.check(result, text)
        results.append(result)


def _add_rule(number: int, label: str, ruleset: int, path: int, rights: int, rights_of_files: int) -> None:
    try:
        place = os.open(ctypes.string_at(path), os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        given = rights if S_ISDIR(os.fstat(place).st_mode) else rights_of_files  # other rights are EINVAL for a file
        rule = ctypes.create_string_buffer(struct.pack("=Qi", given, place))  # struct landlock_path_beneath_attr
        kernel.check(kernel.raw_call(number, ruleset, _LANDLOCK_PATH_BENEATH, ctypes.addressof(rule), 0), label)
    finally:
        os.close(place)
