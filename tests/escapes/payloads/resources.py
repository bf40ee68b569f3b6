"""Take MANY of one resource, WHAT, bounded whatever happens; tell how many there were, then stay or end."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from tests.escapes.payloads.attempts import END, attempt, finish

MIB = 1 << 20
held: list[object] = []
many = int(os.environ["MANY"])


def repeat(action: Callable[[], object]) -> int:
    """How often it went, at most ``many`` times."""
    count = 0
    try:
        for _ in range(many):
            held.append(action())
            count += 1
    except (OSError, RuntimeError, MemoryError, ValueError) as error:
        print(f"stopped by {type(error).__name__} {getattr(error, 'errno', '')}", flush=True)
    return count


def sleeper() -> int:
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/sleep", ["sleep", "30"])
    return pid


def thread() -> threading.Thread:
    one = threading.Thread(target=time.sleep, args=(30,), daemon=True)
    one.start()
    return one


def zombie() -> None:
    if os.fork() == 0:
        os._exit(0)


def orphan() -> None:
    """A child of nobody's."""
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os.execv("/bin/sleep", ["sleep", "30"])
        os._exit(0)
    os.waitpid(pid, 0)


def private() -> bytearray:
    return bytearray(b"x") * MIB


def shared() -> mmap.mmap:
    one = mmap.mmap(-1, MIB)
    one[:] = b"x" * MIB
    return one


def in_file(path: str) -> Callable[[], None]:
    def write() -> None:
        with open(path, "ab", buffering=0) as file:
            if file.write(b"x" * MIB) != MIB:
                raise OSError("short")

    return write


def memory_file() -> int:
    fd = os.memfd_create("held")
    os.write(fd, b"x" * MIB)
    return fd


def sockets() -> object:
    """About 400 KiB in the buffers of one pair."""
    pair = socket.socketpair()
    for one in pair:
        one.setblocking(False)
        try:
            while True:
                one.send(bytes(1 << 16))
        except BlockingIOError:
            pass
    return pair


def tcp() -> object:
    """At least a MiB in the buffers of one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        pair = client, server.accept()[0]
    client.setblocking(False)
    sent = 0
    try:
        while True:
            sent += client.send(bytes(1 << 16))
    except BlockingIOError:
        if sent < MIB:
            raise OSError(f"no more than {sent} bytes") from None
    return pair


def timer() -> None:
    """A signal that is to be delivered takes its place when the timer is made (timer_create(2))."""
    if ctypes.CDLL(None).timer_create(time.CLOCK_MONOTONIC, None, ctypes.byref(ctypes.c_void_p())):
        raise OSError("no timer")


def instance() -> int:
    if (fd := int(ctypes.CDLL(None).inotify_init1(0))) < 0:
        raise OSError("no instance")
    return fd


def netlink_at_once() -> int:
    """From many threads, on a core that another program keeps busy: many are answered before one of them goes on."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    busy, begin = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]), threading.Barrier(many)

    def take() -> None:
        begin.wait()
        with contextlib.suppress(OSError):
            held.append(socket.socket(16, socket.SOCK_RAW, 0))

    threads = [threading.Thread(target=take) for _ in range(many)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    busy.kill()
    busy.wait()
    return len(held)


def pipe() -> object:
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    os.write(ends[1], bytes(1 << 16))
    return ends


def children_with_memory() -> int:
    """Each child takes 8 MiB and stays."""
    return child_with(lambda: bytearray(b"x") * (8 * MIB))


def children_with_shared_memory() -> int:
    """Each child takes 48 MiB that it could share, and does not."""
    return child_with(lambda: [shared() for _ in range(48)])


def child_with(take: Callable[[], object]) -> int:
    ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        kept = take()
        os.write(ready[1], b"1")
        time.sleep(30)
        os._exit(kept is None)
    os.close(ready[1])
    if not os.read(ready[0], 1):
        raise OSError("the child died")
    os.close(ready[0])
    return pid


def empty_file() -> None:
    os.close(os.open(f"/tmp/empty-{len(held)}", os.O_CREAT | os.O_WRONLY))


def burner() -> int:
    """Some cpu in each of many processes."""
    pid = os.fork()
    if pid == 0:
        while time.process_time() < 0.3:
            pass
        os._exit(0)
    return pid


def burning_orphan() -> None:
    """As daemons do: the parent that could be asked for their time is gone."""
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            start = time.process_time()
            while time.process_time() < start + 0.05:
                pass
        os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.03)


def burn_all() -> None:
    pids = [burner() for _ in range(many)]
    for pid in pids:
        os.waitpid(pid, 0)


KINDS: dict[str, Callable[[], object]] = {
    "processes": sleeper, "threads": thread, "zombies": zombie, "orphans": orphan, "private": private, "shared": shared,
    "tmp": in_file("/tmp/big"), "shm": in_file("/dev/shm/big"), "workspace": in_file("big"), "memfd": memory_file,
    "sockets": sockets, "pipes": pipe, "tcp": tcp, "timers": timer, "inotify": instance,
    "netlink": lambda: socket.socket(16, socket.SOCK_RAW, 0), "children": children_with_memory,
    "children that share": children_with_shared_memory, "inodes": empty_file,
    "terminals": lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY),
    "descriptors": lambda: os.open("/dev/null", os.O_RDONLY), "burning orphans": burning_orphan,
    "programs": lambda: subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE),
}  # fmt: skip
what = os.environ["WHAT"]
if what == "burners":
    attempt(what, burn_all)
else:
    print(f"took {netlink_at_once() if what == 'netlink at once' else repeat(KINDS[what])} {what}", flush=True)
for name in ("/tmp/big", "/dev/shm/big", "big"):
    if os.path.exists(name):
        print(f"size {os.stat(name).st_size}", flush=True)
assert END
finish()
