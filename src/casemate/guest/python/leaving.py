"""How a process that was forked from a warm interpreter ends: as any other, but leaving alone what it shares.

The interpreter takes every object apart when it ends. That would copy the pages of all that was loaded ahead, only to
throw them away. What was loaded ahead is kept out of it; and after a program that went through to its last line
what is the program's own is taken apart here, in the interpreter's order, and the process ends.
"""

import _thread
import _weakref
import atexit
import ctypes
import gc
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_program: "str | None" = None
_MOST_READ = 1 << 16  # bytes; longer programs end as any other does
# Of what an end is known by, and of what can tell how things are taken apart.
_WORDS = (b"__file__", b"__cached__", b"excepthook", b"sys.modules", b"__del__", b"_loop", b"exec", b"eval",
          b"globals", b"builtins", b"sys.stdout =")  # fmt: skip
_loaded: "dict[str, ModuleType]" = {}
at_the_end: "list[Callable[[], None]]" = []  # of a program that is only rehearsed
# Of programs that may have had C code register something for the end.
_C_WORDS = (b"ctypes", b"cffi")
# The C library's: `exit` runs what C code has registered and the ends of all libraries, and writes out its streams,
# which is all that `fflush` does. Called with the interpreter's lock held, so that no thread goes on meanwhile.
_exit, _flush_c = ctypes.PyDLL(None).exit, ctypes.PyDLL(None).fflush


def hold_what_is_loaded() -> None:
    """Keep every object that is there now out of the end of the process: it would write to all of their memory, which
    is shared with the warm interpreter. A ring that the garbage collector leaves alone is never freed."""
    _loaded.update(sys.modules)
    for name in ("__main__", "sys", "builtins"):
        del _loaded[name]
    ring: "list[object]" = [dict(_loaded)]
    ring.append(ring)
    gc.freeze()


def make_room_for_the_program() -> None:
    """The program's own module must not be among what the collector leaves alone: what it holds is freed at the end."""
    if not _loaded:
        hold_what_is_loaded()
    gc.freeze()
    global _program
    _program = sys.argv[0]
    main = type(sys)("__main__")
    vars(main).update(vars(sys.modules["__main__"]))
    sys.modules["__main__"] = main


def _leave() -> None:
    """The last thing that the interpreter calls before it takes itself apart."""
    try:
        if _went_through() and _has_flushed():
            imported = _imported_since()
            _take_apart([*imported, "__main__"])
            if _has_flushed():
                _end(imported)
    except BaseException:  # whatever the program has done to what this needs: it ends as in plain Python
        pass
    for name, module in _loaded.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


def _end(imported: "list[str]") -> None:
    """End the process. Only what was ``imported``, or has C code called, can have registered more than Python knows."""
    if imported or _text_has(_C_WORDS):
        _exit(0)
    _flush_c(None)
    for last in at_the_end:
        last()
    os._exit(0)


def _imported_since() -> "list[str]":
    """What the program has imported, the last first. Asking after every module would write to all of their names."""
    names = []
    for name in reversed(sys.modules):
        if name in _loaded:
            break
        if name not in ("sys", "builtins", "__main__"):
            names.append(name)
    return names


def _went_through() -> bool:
    """Whether the program has ended after its last line, and nothing but the interpreter's own end is left.

    The interpreter removes both names when it has run a program, also one that failed, but not when that called
    sys.exit; and it keeps the exception that ended a program, unless a hook of the program's has removed it.
    """
    main = sys.modules.get("__main__")
    if main is None or _text_has(_WORDS):
        return False
    return (
        "__file__" not in vars(main)
        and "__cached__" not in vars(main)
        and "last_type" not in vars(sys)
        and vars(sys).get("last_value") is None
        and sys.excepthook is sys.__excepthook__
        and not sys.flags.inspect
        and _thread._count() == 0
    )


def _text_has(words: "tuple[bytes, ...]") -> bool:
    """Whether the program's text has one of ``words``; its end then takes a millisecond more."""
    try:
        with open(sys.argv[0] if _program is None else _program, "rb") as file:
            text = file.read(_MOST_READ)
    except OSError:
        return True
    return len(text) == _MOST_READ or any(word in text for word in words)


def _has_flushed() -> bool:
    """Whether the standard streams are written out; what cannot be is the interpreter's to complain about."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:
        return False
    return True


def _take_apart(names: "list[str]") -> None:
    """As the interpreter does: forget the modules, collect, and clear those that something still holds."""
    references = [_weakref.ref(sys.modules[name]) for name in names if isinstance(sys.modules[name], type(sys))]
    held = sys.modules.get("__main__")  # as the interpreter holds it
    for name in names:
        del sys.modules[name]
    gc.collect()
    del held
    for reference in reversed(references):
        module = reference()
        if module is not None:
            _clear(vars(module))
    gc.collect()
    for value in gc.get_objects():
        if isinstance(value, (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)):
            _write_out(value)


def _clear(namespace: "dict[str, object]") -> None:
    """Names with one underscore first, then the others, as ``_PyModule_Clear`` does it."""
    for name, value in list(namespace.items()):
        if value is not None and name[:1] == "_" and name[1:2] != "_":
            namespace[name] = None
    for name, value in list(namespace.items()):
        if value is not None and name != "__builtins__":
            namespace[name] = None


def _write_out(stream: "io.IOBase") -> None:
    try:
        if not stream.closed:
            stream.flush()
    except Exception:
        return


atexit.register(_leave)
