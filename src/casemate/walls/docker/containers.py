"""Containers that become cells: what they are made of, and the stream to the supervisor in each."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate.supervisor import carriage

if TYPE_CHECKING:
    from casemate.walls.docker.engine import Engine

LABEL = "io.casemate.cell"  # on every container of ours: the process that it is for
_OWN_MEMORY = 64 << 20  # bytes for the supervisor in the container
_OWN_INODES = 24  # for folders that casemate makes itself
_OWN_TASKS = 2  # the supervisor and init
_SENTRY_TASKS = 2048  # gVisor's own threads count as well, and it fails when it gets none
_COMMAND = ["python3", "-I", "-c", "from casemate.supervisor.contained.main import main; main()"]
_ENGINE_HEAD = 8  # bytes before each piece: which stream, and its length
_AT_ONCE = 1 << 16  # bytes that are sent together: each time wakes three processes
_AT_ONCE_IN = 1 << 14  # bytes that are read of one container before another has its turn
_MAX_STDERR = 4096
_MOST_UNSENT = 4096  # frames and files that wait to be sent before the container is heard again
_STDOUT, _STDERR = 1, 2
# Numbers of users that nothing else on a machine gives (systemd, UIDS-GIDS.md), and in a user namespace of the engine's
# those that it has: the first, and how many.
_USERS, _MAPPED_USERS = (0x70000000, 0x0FFFFFFF), (1000, 60000)
# What tells of the kernel, of the machine and of other programs.
_HIDDEN = [
    "/sys",
    *(f"/proc/{name}" for name in (
        "acpi", "asound", "bus", "cmdline", "diskstats", "driver", "fs", "interrupts", "irq", "kallsyms", "kcore",
        "key-users", "keys", "latency_stats", "pressure", "sched_debug", "scsi", "softirqs", "sysrq-trigger",
        "timer_list", "timer_stats",
    )),
]  # fmt: skip


class ContainerTerms(NamedTuple):
    """What every container of a wall has in common. ``runtime``: of the engine's, empty for its usual one;
    ``maps_users``: whether users in it are others to the machine; ``volumes``: folders that the image wants kept on a
    disk, which has no limit."""

    image: str
    runtime: str = ""
    maps_users: bool = False
    volumes: tuple[str, ...] = ()

    @property
    def is_gvisor(self) -> bool:
        """Whether containers have a kernel of their own, gVisor's."""
        return self.runtime.startswith("runsc")


class Size(NamedTuple):
    """What the engine holds a container to."""

    memory: int
    disk: int
    inodes: int
    processes: int
    open_files: int
    cpus: float

    @property
    def whole_memory(self) -> int:
        """Bytes that all of it may take: a disk of a container's is memory, too."""
        return self.memory + self.disk + _OWN_MEMORY

    @staticmethod
    def of(request: dict[str, Any]) -> Size:
        """Of the cell of a launch request."""
        limits, rlimits = request["limits"], request["rlimits"]
        return Size(
            limits["memory"], limits["disk"], limits["inodes"], rlimits["NPROC"] - 1, rlimits["NOFILE"], limits["cpus"]
        )


def describe(terms: ContainerTerms, size: Size, name_server: str) -> dict[str, Any]:
    """The container as the engine takes it, of a user of its own: the kernel counts some things for each."""
    first, many = _MAPPED_USERS if terms.maps_users else _USERS
    user = first + secrets.randbelow(many)

    def tmpfs(most: int, mode: str) -> str:
        return (
            f"rw,exec,nosuid,nodev,size={most},nr_inodes={size.inodes + _OWN_INODES},mode={mode},uid={user},gid={user}"
        )

    return {
        "Image": terms.image,
        "Entrypoint": _COMMAND[:1],
        "Cmd": _COMMAND[1:],
        "User": f"{user}:{user}",
        "WorkingDir": "/",
        "Hostname": "casemate",
        "Env": ["PYTHONDONTWRITEBYTECODE=1"],
        "Labels": {LABEL: owner_mark()},
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "HostConfig": {
            "AutoRemove": True,
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "MaskedPaths": _HIDDEN,
            "IpcMode": "private",
            "Dns": [name_server],
            "DnsOptions": ["ndots:1"],
            "LogConfig": {"Type": "none"},
            "Memory": size.whole_memory,
            "MemorySwap": size.whole_memory,
            "NanoCpus": int(size.cpus * 1e9),
            "PidsLimit": _SENTRY_TASKS if terms.is_gvisor else size.processes + _OWN_TASKS,
            "ShmSize": size.disk,
            "Ulimits": [
                {"Name": "core", "Soft": 0, "Hard": 0},
                {"Name": "nofile", "Soft": max(1024, size.open_files), "Hard": max(1024, size.open_files)},
            ],
            "Tmpfs": {
                **dict.fromkeys(terms.volumes, "ro,noexec,nosuid,nodev,size=4096"),
                "/workspace": tmpfs(size.disk, "755"),
                "/tmp": tmpfs(size.disk, "1777"),
                "/home/user": tmpfs(size.disk, "700"),
                "/program": tmpfs(size.disk, "755"),
                "/packages": tmpfs(size.memory, "755"),
                "/opt/casemate": tmpfs(1 << 20, "755"),
            },
            **({"Runtime": terms.runtime} if terms.runtime else {}),
        },
    }


def owner_mark() -> str:
    """This process, so that nobody else's container is taken for one that nobody has: machine, number, beginning."""
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return f"{_boot()} {os.getpid()} {began}"


def sweep(engine: Engine) -> None:
    """Remove what killed processes of this machine have left in the engine; others' stays."""
    for container in engine.call("GET", "/containers/json", all="1", filters=f'{{"label":["{LABEL}"]}}') or ():
        boot, _, process = str(container.get("Labels", {}).get(LABEL, "")).partition(" ")
        if boot == _boot() and not _lives(process):
            remove(engine, str(container.get("Id")))


def remove(engine: Engine, container: str) -> None:
    """End a container and remove it. Harmless when it has gone."""
    from casemate.walls.docker.engine import EngineError

    with contextlib.suppress(OSError, EngineError):
        engine.call("DELETE", f"/containers/{container}", force="1", v="1")


def _boot() -> str:
    # Containers of one machine have that number in common, and not their processes' numbers.
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}.{namespace}"


def _lives(process: str) -> bool:
    pid, _, began = process.partition(" ")
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[19] == began
    except (OSError, ValueError, IndexError):
        return False


class Container:
    """One that runs, and the stream to it."""

    def __init__(self, engine: Engine, terms: ContainerTerms, size: Size, name_server: str) -> None:
        """Create and start it. Blocks. Raises ``OSError`` and ``EngineError``."""
        self.size = size
        self._engine = engine
        made = engine.call("POST", "/containers/create", describe(terms, size, name_server))
        self.id = str(made["Id"])
        try:
            self.socket, rest = engine.attach(self.id)
            self._heads = bytearray(rest)
            engine.call("POST", f"/containers/{self.id}/start")
        except BaseException:
            remove(engine, self.id)
            raise
        self.socket.setblocking(False)
        self.errors = bytearray()  # the end of what was said beside the stream
        self._frames = carriage.CarriageReader()
        self._unsent: deque[Iterator[bytes]] = deque()
        self._piece = b""

    def read(self) -> Iterator[tuple[bytes, int, bytes]]:
        """The frames that have come. Raises ``EOFError`` at the end, and ``CarriageError``."""
        try:
            data = self.socket.recv(_AT_ONCE_IN)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self._heads += data
        while len(self._heads) >= _ENGINE_HEAD:
            stream, length = self._heads[0], int.from_bytes(self._heads[4:_ENGINE_HEAD], "big")
            if len(self._heads) < _ENGINE_HEAD + length:
                return  # an engine's pieces are at most as long as what was written at once
            piece = bytes(self._heads[_ENGINE_HEAD : _ENGINE_HEAD + length])
            del self._heads[: _ENGINE_HEAD + length]
            if stream == _STDOUT:
                yield from self._frames.feed(piece)
            else:
                self.errors = (self.errors + piece)[-_MAX_STDERR:]

    def send(self, frames: Iterator[bytes]) -> None:
        """Send frames when it is flushed."""
        self._unsent.append(frames)

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be sent that nothing should be added."""
        return len(self._unsent) > _MOST_UNSENT

    def flush(self) -> bool:
        """Send on; whether something waits."""
        while True:
            while self._unsent and len(self._piece) < _AT_ONCE:
                piece = next(self._unsent[0], b"")
                self._piece += piece
                if not piece:
                    self._unsent.popleft()
            if not self._piece:
                return False
            try:
                self._piece = self._piece[self.socket.send(self._piece) :]
            except BlockingIOError:
                return True
            except OSError:  # it is gone, which whoever reads notices
                self._unsent.clear()
                self._piece = b""
                return False

    def remove(self) -> None:
        """End it. Blocks."""
        self.socket.close()
        remove(self._engine, self.id)


def new_file() -> int:
    """A file for what comes from a container."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
