"""The host as a witness: canaries, a victim, and what /proc says about who still lives. Touches only what it made."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.contract.witness import command, descendants, state
from tests.support import containers
from tests.warmth import runs_a_program

DEADLINE = 60.0  # seconds a wait may take on a busy machine before the test gives up

_VICTIM = """
import ctypes, os, sys
secret = open(sys.argv[2]).read()
held = ctypes.create_string_buffer(secret.encode())
descriptor = os.open(sys.argv[2], os.O_RDONLY)
os.unlink(sys.argv[2])
print(ctypes.addressof(held), descriptor, flush=True)
for _ in sys.stdin:
    print(held.value.decode(), flush=True)
"""


def secret() -> str:
    """A canary. A program that prints it has read the place that holds it."""
    return f"canary-{secrets.token_hex(16)}"


# ------------------------------------------------------------------------------------------------------- processes


def cell_processes(of: int | None = None) -> list[int]:
    """Processes that code in a cell runs: below the host or in its containers, alive, and not the supervisor's."""
    roots = [of] if of else [os.getpid(), *containers.supervisors()]
    return [pid for root in roots for pid in descendants(root) if runs_a_program(pid)]


def tasks_of(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += len(os.listdir(f"/proc/{pid}/task"))
    return total


def with_marker(marker: str) -> list[int]:
    """Processes anywhere on the host whose command line holds ``marker``, which the test made up."""
    return [
        int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()
        if marker.encode() in command(int(name))
    ]  # fmt: skip


def fields_of(pid: int) -> list[str]:
    """What /proc/PID/stat says from the state on; nothing when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def namespaces(pid: int) -> dict[str, str]:
    return {
        kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
    }


def open_files(pid: int) -> list[str]:
    """What the descriptors of ``pid`` point to."""
    links = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return links


def end(pid: int) -> None:
    """Kill a process that the test's own payload started, and wait until it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        select.select([pidfd], [], [], DEADLINE)
    except ProcessLookupError:
        pass
    finally:
        os.close(pidfd)


@dataclass
class Victim:
    """A process of the user's that minds its own business, with secrets in its environment, argv, memory and files."""

    process: subprocess.Popen[str]
    secrets: dict[str, str]
    address: int
    descriptor: int

    @property
    def pid(self) -> int:
        return self.process.pid

    def memory(self) -> str:
        """What its memory holds now; asks it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def is_well(self) -> bool:
        """Alive, not stopped, not traced, and its memory as it was."""
        if self.process.poll() is not None or state(self.pid) in ("T", "t"):
            return False
        return status_of(self.pid)["TracerPid"] == "0" and self.memory() == self.secrets["memory"]


@contextlib.contextmanager
def victim(folder: Path) -> Iterator[Victim]:
    held = {place: secret() for place in ("environ", "argv", "memory", "cwd")}
    source = folder / f"victim-{secrets.token_hex(4)}"
    source.mkdir()
    (source / "canary").write_text(held["cwd"])
    (source / "memory").write_text(held["memory"])
    with subprocess.Popen(
        [sys.executable, "-c", _VICTIM, held["argv"], str(source / "memory")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=source,
        env={"SECRET": held["environ"]},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        address, descriptor = process.stdout.readline().split()
        try:
            yield Victim(process, held, int(address), int(descriptor))
        finally:
            process.kill()


# ----------------------------------------------------------------------------------------------------------- files


@dataclass
class Canaries:
    """Files of the user's in every place where secrets lie; ``secrets``: place to canary, ``paths``: place to file."""

    folders: list[Path] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)

    def put(self, place: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.secrets[place] = secret()
        self.paths[place] = path
        path.write_text(self.secrets[place])
        path.chmod(0o666)  # it is the wall that must hold, not the permission bits


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything that can be said of the files in ``folder``, atime apart."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        content = ""
        if stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        attributes = sorted(os.listxattr(path, follow_symlinks=False))
        found[str(path.relative_to(folder))] = (
            status.st_mode, status.st_uid, status.st_gid, status.st_nlink if path.is_file() else 0, status.st_size,
            status.st_mtime_ns, status.st_ctime_ns, content, attributes,
        )  # fmt: skip
    return found


def named(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def leftovers() -> dict[str, object]:
    """What a run could leave on the host: mounts, descriptors of this process."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "mounts": [line for line in mounts if "/pytest-of-" not in line.split()[4]],  # other tests', which run beside
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
