"""A service as a process of its own, in folders of its own, and what the tests ask of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.waiting import MAX_WAIT, until

import casemate
from casemate.remote.client import RemoteOperations, connect
from casemate.remote.places import Places, places_of, read_running

T = TypeVar("T")
ASKS = '{"rules": [{"ask": "shell"}]}'  # commands of sessions


def environment(folder: Path) -> dict[str, str]:
    """Variables of a user whose every folder is in ``folder``, and who preloads nothing."""
    places = {"HOME": folder / "home", "XDG_STATE_HOME": folder / "state", "XDG_RUNTIME_DIR": folder / "run"}
    for place in places.values():
        place.mkdir(mode=0o700, exist_ok=True)
    root = str(Path(casemate.__file__).parents[1])
    fixed = {"PATH": os.environ["PATH"], "PYTHONPATH": root, "CASEMATE_PRELOAD": ""}
    return {**fixed, **{name: str(one) for name, one in places.items()}}


def casemate_command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "casemate", *words]


class Daemon:
    """``env``: the user's variables; ``options``: of ``casemate service``."""

    def __init__(self, env: Mapping[str, str], *options: str) -> None:
        self.env = dict(env)
        self.options = options
        self.process: subprocess.Popen[str] | None = None

    @property
    def places(self) -> Places:
        return places_of(self.env)

    @property
    def socket(self) -> Path:
        return self.places.sockets / "service.sock"

    def start(self) -> Daemon:
        """Start it, and wait until it serves."""
        self.process = subprocess.Popen(
            casemate_command("service", *self.options), env=self.env, stderr=subprocess.PIPE, text=True, cwd="/"
        )
        assert self.process.stderr is not None
        said = [""]
        while "serving at" not in said[-1]:  # warnings of its policy come first
            said.append(self.process.stderr.readline())
            assert said[-1], "".join(said)
        return self

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        assert self.process is not None
        code = self.process.wait(MAX_WAIT)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.ended()

    async def connect(self, **given: Any) -> RemoteOperations:
        return await connect(environ=self.env, start=False, **given)

    def ask(self, use: Callable[[RemoteOperations], Awaitable[T]], **given: Any) -> T:
        """What ``use`` returns, which gets a connection."""

        async def connected() -> T:
            remote = await self.connect(**given)
            found = await use(remote)
            await remote.close()
            return found

        return asyncio.run(connected())

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """What ``casemate`` says, as this user."""
        ran = subprocess.run(
            casemate_command(*words), env=self.env, capture_output=True, text=True, check=False, timeout=MAX_WAIT
        )
        assert not check or ran.returncode == 0, ran.stderr
        return ran

    def token(self, name: str, *options: str) -> str:
        return self.command("service", "token", "add", name, *options).stdout.strip()


@contextmanager
def serving(env: Mapping[str, str], *options: str) -> Iterator[Daemon]:
    """A service that is ended whatever happens."""
    daemon = Daemon(env, *options)
    try:
        yield daemon.start()
    finally:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()


@contextmanager
def on_demand(env: Mapping[str, str]) -> Iterator[Daemon]:
    """The services that commands start themselves, ended whatever happens."""
    daemon = Daemon(env)
    try:
        yield daemon
    finally:
        pid = read_running(daemon.places.state).get("pid")
        if isinstance(pid, int) and is_service(pid):
            os.kill(pid, signal.SIGKILL)
            until(lambda: not is_service(pid))


def is_service(pid: int) -> bool:
    """Whether this process is a service that lives."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return status != "Z" and b"casemate\0service" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, IndexError):
        return False


@contextmanager
def reserved_port() -> Iterator[int]:
    """A loopback port that the kernel gives to no other socket, neither to listen nor to connect from. A server that
    binds it with SO_REUSEADDR can listen there, because the socket that holds the port does not listen."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def http(where: socket.socket, text: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """Send the lines of a request as they are, and read an answer with a length; its status, headers and body."""
    head = text.strip().replace("\n", "\r\n") + f"\r\nContent-Length: {len(body)}\r\n\r\n"
    where.settimeout(MAX_WAIT)
    with contextlib.suppress(BrokenPipeError):  # it has answered, and reads no more
        where.sendall(head.encode("latin-1") + body)
    file = where.makefile("rb")
    status = int(file.readline().split()[1])
    headers = {}
    while line := file.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return status, headers, file.read(int(headers.get("content-length", "0")))


def unix(daemon: Daemon) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.connect(str(daemon.socket))
    return one


def tcp(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), MAX_WAIT)
