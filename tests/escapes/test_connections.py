"""What a cell's own loopback reaches, alike behind both walls: its own servers, and nobody else's.

A connection that never comes about stops nobody but its cell.
"""

from __future__ import annotations

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.escapes.listeners import listening

from casemate import sync
from casemate.walls import registry

WALLS = registry.automatic()
STARTS = ("exec",)
OWN = """
import asyncio, errno, select, socket, threading
from socket import AF_INET, AF_INET6, AF_UNIX, SO_REUSEPORT, SOL_SOCKET
def told(name, action):
    try:
        print(name, action())
    except OSError as error:
        print(name, errno.errorcode[error.errno])
def serve(family, host, port=0, says=b"own", shared=0):
    server = socket.socket(family)
    server.setsockopt(SOL_SOCKET, SO_REUSEPORT, shared)
    server.bind((host, port))
    server.listen()
    def answer():
        while True:
            with server.accept()[0] as one:
                one.sendall(says)
    threading.Thread(target=answer, daemon=True).start()
    return server.getsockname()[1]
def get(family, host, port):
    with socket.socket(family) as client:
        client.connect((host, port))
        return client.recv(9).decode()
def later(port):
    with socket.socket() as client:
        client.setblocking(False)
        begun = errno.errorcode[client.connect_ex(("127.0.0.1", port))]
        select.select([], [client], [])
        return begun, client.getsockopt(SOL_SOCKET, socket.SO_ERROR)
def gone():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
def full():
    with socket.socket(AF_UNIX) as server:
        server.bind("full")
        server.listen(128)
        clients = [socket.socket(AF_UNIX) for _ in range(130)]
        for one in clients:
            one.setblocking(False)
        return errno.errorcode[[one.connect_ex("full") for one in clients][-1]]
async def at_once(port):
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
    clients = await asyncio.gather(*[asyncio.open_connection("127.0.0.1", port) for _ in range(140)])
    return {await reader.read() for reader, _ in clients}
four, six, both, shared = serve(AF_INET, "127.0.0.1"), serve(AF_INET6, "::1"), serve(AF_INET6, "::"), gone()
told("four", lambda: [get(AF_INET, "127.0.0.1", four), get(AF_INET, "0.0.0.0", four),
                      get(AF_INET6, "::ffff:127.0.0.1", four)])
told("six", lambda: get(AF_INET6, "::1", six))
told("both", lambda: get(AF_INET, "127.0.0.1", both) + get(AF_INET6, "::1", both))
told("twice", lambda: serve(AF_INET, "127.0.0.1", four))
told("shared", lambda: [serve(AF_INET, "127.0.0.1", shared, shared=1) == shared for _ in range(2)])
told("not shared", lambda: serve(AF_INET, "127.0.0.1", shared))
told("later", lambda: later(four))
told("nobody", lambda: get(AF_INET, "127.0.0.1", 9))
closed, client = gone(), socket.socket()
told("closed", lambda: client.connect(("127.0.0.1", closed)))
serve(AF_INET, "127.0.0.1", closed, b"new")
told("again", lambda: client.connect(("127.0.0.1", closed)))
told("said", lambda: client.recv(9))
told("full", full)
told("at once", lambda: asyncio.run(at_once(gone())))
many = [serve(AF_INET, "127.0.0.1") for _ in range(30)]
told("many", lambda: {get(AF_INET, "127.0.0.1", port) for port in many})
told("one by one", lambda: len([gone() for _ in range(300)]))
"""
OUTCOMES = """\
four ['own', 'own', 'own']
six own
both ownown
twice EADDRINUSE
shared [True, True]
not shared EADDRINUSE
later ('EINPROGRESS', 0)
nobody ECONNREFUSED
closed ECONNREFUSED
again None
said b'new'
full EAGAIN
at once {b''}
many {'own'}
one by one 300
"""
REACH = """
import socket, sys
for port in map(int, sys.argv[1:]):
    for host in ("127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:0.0.0.0"):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
            one.settimeout(5)
            try:
                one.connect((host, port))
                print("reached", host, port)
            except OSError:
                pass
print("end of attack")
"""
BIND_AND_LEAVE = """
import socket
for _ in range(8):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
    assert socket.socket().connect_ex(("127.0.0.1", port))
    print(port)
"""
# The queue is full, so that each connection waits; meanwhile the bound on that is taken away again and again.
NEVER = """
import os, socket, struct, threading
server = socket.socket(socket.AF_UNIX)
server.bind("s")
server.listen(128)
held = [socket.socket(socket.AF_UNIX) for _ in range(140)]
for one in held:
    one.setblocking(False)
    one.connect_ex("s")
victims = [socket.socket(socket.AF_UNIX) for _ in range(10)]
for _ in range(2):
    if os.fork() == 0:
        while True:
            for one in victims:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("qq", 0, 0))
deaf = socket.create_server(("127.0.0.1", 0))
def connect(one, address):
    while True:
        one.connect_ex(address)
for one in victims:
    threading.Thread(target=connect, args=(one, "s")).start()
for _ in range(10):
    one = socket.socket()
    one.setsockopt(socket.IPPROTO_IP, 21, 255)  # IP_MINTTL: no answer is near enough
    threading.Thread(target=connect, args=(one, deaf.getsockname())).start()
"""


def test_own_servers_are_reached_as_on_a_machine_of_its_own(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(OWN)
    assert (execution.stdout, execution.stderr) == (OUTCOMES, "")


def test_no_server_that_listens_at_all_addresses_is_reached(scratch: Path, sandbox: sync.Sandbox) -> None:
    with listening(scratch, {"v4": "0.0.0.0", "v6": "::"}) as listeners:
        ports = [listeners.addresses[f"tcp_{name}"].split()[1] for name in ("v4", "v6")]
        execution = sandbox.run(REACH, arguments=ports)
        assert execution.stdout == "end of attack\n", execution.stderr
        assert listeners.visitors() == set()
        for port in ports:
            socket.create_connection(("127.0.0.1", int(port))).close()
        assert listeners.visitors() == {"tcp_v4", "tcp_v6"}, "the control"


def test_a_port_that_a_cell_has_left_leads_to_nobody(sandbox: sync.Sandbox) -> None:
    """Who of the machine listens there next is not reached."""
    with sandbox.session() as session:
        ports = session.run(BIND_AND_LEAVE).stdout.split()
        with socket.socket() as other:
            for left in ports:  # some may have been taken by now
                with contextlib.suppress(OSError):
                    other.bind(("0.0.0.0", int(left)))
            other.listen()
            other.setblocking(False)
            session.run(f"import sys\nsys.argv = ['', '{other.getsockname()[1]}']\n{REACH}")
            with pytest.raises(BlockingIOError):
                other.accept()


def test_a_server_of_another_cell_is_not_reached(sandbox: sync.Sandbox) -> None:
    with sandbox.session() as one, sandbox.session() as other:
        listen = "import socket; server = socket.create_server(('127.0.0.1', 0)); print(server.getsockname()[1])"
        port = one.run(listen).stdout.strip()
        assert other.run(f"import sys\nsys.argv = ['', '{port}']\n{REACH}").stdout == "end of attack\n"
        assert "BlockingIOError" in one.run("server.setblocking(False)\nserver.accept()").text


def test_connections_that_never_come_about_stop_no_other_cell(sandbox: sync.Sandbox) -> None:
    with ThreadPoolExecutor() as threads:
        attack = threads.submit(sandbox.run, NEVER, timeout=2)
        while not attack.done():
            assert sandbox.run("print(1)").stdout == "1\n"
        assert attack.result().status == "timeout"
