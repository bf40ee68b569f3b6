"""Ordinary work that must succeed in a cell. Each check is a function; its name is printed if the check holds."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import fcntl
import getpass
import hashlib
import http.client
import http.server
import locale
import mmap
import multiprocessing
import os
import pathlib
import pty
import pwd
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
import zoneinfo
from collections.abc import Callable
from datetime import datetime
from multiprocessing import shared_memory


def square(number: int) -> int:
    return number * number


def fill(name: str) -> None:
    block = shared_memory.SharedMemory(name)
    assert block.buf is not None
    block.buf[0] = 7
    block.close()


def threads() -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(square, range(20)))[-1] == 361


def subprocesses() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "print(input())"], input="x", capture_output=True, text=True, check=True
    )
    assert done.stdout == "x\n"
    assert subprocess.run("echo $((1 + 1)) | cat", shell=True, capture_output=True, check=True).stdout == b"2\n"


def processes_by(method: str) -> Callable[[], None]:
    def check() -> None:
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(square, range(4)) == [0, 1, 4, 9]
        value, queue = context.Value("i", 0), context.Queue()
        queue.put("x")
        assert queue.get(timeout=60) == "x"
        with value.get_lock():
            value.value += 1
        block = shared_memory.SharedMemory(create=True, size=4096)
        child = context.Process(target=fill, args=(block.name,))  # type: ignore[attr-defined]
        child.start()
        child.join()
        assert block.buf is not None
        assert block.buf[0] == 7
        block.close()
        block.unlink()

    check.__name__ = f"processes_by_{method}"
    return check


def process_pool() -> None:
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        assert list(pool.map(square, range(3))) == [0, 1, 4]


def devices() -> None:
    for name in ("null", "zero", "full", "random", "urandom"):
        assert pathlib.Path("/dev", name).is_char_device(), name
    with open("/dev/null", "r+b") as null:
        assert null.write(b"x") == 1
    with open("/dev/zero", "rb") as zero:
        assert zero.read(3) == b"\0\0\0"
    assert len(os.urandom(32)) == 32
    with open("/dev/stderr", "w") as stream:
        stream.write("")
    with open("/dev/stdout", "a") as stream:
        stream.write("")
    with open("/dev/stdin") as stream:
        assert stream.read() == "given\n"
    os.stat("/dev/fd/0")


def temporary_files() -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as named:
        named.write(b"x")
    with tempfile.TemporaryFile() as unnamed:
        unnamed.write(b"x")
    assert tempfile.gettempdir() == "/tmp"


def databases() -> None:
    for mode in ("wal", "delete", "memory"):
        with sqlite3.connect(f"data-{mode}.db") as database:
            assert database.execute(f"pragma journal_mode={mode}").fetchone() == (mode,)
            database.execute("create table t (x)")
            database.executemany("insert into t values (?)", [(n,) for n in range(100)])
    with sqlite3.connect("data-wal.db") as again:
        assert again.execute("select sum(x) from t").fetchone() == (4950,)


def sockets() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "localhost")):
        with (
            socket.create_server((host, 0), family=family) as server,
            socket.create_connection((host, server.getsockname()[1]), 5) as client,
        ):
            server.accept()[0].send(b"x")
            assert client.recv(1) == b"x"
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((host, 0))
            one.sendto(b"x", one.getsockname())
            assert one.recv(1) == b"x"
    for address in ("unix.sock", "/tmp/unix.sock", "\0honest"):
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind(address)
            server.listen()
            client.connect(address)
    assert socket.gethostbyname("localhost") == "127.0.0.1"
    assert socket.gethostbyname(socket.gethostname())


def web() -> None:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name there
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    client.request("GET", "/")
    assert client.getresponse().status == 200
    server.shutdown()


def asynchronous() -> None:
    async def main() -> None:
        process = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert (await process.communicate(b"x"))[0] == b"x"
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        reader, _writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b""
        server.close()
        assert await asyncio.to_thread(square, 3) == 9

    asyncio.run(main())


def pipes_and_signals() -> None:
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN  # Python's own doing
    ends = subprocess.run(["bash", "-c", "yes | head -1 >/dev/null; exit ${PIPESTATUS[0]}"], check=False)
    assert ends.returncode == 141
    got: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGALRM, lambda number, _: got.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.sigtimedwait([], 0.2)
    assert signal.SIGUSR1 in got
    child = subprocess.Popen(["sleep", "30"], start_new_session=True)
    os.killpg(child.pid, signal.SIGSTOP)
    os.kill(child.pid, signal.SIGCONT)
    fd = os.pidfd_open(child.pid)
    child.terminate()
    assert select.select([fd], [], [], 60)[0]
    assert child.wait() == -signal.SIGTERM


def places() -> None:
    assert locale.setlocale(locale.LC_ALL, "") == "C.UTF-8"
    assert sys.getfilesystemencoding() == "utf-8"
    pathlib.Path("übung-\u65e5\u672c.txt").write_text("ä")
    zones = zoneinfo.available_timezones()
    assert not zones or datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")).utcoffset().seconds == 7200  # type: ignore[union-attr]
    assert time.tzname
    assert pwd.getpwuid(os.getuid()).pw_name == getpass.getuser()
    home = pathlib.Path.home()
    (home / ".cache").mkdir(exist_ok=True)
    assert {"usr", "tmp", "workspace", "etc", "proc", "dev"} <= set(os.listdir("/"))
    assert socket.gethostname()
    assert os.cpu_count()
    assert pathlib.Path("/proc/self/status").read_text()
    assert pathlib.Path("/etc/os-release").exists() or not pathlib.Path("/usr/lib/os-release").exists()


def terminals() -> None:
    pid, master = pty.fork()
    if pid == 0:
        os.execv("/bin/sh", ["sh", "-c", "tty; stty size; echo ready"])
    data = b""
    while b"ready" not in data:
        data += os.read(master, 1000)
    os.waitpid(pid, 0)
    assert b"/dev/pts/" in data
    _master, other = os.openpty()
    termios.tcgetattr(other)
    os.ttyname(other)


def locks_and_maps() -> None:
    with open("locked", "w+b") as file:
        for take in (fcntl.flock, fcntl.lockf):
            take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            take(file, fcntl.LOCK_UN)
        file.truncate(8192)
        with mmap.mmap(file.fileno(), 8192) as mapped:
            mapped[:2] = b"xy"
        os.posix_fallocate(file.fileno(), 0, 16384)
        assert os.sendfile(os.open("sent", os.O_CREAT | os.O_WRONLY), file.fileno(), 0, 2) == 2
        assert os.copy_file_range(file.fileno(), os.open("copied", os.O_CREAT | os.O_WRONLY), 2, 0) == 2
    assert pathlib.Path("sent").read_bytes() == b"xy"
    with mmap.mmap(-1, 1 << 20) as anonymous:
        anonymous[0] = 1


def files() -> None:
    os.makedirs("a/b/c")
    os.rename("a/b", "moved")
    os.symlink("moved", "link")
    open("own", "w").close()
    os.link("own", "hard")
    os.chmod("hard", 0o755)
    os.utime("hard", (1, 1))
    os.mkfifo("fifo")
    for name in ("a", "moved"):
        os.path.isdir(name)
    with os.scandir(".") as entries:
        assert sum(1 for _ in entries) > 5


def given_files_are_ones_own() -> None:
    with open("given.txt", "a") as file:
        file.write("more")
    os.chmod("given.txt", 0o600)


def interfaces() -> None:
    assert (1, "lo") in socket.if_nameindex()
    first, libc = ctypes.c_void_p(), ctypes.CDLL(None)
    assert libc.getifaddrs(ctypes.byref(first)) == 0


def families() -> None:
    for family in (0, socket.AF_INET):  # is an address there of the family, besides 127.0.0.1?
        assert socket.getaddrinfo("localhost", 80, family, flags=socket.AI_ADDRCONFIG)


def native_code() -> None:
    assert ctypes.CDLL(None).getpid() == os.getpid()
    assert hashlib.scrypt(b"x", salt=b"y", n=2, r=1, p=1)
    callback = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 5)
    assert callback() == 5


CHECKS = (
    threads, subprocesses, processes_by("fork"), processes_by("spawn"), processes_by("forkserver"), process_pool,
    devices, temporary_files, databases, sockets, web, asynchronous, pipes_and_signals, places, terminals,
    locks_and_maps, files, interfaces, families,
    given_files_are_ones_own, native_code,
)  # fmt: skip
if __name__ == "__main__":
    for check in CHECKS:
        try:
            check()
            print(f"held {check.__name__}", flush=True)
        except Exception:  # noqa: BLE001 - told with its traceback, and judged outside
            print(f"broke {check.__name__} {traceback.format_exc()[-600:]}", flush=True)
    print("end of attack")
