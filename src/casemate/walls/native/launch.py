"""Turns a plan into the supervisor's launch request and its descriptors."""

from __future__ import annotations

import os
import resource
import select
import signal
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument, Unavailable
from casemate.model.limits import format_size
from casemate.model.plan import (
    GUEST,
    HOME,
    PROXY_ADDRESS,
    WORKSPACE,
    Bind,
    Entry,
    MountPoint,
    Plan,
    ReadyStart,
    Symlink,
    SynthesizedFile,
    Workspace,
)
from casemate.supervisor import wire
from casemate.version import INSTALLATION, installation
from casemate.walls.native.descriptors import closed_on_error, memory_file, seal

if TYPE_CHECKING:
    from casemate.model.limits import Limits
    from casemate.model.plan import Shown
    from casemate.walls.wall import Standard, Stream

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Settings that programs read. They reveal nothing about this machine's users or secrets.
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "pki/ca-trust",
        "ca-certificates", "alternatives", "mime.types", "magic", "services", "protocols", "fonts", "terminfo",
        "debian_version", "os-release", "bash.bashrc", "inputrc", "python3", "python3.11", "python3.12", "python3.13",
        "python3.14", "matplotlibrc", "localtime", *(f"java-{n}-openjdk" for n in range(8, 31)))  # fmt: skip
_SYNTHESISED = {
    "/etc/passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:1000:1000:user:{HOME}:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost casemate\n::1 localhost casemate\n",
    "/etc/hostname": "casemate\n",
    "/etc/resolv.conf": f"nameserver {PROXY_ADDRESS}\noptions ndots:1\n",  # refuses queries without an egress proxy
    # "files" comes last so that without an egress proxy a name does not exist (EAI_NONAME). After EAI_AGAIN clients
    # would retry. See nsswitch.conf(5).
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns [!UNAVAIL=return] files\n"
    "services: files\nprotocols: files\n",
    "/etc/host.conf": "multi on\n",
    "/etc/machine-id": "00000000000000000000000000000000\n",
    "/etc/shells": "/bin/sh\n/bin/bash\n",
}
_FEWEST_DESCRIPTORS = 96  # enough for a process with one cell, and for its supervisor
_GUEST_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "guest")


def check_process() -> None:
    """Raise ``Unavailable`` if this process cannot have cells.

    With SIGPIPE's default action (signal(7)) a cell could end the process by closing a pipe or a connection; Python
    ignores SIGPIPE from its start. If casemate was reinstalled while the process runs, cells, even ready ones, see the
    old folders, which are empty now.
    """
    if signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL:
        raise Unavailable(
            f"SIGPIPE has its default action in this process ({os.getpid()}): a cell could end it by closing a pipe",
            remediation="In its main thread, restore Python's default: signal.signal(signal.SIGPIPE, signal.SIG_IGN).",
        )
    if 0 <= (most := resource.getrlimit(resource.RLIMIT_NOFILE)[1]) < _FEWEST_DESCRIPTORS:
        raise Unavailable(
            f"this process may open {most} files at once (RLIMIT_NOFILE), and a cell needs {_FEWEST_DESCRIPTORS}",
            remediation="Raise the hard limit: ulimit -Hn 4096.",
        )
    if installation() != INSTALLATION:
        raise Unavailable(
            f"casemate was reinstalled while this process ran ({os.getpid()}): cells would miss its files",
            remediation="Restart this process. For a service: casemate service stop; the next command starts it.",
        )


def system_entries() -> Iterator[Entry]:
    """Yield the system folders, devices and settings that every cell sees, as they are on this host."""
    for folder in _SYSTEM:
        if os.path.islink(folder):
            yield Symlink(folder, os.readlink(folder))
        elif os.path.isdir(folder):
            yield Bind(folder, folder)
    for device in _DEVICES:
        yield Bind(f"/dev/{device}", f"/dev/{device}", device=True)
    for name, content in _SYNTHESISED.items():
        yield SynthesizedFile(name, content)
    for name in _ETC:
        source = os.path.realpath(f"/etc/{name}")
        if f"/etc/{name}" not in _SYNTHESISED and os.path.exists(source):
            yield Bind(source, f"/etc/{name}")
    yield Bind(_GUEST_FOLDER, GUEST)


class Silent:
    """A sink for a cell whose output is not captured."""

    def output(self, stream: Stream, data: bytes) -> None:
        pass

    def frame(self, frame: bytes) -> None:
        pass

    def is_full(self) -> bool:
        return False


def copies_of(standard: Standard) -> dict[str, int]:
    """Duplicate a program's standard streams, by name. Raises ``OSError``."""
    made: dict[str, int] = {}
    with closed_on_error(made.values()):
        for name in ("stdin", "stdout", "stderr"):
            made[name] = os.dup(getattr(standard, name))
    return made


_IN_MEMORY = 1 << 20  # bytes of input files passed in memory; more go through an unnamed file
_READABLE_IN_EVERY_CELL = ("/etc", "/opt", "/packages", "/proc", "/program", "/dev")
_OWN_PLACES = tuple(wire.OWN_PLACES)
_KINDS = {Bind: "bind", Symlink: "link", MountPoint: "place", SynthesizedFile: "text"}
_STACK = 8 << 20  # bytes reserved for a thread's stack; RLIMIT_DATA counts them even unused
_SIGNALS = 1024  # pending signals, including timers; a user may have some 60,000
_IN_FLIGHT = 512  # descriptors: two full messages, by which cells of one user may exceed their limit
_LOCKED = 1 << 20  # bytes a process may lock in memory; programs that hold keys lock some pages
_STACKS_UNCOUNTED = 8  # threads whose stacks are added to the memory limit


def describe_entries(entries: tuple[Entry, ...], *, own: bool) -> list[dict[str, Any]]:
    """Describe entries for the supervisor. ``own`` selects those below folders that each cell has privately, which must
    be mounted over those; the others form the shared, read-only root tree."""
    return [
        {"kind": _KINDS[type(entry)], **{name: getattr(entry, name) for name in entry.__slots__}}
        for entry in entries
        if entry.target.startswith(_OWN_PLACES) is own
    ]


def request(plan: Plan, root: str) -> dict[str, Any]:
    """Return the launch request for ``plan`` over the root tree ``root``. Reads only the workspace's inode."""
    limits = plan.limits
    return {
        "op": "launch",
        "id": plan.id,
        "root": root,
        "program": {"name": plan.program_name, "size": len(plan.code)},
        "cwd": plan.cwd,
        "interpreter": "",
        "awaits_order": False,
        "session": plan.session,
        "continues": plan.continues,
        "workspace": _workspace(plan.workspace),
        "deadline": plan.deadline,
        "layers": list(plan.layers),
        "control": plan.control,
        "readable": _readable(plan.entries, plan.shown),
        "writable": [place for one in plan.shown if one.copied for place in one.places],
        "shown": [{**asdict(one), "read_only": [], "writable": []} for one in plan.shown],
        "limits": _counted_limits(limits),
        "rlimits": rlimits(limits, plan.reserve),
        "own_entries": describe_entries(plan.entries, own=True),
        "listeners": [list(listener) for listener in plan.listeners],
    }


def _readable(entries: tuple[Entry, ...], shown: tuple[Shown, ...]) -> list[str]:
    """Return the folders that Landlock lets a cell read: its own, and those bound elsewhere."""
    targets = {entry.target for entry in entries if isinstance(entry, Bind) and not entry.device}
    targets |= {place for one in shown for place in one.places}
    covered = ("/usr/", *(f"{folder}/" for folder in _READABLE_IN_EVERY_CELL), *_OWN_PLACES)
    return [*_READABLE_IN_EVERY_CELL, *sorted(target for target in targets if not target.startswith(covered))]


def rlimits(limits: Limits, reserve: int) -> dict[str, int | None]:
    """Return ``RLIMIT_*`` by name; RLIMIT_DATA is per process. Adds ``reserve`` bytes for memory never touched."""
    return {
        "NPROC": limits.processes + 1,  # init is a task too
        "NOFILE": min(limits.open_files, _most_open_files()),
        "DATA": limits.memory + _STACKS_UNCOUNTED * _STACK + reserve,
        # A second over the limit, because the kernel's clock runs ahead; checks enforce the limit for all processes.
        "CPU": None if limits.cpu_time is None else 1 - int(-limits.cpu_time // 1),
        "CORE": 0,
        # The kernel counts these for all programs of a user together (getrlimit(2)).
        "SIGPENDING": _SIGNALS,
        "MSGQUEUE": 0,
        "MEMLOCK": _LOCKED,
    }


def _most_open_files() -> int:
    """Return how many files a cell may open, so that its descriptors in flight, which the kernel counts per user
    (ETOOMANYREFS in unix(7)), do not keep the supervisor from sending its own."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return hard - min(_IN_FLIGHT, hard // 2)


def _workspace(workspace: Workspace) -> dict[str, Any]:
    places = [WORKSPACE, *([workspace.place] if workspace.place else [])]
    guarded = {
        "places": places,
        "hidden": workspace.hidden,
        "read_only": workspace.kept,
        "writable": workspace.writable,
    }
    if workspace.folder is None:
        return {"kind": workspace.kind, **guarded}
    return {"kind": workspace.kind, "folder": workspace.folder, "inode": list(inode(workspace)), **guarded}


def inode(workspace: Workspace) -> tuple[int, ...]:
    """Identify the folder that is the caller's workspace now, since another may take its name. Raises ``OSError``."""
    if workspace.folder is None:
        return ()
    status = os.stat(workspace.folder)
    return status.st_dev, status.st_ino


def identity(workspace: Workspace) -> tuple[object, ...]:
    """Identify the workspace folder and its hidden files as they are now, since a waiting cell hides those that existed
    when it was made. Change times are included because inode numbers are reused. Raises ``OSError``."""
    hidden = [os.lstat(f"{workspace.folder}/{path}") for path in workspace.hidden]
    return (*inode(workspace), *((one.st_dev, one.st_ino, one.st_ctime_ns) for one in hidden))


def _counted_limits(limits: Limits) -> dict[str, Any]:
    """The limits that are not, or not only, an ``RLIMIT_*``."""
    names = ("memory", "disk", "inodes", "cpus", "cpu_time")
    return {name: getattr(limits, name) for name in names}


def waiting_request(plan: Plan, waiting: ReadyStart, root: str) -> dict[str, Any]:
    """Return the request for a cell that waits for a program like that of ``plan``: one for the whole kind."""
    asked = request(replace(plan, limits=waiting.limits), root)
    del asked["id"]
    return {
        **{name: wire.SharedValue(value) if isinstance(value, list | dict) else value for name, value in asked.items()},
        "program": None,
        "program_name": plan.program_name,
        "deadline": 0.0,
        "listeners": [],
        "awaits_order": True,
        "interpreter": "" if waiting.preload is None else waiting.argv[0],
    }


def begin_request(plan: Plan, waiting: ReadyStart) -> dict[str, Any]:
    """Return the message that gives a waiting cell the program of ``plan``. It has the length of the order; `unread`
    has the order itself."""
    program = {"name": plan.program_name, "size": len(plan.code)}
    return {
        "op": "begin",
        "deadline": plan.deadline,
        "narrows": plan.limits != waiting.limits,
        "limits": _counted_limits(plan.limits),
        "rlimits": rlimits(plan.limits, plan.reserve),
        "program": None if plan.continues else program,
        "order_size": len(waiting.order),
        "listeners": [list(listener) for listener in plan.listeners],
    }


def needs_supervisor(plan: Plan, waiting: ReadyStart) -> bool:
    """Whether beginning ``plan`` in a waiting cell takes more than writing its program and its order."""
    return bool(
        plan.limits != waiting.limits or plan.files or plan.listeners or plan.continues
        or max(len(plan.code), len(plan.stdin)) > wire.PROGRAM_BYTES or len(waiting.order) > select.PIPE_BUF
    )  # fmt: skip


def unread(plan: Plan, waiting: ReadyStart) -> int:
    """Return a descriptor with the order, which may hold secrets, and the program. The supervisor passes it to a
    waiting cell unread, because every later cell shares the supervisor's memory, copy-on-write."""
    return memory_file(waiting.order + (b"" if plan.continues else plan.code))


def payload(argv: tuple[str, ...], env: Mapping[str, str], cwd: str) -> int:
    """Return a descriptor with the command of a cell. Only the program's own process reads it."""
    return memory_file(wire.encode_command(argv, env, cwd))


def standard_input(data: bytes) -> int:
    """Return a descriptor of standard input that holds ``data``. Raises ``OSError``."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    fd = memory_file(data)
    seal(fd)
    return fd


def files_of(plan: Plan) -> dict[str, int]:
    """Return the input files: all content in one descriptor, and an index (name, offset, length) in another.

    Raises ``OSError``, and ``InvalidArgument`` if a file cannot be read or all exceed the disk limit.
    """
    files, bound = plan.files, plan.limits.disk
    if not files:
        return {}
    total = sum(len(content) if isinstance(content, bytes) else _size(name, content) for name, content in files.items())
    if total > bound:
        raise InvalidArgument(
            "files",
            f"{format_size(total)} in all, but limits.disk is {format_size(bound)}; pass less or raise the limit",
        )
    if total <= _IN_MEMORY:
        fd = os.memfd_create("casemate", os.MFD_CLOEXEC)
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    with closed_on_error([fd]):
        try:
            return {"inputs": fd, "index": memory_file(wire.encode(_copy(files, fd)))}
        except OSError as error:
            raise Unavailable(
                f"the input files could not be packed: {error.strerror}",
                remediation="Free space in the temporary folder, or choose another with TMPDIR.",
            ) from None


def _size(name: str, path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise InvalidArgument("files", f"{name!r}: cannot read {str(path)!r}: {error.strerror}") from None


def _copy(files: Mapping[str, bytes | Path], fd: int) -> list[tuple[str, int, int]]:
    import shutil

    index = []
    with os.fdopen(os.dup(fd), "wb") as packed:
        for name, content in files.items():
            start = packed.tell()
            if isinstance(content, bytes):
                packed.write(content)
            else:
                try:
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, packed)
                except OSError as error:
                    raise InvalidArgument(
                        "files", f"{name!r}: cannot read {str(content)!r}: {error.strerror}"
                    ) from None
            index.append((name, start, packed.tell() - start))
    return index
