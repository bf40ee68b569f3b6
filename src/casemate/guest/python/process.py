"""The start and the end of a program's process that was forked from a warm interpreter.

At its start the child resets state that it inherited, so that its program finds a fresh process. It resets only modules
that are already loaded.

At its end it leaves shared memory alone. An ending interpreter takes every object apart, which would copy the pages of
everything that was preloaded, only to discard them. So preloaded objects are kept out of the teardown. If a program ran
to its last line, its own objects are taken apart here, in the interpreter's order, and the process exits. The warm
interpreter imports this module before all others that it preloads, so that `_leave` runs last.
"""

import _thread
import _weakref
import atexit
import ctypes
import gc
import io
import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

ORDER_LIMIT = 4 * 2**20

_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")
_UUID_STATE = {
    "_node": None,
    "_generate_time_safe": None,  # the C library keeps its own node
    "_last_timestamp": None,
    "_last_timestamp_v6": None,
    "_last_timestamp_v7": None,
    "_last_counter_v7": 0,
}
_blas: "list[Any]" = []
_prepared: "list[bool]" = []
_program: "str | None" = None
_MOST_READ = 1 << 16  # bytes; longer programs end in the normal way
# A program with one of these may defeat the checks of `_has_run_to_its_end`, or observe the teardown.
_WORDS = (b"__file__", b"__cached__", b"excepthook", b"sys.modules", b"__del__", b"_loop", b"exec", b"eval",
          b"globals", b"builtins", b"sys.stdout =")  # fmt: skip
_loaded: "dict[str, ModuleType]" = {}
rehearsal_end: "list[Callable[[], None]]" = []  # called at the end of a rehearsal
# A program with one of these may have C code that registered exit functions.
_C_WORDS = (b"ctypes", b"cffi")
# Of the C library. `exit` runs exit functions and library destructors and flushes C's streams; `fflush` only flushes.
# PyDLL keeps the GIL during the call, so that no thread goes on meanwhile.
_exit, _flush_c = ctypes.PyDLL(None).exit, ctypes.PyDLL(None).fflush


def read_order(descriptor: int) -> "dict[str, Any]":
    """Read the order from ``descriptor``: the program's whole environment and its arguments. Then the descriptor is
    closed, unless the program is a session's interpreter.

    Ends the process if the other end closes without an order. Raises ``ValueError`` for an invalid order.
    """
    size = int.from_bytes(_read(descriptor, 4), "big")
    if size > ORDER_LIMIT:
        raise ValueError(f"an order of {size} bytes")
    order: "dict[str, Any]" = json.loads(_read(descriptor, size).decode("utf-8"))
    if not order.pop("session", False):
        os.close(descriptor)
    texts = [*order["arguments"], *order["env"].keys(), *order["env"].values()]
    if set(order) != {"env", "arguments"} or not all(isinstance(text, str) for text in texts):
        raise ValueError("an order has env and arguments, and all their texts are strings")
    return order


def prepare() -> None:
    """Do everything that needs no order, while the process waits for one."""
    _prepared.append(True)
    _renew_streams()
    _renew_randomness()
    _renew_names()
    _renew_matplotlib()
    make_main_module()


def take_order(order: "dict[str, Any]") -> None:
    """Become the process that ``order`` asks for. It shares no random state, time or name with its siblings."""
    if not _prepared:
        prepare()
    _set_environment(order["env"])
    sys.argv += order["arguments"]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv += order["arguments"]
    for path in (os.getcwd(), os.path.dirname(sys.argv[0])):
        sys.path_importer_cache.pop(path, None)
    sys.path_importer_cache[sys.argv[0]] = None  # as the interpreter does for a script that is not an archive
    _renew_times()
    if "matplotlib" in sys.modules and os.path.isfile("matplotlibrc"):
        sys.modules["matplotlib"].rc_file("matplotlibrc")
    _set_threads(order["env"])
    gc.enable()


def find_blas() -> None:
    """Find the functions that set OpenBLAS's number of threads."""
    if "numpy" not in sys.modules or _blas:
        return
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[-1].rstrip("\n") for line in maps if "openblas" in line}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        _blas.extend(getattr(library, name) for name in _SETTERS if hasattr(library, name))


def _read(descriptor: int, size: int) -> bytes:
    """Read exactly ``size`` bytes. Ends the process if the pipe ends first."""
    data = b""
    while len(data) < size:
        piece = os.read(descriptor, size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def _set_environment(env: "dict[str, str]") -> None:
    """Set exactly these variables, for C code too, and their time zone. Leaves alone what is already right."""
    for name in [name for name in os.environ if name not in env]:
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    time.tzset()


def _renew_streams() -> None:
    """Reopen each standard stream that remembers wrongly whether its file is seekable."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        old: "Any" = getattr(sys, name)
        raw = getattr(getattr(old, "buffer", None), "raw", None)
        if raw is None or raw.seekable() == _is_seekable(descriptor):
            continue
        mode = "r" if descriptor == 0 else "w"
        buffer: "Any" = open(descriptor, mode + "b", closefd=False)  # noqa: SIM115 - it stays open
        buffer.raw.name = f"<{name}>"
        new: "Any" = type(old)(buffer, old.encoding, old.errors, "\n", old.line_buffering, old.write_through)
        new.mode = mode
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _is_seekable(descriptor: int) -> bool:
    try:
        os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        return False
    return True


def _renew_randomness() -> None:
    """Reseed random generators, or siblings would draw the same values. Siblings may have the same process id, so
    libraries cannot detect the fork."""
    loaded: Any = sys.modules
    if "random" in loaded:
        loaded["random"].seed()
    if "numpy.random.mtrand" in loaded:
        loaded["numpy.random.mtrand"]._rand.seed()
    if "_ssl" in loaded:
        loaded["_ssl"].RAND_add(os.urandom(64), 64.0)
    if "tempfile" in loaded:
        vars(loaded["tempfile"]).update(_name_sequence=None, tempdir=None)
    if "multiprocessing.synchronize" in loaded:
        loaded["multiprocessing.synchronize"].SemLock._rand = loaded["tempfile"]._RandomNameSequence()
    if "multiprocessing.process" in loaded:
        loaded["multiprocessing.process"].current_process().authkey = os.urandom(32)


def begin_randomness() -> None:
    """In the warm interpreter, make OpenSSL create its generators, so that processes share their 3 MB.
    `_renew_randomness` later adds entropy in each process."""
    if "_ssl" in sys.modules:
        sys.modules["_ssl"].RAND_bytes(1)


def _renew_names() -> None:
    """Renew ids, counters and paths of the warm interpreter."""
    loaded: Any = sys.modules
    if "uuid" in loaded:
        uuid_state = vars(loaded["uuid"])
        uuid_state.update({name: value for name, value in _UUID_STATE.items() if name in uuid_state})
    if "platform" in loaded:
        loaded["platform"]._uname_cache = None
        loaded["platform"]._platform_cache.clear()
    if "threading" in loaded:
        main = loaded["threading"].main_thread()
        if hasattr(main, "_set_native_id"):
            main._set_native_id()
        loaded["threading"]._counter = loaded["threading"]._count(1).__next__
    if "multiprocessing.process" in loaded:
        loaded["multiprocessing.process"].ORIGINAL_DIR = os.path.abspath(os.getcwd())


def _renew_matplotlib() -> None:
    """Create matplotlib's folders, which it made elsewhere when it was imported."""
    matplotlib: "Any" = sys.modules.get("matplotlib")
    if matplotlib is None:
        return
    for name in ("get_configdir", "get_cachedir"):
        try:
            os.makedirs(getattr(matplotlib, name)(), exist_ok=True)
        except (AttributeError, OSError):
            continue


def _renew_times() -> None:
    """Set the start time that ``logging`` keeps to now."""
    logging: Any = sys.modules.get("logging")
    if logging is not None:
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()


def _set_threads(env: "dict[str, str]") -> None:
    """Give OpenBLAS the number of threads that ``env`` asks for; the warm interpreter has one."""
    threads = env.get("OPENBLAS_NUM_THREADS") or env.get("OMP_NUM_THREADS") or ""
    if threads.isdecimal() and int(threads) > 1:
        find_blas()
        for setter in _blas:
            setter(min(int(threads), len(os.sched_getaffinity(0))))


def keep_loaded_modules() -> None:
    """Keep all current objects out of the teardown. It would write to memory that is shared with the warm interpreter.
    A reference cycle that the garbage collector ignores is never freed."""
    _loaded.update(sys.modules)
    for name in ("__main__", "sys", "builtins"):
        del _loaded[name]
    ring: "list[object]" = [dict(_loaded)]
    ring.append(ring)
    gc.freeze()


def make_main_module() -> None:
    """Make a ``__main__`` module that the collector does not ignore, so that its contents are freed at the end."""
    if not _loaded:
        keep_loaded_modules()
    gc.freeze()
    global _program
    _program = sys.argv[0]
    main = type(sys)("__main__")
    vars(main).update(vars(sys.modules["__main__"]))
    sys.modules["__main__"] = main


def _leave() -> None:
    """Run last before the interpreter tears itself down."""
    try:
        if _has_run_to_its_end() and _has_flushed():
            imported = _imported_since()
            _free_modules([*imported, "__main__"])
            if _has_flushed():
                _end(imported)
    except BaseException:  # the program may have broken what this needs; it ends as in plain Python
        pass
    for name, module in _loaded.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


def _end(imported: "list[str]") -> None:
    """Exit. Only ``imported`` modules and C calls can have registered exit functions that Python does not know."""
    if imported or _text_has(_C_WORDS):
        _exit(0)
    _flush_c(None)
    for last in rehearsal_end:
        last()
    os._exit(0)


def _imported_since() -> "list[str]":
    """Return the modules that the program imported, the last first, without touching the memory of others."""
    names = []
    for name in reversed(sys.modules):
        if name in _loaded:
            break
        if name not in ("sys", "builtins", "__main__"):
            names.append(name)
    return names


def _has_run_to_its_end() -> bool:
    """Whether the program ran past its last line, and only the interpreter's teardown is left.

    The interpreter removes ``__file__`` and ``__cached__`` after running a program, even a failed one, but not after
    sys.exit. It keeps the exception that ended a program, unless a hook of the program removed it.
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
    """Whether the program's text contains one of ``words``. Such a program takes 1 ms longer to end."""
    try:
        with open(sys.argv[0] if _program is None else _program, "rb") as file:
            text = file.read(_MOST_READ)
    except OSError:
        return True
    return len(text) == _MOST_READ or any(word in text for word in words)


def _has_flushed() -> bool:
    """Flush the standard streams. Returns False on failure, which the interpreter then reports."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except Exception:
        return False
    return True


def _free_modules(names: "list[str]") -> None:
    """As the interpreter does: drop the modules, collect, and clear those that are still referenced."""
    references = [_weakref.ref(sys.modules[name]) for name in names if isinstance(sys.modules[name], type(sys))]
    main_module = sys.modules.get("__main__")  # held, as the interpreter does
    for name in names:
        del sys.modules[name]
    gc.collect()
    del main_module
    for reference in reversed(references):
        module = reference()
        if module is not None:
            _clear(vars(module))
    gc.collect()
    for value in gc.get_objects():
        if isinstance(value, (io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)):
            try:
                if not value.closed:
                    value.flush()
            except Exception:
                continue


def _clear(namespace: "dict[str, object]") -> None:
    """Clear names with one underscore first, then the others, like ``_PyModule_Clear``."""
    for name, value in list(namespace.items()):
        if value is not None and name[:1] == "_" and name[1:2] != "_":
            namespace[name] = None
    for name, value in list(namespace.items()):
        if value is not None and name != "__builtins__":
            namespace[name] = None


atexit.register(_leave)
