"""Tries to escape from a cell. Prints the outcomes as one JSON object, which the host judges.

Arguments: a canary file and a port on the host, the name of an abstract socket there, and a process id.
"""

import ctypes
import functools
import json
import os
import socket
import sys
from collections.abc import Callable

_GET_NO_NEW_PRIVS = 39  # prctl(2)

CLONE_NEWUSER = 0x10000000


def attempt(action: Callable[[], object]) -> str:
    """Return the action's outcome as text; an exception is the hoped-for outcome."""
    try:
        return str(action())
    except Exception as error:
        return "refused: " + type(error).__name__


def read(path: str) -> str:
    """Read a file."""
    with open(path) as file:
        return file.read()


def write(path: str) -> str:
    """Append to a file, or create it."""
    with open(path, "a") as file:
        file.write("escaped")
    return "written"


def make_public(path: str) -> str:
    """Change a file's mode."""
    os.chmod(path, 0o777)
    return "changed"


def touch(path: str) -> str:
    """Change a file's times."""
    os.utime(path)
    return "changed"


def connect(family: int, address: object) -> str:
    """Connect to a socket."""
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(1)
        client.connect(address)  # type: ignore[arg-type]
    return "connected"


def unshare() -> str:
    """Create a user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    return "made"


def forks(most: int) -> int:
    """Return how many children can live at once."""
    children = []
    try:
        for _ in range(most):
            pid = os.fork()
            if pid == 0:
                os.close(gate[1])
                os.read(gate[0], 1)
                os._exit(0)
            children.append(pid)
    except OSError:
        pass
    os.close(gate[1])
    for pid in children:
        os.waitpid(pid, 0)
    return len(children)


def fill() -> int:
    """Return how many bytes fit into the workspace."""
    written = 0
    try:
        with open("fill", "wb", buffering=0) as file:
            while written < 1 << 30:
                written += file.write(bytes(1 << 16))
    except OSError:
        pass
    return written


def open_files(most: int) -> int:
    """Return how many files can be open at once."""
    held = []
    try:
        for _ in range(most):
            held.append(os.open("/dev/null", os.O_RDONLY))  # noqa: PERF401 - files before the error count
    except OSError:
        pass
    for fd in held:
        os.close(fd)
    return len(held)


def status(*names: str) -> dict[str, str]:
    """Return fields of this process's /proc status."""
    found = {}
    for line in read("/proc/self/status").splitlines():
        name, _, value = line.partition(":")
        if name in names:
            found[name] = value.strip()
    found.setdefault("NoNewPrivs", str(ctypes.CDLL(None).prctl(_GET_NO_NEW_PRIVS, 0, 0, 0, 0)))  # gVisor lacks the line
    return found


canary, port, abstract, victim = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
gate = os.pipe()
print(
    json.dumps(
        {
            "read": attempt(lambda: read(canary)),
            "write": [attempt(functools.partial(write, path)) for path in (canary, "/usr/escaped", "/etc/passwd")],
            "loopback": attempt(lambda: connect(socket.AF_INET, ("127.0.0.1", port))),
            "abstract": attempt(lambda: connect(socket.AF_UNIX, "\0" + abstract)),
            "signal": attempt(lambda: os.kill(victim, 0)),
            "change": [attempt(functools.partial(change, canary)) for change in (make_public, touch)],
            "processes_seen": attempt(lambda: sum(name.isdigit() for name in os.listdir("/proc"))),
            "nesting": attempt(unshare),
            "sysctl": attempt(lambda: write("/proc/sys/kernel/core_pattern")),
            "trace_init": attempt(lambda: open(f"/proc/{os.getppid()}/mem", "r+b").close()),
            "status": status("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp", "Uid"),
            "open_files": open_files(200),
            "forks": forks(40),
            "filled": fill(),
        }
    )
)
