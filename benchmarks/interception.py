"""The cost of interception: a small GET and 128 MiB over TLS through an egress proxy that terminates TLS, against a
proxy that only forwards it.

There is no cell; loopback addresses stand for its addresses. Client, proxy and server are separate processes. A GET
makes a DNS query, a new connection and a full TLS handshake. A "kept" GET reuses one connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.egress import _line, _listening, _program, listen
from benchmarks.measure import Goal, Thing
from casemate.egress.authority import Authority, server_side
from casemate.egress.proxy import EgressProxy
from casemate.egress.terms import EgressTerms, Interception, ProxyLimits
from casemate.policy.hosts import HostRules, host_rule

_NAME, _ADDRESS = "bench.test", "93.184.1.1"
_PLAIN, _SEEN = 18443, 18444
Measured = Callable[[measure.Run, "subprocess.Popen[str]", "dict[str, object]"], None]
_NO_LIMITS = ProxyLimits(bytes=1 << 50, queries=1_000_000)
_BIG = 128 << 20
_LEAST_RATE = 80 << 20  # bytes a second, the goal

_SERVER = """
import os, socket, ssl, sys, threading
big = memoryview(b"x" * (1 << 20))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.stdin.readline().strip())
def serve(raw):
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        with context.wrap_socket(raw, server_side=True) as one:
            while True:
                head = b""
                while not head.endswith(b"\\r\\n\\r\\n"):
                    data = one.recv(4096)
                    if not data: return
                    head += data
                size = int(head.split(b" ")[1][1:])
                one.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % size)
                while size:
                    size -= one.send(big[:size])
    except OSError:
        pass
listener = socket.create_server(("127.0.0.1", 0), backlog=128)
print(listener.getsockname()[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

_CLIENT = """
import json, socket, ssl, struct, sys, time
context = ssl.create_default_context()
for file in json.loads(sys.stdin.readline()): context.load_verify_locations(file)
context.set_alpn_protocols(["http/1.1"])
buffer = bytearray(1 << 20)
kept = {}
def opened(at):
    labels = b"".join(bytes([len(p)]) + p.encode() for p in at["name"].split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(struct.pack("!6H", 1, 256, 1, 0, 0, 0) + labels + b"\\0\\0\\1\\0\\1", tuple(at["dns"]))
        address = one.recv(600)[-4:]
    raw = socket.create_connection((socket.inet_ntoa(bytes([127]) + address[1:]), at["port"]))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(raw, server_hostname=at["name"])
def asked(one, at):
    one.sendall(f"GET /{at['size']} HTTP/1.1\\r\\nHost: {at['name']}:{at['port']}\\r\\n\\r\\n".encode())
    head = b""
    while b"\\r\\n\\r\\n" not in head: head += one.recv(1 << 16)
    got = len(head.partition(b"\\r\\n\\r\\n")[2])
    while got < at["size"]: got += one.recv_into(buffer)
for line in sys.stdin:
    at = json.loads(line)
    if at["kept"] and at["port"] not in kept: kept[at["port"]] = opened(at)
    start = time.perf_counter()
    if at["kept"]:
        asked(kept[at["port"]], at)
    else:
        with opened(at) as one: asked(one, at)
    print(time.perf_counter() - start, flush=True)
"""


def _thing(client: subprocess.Popen[str], at: dict[str, object]) -> Thing:
    line = json.dumps(at) + "\n"

    def once() -> float:
        return float(_told(client, line))

    return once


def _told(program: subprocess.Popen[str], line: str) -> str:
    assert program.stdin is not None
    program.stdin.write(line)
    program.stdin.flush()
    return _line(program)


def things(client: subprocess.Popen[str], at: dict[str, object]) -> dict[str, Thing]:
    """The same transfers through a proxy that forwards TLS and through a proxy that terminates it."""
    return {
        "carried": _thing(client, {**at, "port": _PLAIN}),
        "intercepted": _thing(client, {**at, "port": _SEEN}),
    }


def _measured(run: measure.Run, client: subprocess.Popen[str], at: dict[str, object]) -> None:
    for title, kept, size, rounds, goal in (
        ("a small GET, a connection of its own", False, 100, run.rounds(500), Goal(times=1, plus=5e-3)),
        ("a small GET on a connection that is there", True, 100, run.rounds(500), Goal(times=1, plus=5e-3)),
        ("128 MiB", True, _BIG, run.rounds(9, 3), Goal(plus=_BIG / _LEAST_RATE)),
    ):
        both = things(client, {**at, "size": size, "kept": kept})
        run.compare(title, measure.in_turn(both, rounds, {"intercepted": goal}))


def main() -> None:
    run = measure.Run("interception", __doc__ or "")
    with_door(run, _SERVER, _CLIENT, _measured)
    run.finish()


def with_door(run: measure.Run, server_source: str, client_source: str, measured: Measured) -> None:
    """Call ``measured`` with the client and the proxies' addresses. First, client and server get their certificates."""
    with tempfile.TemporaryDirectory() as folder:
        from tests.egress.servers import certificate

        server, client = _program(server_source), _program(client_source)
        certified = certificate(Path(folder), _NAME)
        server_port = int(_told(server, f"{certified}\n"))
        authority = Authority([_NAME])
        own = Path(folder, "own.pem")
        own.write_bytes(authority.certificate)
        assert client.stdin is not None
        client.stdin.write(json.dumps([str(certified), str(own)]) + "\n")
        try:
            _with_door(run, client, measured, authority, str(certified), server_port)
        finally:
            for program in (server, client):
                assert program.stdin is not None
                program.stdin.close()
                program.wait(10)


def _with_door(
    run: measure.Run,
    client: subprocess.Popen[str],
    measured: Measured,
    authority: Authority,
    trust: str,
    server_port: int,
) -> None:
    async def resolve(_: str) -> list[str]:
        return [_ADDRESS]

    async def connect(_address: str, _port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", server_port))
        return made

    egress = EgressProxy(resolve, connect=connect)
    dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    dns.bind(("127.18.0.1", 0))
    proxy = _listening("127.18.0.1", 0)
    at: dict[str, object] = {"name": _NAME, "dns": dns.getsockname()}
    hosts = HostRules(tuple(host_rule(f"{_NAME}:{port}") for port in (_PLAIN, _SEEN)))
    interception = Interception(frozenset({(_NAME, _SEEN)}), authority, server_side(trust))
    try:
        terms = EgressTerms(hosts, limits=_NO_LIMITS, interception=interception)
        egress.open(terms, listen, dns.detach(), proxy.detach())
        measured(run, client, at)
    finally:
        egress.close()


if __name__ == "__main__":
    main()
