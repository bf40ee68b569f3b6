"""Read what belongs to the host: files, processes, descriptors, other cells.

PATHS: files that hold a canary; DIGESTS: files told by digest; PIDS: processes of the host; SCAN: look at
everything that can be seen here, too (in a cell only); NEEDLE: part of the names of the canary files.
"""

from __future__ import annotations

import glob
import os

from tests.escapes.payloads.attempts import attempt, finish, read


def by_detours(path: str) -> None:
    """The same file by other names."""
    attempt(f"read {path}", lambda: read(path))
    for prefix in (
        "/proc/self/root",
        "/proc/1/root",
        "/proc/self/cwd" + "/.." * 20,
        "/.." * 20,
        "/proc/1/cwd/../../..",
    ):
        attempt(f"read {prefix}{path}", lambda prefix=prefix: read(prefix + path))  # type: ignore[misc]
    link = f"link-{os.path.basename(path)}"
    attempt(f"link {path}", lambda: os.symlink(path, link))
    attempt(f"read by link {path}", lambda: read(link))
    attempt(f"hard link {path}", lambda: os.link(path, f"hard-{link}"))
    attempt(f"list {os.path.dirname(path)}", lambda: "\n".join(os.listdir(os.path.dirname(path))).encode())


def of_process(pid: str) -> None:
    for name in ("environ", "cmdline", "maps", "mem", "auxv", "stack", "io"):
        attempt(f"read /proc/{pid}/{name}", lambda name=name: read(f"/proc/{pid}/{name}"))  # type: ignore[misc]
    attempt(f"list fds of {pid}", lambda: os.listdir(f"/proc/{pid}/fd"))
    for fd in range(12):
        attempt(f"read /proc/{pid}/fd/{fd}", lambda fd=fd: read(f"/proc/{pid}/fd/{fd}"))  # type: ignore[misc]
    attempt(f"read cwd of {pid}", lambda: b"".join(read(name) for name in glob.glob(f"/proc/{pid}/cwd/canary*")))


def own_descriptors() -> bytes:
    data = b""
    for fd in range(3, 1024):
        try:
            data += os.pread(fd, 1 << 16, 0)
        except OSError:
            continue
    return data


def search(roots: tuple[str, ...], needle: str) -> bytes:
    """The content of every small file below ``roots`` whose name has ``needle`` in it, with the name."""
    data = b""
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name not in ("proc", "usr")]
            for name in names:
                if needle in name:
                    path = os.path.join(folder, name)
                    data += path.encode() + read(path, 1 << 16)
    return data


processes: list[str] = []
for path in filter(None, os.environ["PATHS"].split(":")):
    by_detours(path)
for path in filter(None, os.environ["DIGESTS"].split(":")):
    attempt(f"digest {path}", lambda path=path: read(path))  # type: ignore[misc]
for pid in filter(None, os.environ["PIDS"].split(":")):
    of_process(pid)
attempt("own environment", lambda: repr(dict(os.environ)).encode())
attempt("inherited descriptors", own_descriptors)
if os.environ.get("SCAN"):
    attempt("list processes", lambda: processes.extend(name for name in os.listdir("/proc") if name.isdigit()))
    for pid in processes or [str(number) for number in range(1, 100)]:
        of_process(pid)
    attempt("search", lambda: search(("/",), os.environ["NEEDLE"]))
else:
    attempt("search", lambda: search(("/dev/shm",), os.environ["NEEDLE"]))
finish()
