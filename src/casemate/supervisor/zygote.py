"""The zygote's own process: a warmed interpreter without capabilities, from which every warm Python cell is forked.

It runs during the start-up of the environment's interpreter (start/sitecustomize.py), in its own read-only root with an
empty network. It never runs guest code and learns nothing about guests. Its forks build their own walls as every cell
does, and are the supervisor's children, so they outlive it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import array
import gc
import os
import select
import sys
import time

from casemate.supervisor import init, kernel, native_init, wire

TYPE_CHECKING = False  # importing typing would take half of the start
if TYPE_CHECKING:
    from types import CodeType, ModuleType
    from typing import Any

    Ranges = list[tuple[int, int]]

SOCKET = 3
PACKAGES = "/run"  # the folder of casemate in a zygote
GUEST = "/opt/casemate/python"
MODULES = "/opt/casemate/modules"
_SIGINT = 2
_kept_alive: list[object] = []
_MAX_ENDS = 8  # descriptors of one new cell: channel, status, cgroup fds
# Modules for a program's start, its pictures and its end; the guest's own are below.
_NEEDED = ("__future__", "atexit", "binascii", "encodings.utf_8", "fcntl", "io", "json", "linecache", "stat",
           "termios", "time", "tokenize", "traceback", "types")  # fmt: skip
_GUEST_MODULES = ("process", "channel", "displays")
REHEARSAL_PROGRAM = "main.py"
# What most programs do first; its output is discarded. If a session's interpreter is loaded, that is rehearsed too. It
# contains none of the words for which `process` gives a program the normal end of the interpreter.
REHEARSAL_TEXT = """import _casemate
if hasattr(_casemate, "session"):
    from _casemate import session
    session.main()
def f(x):
    return [f"{n!r} {n / 2:.1f}" for n in range(x)]
print(*f(3))
"""
_ORDER = b'{"env": {"PATH": "/usr/bin", "TZ": "UTC", "REHEARSAL": "1"}, "arguments": []}'
_SESSION_ORDER = _ORDER[:-1] + b', "session": true}'
_STEPS = ("x = [1]\\nprint(x)", "x", "__import__('sys').modules['_casemate.process'].rehearsal_end[-1]()")
_STEP = (
    '{"op": "run", "step": %d, "code": "%s", "out": "/dev/null", "err": "/dev/null", "stdin": null, "cwd": null,'
    ' "asks": [], "task": "code", "front": null, "remembers": true, "colours": false}'
)
_WITHIN = 5.0  # seconds; usually ten milliseconds
_JOINED_GONE_WITHIN = 0.2  # seconds, on a busy machine
_PRESENT, _SHARED, _ALONE = 1 << 63, 1 << 61, 1 << 56  # bits of a pagemap entry (proc(5))
_SIGKILL = 9


def wait() -> None:
    """Warm up, then make cells until the supervisor is gone. Returns only in a cell's program, once its order has come.
    The supervisor sends modules to preload and the seccomp filter, and gets a greeting with any problem."""
    kernel.set_name(b"casemate-zygote")
    socket = _socket.socket(fileno=SOCKET)
    settings = wire.decode(socket.recv(wire.MAX_MESSAGE))
    plain = _plain_zygote(settings)
    begin = _compile_start(plain)
    problem = _preload(settings["preload"], optional=settings["optional"])
    sys.modules["_casemate.process"].begin_randomness()
    _rehearse()
    _rehearse_failure()
    problem = problem or _flush_output() or (plain.find_path() if plain else None)
    if problem is None and _has_threads():
        problem = "preloading started threads, and a process with threads cannot be forked safely"
    socket.send(wire.encode({"problem": problem, "data": _data_bytes()}))
    if problem is not None:
        os._exit(0)
    program = _ProgramStart(begin, plain)
    gc.collect()
    sys.modules["_casemate.process"].keep_loaded_modules()
    gc.disable()  # a collection in a waiting cell would copy the whole heap's pages
    # Keep these: every program would free them when this call returns, and so write to shared pages.
    _kept_alive.extend((settings, program, socket))
    rehearsal = Rehearsal()
    _kept_alive.append(rehearsal)
    if rehearsal.is_child:
        program.start([])
        return
    written = rehearsal.written_ranges()
    native = native_init.load() if settings.get("native") else None
    if native:
        native.make_cells(socket.fileno(), settings["program"], settings["prepared"])
        socket.detach()
    else:
        _make_cells(socket, settings, plain)
    program.start(written)


def _has_threads() -> bool:
    """Whether other threads exist. The kernel still lists a joined thread for a moment."""
    ends = time.monotonic() + _JOINED_GONE_WITHIN
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > ends:
            return True
        time.sleep(0.001)
    return False


def wait_alone(preload: list[str]) -> None:
    """Warm up and wait for the order of this process's one program. Missing modules are not preloaded."""
    begin = _compile_start(None)
    problem = _preload(preload, optional=True)
    if problem is not None:
        sys.stderr.write(f"{problem}\n")
    sys.modules["_casemate.process"].begin_randomness()
    _rehearse()
    _rehearse_failure()
    program = _ProgramStart(begin, None, is_installed=True)
    sys.modules["_casemate.process"].keep_loaded_modules()
    _kept_alive.append(program)
    program.start([])


def _plain_zygote(settings: dict[str, Any]) -> Any:
    if "module" not in settings:
        return None
    __import__(settings["module"])
    return sys.modules[settings["module"]].PlainZygote(settings)


def _compile_start(plain: Any) -> CodeType:
    """Compile the start code that every Python cell runs, and import the modules it may need."""
    package = type(sys)("_casemate")
    guest, modules = (plain.real(place) if plain else place for place in (GUEST, MODULES))
    package.__path__ = [guest]
    vars(package).update(control=None, display=None)
    sys.modules["_casemate"] = package
    for name in _GUEST_MODULES:
        __import__(f"_casemate.{name}")
    for name in _NEEDED:
        __import__(name)
    vars(package)["ready"] = _load_tool_module(modules)
    with open(f"{guest}/sitecustomize.py", encoding="utf-8") as file:
        return compile(file.read(), file.name, "exec")


def _load_tool_module(modules: str) -> dict[str, ModuleType]:
    """Load the package `mcptools` for programs that import it, but leave it out of sys.modules (see
    guest/python/sitecustomize.py). Its first import would take longer than a tool call."""
    sys.path.insert(0, modules)
    before = list(sys.meta_path)
    try:
        __import__("mcptools._running")
    finally:
        sys.path.remove(modules)
        sys.meta_path[:] = before
        for place in [place for place in sys.path_importer_cache if place.startswith(modules)]:
            del sys.path_importer_cache[place]
    names = [name for name in sys.modules if name.partition(".")[0] == "mcptools"]
    ready = {name: sys.modules.pop(name) for name in names}
    _kept_alive.append(dict(ready))  # so that no program frees shared memory
    return ready


def _preload(names: list[str], *, optional: bool) -> str | None:
    """Import what programs of this environment use; with ``optional``, only what is installed. Returns the problem."""
    sys.meta_path.insert(0, _PatchingFinder)
    for name in names:
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            if not (optional and error.name and name.startswith(error.name)):
                return f"{name} cannot be preloaded: {error}"
        except BaseException as error:  # noqa: BLE001 - the operator's libraries may raise anything on import
            return f"{name} cannot be preloaded: {type(error).__name__}: {error}"[:500]
    return None


def _flush_output() -> str | None:
    """Write out what preloading printed. Returns the problem, or None."""
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError) as error:
        return f"preloading printed more than is kept: {error}"
    return None


class _PatchingFinder:
    """Patches preloaded modules to show their pictures. A program's own finder takes its place."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: object = None) -> Any:
        displays = sys.modules["_casemate.displays"]
        return displays.patched_spec(name, path, target, _PatchingFinder) if name in displays._PATCHES else None


def _rehearse() -> None:
    """Run a throwaway program, so that what programs load lazily is loaded once for all."""
    code = "import sys\nvalue = [f'{n!r} {n / 2:.1f}' for n in range(3)]\ndef f(x): return x\nf(value).sort()\n"
    exec(compile(code, "main.py", "exec"), {"__name__": "__main__"})  # noqa: S102 - our own
    sys.modules["json"].loads('{"env": {"A": "b"}, "arguments": []}')


def _rehearse_failure() -> None:
    """Do the same for a program that fails and for one that displays something."""
    try:
        raise NameError("rehearsal")
    except NameError as error:
        sys.modules["traceback"].format_exception(type(error), error, error.__traceback__)
    sys.modules["_casemate.displays"].bundle_of([1, "two"])


def _data_bytes() -> int:
    """The memory that RLIMIT_DATA counts of the zygote, and so of each cell from its start."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def _make_cells(socket: _socket.socket, settings: dict[str, Any], plain: Any) -> None:
    """Fork a cell for each message, which carries its ends. Returns in a cell's program."""
    while True:
        data, ends = kernel.receive_fds(socket, 1, _MAX_ENDS)
        if not data:
            os._exit(0)
        pid = _make_cell(socket, ends, settings, plain)
        if pid == 0:
            return
        kernel.close_all(ends)
        socket.send(wire.encode({"pid": pid}))


def _make_cell(socket: _socket.socket, ends: list[int], settings: dict[str, Any], plain: Any) -> int:
    """Fork a cell's first process, our sibling. Returns its pid, or 0 in a program."""
    try:
        pid = kernel.bare_clone(kernel.CLONE_PARENT | (0 if plain else kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID))
    except OSError as error:
        return -(error.errno or 1)
    if pid == 0:
        socket.detach()  # init.run closes all descriptors that are not the cell's
        channel, status, *cgroup_fds = ends
        if plain:
            plain.run_init(channel, status, cgroup_fds)
        else:
            init.run(channel, status, cgroup_fds, settings["program"], settings["prepared"])
    return pid


class _ProgramStart:
    """Starts a cell's program. Work that is the same for all programs is done in the zygote."""

    def __init__(self, begin: CodeType, plain: Any, *, is_installed: bool = False) -> None:
        """``is_installed``: casemate is a package of this interpreter."""
        self._begin = begin
        self._plain = plain
        guest, workspace = (plain.real(place) if plain else place for place in (GUEST, "/workspace"))
        self._namespace: dict[str, Any] = {"__name__": "sitecustomize", "__file__": f"{guest}/sitecustomize.py"}
        _hide_casemate(is_installed=is_installed)
        os.chdir(workspace)
        # An environment's own sitecustomize must see the program's variables, so it runs in its process.
        self._has_begun = not _has_own_sitecustomize()
        if self._has_begun:
            exec(begin, self._namespace)  # noqa: S102 - our own

    def start(self, written: Ranges) -> None:
        """Wait for the order, then start as every Python program in a cell does. Copies ``written`` memory first."""
        process = sys.modules["_casemate.process"]
        _signal.signal(_SIGINT, _signal.default_int_handler)
        process.prepare()
        if self._has_begun:
            self._namespace["_open_package"]()  # its control pipe
        if not select.select([init.ORDER], [], [], 0)[0]:
            _rehearse()  # maps the interpreter's own code
            kernel.copy_pages(written)
        order = process.read_order(init.ORDER)
        process.take_order(self._plain.translate(order) if self._plain else order)
        if not self._has_begun:
            exec(self._begin, self._namespace)  # noqa: S102


def _hide_casemate(*, is_installed: bool) -> None:
    """Keep casemate out of the program's imports, but alive: freeing it would write to shared memory."""
    if not is_installed:
        sys.path[:] = [place for place in sys.path if not _is_ours(place)]
    for place in [place for place in sys.path_importer_cache if _is_ours(place)]:
        del sys.path_importer_cache[place]
    ours = [name for name in sys.modules if name == "casemate" or name.startswith("casemate.")]
    _kept_alive.extend(sys.modules.pop(name) for name in ours)
    sys.meta_path.remove(_PatchingFinder)


_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _is_ours(place: str) -> bool:
    return place == _OURS or place.startswith(f"{_OURS}/casemate")


def _has_own_sitecustomize() -> bool:
    finder = sys.modules["_frozen_importlib_external"].PathFinder
    return finder.find_spec("sitecustomize") is not None


class Rehearsal:
    """A process that acts as a program would. In it, ``is_child`` is true and everything goes on as in a cell."""

    def __init__(self) -> None:
        self._end_fd, end_writer = os.pipe()
        self._pid = os.fork()
        self.is_child = self._pid == 0
        if self.is_child:
            os.close(self._end_fd)
            _set_up_child(end_writer)
        else:
            os.close(end_writer)

    def written_ranges(self) -> Ranges:
        """Wait for the end. Returns address and length of all memory the process wrote to; empty if unknown."""
        try:
            return _private_ranges(self._pid) if self._has_ended() else []
        except (OSError, ValueError):
            return []
        finally:
            os.kill(self._pid, _SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._end_fd)

    def _has_ended(self) -> bool:
        ready, _, _ = select.select([self._end_fd], [], [], _WITHIN)
        return bool(ready) and os.read(self._end_fd, 1) == b"e"


def _set_up_child(end_writer: int) -> None:
    """Give the process what a cell has: an order, pipes, and a last action."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, _SIGKILL)
    end_fd = init.duplicate_high(end_writer)
    order, give = os.pipe()
    for message in _messages():
        os.write(give, len(message).to_bytes(4, "big") + message)
    unread, out = os.pipe()
    for fd, place in ((order, init.ORDER), (out, 1), (out, 2), (out, init.CONTROL)):
        os.dup2(fd, place)
    os.set_blocking(unread, False)

    def end() -> None:
        os.write(end_fd, b"e")
        select.select([], [], [])  # the zygote inspects and kills this process

    sys.modules["_casemate.process"].rehearsal_end.append(end)


def _messages() -> list[bytes]:
    if "_casemate.session" not in sys.modules:
        return [_ORDER]
    return [_SESSION_ORDER, *((_STEP % (number, code)).encode() for number, code in enumerate(_STEPS, 1))]


def _private_ranges(pid: int) -> Ranges:
    """The memory that only ``pid`` has, as merged ranges of pages."""
    page = os.sysconf("SC_PAGE_SIZE")
    ranges: Ranges = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for line in maps:
            places, rights, *_ = line.split()
            if rights[1] == "w" and rights[3] == "p":
                first, last = (int(place, 16) for place in places.split("-"))
                entries = array.array("Q", os.pread(pagemap.fileno(), (last - first) // page * 8, first // page * 8))
                for number, entry in enumerate(entries):
                    if entry & _PRESENT and entry & _ALONE and not entry & _SHARED:
                        _add_range(ranges, first + number * page, page)
    return ranges


def _add_range(ranges: Ranges, address: int, length: int) -> None:
    if ranges and sum(ranges[-1]) == address:
        ranges[-1] = (ranges[-1][0], ranges[-1][1] + length)
    else:
        ranges.append((address, length))
