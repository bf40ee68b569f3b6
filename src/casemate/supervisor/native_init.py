"""Loads init.c, if built: the first process of cells in machine code, and a zygote's loop that makes cells."""

from __future__ import annotations

import binascii
import ctypes
import os

from casemate.supervisor import kernel

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from collections.abc import Sequence

_FOLDER = os.path.dirname(os.path.abspath(__file__))


class _Span(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char_p), ("size", ctypes.c_size_t))


class NativeInit:
    def __init__(self, library: ctypes.PyDLL) -> None:
        self._run = library["casemate_run"]
        self._run.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, _Span, _Span)
        self._make_cells = library["casemate_make_cells"]
        self._make_cells.argtypes = (ctypes.c_int, ctypes.c_ulong, _Span, _Span)

    def run(self, ends: Sequence[int], program: bytes, prepared: bytes) -> None:
        """`init.run` for a program that is executed. Does not return."""
        channel, status, *cgroups = ends
        array = (ctypes.c_int * len(cgroups))(*cgroups)
        self._run(channel, status, array, len(cgroups), _span(program), _span(prepared))

    def make_cells(self, socket: int, program: bytes, prepared: bytes) -> None:
        """Make a cell for each message on ``socket``, which carries the cell's ends. Returns in a program's process."""
        flags = kernel.CLONE_PARENT | kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID
        ctypes.pythonapi.PyOS_BeforeFork()
        self._make_cells(socket, flags, _span(program), _span(prepared))
        ctypes.pythonapi.PyOS_AfterFork_Child()


def load() -> NativeInit | None:
    """The library; None if it was not built from this init.c or the C library cannot load it."""
    try:
        library = ctypes.PyDLL(f"{_FOLDER}/libinit.so")
        built_from = ctypes.c_uint32.in_dll(library, "casemate_source").value
        with open(f"{_FOLDER}/init.c", "rb") as source:
            return NativeInit(library) if binascii.crc32(source.read()) == built_from else None
    except (OSError, ValueError):
        return None


def _span(data: bytes) -> _Span:
    return _Span(data, len(data))
