"""An egress proxy with a network like a cell's on one side, and servers on this machine's loopback on the other.

The egress proxy resolves names by a table, vets what the table says as it vets everything, and then "dials" those
public addresses through a connector of the tests, which knows servers on the loopback only: no packet can leave.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from casemate.egress.proxy import CellProxy, EgressProxy
from casemate.egress.terms import EgressTerms
from casemate.model.execution import Crossing
from casemate.model.plan import NETWORK_SOCKETS
from casemate.policy.hosts import HostRules, host_rule

DNS, PROXY = ((one.address, one.port) for one in NETWORK_SOCKETS)
_INSIDE = Path(__file__).with_name("inside.py")


class Inside:
    """The network of a cell, and clients there."""

    def __init__(self, folder: Path) -> None:
        resolv_conf = folder / "resolv.conf"
        resolv_conf.write_text(f"nameserver {DNS[0]}\noptions timeout:5 attempts:1\n")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-I", str(_INSIDE), str(theirs.fileno()), str(resolv_conf)]
        self._process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
        theirs.close()
        ours.settimeout(60)
        self._control = ours
        self._lock = threading.Lock()
        self.listened: list[tuple[str, int]] = []
        if ours.recv(16) != b"ready":
            assert self._process.stderr is not None
            reason = self._process.stderr.read().strip()
            self.close()
            pytest.skip(f"no network namespace here: {reason}")

    def close(self) -> None:
        self._control.close()
        self._process.wait(60)
        if self._process.stderr is not None:
            self._process.stderr.close()

    def listen(self, addresses: Sequence[tuple[str, int]]) -> concurrent.futures.Future[list[int]]:
        future: concurrent.futures.Future[list[int]] = concurrent.futures.Future()
        try:
            future.set_result(self._made("listen", addresses))
            self.listened += addresses
        except OSError as error:
            future.set_exception(error)
        return future

    def connect(self, address: str, port: int) -> socket.socket:
        """Make a connection inside, for use from here. If it was reset, reading from it raises an exception."""
        made = socket.socket(fileno=self._made("connect", [(address, port)])[0])
        made.settimeout(60)
        return made

    def datagrams(self, address: str, port: int) -> int:
        return self._made("datagrams", [(address, port)])[0]

    def run(
        self, *argv: str, timeout: float = 60, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside."""
        enter = ["nsenter", "-t", str(self._process.pid), "-n", "-m"]
        if os.getuid():
            enter += ["-U", "--preserve-credentials"]
        base = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8", **(env or {})}
        return subprocess.run([*enter, *argv], capture_output=True, text=True, timeout=timeout, env=base, check=False)

    def _made(self, what: str, addresses: Sequence[tuple[str, int]]) -> list[int]:
        with self._lock:
            self._control.send(json.dumps([what, list(addresses)]).encode())
            data, fds, _, _ = socket.recv_fds(self._control, 16, 64)
        if data != b"ok":
            number = int(data or b"32")
            raise OSError(number, os.strerror(number))
        return fds


class FakeInternet:
    """What there is to be reached: names with public-looking addresses, and servers that stand for these."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[str]] = {}
        self.servers: dict[tuple[str, int], int] = {}  # address and port -> port on the loopback
        self.resolved: list[str] = []
        self.dialled: list[tuple[str, int]] = []

    def add(self, name: str, port: int, server_port: int, address: str | None = None) -> str:
        """``name`` has an address, at which the server listens at ``port``."""
        address = address or self.addresses.get(name, [f"93.184.1.{len(self.addresses) + 1}"])[0]
        self.addresses.setdefault(name, [address])
        self.servers[address, port] = server_port
        return address

    async def resolve(self, name: str) -> list[str]:
        self.resolved.append(name)
        if name not in self.addresses:
            raise OSError(f"{name} does not exist")
        return list(self.addresses[name])

    async def connect(self, address: str, port: int) -> socket.socket:
        self.dialled.append((address, port))
        target = self.servers.get((address, port))
        if target is None:
            raise ConnectionRefusedError(111, "Connection refused")
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", target))
        return made


class Stage:
    """Both, with the egress proxy between them. The terms can be changed; without any nothing is reached."""

    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.internet = FakeInternet()
        self.told: list[Crossing] = []
        self.egress_proxy = EgressProxy(self.internet.resolve, self.internet.connect)
        self.cell_proxy: CellProxy

    def open(self, terms: EgressTerms | None = None) -> CellProxy:
        self.dns_at, self.proxy_at = DNS, PROXY
        proxy = self.inside.listen([PROXY]).result()[0]
        self.cell_proxy = self.egress_proxy.open(
            terms or EgressTerms(), self._listen, self.inside.datagrams(*DNS), proxy, self.told.append
        )
        return self.cell_proxy

    def _listen(self, addresses: Sequence[tuple[str, int]]) -> concurrent.futures.Future[list[int]]:
        return self.inside.listen(addresses)  # as it is now: tests put others in its place

    def allow(self, *rules: str) -> CellProxy:
        return self.open(EgressTerms(allowing(*rules)))

    def close(self) -> None:
        self.egress_proxy.close()

    # -- clients

    def ask(self, name: str, kind: int = 1, number: int = 7) -> tuple[int, str | None]:
        """Code and address that the resolver in the cell gives for a name."""
        labels = b"".join(bytes([len(part)]) + part for part in name.encode("latin-1").split(b"."))
        code, message = self.exchange(
            struct.pack("!HHHHHH", number, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)
        )
        return code, socket.inet_ntoa(message[-4:]) if message[7] else None

    def exchange(self, query: bytes) -> tuple[int, bytes]:
        with socket.socket(fileno=self.inside.datagrams("198.18.0.9", 0)) as one:
            one.settimeout(60)
            one.sendto(query, DNS)
            message = one.recv(2000)
        return message[3] & 0xF, message

    def connect(self, name: str, port: int) -> socket.socket:
        """As a client does that knows of no proxy: resolve, connect."""
        code, address = self.ask(name)
        assert (code, bool(address)) == (0, True), f"{name} does not resolve: {code}"
        assert address is not None
        return self.inside.connect(address, port)

    def reaching(self, name: str, port: int, server: int) -> socket.socket:
        """A connection to a permitted name, which leads to the server at this port here."""
        self.allow(name)
        self.internet.add(name, port, server)
        return self.connect(name, port)

    def is_reset(self, name: str, port: int) -> bool:
        """Whether a client that connects, and says nothing, is sent away."""
        with self.connect(name, port) as one:
            return was_reset(one)

    def proxy(self) -> socket.socket:
        return self.inside.connect(*PROXY)

    def crossing(self, host: str, port: int | None = None) -> list[tuple[str, str]]:
        return [
            (one.decision, one.reason)
            for one in self.cell_proxy.crossings()
            if one.host == host and (port is None or one.port == port)
        ]


def beside(stage: Stage, cell: Inside, *rules: str) -> CellProxy:
    """Another cell's proxy, beside the stage's own."""
    listener = cell.listen([PROXY]).result()[0]
    return stage.egress_proxy.open(EgressTerms(allowing(*rules)), cell.listen, cell.datagrams(*DNS), listener)


def allowing(*rules: str) -> HostRules:
    return HostRules(tuple(host_rule(rule) for rule in rules))


def everything_from(one: socket.socket) -> bytes:
    """Read all data until the end. A reset raises an exception."""
    data = b""
    while more := one.recv(1 << 16):
        data += more
    return data


def was_reset(one: socket.socket) -> bool:
    """Whether the other side ends the connection, saying nothing."""
    try:
        return everything_from(one) == b""
    except ConnectionResetError:
        return True
