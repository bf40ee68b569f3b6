"""Makes a forked child of a warm interpreter the fresh process that its program expects.

The warm interpreter imports this before anything else that it loads ahead, and so `leaving`, whose part comes last.
Only what is loaded already is renewed.
"""

import gc
import json
import os
import sys
import time

from _casemate import leaving  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ORDER_LIMIT = 4 * 2**20

_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")
_UUID_STATE = {
    "_node": None,
    "_generate_time_safe": None,  # the C library remembers its own node
    "_last_timestamp": None,
    "_last_timestamp_v6": None,
    "_last_timestamp_v7": None,
    "_last_counter_v7": 0,
}
_blas: "list[Any]" = []
_prepared: "list[bool]" = []


def read_order(descriptor: int) -> "dict[str, Any]":
    """The order that arrives at ``descriptor``: the program's whole environment and its arguments. Nothing else comes
    there, and it is closed, unless the program is a session's interpreter.

    Ends the process when the other end is closed before an order came. Raises ``ValueError`` for what is no order.
    """
    size = int.from_bytes(_read(descriptor, 4), "big")
    if size > ORDER_LIMIT:
        raise ValueError(f"an order of {size} bytes")
    order: "dict[str, Any]" = json.loads(_read(descriptor, size).decode("utf-8"))
    if not order.pop("session", False):
        os.close(descriptor)
    texts = [*order["arguments"], *order["env"].keys(), *order["env"].values()]
    if set(order) != {"env", "arguments"} or not all(isinstance(text, str) for text in texts):
        raise ValueError("an order is env and arguments, and these are texts")
    return order


def prepare() -> None:
    """Everything that needs no order, so that it is done while the process waits for one."""
    _prepared.append(True)
    _renew_streams()
    _renew_randomness()
    _renew_names()
    _renew_matplotlib()
    leaving.make_room_for_the_program()


def become(order: "dict[str, Any]") -> None:
    """Be the process that ``order`` asks for, with nothing random, timed or named that a sibling has as well."""
    if not _prepared:
        prepare()
    _take_environment(order["env"])
    sys.argv += order["arguments"]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv += order["arguments"]
    for path in (os.getcwd(), os.path.dirname(sys.argv[0])):
        sys.path_importer_cache.pop(path, None)
    sys.path_importer_cache[sys.argv[0]] = None  # what the interpreter finds out of every file that is no archive
    _renew_times()
    if "matplotlib" in sys.modules and os.path.isfile("matplotlibrc"):
        sys.modules["matplotlib"].rc_file("matplotlibrc")
    _set_threads(order["env"])
    gc.enable()


def find_blas() -> None:
    """Look for the function that sets the number of OpenBLAS' threads. The warm interpreter does it ahead."""
    if "numpy" not in sys.modules or _blas:
        return
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[-1].rstrip("\n") for line in maps if "openblas" in line}
    for path in sorted(paths):
        import ctypes

        library = ctypes.CDLL(path)
        _blas.extend(getattr(library, name) for name in _SETTERS if hasattr(library, name))


def _read(descriptor: int, size: int) -> bytes:
    """So many bytes; ends the process when the pipe ends before."""
    data = b""
    while len(data) < size:
        piece = os.read(descriptor, size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


def _take_environment(env: "dict[str, str]") -> None:
    """Only these variables, for C code too; and their time zone. What is right already is left alone."""
    for name in [name for name in os.environ if name not in env]:
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    time.tzset()


def _renew_streams() -> None:
    """A stream remembers whether its file can be sought; open those anew that had another file before."""
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
    """What the siblings would draw alike. They may have the same process id too, so libraries cannot see the fork."""
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
    """In the warm interpreter: have OpenSSL make its generators. They take three megabytes, which each process would
    have of its own otherwise; what it adds to them makes all that follows its own (`_renew_randomness`)."""
    if "_ssl" in sys.modules:
        sys.modules["_ssl"].RAND_bytes(1)


def _renew_names() -> None:
    """Identities, times, counters and places of the process that was there before."""
    loaded: Any = sys.modules
    if "uuid" in loaded:
        known = vars(loaded["uuid"])
        known.update({name: value for name, value in _UUID_STATE.items() if name in known})
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
    """It made its folders when it was imported, elsewhere, and knows only their names."""
    matplotlib: "Any" = sys.modules.get("matplotlib")
    if matplotlib is None:
        return
    for name in ("get_configdir", "get_cachedir"):
        try:
            os.makedirs(getattr(matplotlib, name)(), exist_ok=True)
        except (AttributeError, OSError):
            continue


def _renew_times() -> None:
    """The program starts now."""
    logging: Any = sys.modules.get("logging")
    if logging is not None:
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()


def _set_threads(env: "dict[str, str]") -> None:
    """As many threads for OpenBLAS as it would have taken from ``env``; the warm interpreter has one."""
    asked = env.get("OPENBLAS_NUM_THREADS") or env.get("OMP_NUM_THREADS") or ""
    if asked.isdecimal() and int(asked) > 1:
        find_blas()
        for setter in _blas:
            setter(min(int(asked), len(os.sched_getaffinity(0))))
