"""What one cell may use of the egress proxy, and that everything ends with the cell and with the egress proxy."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Sequence

import pytest
from tests.egress.servers import listening
from tests.egress.stage import DNS, PROXY, Inside, Stage, allowing, beside, everything_from, was_reset
from tests.egress.test_http import answer, request
from tests.support.waiting import until
from tests.unit.egress.hellos import real

from casemate.egress.authority import Authority, server_side
from casemate.egress.dial import connect
from casemate.egress.proxy import EgressProxy
from casemate.egress.terms import EgressTerms, Interception, ProxyLimits
from casemate.errors import SandboxClosed


def opened(stage: Stage, echo_port: int, **limits: float) -> None:
    stage.open(EgressTerms(allowing("good.test:7", "good.test"), limits=ProxyLimits(**limits)))  # type: ignore[arg-type]
    stage.internet.add("good.test", 7, echo_port)


def speaks(one: socket.socket) -> bool:
    one.sendall(b"x")
    return one.recv(1) == b"x"


def test_connections_beyond_the_limit_wait_for_others_to_end(stage: Stage, echo_port: int) -> None:
    opened(stage, echo_port, connections=3)
    first = [stage.connect("good.test", 7) for _ in range(3)]
    assert all(speaks(one) for one in first)
    with stage.connect("good.test", 7) as waits:
        waits.sendall(b"y")
        waits.settimeout(0.3)
        with pytest.raises(TimeoutError):
            waits.recv(1)
        first.pop().close()
        waits.settimeout(60)
        assert waits.recv(1) == b"y"
    for one in first:
        one.close()


def test_eg_11_ten_thousand_connections_leave_the_egress_proxy_as_it_was(stage: Stage, echo_port: int) -> None:
    opened(stage, echo_port)
    before = len(os.listdir("/proc/self/fd"))
    flood = stage.inside.run(sys.executable, "-c", _FLOOD, timeout=100)
    assert flood.stdout.strip() == "done", flood.stderr
    with stage.connect("good.test", 7) as one:
        assert speaks(one)
    stage.cell_proxy.close().result(60)
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # the server closes its own a little later


_FLOOD = """
import socket
address = socket.gethostbyname("good.test")
kept = []
for number in range(10_000):
    one = socket.socket()
    one.setblocking(False)
    try:
        one.connect((address, 7))
    except BlockingIOError:
        pass
    kept.append(one)
    if len(kept) > 300:
        kept.pop(0).close()
print("done")
"""


def test_eg_11_bytes_beyond_the_limit_of_the_cell_end_the_connection(stage: Stage) -> None:
    def pours(one: socket.socket) -> None:
        while True:
            one.sendall(b"x" * 65536)

    with listening(pours) as port:
        opened(stage, port, bytes=1 << 20)
        with stage.connect("good.test", 7) as one:
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while data := one.recv(1 << 16):
                    received += len(data)
        assert received <= 1 << 20
        assert stage.is_reset("good.test", 7)  # it is spent for other connections too
    assert any("more than its limit of 1048576 bytes" in reason for _, reason in stage.crossing("good.test", 7))


@pytest.mark.parametrize(
    "said", [b"", b"G", b"GET / HTTP/1.1\r\nHost: good.te", b"POST / HTTP/1.1\r\nHost: good.test\r\nX"]
)
@pytest.mark.parametrize("port", [80, PROXY[1]])
def test_eg_11_a_request_that_does_not_become_whole_is_given_up(
    stage: Stage, echo_port: int, said: bytes, port: int
) -> None:
    opened(stage, echo_port, head_seconds=0.2)
    with stage.proxy() if port == PROXY[1] else stage.connect("good.test", port) as one:
        with contextlib.suppress(ConnectionError):  # it may have been given up before it could say that
            one.sendall(said)
        assert was_reset(one)
    assert stage.internet.dialled == []


def test_a_hello_that_does_not_become_whole_is_given_up(stage: Stage, echo_port: int) -> None:
    opened(stage, echo_port, head_seconds=0.2)
    stage.internet.add("good.test", 443, echo_port)
    with stage.connect("good.test", 443) as one:
        with contextlib.suppress(ConnectionError):  # as above
            one.sendall(b"\x16\3\1\1\0\1\0")
        assert was_reset(one)


def test_a_handshake_with_the_egress_proxy_itself_that_does_not_end_is_given_up(stage: Stage) -> None:
    how = Interception(frozenset({("good.test", 443)}), Authority(["good.test"]), server_side(None))
    stage.open(EgressTerms(allowing("good.test"), limits=ProxyLimits(head_seconds=3.0), interception=how))
    with stage.connect("good.test", 443) as one:
        one.sendall(real("good.test"))
        with contextlib.suppress(ConnectionResetError):
            everything_from(one)
    assert stage.crossing("good.test", 443) == [("denied", "its TLS handshake does not end")]


@pytest.mark.parametrize(
    ("port", "begins"), [(80, b"GET / HTTP/1.1\r\nHost: good.test\r\nX: "), (443, b"\x16\3\1\2\0\1\0\1\xfc\3\3")]
)
def test_a_head_in_too_many_pieces_is_given_up(stage: Stage, echo_port: int, port: int, begins: bytes) -> None:
    opened(stage, echo_port, queries=100_000, head_seconds=100)
    stage.internet.add("good.test", 443, echo_port)
    with stage.connect("good.test", port) as one, contextlib.suppress(ConnectionError):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.sendall(begins)
        for _ in range(300):
            one.sendall(b"x")
            for _ in range(2):  # answered by the same loop: it has had the piece before the second
                stage.ask("good.test")
    assert any("pieces" in reason for _, reason in stage.crossing("good.test", port))


def test_connections_that_are_held_up_keep_their_bytes_apart(stage: Stage) -> None:
    """All of them pass through one buffer."""

    def pours(one: socket.socket) -> None:
        letter = one.recv(1)
        one.sendall(letter * (12 << 20))

    with listening(pours) as port:
        opened(stage, port)
        clients = {letter: stage.connect("good.test", 7) for letter in (b"a", b"b", b"c")}
        for letter, one in clients.items():
            one.sendall(letter)
        for one in clients.values():  # each has more coming than fits: the egress proxy holds a rest
            select.select([one], [], [], 60)
        received = dict.fromkeys(clients, 0)
        while open_ := [letter for letter in clients if received[letter] < 12 << 20]:
            for letter in open_:
                data = clients[letter].recv(50_000)
                assert data
                assert data == letter * len(data)
                received[letter] += len(data)
        for one in clients.values():
            one.close()


@pytest.mark.parametrize("limit", ["idle_seconds", "seconds"])
def test_a_connection_that_is_idle_or_there_too_long_is_ended(stage: Stage, echo_port: int, limit: str) -> None:
    opened(stage, echo_port, **{limit: 3.0})  # in which it can speak, also on a busy machine
    with stage.connect("good.test", 7) as one:
        assert speaks(one)
        assert was_reset(one)
    assert any("too long" in reason for _, reason in stage.crossing("good.test", 7))


def test_a_cell_has_its_turn_at_the_resolver_back_when_that_has_answered(stage: Stage, http_port: int) -> None:
    """Not when it has waited long enough: a thread that asks cannot be stopped."""
    answers = threading.Event()
    asked: list[str] = []

    def addresses(name: str) -> list[str]:
        asked.append(name)
        assert answers.wait(60)
        return list(stage.internet.addresses[name])

    async def resolve(name: str) -> list[str]:
        return await asyncio.get_running_loop().run_in_executor(None, addresses, name)

    def said(number: int) -> bytes:
        with stage.connect(f"n{number}.good.test", 80) as one:
            one.sendall(request(host=f"n{number}.good.test"))
            return answer(one)[1]

    stage.egress_proxy._resolve = resolve
    stage.open(EgressTerms(allowing("*.good.test"), limits=ProxyLimits(resolve_seconds=0.05)))
    for number in range(10):
        stage.internet.add(f"n{number}.good.test", 80, http_port)
    try:
        assert all(b"does not resolve in time" in said(number) for number in range(8))
        assert len(asked) == 4
    finally:
        answers.set()
    for _ in range(400):
        if said(9).startswith(b"GET n9.good.test"):
            break
    else:
        raise AssertionError("it is never its turn again")


def test_a_resolver_that_breaks_ends_one_connection(stage: Stage, echo_port: int) -> None:
    async def breaks(name: str) -> list[str]:
        raise ZeroDivisionError(name)

    opened(stage, echo_port)
    with stage.connect("good.test", 7) as before:
        assert speaks(before)
        stage.cell_proxy.dialler._resolve = breaks
        assert stage.is_reset("good.test", 443)
        assert speaks(before)
        stage.cell_proxy.dialler._resolve = stage.internet.resolve
        with stage.connect("good.test", 7) as after:
            assert speaks(after)


def test_a_server_that_is_slow_to_connect_is_given_up(stage: Stage, echo_port: int) -> None:
    async def never(address: str, port: int) -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError

    stage.egress_proxy._connect = never
    opened(stage, echo_port, connect_seconds=0.1)
    stage.internet.add("good.test", 80, echo_port)
    with stage.connect("good.test", 80) as one:
        one.sendall(request())
        code, text = answer(one)
    assert (code, b"does not answer" in text) == (502, True)


def test_a_fault_ends_its_connection_and_no_other(stage: Stage, echo_port: int) -> None:
    async def breaks(address: str, port: int) -> socket.socket:
        raise ZeroDivisionError(f"at {address}")

    opened(stage, echo_port)
    stage.internet.add("good.test", 443, echo_port)
    with stage.connect("good.test", 7) as before:
        assert speaks(before)
        stage.cell_proxy.dialler._connect = breaks
        with stage.connect("good.test", 443) as one:
            assert was_reset(one)
        assert speaks(before)
        stage.cell_proxy.dialler._connect = stage.internet.connect
        with stage.connect("good.test", 7) as after:
            assert speaks(after)
    assert ("denied", "a fault of casemate: ZeroDivisionError") in stage.crossing("(none)")


def test_what_neither_side_reads_is_not_piled_up(stage: Stage) -> None:
    """A client that reads nothing holds its server up, and costs the egress proxy no memory."""
    sent = threading.Semaphore(0)

    def pours(one: socket.socket) -> None:
        one.settimeout(1)
        for _ in range(2000):
            one.sendall(b"x" * 65536)
            sent.release()

    with listening(pours) as port:
        opened(stage, port)
        with stage.connect("good.test", 7):
            chunks = 0
            while sent.acquire(timeout=1.5):
                chunks += 1
            assert chunks < 1000  # 62 MiB; buffers of the kernel take some


def test_both_directions_end_one_after_the_other(stage: Stage) -> None:
    def serve(one: socket.socket) -> None:
        data = everything_from(one)
        one.sendall(b"all of " + str(len(data)).encode())

    with listening(serve) as port:
        opened(stage, port)
        with stage.connect("good.test", 7) as one:
            one.sendall(b"x" * 3_000_000)
            one.shutdown(socket.SHUT_WR)
            assert everything_from(one) == b"all of 3000000"
    ((decision, _),) = stage.crossing("good.test", 7)
    assert decision == "allowed"
    (crossing,) = stage.cell_proxy.crossings()
    assert (crossing.bytes_out, crossing.bytes_in, crossing.connections) == (3_000_000, 14, 1)


def test_a_reset_of_the_server_reaches_the_client(stage: Stage) -> None:
    def serve(one: socket.socket) -> None:
        one.recv(1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with listening(serve) as port:
        opened(stage, port)
        with stage.connect("good.test", 7) as one:
            one.sendall(b"x")
            assert was_reset(one)


def test_closing_a_cell_ends_its_connections_and_no_others(stage: Stage, echo_port: int, neighbour: Inside) -> None:
    opened(stage, echo_port)
    second = beside(stage, neighbour, "good.test:7")
    with stage.connect("good.test", 7) as one, neighbour.connect(*PROXY) as two:
        two.sendall(b"CONNECT good.test:7 HTTP/1.1\r\nHost: good.test:7\r\n\r\n")
        assert two.recv(100).startswith(b"HTTP/1.1 200")
        assert speaks(one)
        assert speaks(two)
        stage.cell_proxy.close().result(60)
        assert was_reset(one)
        assert speaks(two)
        with pytest.raises(ConnectionRefusedError):
            stage.proxy()
    second.close().result(60)


def test_eg_12_what_one_cell_may_reach_another_may_not(stage: Stage, echo_port: int, neighbour: Inside) -> None:
    opened(stage, echo_port)
    beside(stage, neighbour)
    _, address = stage.ask("good.test")
    assert address is not None
    with pytest.raises(ConnectionRefusedError):
        neighbour.connect(address, 7)
    with neighbour.connect(*PROXY) as one:
        one.sendall(f"CONNECT {address}:7 HTTP/1.1\r\nHost: {address}:7\r\n\r\n".encode())
        assert everything_from(one).startswith(b"HTTP/1.1 403 ")


def test_closing_the_egress_proxy_ends_everything_and_its_thread(stage: Stage, echo_port: int) -> None:
    opened(stage, echo_port)
    before = {thread.name for thread in threading.enumerate()}
    with stage.connect("good.test", 7) as one:
        assert speaks(one)
        stage.egress_proxy.close()
        assert was_reset(one)
    assert "casemate-egress" in before
    assert "casemate-egress" not in {thread.name for thread in threading.enumerate()}
    assert stage.cell_proxy.close().done()
    with pytest.raises(ConnectionRefusedError):
        stage.proxy()
    stage.egress_proxy.close()
    with pytest.raises(SandboxClosed):
        stage.open()


def test_cells_cannot_take_all_descriptors_of_the_application(
    stage: Stage, echo_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (80, 80))  # ten for a cell: three listeners, three connections
    stage.open(EgressTerms(allowing("*.good.test", "good.test:7", "good.test:8", "good.test:9")))
    stage.internet.add("good.test", 7, echo_port)
    stage.internet.servers[stage.internet.addresses["good.test"][0], 8] = echo_port
    connections = [stage.connect("good.test", 7) for _ in range(3)]
    assert all(speaks(one) for one in connections)
    assert stage.ask("x.good.test") == (2, None)
    with stage.connect("good.test", 8) as waits:
        waits.sendall(b"y")
        waits.settimeout(0.3)
        with pytest.raises(TimeoutError):
            waits.recv(1)
        for one in connections:
            one.close()
        waits.settimeout(60)
        assert waits.recv(1) == b"y"


def test_one_cell_cannot_take_the_descriptors_of_another(
    stage: Stage, echo_port: int, neighbour: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (80, 80))  # ten for a cell
    stage.open(EgressTerms(allowing("*.good.test", "good.test:7"), limits=ProxyLimits(head_seconds=600)))
    stage.internet.add("good.test", 7, echo_port)
    second = beside(stage, neighbour, "good.test:7")
    greedy = [stage.inside.connect(*PROXY) for _ in range(30)]
    for number in range(30):
        stage.ask(f"n{number}.good.test")
    with neighbour.connect(*PROXY) as one:
        one.settimeout(60)  # seconds: the others are given up much later
        one.sendall(b"CONNECT good.test:7 HTTP/1.1\r\nHost: good.test:7\r\n\r\n")
        assert one.recv(100).startswith(b"HTTP/1.1 200")
        assert speaks(one)
    for one in greedy:
        one.close()
    second.close().result(60)


class Slow:
    """A network in which nobody listens before the test says so."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self.asked: list[tuple[list[tuple[str, int]], concurrent.futures.Future[list[int]]]] = []

    def listen(self, addresses: Sequence[tuple[str, int]]) -> concurrent.futures.Future[list[int]]:
        made: concurrent.futures.Future[list[int]] = concurrent.futures.Future()
        self.asked.append((list(addresses), made))
        return made

    def go_on(self) -> int:
        """Make what was asked for so far; how many listeners that were."""
        asked, self.asked = self.asked, []
        for addresses, made in asked:
            made.set_result(self._inside.listen(addresses).result())
        return sum(len(addresses) for addresses, _ in asked)


def query(name: str, number: int) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return number.to_bytes(2) + b"\1\0\0\1\0\0\0\0\0\0" + labels + b"\0\0\1\0\1"


def test_listeners_that_are_under_way_count_as_if_they_were_there(stage: Stage) -> None:
    """However many names a cell asks for at once."""
    proxy = stage.inside.listen([PROXY]).result()[0]
    slow = Slow(stage.inside)
    terms = EgressTerms(allowing("*.good.test", "good.test"), limits=ProxyLimits(listeners=6))
    opening = stage.egress_proxy.open(terms, slow.listen, stage.inside.datagrams(*DNS), proxy)
    with socket.socket(fileno=stage.inside.datagrams("198.18.0.8", 0)) as one:
        one.settimeout(60)
        one.sendto(query("evil.test", 1), DNS)
        one.recv(600)  # the egress proxy's loop runs
        before = len(os.listdir("/proc/self/fd"))
        for number in range(30):
            one.sendto(query(f"n{number}.good.test", number), DNS)
        one.settimeout(0.05)
        answered = 0
        while answered < 30:
            assert len(slow.asked) <= 4
            assert sum(len(addresses) for addresses, _ in slow.asked) <= 6
            slow.go_on()
            assert len(os.listdir("/proc/self/fd")) <= before + 6
            with contextlib.suppress(TimeoutError):
                one.recv(600)
                answered += 1
    opening.close().result(60)


def test_names_are_listened_for_at_a_bounded_rate(stage: Stage) -> None:
    stage.allow("*.good.test")
    begun = time.monotonic()
    for number in range(45):
        assert stage.ask(f"n{number}.good.test")[0] == 0
    took = time.monotonic() - begun
    assert len(stage.inside.listened) / 2 <= 33 + 10 * took


@pytest.mark.parametrize("raises", [True, False])
def test_where_nobody_can_listen_it_is_not_tried_again_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    monkeypatch.setattr("casemate.egress.cell_addresses._FAILED_SECONDS", 100.0)
    stage.allow("*.good.test")
    tried = []

    def fails(addresses: object) -> object:
        tried.append(addresses)
        if raises:
            raise ValueError("broken")
        return _fails(addresses)

    monkeypatch.setattr(stage.inside, "listen", fails)
    assert [stage.ask("a.good.test") for _ in range(5)] == [(2, None)] * 5
    assert len(tried) == 1
    assert stage.ask("evil.test")[0] == 3


def test_the_kernel_keeps_little_of_what_is_not_read(stage: Stage, echo_port: int) -> None:
    opened(stage, echo_port)
    with stage.connect("good.test", 7) as one:
        assert speaks(one)
        (connection,) = stage.cell_proxy._connections
        ends = [connection.client, *connection._servers]
        kept = [
            end.socket.getsockopt(socket.SOL_SOCKET, buffer)
            for end in ends
            for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF)
        ]
        kept += [one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) for one in stage.cell_proxy._serving]
    assert len(kept) == 4 + 4
    assert max(kept) <= 1 << 19  # the kernel counts its own with it


def test_a_connection_keeps_little_in_the_kernel_from_its_first_byte() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = asyncio.run(connect("127.0.0.1", server.getsockname()[1]))
        with made:
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 1 << 19
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 1 << 19


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_eg_13_when_the_egress_proxys_thread_dies_there_is_no_network(stage: Stage, echo_port: int) -> None:
    opened(stage, echo_port)
    with stage.connect("good.test", 7) as one:
        assert speaks(one)
        loop = stage.egress_proxy._loop
        assert loop is not None
        loop.call_soon_threadsafe(loop.stop)  # nothing in casemate does that
        assert was_reset(one)
    assert stage.egress_proxy._thread is not None
    stage.egress_proxy._thread.join(60)
    stage.cell_proxy.close().result(60)
    for port in (PROXY[1], 7):
        with pytest.raises(ConnectionRefusedError):
            stage.inside.connect(PROXY[0] if port == PROXY[1] else "198.18.1.0", port)


def test_a_proxy_that_was_never_used_has_no_thread() -> None:
    before = set(threading.enumerate())
    proxy = EgressProxy()
    proxy.close()
    assert set(threading.enumerate()) <= before  # others may have ended meanwhile


def test_a_cell_that_is_gone_gets_no_listeners_and_the_egress_proxy_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.allow("good.test")
    monkeypatch.setattr(stage.inside, "listen", _fails)
    assert stage.ask("good.test") == (2, None)
    assert stage.ask("evil.test") == (3, None)


def _fails(addresses: object) -> object:
    failed: concurrent.futures.Future[list[int]] = concurrent.futures.Future()
    failed.set_exception(OSError(3, "No such process"))
    return failed
