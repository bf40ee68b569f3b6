"""A stand-in for a container engine: the part of Docker's API that the docker wall uses, over a Unix socket.

Each container is a process in separate namespaces. Its root has the system's programs, this interpreter and casemate,
all read-only, and a tmpfs wherever a real engine mounts one. Memory and cpus are not limited, and only casemate's own
system call filter applies; tests of these need a real engine.

``python -m tests.support.standin_engine SOCKET`` serves until its standard input ends. Then its containers end, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import casemate

_ROOT = Path(__file__).resolve().parents[2]
_SYSTEM = ("/usr", "/etc", "/bin", "/sbin", "/lib", "/lib64")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_STDOUT, _STDERR = 1, 2
_KEPT_OPTIONS = ("size", "nr_inodes", "mode", "uid", "gid")
_OPTIONS = "nosuid,nodev"


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Run an engine; yields its address for DOCKER_HOST."""
    with tempfile.TemporaryDirectory(prefix="standin-engine-") as folder:
        socket = f"{folder}/socket"
        command = [sys.executable, "-m", __spec__.name, socket]
        with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
            assert engine.stdin is not None
            assert engine.stdout is not None
            assert engine.stdout.readline() == b"ready\n"
            try:
                yield f"unix://{socket}"
            finally:
                engine.stdin.close()
                engine.stdout.read()


class Container:
    """One container. ``spec`` is the request of Docker's API that created it."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.id = secrets.token_hex(16)
        self.spec = spec
        self._stream: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._started = asyncio.Event()
        self._ended = asyncio.Event()

    async def start(self) -> None:
        """Start its program. The output goes to the attached stream."""
        pipe = asyncio.subprocess.PIPE
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin:/sbin"}
        environment |= dict(one.split("=", 1) for one in self.spec.get("Env", ()))
        self._process = await asyncio.create_subprocess_exec(
            *_own_namespaces(), _script(self.spec), stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        )
        self._started.set()
        asyncio.create_task(self._carry_output(self._process))  # noqa: RUF006 - its reads of the pipes keep it alive

    async def attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward its standard streams until it ends."""
        self._stream = writer
        await self._started.wait()
        assert self._process is not None
        feeding = asyncio.create_task(_feed(reader, self._process))
        await self._ended.wait()
        feeding.cancel()

    async def remove(self) -> None:
        """Kill all of its processes."""
        if self._process is not None:
            if self._process.returncode is None:
                os.kill(self._process.pid, signal.SIGKILL)
            await self._ended.wait()
        self._started.set()

    async def _carry_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(self._carry(process.stdout, _STDOUT), self._carry(process.stderr, _STDERR))
        await process.wait()
        self._ended.set()

    async def _carry(self, pipe: asyncio.StreamReader, number: int) -> None:
        while data := await pipe.read(1 << 15):
            if self._stream is not None:
                self._stream.write(bytes([number, 0, 0, 0]) + len(data).to_bytes(4, "big") + data)
                with contextlib.suppress(OSError):
                    await self._stream.drain()


async def _feed(reader: asyncio.StreamReader, process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            process.stdin.write(data)
            await process.stdin.drain()
    process.stdin.close()


class Engine:
    """The server side of the API."""

    def __init__(self) -> None:
        self._containers: dict[str, Container] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to a connection's only request."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, _ = head.split(" ", 2)
            headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            url = urlsplit(target)
            parts = url.path.strip("/").split("/")
            if parts[-1] == "attach":
                writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
                await self._containers[parts[1]].attach(reader, writer)
            else:
                status, value = await self._answer(method, parts, parse_qs(url.query), body)
                data = b"" if value is None else json.dumps(value).encode()
                writer.write(f"HTTP/1.1 {status} OK\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            await writer.drain()
        writer.close()

    async def _answer(self, method: str, parts: list[str], query: dict[str, Any], body: bytes) -> tuple[int, Any]:
        match method, *parts:
            case "GET", "info":
                return 200, {"Runtimes": {"runc": {}}, "SecurityOptions": [], "ServerVersion": "stand-in"}
            case "GET", "images", *_:
                return 200, {"Id": "stand-in", "Config": {}}
            case "GET", "containers", "json":
                labels = json.loads(query["filters"][0])["label"]
                return 200, [{"Id": one.id, "Labels": one.spec["Labels"]} for one in self._labelled(labels)]
            case "POST", "containers", "create":
                made = Container(json.loads(body))
                self._containers[made.id] = made
                return 201, {"Id": made.id}
            case "POST", "containers", number, "start" if number in self._containers:
                await self._containers[number].start()
                return 204, None
            case "DELETE", "containers", number if number in self._containers:
                await self._containers.pop(number).remove()
                return 204, None
        return 404, {"message": "there is no such thing"}

    def _labelled(self, labels: list[str]) -> list[Container]:
        def has(container: Container, label: str) -> bool:
            name, _, value = label.partition("=")
            return name in container.spec["Labels"] and value in ("", container.spec["Labels"][name])

        return [one for one in self._containers.values() if all(has(one, label) for label in labels)]


def _own_namespaces() -> list[str]:
    """A command that runs a shell script, its missing last argument, in new namespaces."""
    as_user = ["--map-root-user"] if os.geteuid() else []
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts", *as_user]
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "sh", "-c"]


def _script(spec: dict[str, Any]) -> str:
    """The script that makes a container's root and starts its program there."""
    root = "/mnt"  # the mount hides its content in this namespace only
    lines = ["set -e", f"mount -t tmpfs -o mode=755 root {root}", *_made_root(root)]
    lines += [f"hostname {spec['Hostname']}", "ip link set lo up"]
    lines.append("echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start")  # as in Docker
    for place, options in _file_systems(spec).items():
        lines += [f"mkdir -p {root}{place}", f"mount -t tmpfs -o {options} none {root}{place}"]
    for place in spec["HostConfig"]["MaskedPaths"]:
        lines.append(_masked(f"{root}{place}"))
    servers = "".join(f"nameserver {one}\n" for one in spec["HostConfig"]["Dns"])
    lines += [f"mkdir {root}/run", f"printf {shlex.quote(servers)} >{root}/run/resolv"]
    lines += [f"mount --bind {root}/run/resolv {root}/etc/resolv.conf"]
    lines += [f"mount -o remount,bind,ro {root}", f"cd {root}", "pivot_root . .", "umount -l .", "cd /", _program(spec)]
    return "\n".join(lines)


def _made_root(root: str) -> Iterator[str]:
    for place in (*_SYSTEM, *_of_python()):
        if os.path.islink(place):
            yield f"ln -s {os.readlink(place)} {root}{place}"
        elif os.path.isdir(place):
            yield f"mkdir -p {root}{place}"
            yield f"mount --bind {place} {root}{place}"
            yield f"mount -o remount,bind,ro {root}{place}"
    yield f"mkdir -p {root}/proc {root}/dev/pts {root}/dev/shm"
    yield f"mount -t proc -o nosuid,nodev,noexec proc {root}/proc"
    yield f"mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts {root}/dev/pts"
    yield f"ln -s pts/ptmx {root}/dev/ptmx; ln -s /proc/self/fd {root}/dev/fd"
    for name in _DEVICES:
        yield f"touch {root}/dev/{name}; mount --bind /dev/{name} {root}/dev/{name}"


def _of_python() -> list[str]:
    """The folders of this interpreter and of casemate, without folders inside others."""
    own = {sys.base_prefix, sys.prefix, str(Path(casemate.__file__).resolve().parents[1])}
    return sorted(one for one in own if not one.startswith(tuple(f"{other}/" for other in (own | {"/usr"}) - {one})))


def _file_systems(spec: dict[str, Any]) -> dict[str, str]:
    """The options of each tmpfs, by mount point. An ordinary user has only one user id to map."""
    host = spec["HostConfig"]
    found = {"/dev/shm": f"{_OPTIONS},mode=1777,size={host['ShmSize']}"}
    for place, wanted in host["Tmpfs"].items():
        kept = dict(one.split("=", 1) for one in wanted.split(",") if one.split("=")[0] in _KEPT_OPTIONS)
        if os.geteuid():
            kept |= {"uid": "0", "gid": "0"}
        found[place] = ",".join([_OPTIONS, *(f"{name}={value}" for name, value in kept.items())])
    return found


def _masked(place: str) -> str:
    return (
        f"if [ -d {place} ]; then mount -t tmpfs -o ro,size=4096 none {place}; "
        f"elif [ -e {place} ]; then mount --bind /dev/null {place}; fi"
    )


def _program(spec: dict[str, Any]) -> str:
    user, _, group = spec["User"].partition(":")
    become = ["setpriv", "--reuid", user, "--regid", group, "--clear-groups"]
    if os.geteuid():
        become = ["unshare", "--user", "--keep-caps", f"--map-user={user}", f"--map-group={group}", "setpriv"]
    limits = [f"--{name}={limit}" for name, limit in _limits(spec).items()]
    without = ["--pdeathsig", "KILL", "--no-new-privs", "--bounding-set=-all", "--ambient-caps=-all", "--inh-caps=-all"]
    return shlex.join(["exec", "prlimit", *limits, *become, *without, sys.executable, *spec["Cmd"]])


def _limits(spec: dict[str, Any]) -> dict[str, Any]:
    return {"nproc": spec["HostConfig"]["PidsLimit"], "core": 0} | {
        one["Name"]: f"{one['Soft']}:{one['Hard']}" for one in spec["HostConfig"]["Ulimits"]
    }


async def _main(socket: str) -> None:
    server = await asyncio.start_unix_server(Engine().serve, socket)
    print("ready", flush=True)
    async with server:
        await asyncio.to_thread(sys.stdin.buffer.read)
    os._exit(0)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # a real engine is not a child of its user either
    asyncio.run(_main(sys.argv[1]))
