"""The zygote's own process: a warmed interpreter without capabilities that every warm Python cell is forked from.

It runs in the start-up of the environment's interpreter (start/sitecustomize.py), in a read-only root of its
own with an empty network. It has never run code of a guest's and is told nothing of one: it makes processes, which
build their own walls as every cell does, and are the supervisor's children, so that they outlive it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import array
import gc
import os
import select
import sys

from casemate.supervisor import cell, kernel, rehearsal, wire

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

SOCKET = 3
PACKAGES = "/run"  # where casemate lies in a zygote
GUEST = "/opt/casemate/python"
MODULES = "/opt/casemate/modules"
_SIGINT = 2
_hidden: list[object] = []
_MAX_ENDS = 8  # descriptors of one unborn cell: channel, status, doors
# What a program's start, its pictures and its end need; the guest's own come below.
_NEEDED = ("__future__", "atexit", "binascii", "encodings.utf_8", "fcntl", "io", "json", "linecache", "stat",
           "termios", "time", "tokenize", "traceback", "types")  # fmt: skip
_GUEST_MODULES = ("leaving", "fresh", "bundles", "channel", "failure", "patches", "show")


def wait() -> None:
    """Warm up, then make cells until the supervisor is gone. Returns only in a cell's program, once it has its order.

    Told by the supervisor: which modules to preload, and the filter of system calls. Tells it what came of that.
    """
    kernel.set_name(b"casemate-zygote")
    socket = _socket.socket(fileno=SOCKET)
    told = wire.decode(socket.recv(wire.MAX_MESSAGE))
    begin = _begin_of_programs()
    problem = _preload(told["preload"], optional=told["optional"])
    sys.modules["_casemate.fresh"].begin_randomness()
    _rehearse()
    _rehearse_failing()
    problem = problem or _flushed()
    if problem is None and len(os.listdir("/proc/self/task")) > 1:
        problem = "preloading started threads, and a process with threads cannot be forked safely"
    socket.send(wire.encode({"problem": problem, "data": _data_bytes()}))
    if problem is not None:
        os._exit(0)
    program = _Program(begin)
    gc.collect()
    sys.modules["_casemate.leaving"].hold_what_is_loaded()
    gc.disable()  # a collection in a cell that waits would copy the whole heap's pages
    _hidden.extend((told, program, socket))  # what ends with this call in every program: freeing it would write to it
    rehearsed = rehearsal.Rehearsal()
    _hidden.append(rehearsed)
    if rehearsed.is_player:
        program.start([])
        return
    written = rehearsed.written()
    _make_cells(socket, told["program"])
    program.start(written)


def _begin_of_programs() -> CodeType:
    """What a program's start runs in every Python cell, compiled once; and the modules that it may need."""
    package = type(sys)("_casemate")
    package.__path__ = [GUEST]
    vars(package).update(control=None, display=None)
    sys.modules["_casemate"] = package
    for name in _GUEST_MODULES:
        __import__(f"_casemate.{name}")
    for name in _NEEDED:
        __import__(name)
    vars(package)["ready"] = _tools_for_later()
    with open(f"{GUEST}/sitecustomize.py", encoding="utf-8") as file:
        return compile(file.read(), file.name, "exec")


def _tools_for_later() -> dict[str, ModuleType]:
    """The package `mcptools`, loaded for programs that import it, while others do not find it loaded: see
    guest/python/sitecustomize.py. Its first import would take longer than a call of a tool."""
    sys.path.insert(0, MODULES)
    before = list(sys.meta_path)
    try:
        __import__("mcptools._running")
    finally:
        sys.path.remove(MODULES)
        sys.meta_path[:] = before
        for place in [place for place in sys.path_importer_cache if place.startswith(MODULES)]:
            del sys.path_importer_cache[place]
    names = [name for name in sys.modules if name.partition(".")[0] == "mcptools"]
    ready = {name: sys.modules.pop(name) for name in names}
    _hidden.append(dict(ready))  # no program frees what all share
    return ready


def _preload(names: list[str], *, optional: bool) -> str | None:
    """Import what programs of this environment will; what is wrong with it, or None.

    ``optional``: what is not installed is passed over.
    """
    sys.meta_path.insert(0, _Patched)
    for name in names:
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            if not (optional and error.name and name.startswith(error.name)):
                return f"{name} cannot be preloaded: {error}"
        except BaseException as error:  # noqa: BLE001 - the operator's libraries may do anything when they are imported
            return f"{name} cannot be preloaded: {type(error).__name__}: {error}"[:500]
    return None


def _flushed() -> str | None:
    """Write out what was printed meanwhile, which is no program's output; what is wrong when that cannot be."""
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError) as error:
        return f"preloading printed more than is kept: {error}"
    return None


class _Patched:
    """What is preloaded shows its pictures, too; a program's own finder takes this one's place."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: object = None) -> Any:
        """The real finder's answer, with the patch that the module gets in every cell."""
        patches = sys.modules["_casemate.patches"]
        return patches.patched_spec(name, path, target, _Patched) if name in patches._PATCHES else None


def _rehearse() -> None:
    """Run a throwaway program: what the first step of any loads late is loaded then, for all."""
    code = "import sys\nvalue = [f'{n!r} {n / 2:.1f}' for n in range(3)]\ndef f(x): return x\nf(value).sort()\n"
    exec(compile(code, "main.py", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own
    sys.modules["json"].loads('{"env": {"A": "b"}, "arguments": []}')


def _rehearse_failing() -> None:
    """The same for a program that fails, and for one that shows something."""
    try:
        raise NameError("rehearsal")
    except NameError as error:
        sys.modules["traceback"].format_exception(type(error), error, error.__traceback__)
    sys.modules["_casemate.bundles"].bundle_of([1, "two"])


def _data_bytes() -> int:
    """What RLIMIT_DATA counts of us, and so of each cell from its start: memory it shares with us."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def _make_cells(socket: _socket.socket, program: bytes) -> None:
    """Fork a cell for each message, which brings its ends. Returns in a cell's program."""
    while True:
        ends = array.array("i")
        data, ancillary, _, _ = socket.recvmsg(1, _socket.CMSG_SPACE(_MAX_ENDS * ends.itemsize))
        for _, _, payload in ancillary:
            ends.frombytes(payload)
        if not data:
            os._exit(0)
        pid = _make_cell(socket, list(ends), program)
        if pid == 0:
            return
        for fd in ends:
            os.close(fd)
        socket.send(wire.encode({"pid": pid}))


def _make_cell(socket: _socket.socket, ends: list[int], program: bytes) -> int:
    """The pid of a new cell's first process, which is our sibling; 0 in a program."""
    try:
        pid = kernel.bare_clone(kernel.CLONE_PARENT | kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
    except OSError as error:
        return -(error.errno or 1)
    if pid == 0:
        socket.detach()  # cell.live closes it with everything else that is not the cell's
        channel, status, *doors = ends
        cell.live(channel, status, doors, program)
    return pid


class _Program:
    """How a cell's program starts. What is the same for all is done here, in the zygote, as far as it can be."""

    def __init__(self, begin: CodeType) -> None:
        self._begin = begin
        self._namespace: dict[str, Any] = {"__name__": "sitecustomize", "__file__": f"{GUEST}/sitecustomize.py"}
        _hide_casemate()
        os.chdir("/workspace")
        # An environment's own sitecustomize must see the program's variables, and so runs in its process.
        self._begun = not _has_own_sitecustomize()
        if self._begun:
            exec(begin, self._namespace)  # noqa: S102 - our own

    def start(self, written: rehearsal.Ranges) -> None:
        """Wait for the order, and begin as every Python program in a cell begins.

        ``written``: memory that programs write to, which is copied meanwhile.
        """
        fresh = sys.modules["_casemate.fresh"]
        _signal.signal(_SIGINT, _signal.default_int_handler)
        fresh.prepare()
        if self._begun:
            self._namespace["_open_package"]()  # its control pipe
        if not select.select([cell.ORDER], [], [], 0)[0]:
            _rehearse()  # so that the interpreter's own code is mapped
            kernel.copy_ahead(written)
        fresh.become(fresh.read_order(cell.ORDER))
        if not self._begun:
            exec(self._begin, self._namespace)  # noqa: S102


def _hide_casemate() -> None:
    """A program shall not find it imported. Freeing it would write to the memory that holds it: it is kept."""
    sys.path[:] = [place for place in sys.path if not _is_ours(place)]
    for place in [place for place in sys.path_importer_cache if _is_ours(place)]:
        del sys.path_importer_cache[place]
    ours = [name for name in sys.modules if name == "casemate" or name.startswith("casemate.")]
    _hidden.extend(sys.modules.pop(name) for name in ours)
    sys.meta_path.remove(_Patched)


def _is_ours(place: str) -> bool:
    return place == PACKAGES or place.startswith(f"{PACKAGES}/casemate")


def _has_own_sitecustomize() -> bool:
    """Whether the environment has one."""
    finder = sys.modules["_frozen_importlib_external"].PathFinder
    return finder.find_spec("sitecustomize") is not None
