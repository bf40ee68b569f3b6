"""Containers of cells: their settings, and the stream to the supervisor in each."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from casemate.model.plan import PROXY_ADDRESS
from casemate.supervisor import carriage
from casemate.walls.docker import addresses

if TYPE_CHECKING:
    from casemate.walls.docker.engine import Engine

NAME_SERVER = addresses.to_container(PROXY_ADDRESS)  # the egress proxy's address in containers
LABEL = "io.casemate.cell"  # on each of our containers; its value is `owner_mark`
_OWN_MEMORY = 64 << 20  # bytes for the supervisor in the container
_OWN_INODES = 24  # for folders that casemate makes itself
_OWN_TASKS = 2  # the supervisor and init
_SENTRY_TASKS = 2048  # gVisor's own threads count too, and it fails without enough
_COMMAND = ["python3", "-I", "-c", "from casemate.supervisor.contained.main import main; main()"]
_ENGINE_HEAD = 8  # bytes before each piece: its stream and length
_AT_ONCE = 1 << 16  # bytes sent together, because each send wakes three processes
_AT_ONCE_IN = 1 << 14  # bytes read from one container before the next has its turn
_MAX_STDERR = 4096
_MOST_UNSENT = 4096  # frames and files in the send queue; above that the container is not read
_STDOUT, _STDERR = 1, 2
# User ids that nothing else on a machine uses (systemd, UIDS-GIDS.md), and those in an engine's user namespace: the
# first and how many.
_USERS, _MAPPED_USERS = (0x70000000, 0x0FFFFFFF), (1000, 60000)
# Paths that reveal the kernel, the machine or other programs.
_HIDDEN = [
    "/sys",
    *(f"/proc/{name}" for name in (
        "acpi", "asound", "bus", "cmdline", "diskstats", "driver", "fs", "interrupts", "irq", "kallsyms", "kcore",
        "key-users", "keys", "latency_stats", "pressure", "sched_debug", "scsi", "softirqs", "sysrq-trigger",
        "timer_list", "timer_stats",
    )),
]  # fmt: skip


class ContainerTerms(NamedTuple):
    """What all containers of a wall have in common."""

    image: str
    runtime: str = ""  # "" is the engine's default
    maps_users: bool = False  # whether the engine maps users to others on the machine
    volumes: tuple[str, ...] = ()  # of the image; they are made unwritable, since a volume has no size limit
    engine_version: str = ""
    image_id: str = ""

    @property
    def is_gvisor(self) -> bool:
        """Whether containers have their own kernel, gVisor."""
        return self.runtime.startswith("runsc")


class Size(NamedTuple):
    """A container's limits, enforced by the engine."""

    memory: int
    disk: int
    inodes: int
    processes: int
    open_files: int
    cpus: float

    @property
    def whole_memory(self) -> int:
        """Bytes of memory for everything, files included: a container's disk is memory."""
        return self.memory + self.disk + _OWN_MEMORY

    @staticmethod
    def of(request: dict[str, Any]) -> Size:
        """Return the size for a launch request."""
        limits, rlimits = request["limits"], request["rlimits"]
        return Size(
            limits["memory"], limits["disk"], limits["inodes"], rlimits["NPROC"] - 1, rlimits["NOFILE"], limits["cpus"]
        )


def describe(terms: ContainerTerms, size: Size) -> dict[str, Any]:
    """Describe the container for the engine. It gets its own user id: the kernel counts some resources per user."""
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
            "Dns": [NAME_SERVER],
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
    """Identify this process by boot, process id and start time, so that a sweep spares containers of live processes."""
    began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return f"{_boot()} {os.getpid()} {began}"


def sweep(engine: Engine) -> None:
    """Remove this machine's containers whose process was killed."""
    for container in engine.call("GET", "/containers/json", all="1", filters=f'{{"label":["{LABEL}"]}}') or ():
        boot, _, process = str(container.get("Labels", {}).get(LABEL, "")).partition(" ")
        if boot == _boot() and not _lives(process):
            remove(engine, str(container.get("Id")))


def remove(engine: Engine, container: str) -> None:
    """End and remove a container, if it still exists."""
    from casemate.walls.docker.engine import EngineError

    with contextlib.suppress(OSError, EngineError):
        engine.call("DELETE", f"/containers/{container}", force="1", v="1")


def _boot() -> str:
    # Containers on one machine share the boot id, but not process ids: add the pid namespace.
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}.{namespace}"


def _lives(process: str) -> bool:
    pid, _, began = process.partition(" ")
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[19] == began
    except (OSError, ValueError, IndexError):
        return False


class Container:
    """A running container and the stream to it."""

    def __init__(self, engine: Engine, terms: ContainerTerms, size: Size) -> None:
        """Create and start it. Blocks. Raises ``OSError`` and ``EngineError``."""
        self.size = size
        self._engine = engine
        made = engine.call("POST", "/containers/create", describe(terms, size))
        self.id = str(made["Id"])
        try:
            self.socket, rest = engine.attach(self.id)
            self._heads = bytearray(rest)
            try:
                engine.call("POST", f"/containers/{self.id}/start")
            except BaseException:
                self.socket.close()
                raise
        except BaseException:
            remove(engine, self.id)
            raise
        self.socket.setblocking(False)
        self.errors = bytearray()  # the end of its stderr
        self._frames = carriage.CarriageReader()
        self._unsent: deque[Iterator[bytes]] = deque()
        self._piece = b""

    def read(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield the frames that have arrived. Raises ``EOFError`` at the end, and ``CarriageError``."""
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
                return  # an engine's piece is no longer than one write
            piece = bytes(self._heads[_ENGINE_HEAD : _ENGINE_HEAD + length])
            del self._heads[: _ENGINE_HEAD + length]
            if stream == _STDOUT:
                yield from self._frames.feed(piece)
            else:
                self.errors = (self.errors + piece)[-_MAX_STDERR:]

    def send(self, frames: Iterator[bytes]) -> None:
        """Queue frames for `flush`."""
        self._unsent.append(frames)

    @property
    def is_full(self) -> bool:
        """Whether the send queue is so long that nothing should be added."""
        return len(self._unsent) > _MOST_UNSENT

    def flush(self) -> bool:
        """Send as much as possible without blocking. Returns whether something is left."""
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
            except OSError:  # it is gone; the reader notices
                self._unsent.clear()
                self._piece = b""
                return False

    def remove(self) -> None:
        """End it. Blocks."""
        self.socket.close()
        remove(self._engine, self.id)


def new_file() -> int:
    """Open a temporary file without a name, for data from a container."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
