"""The cost of the egress proxy: a small GET and 128 MiB through it in each of its modes, against a direct connection.

The first part uses a session's real cell and a server on the loopback interface. The second part measures the proxy
alone, with loopback addresses instead of a cell's, also when it parses HTTP. Client, proxy and server are separate
processes. Each GET makes a new connection, and in the transparent mode also a DNS query.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal, Thing
from casemate import sync
from casemate.egress.proxy import EgressProxy
from casemate.egress.terms import EgressTerms, ProxyLimits
from casemate.model.plan import NETWORK_SOCKETS
from casemate.policy.hosts import LOCAL_NAME, HostRules, RequestRule, RequestRules, host_rule

_NAME = "bench.test"
_TUNNEL, _READ = 18080, 18081  # a port for any protocol, and a port where HTTP is parsed
_NO_LIMITS = ProxyLimits(bytes=1 << 50, queries=1_000_000)
_ADDRESS = "93.184.1.1"  # the name's address; the connector below uses the loopback instead
_BIG = 128 << 20
_LEAST_RATE = 200 << 20  # bytes a second, the goal

_SERVER = """
import os, socket, sys, threading
big = b"x" * (1 << 20)
def serve(one):
    path = one.recv(4096).split(b" ")[1]
    size = int(path[1:])
    one.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\nContent-Length: %d\\r\\n\\r\\n" % size)
    while size:
        size -= one.send(big[:size])
    one.close()
listener = socket.create_server(("127.0.0.1", 0), backlog=128)
print(listener.getsockname()[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

_CLIENT = """
import json, socket, struct, sys, time
def direct(at): return socket.create_connection(("127.0.0.1", at["server"]))
def transparent(at):
    labels = b"".join(bytes([len(p)]) + p.encode() for p in at["name"].split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(struct.pack("!6H", 1, 256, 1, 0, 0, 0) + labels + b"\\0\\0\\1\\0\\1", tuple(at["dns"]))
        address = one.recv(600)[-4:]
    return socket.create_connection((socket.inet_ntoa(bytes([127]) + address[1:]), at["port"]))
def connect(at):
    one = socket.create_connection(tuple(at["proxy"]))
    one.sendall(f"CONNECT {at['name']}:{at['port']} HTTP/1.1\\r\\nHost: {at['name']}:{at['port']}\\r\\n\\r\\n".encode())
    assert one.recv(1000).startswith(b"HTTP/1.1 200")
    return one
def named(at): return socket.create_connection((at["name"], at["port"]))
buffer = bytearray(1 << 20)
def once(at):
    start = time.perf_counter()
    with globals()[at["mode"]](at) as one:
        one.sendall(f"GET /{at['size']} HTTP/1.1\\r\\nHost: {at['name']}:{at['port']}\\r\\n\\r\\n".encode())
        got = 0
        while count := one.recv_into(buffer): got += count
    took = time.perf_counter() - start
    assert got > at["size"], got
    return took
"""
_LOOP = """
for line in sys.stdin: print(once(json.loads(line)), flush=True)
"""


def listen(addresses: Sequence[tuple[str, int]]) -> concurrent.futures.Future[list[int]]:
    """Listen as in a cell's network, but without a cell: 198.18.x.y becomes 127.18.x.y."""
    made: concurrent.futures.Future[list[int]] = concurrent.futures.Future()
    made.set_result([_listening(address.replace("198.", "127.", 1), port).detach() for address, port in addresses])
    return made


def _listening(address: str, port: int) -> socket.socket:
    return socket.create_server((address, port), backlog=128)


def _program(source: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _line(program: subprocess.Popen[str]) -> str:
    assert program.stdout is not None
    line = program.stdout.readline()
    if not line:
        raise RuntimeError("a program of the benchmark ended")
    return line


def _things(client: subprocess.Popen[str], at: dict[str, object], size: int) -> dict[str, Thing]:
    modes = {"direct": ("direct", _TUNNEL), "transparent": ("transparent", _TUNNEL), "CONNECT": ("connect", _TUNNEL)}
    modes |= {"transparent, HTTP read": ("transparent", _READ)}

    def thing(mode: str, port: int) -> Callable[[], float | None]:
        line = json.dumps({**at, "mode": mode, "port": port, "size": size}) + "\n"

        def once() -> float:
            assert client.stdin is not None
            client.stdin.write(line)
            client.stdin.flush()
            return float(_line(client))

        return once

    return {name: thing(*how) for name, how in modes.items()}


def _from_a_cell(run: measure.Run, client: subprocess.Popen[str], server: int) -> None:
    _, proxy = NETWORK_SOCKETS
    at: dict[str, object] = {"name": LOCAL_NAME, "port": server, "server": server, "proxy": [proxy.address, proxy.port]}

    def asked(session: sync.Session, mode: str, size: int) -> Thing:
        def once() -> float:
            step = session.run(f"print(once({ {**at, 'mode': mode, 'size': size}!r}))")
            return float(step.raise_for_status().stdout)

        return once

    def directly(size: int) -> Thing:
        return _things(client, at, size)["direct"]

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        sandbox = opened.enter_context(sync.Sandbox(audit=f"{folder}/audit.db", policy={"allow_local": [server]}))
        session = opened.enter_context(sandbox.session())
        session.run(_CLIENT)
        modes = {"transparent": "named", "CONNECT": "connect"}
        for title, size, rounds, goal in (
            ("a small GET from a cell, a connection of its own", 100, run.rounds(300), Goal(times=1, plus=3e-3)),
            ("128 MiB into a cell", _BIG, run.rounds(9, 3), Goal(plus=_BIG / _LEAST_RATE)),
        ):
            things = {"direct": directly(size), **{name: asked(session, how, size) for name, how in modes.items()}}
            run.compare(title, measure.in_turn(things, rounds, dict.fromkeys(modes, goal)))


def main() -> None:
    run = measure.Run("egress", __doc__ or "")
    server, client = _program(_SERVER), _program(_CLIENT + _LOOP)
    server_port = int(_line(server))

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
    _from_a_cell(run, client, server_port)
    at = {"name": _NAME, "server": server_port, "dns": dns.getsockname(), "proxy": proxy.getsockname()}
    hosts = HostRules((host_rule(f"{_NAME}:{_TUNNEL}"), host_rule(f"{_NAME}:{_READ}")))
    requests = RequestRules((RequestRule(host_rule(f"{_NAME}:{_READ}")),))
    try:
        egress.open(EgressTerms(hosts, limits=_NO_LIMITS, requests=requests), listen, dns.detach(), proxy.detach())
        small = Goal(times=1, plus=3e-3)
        goals = dict.fromkeys(("transparent", "CONNECT", "transparent, HTTP read"), small)
        gets = measure.in_turn(_things(client, at, 100), run.rounds(500), goals)
        run.compare("a small GET, a connection of its own", gets)
        big = Goal(plus=_BIG / _LEAST_RATE)
        run.compare("128 MiB", measure.in_turn(_things(client, at, _BIG), run.rounds(15, 3), dict.fromkeys(goals, big)))
    finally:
        egress.close()
        for program in (client, server):
            program.communicate(timeout=10)
    run.finish()


if __name__ == "__main__":
    main()
