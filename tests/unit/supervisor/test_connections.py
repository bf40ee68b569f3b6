"""A cell's own loopback: its address, and who is reached at a port that the cell has left."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from casemate.supervisor.plain import connections, notify

CLOSED = 7  # TCP_CLOSE
FAMILIES = [socket.AF_INET, socket.AF_INET6]


@pytest.fixture
def loopback() -> Iterator[connections.Loopback]:
    one = connections.Loopback()
    yield one
    one.close()


def came(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def connect(address: tuple[str, int]) -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(address)
    return client


def share(own: socket.socket, loopback: connections.Loopback) -> socket.socket:
    """A server of the machine at all addresses and the port that ``own`` has then, to share with all of its user."""
    loopback.bind(own, 0)
    other = socket.socket()
    other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        other.bind(("0.0.0.0", own.getsockname()[1]))
    except OSError:  # another program has that port at another address
        other.close()
        own.close()
        own.__init__(own.family)  # type: ignore[misc]
        return share(own, loopback)
    loopback.listen(own, 128)
    loopback.note_listening(os.fstat(own.fileno()).st_ino)
    other.listen()
    for one in (own, other):
        one.setblocking(False)
    return other


@pytest.mark.parametrize("family", FAMILIES)
def test_who_connects_while_the_server_closes_reaches_no_other(loopback: connections.Loopback, family: int) -> None:
    with socket.socket(family) as own, share(own, loopback) as other:
        address = loopback.find(own.getsockname()[1])
        for _ in range(20):
            with connect(address):
                assert (came(own), came(other)) == (True, False)
        own.close()
        with connect(address):
            assert not came(other)
        loopback.close()
        with connect(address):
            assert came(other), "the control"


@pytest.mark.parametrize("is_late", [True, False])
def test_a_port_is_guarded_as_long_as_somebody_may_still_connect(loopback: connections.Loopback, is_late: bool) -> None:
    with socket.socket() as own, socket.socket() as late, share(own, loopback) as other:
        address = loopback.find(own.getsockname()[1])
        if is_late:
            loopback.note(late, address[1])
        own.close()
        with pytest.raises(ConnectionRefusedError):
            loopback.find(address[1])
        with connect(address):
            assert came(other) is not is_late


def test_no_two_cells_have_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([b"\1\2\3", b"\1\2\3", b"\1\2\4"])
    monkeypatch.setattr(os, "urandom", lambda _: next(drawn))
    one, other = connections.Loopback(), connections.Loopback()
    with socket.socket() as here, socket.socket() as there:
        one.bind(here, 0)
        other.bind(there, 0)
        assert [server.getsockname()[0] for server in (here, there)] == ["127.65.2.3", "127.65.2.4"]
    one.close()
    other.close()


def test_the_number_of_ports_is_bounded(loopback: connections.Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MOST_PORTS", 2)
    servers = [socket.socket() for _ in range(3)]
    for one in servers[:2]:
        loopback.bind(one, 0)
    with pytest.raises(OSError, match="too many"):
        loopback.bind(servers[2], 0)
    servers[0].close()
    loopback.bind(servers[2], 0)
    for one in servers:
        one.close()


def test_what_a_cell_has_left_unsent_keeps_nobody_waiting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1000))
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                client.send(bytes(1 << 20))
        notify._close(client)


def test_the_number_of_sockets_at_one_port_is_bounded(
    loopback: connections.Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "_MOST_BOUND", 3)
    servers = [socket.socket() for _ in range(4)]
    for one in servers:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    for one in servers[:3]:
        loopback.bind(one, servers[0].getsockname()[1])
    with pytest.raises(OSError, match="too many"):
        loopback.bind(servers[3], servers[0].getsockname()[1])
    for one in servers:
        one.close()


@pytest.mark.parametrize("is_evicted", [True, False])
def test_a_connection_that_was_not_made_in_time_is_never_made(is_evicted: bool) -> None:
    """The next server of the machine at that port would have it."""
    helpers: dict[int, Callable[[], None]] = {}
    loop = (helpers.__setitem__, helpers.__delitem__, set[int]())
    calls = notify.NotifiedCalls(os.pipe()[1], connections.HostConnections(), (), None, loop)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as full:
        address = server.getsockname()
        for _ in range(4):  # it accepts none
            full.enter_context(connect(address))
        copy = connect(address)
        inode = os.fstat(copy.fileno()).st_ino
        calls._copies[inode] = copy
        answer = Answer()
        calls._connect_apart(answer, inode, wait_forever)  # type: ignore[arg-type]
        cells = copy.dup()
        if is_evicted:
            calls._copies.pop(inode).close()
        (helper,) = helpers
        signal.pidfd_send_signal(helper, signal.SIGKILL)
        helpers[helper]()
    with cells:
        assert cells.getsockopt(socket.IPPROTO_TCP, connections._TCP_INFO, 1)[0] == CLOSED
    assert answer.numbers == [errno.ETIMEDOUT]
    calls.close()


def test_callers_that_have_ended_do_not_fill_the_list_of_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "_MOST_HELPERS", 0)
    monkeypatch.setattr(notify, "_MOST_WAITING", 3)
    loop = (lambda *_: None, lambda _: None, set[int]())
    calls = notify.NotifiedCalls(os.pipe()[1], connections.HostConnections(), (), None, loop)
    asked = [Answer() for _ in range(5)]
    asked[0].has_ended = asked[2].has_ended = True
    for one in asked:
        assert calls._has_to_wait(one)  # type: ignore[arg-type]
    waiting: list[object] = [*calls._waiting]
    assert waiting == [asked[1], asked[3], asked[4]]
    last = Answer()
    assert calls._has_to_wait(last)  # type: ignore[arg-type]
    assert (last.numbers, len(calls._waiting)) == ([errno.EAGAIN], 3)
    calls.close()


def wait_forever() -> int:
    signal.pause()
    return 0


class Answer:
    """A call of a cell's, and what it is answered."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.has_ended = False

    def is_waiting(self) -> bool:
        return not self.has_ended

    def send(self, number: int) -> None:
        self.numbers.append(number)
