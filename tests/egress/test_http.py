"""Plain HTTP: the proxy parses every request, checks that its host is permitted, and serializes it again."""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import sys
from base64 import b64encode
from collections.abc import Iterator

import pytest
from tests.egress.servers import listening
from tests.egress.stage import PROXY, Stage, allowing, everything_from

from casemate.egress.terms import EgressTerms
from casemate.policy.hosts import RequestRule, RequestRules, host_rule


def request(path: str = "/", host: str = "good.test", extra: str = "", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\n".encode()


def answer(one: socket.socket) -> tuple[int, bytes]:
    """The next answer with a length: its code and its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = one.recv(1)
        assert more, f"cut off after {data!r}"
        data += more
    head = data.decode("latin-1").lower()
    length = int(head.split("content-length: ")[1].split("\r\n")[0]) if "content-length" in head else 0
    body = b""
    while len(body) < length:
        body += one.recv(length - len(body))
    return int(head.split()[1]), body


@contextlib.contextmanager
def hearing(said: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") -> Iterator[tuple[int, list[bytes]]]:
    """A server that notes what it hears, and says the same to everything."""
    received: list[bytes] = []

    def serve(one: socket.socket) -> None:
        while data := one.recv(1 << 16):
            received.append(data)
            one.sendall(said)

    with listening(serve) as port:
        yield port, received


def test_requests_of_one_connection_reach_the_permitted_host(stage: Stage, http_port: int) -> None:
    with stage.reaching("good.test", 80, http_port) as one:
        for number in range(3):
            one.sendall(request(f"/{number}"))
            assert answer(one) == (200, f"GET good.test /{number} ".encode())
    assert len(stage.internet.dialled) == 1


def test_pipelined_requests_are_answered_in_order(stage: Stage, http_port: int) -> None:
    with stage.reaching("good.test", 80, http_port) as one:
        one.sendall(b"".join(request(f"/{number}") for number in range(4)))
        assert [answer(one)[1] for _ in range(4)] == [f"GET good.test /{number} ".encode() for number in range(4)]


OTHER_HOST = {
    "another Host": request(host="evil.test"),
    "a name below": request(host="x.good.test"),
    "another port": request(host="good.test:8080"),
    "an address": request(host="127.0.0.1"),
    "a URL": request("http://evil.test/"),
    "a URL of another port": request("http://good.test:81/"),
    "CONNECT": request("evil.test:443", method="CONNECT"),
    "CONNECT to itself": request("good.test:80", method="CONNECT"),
    "two Hosts": request(extra="Host: evil.test\r\n"),
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "length and encoding": request(method="POST", extra="Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
    "a bare line feed": b"GET / HTTP/1.1\nHost: good.test\n\n\r\n\r\n",
    "a folded line": request(extra="X: y\r\n Host: evil.test\r\n"),
    "a head too long": request(extra="X: " + "y" * 40_000 + "\r\n"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("said", OTHER_HOST)
def test_a_request_for_another_host_or_of_two_meanings_is_refused_and_says_why(stage: Stage, said: str) -> None:
    with hearing() as (port, received):
        stage.allow("good.test", "x.good.test", "evil.test")
        stage.internet.add("good.test", 80, port)
        with stage.connect("good.test", 80) as one:
            one.sendall(OTHER_HOST[said])
            code, text = answer(one)
            assert everything_from(one) == b""
        assert received == []
    assert code == 403
    assert text.startswith(b"casemate: good.test:80 is refused: ")
    assert [decision for decision, _ in stage.crossing("good.test")] == ["denied"]


@pytest.mark.parametrize("said", OTHER_HOST)
def test_the_second_request_of_a_connection_is_checked_like_the_first(stage: Stage, said: str) -> None:
    with hearing() as (port, received):
        stage.allow("good.test", "x.good.test", "evil.test")
        stage.internet.add("good.test", 80, port)
        with stage.connect("good.test", 80) as one:
            one.sendall(request("/first"))
            assert answer(one)[0] == 200
            one.sendall(OTHER_HOST[said])
            assert answer(one)[0] == 403
        assert len(received) == 1


def test_a_body_is_passed_on_and_nothing_hides_in_it(stage: Stage) -> None:
    hidden = request(host="evil.test")
    with hearing() as (port, received):
        with stage.reaching("good.test", 80, port) as one:
            one.sendall(request(method="POST", extra=f"Content-Length: {len(hidden)}\r\n") + hidden)
            assert answer(one)[0] == 200
            one.sendall(request(method="POST", extra="Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n" + hidden)
            codes = [answer(one)[0], answer(one)[0]]
        assert sorted(codes) == [200, 403]
        assert b"".join(received).count(b"evil.test") == 1  # in a body of known length


def test_chunks_reach_the_server_written_anew(stage: Stage) -> None:
    with hearing() as (port, received):
        with stage.reaching("good.test", 80, port) as one:
            one.sendall(
                request(method="POST", extra="Transfer-Encoding: chunked\r\n") + b"5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n"
            )
            assert answer(one)[0] == 200
        assert b"".join(received).endswith(b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")


@pytest.mark.parametrize("body", [b"5\nhello\r\n0\r\n\r\n", b"zz\r\n", b"5\r\nhelloX\r\n0\r\n\r\n"])
def test_a_chunk_of_two_meanings_ends_the_connection(stage: Stage, body: bytes) -> None:
    with hearing() as (port, received):
        with stage.reaching("good.test", 80, port) as one:
            one.sendall(request(method="POST", extra="Transfer-Encoding: chunked\r\n"))
            with contextlib.suppress(ConnectionError):
                one.sendall(body)
                assert not everything_from(one).startswith(b"HTTP/1.1 200") or b"hello" not in b"".join(received)
        assert b"helloX" not in b"".join(received)


def test_answers_of_every_framing_are_followed_to_their_end(stage: Stage, http_port: int) -> None:
    with stage.reaching("good.test", 80, http_port) as one:
        one.sendall(request("/big") + request("/chunked") + request("/last"))
        assert answer(one) == (200, b"x" * (1 << 20))
        data = b""
        while b"/last " not in data:
            data += one.recv(1 << 16)
        assert b"\r\n3\r\nGET\r\n" in data
        one.sendall(request(host="evil.test"))
        assert answer(one)[0] == 403


def test_an_answer_without_length_ends_with_the_connection(stage: Stage) -> None:
    def serve(one: socket.socket) -> None:
        one.recv(1000)
        one.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 300_000)

    with listening(serve) as port, stage.reaching("good.test", 80, port) as one:
        one.sendall(request())
        assert everything_from(one) == b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 300_000


def test_a_redirect_leads_nowhere_by_itself(stage: Stage) -> None:
    with hearing(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n") as (port, _):
        stage.allow("good.test")
        stage.internet.add("good.test", 80, port)
        followed = stage.inside.run(
            *("curl", "-sS", "-L", "--max-redirs", "3", "-x", f"http://{PROXY[0]}:{PROXY[1]}", "http://good.test/")
        )
    assert "127.0.0.1:80 is refused" in followed.stdout
    assert len(stage.internet.dialled) == 1


def test_a_websocket_becomes_a_tunnel_after_the_server_agreed(stage: Stage) -> None:
    key = b64encode(b"k" * 16).decode()
    accept = b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()).decode()

    def serve(one: socket.socket) -> None:
        head = one.recv(1000)
        assert b"Upgrade: websocket\r\nConnection: Upgrade" in head
        fields = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        one.sendall(f"HTTP/1.1 101 Switching Protocols\r\n{fields}".encode() + b"\x81\x02hi")
        while data := one.recv(1000):
            one.sendall(data[::-1])

    with listening(serve) as port:
        stage.allow("good.test")
        stage.internet.add("good.test", 80, port)
        fields = (
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        )
        with stage.connect("good.test", 80) as one:
            one.sendall(request(extra=fields))
            data = b""
            while not data.endswith(b"\x81\x02hi"):
                data += one.recv(1000)
            one.sendall(b"GET / HTTP/1.1\r\n\r\n")  # any bytes now
            assert one.recv(1000) == b"\n\r\n\r1.1/PTTH / TEG"


def test_a_server_that_does_not_agree_gets_no_tunnel(stage: Stage) -> None:
    with hearing() as (port, received):
        with stage.reaching("good.test", 80, port) as one:
            one.sendall(request(extra="Upgrade: websocket\r\nConnection: Upgrade\r\n"))
            assert answer(one)[0] == 200
            one.sendall(request(host="evil.test"))
            assert answer(one)[0] == 403
        assert len(received) == 1


def test_an_upgrade_that_was_not_asked_for_ends_the_connection(stage: Stage) -> None:
    with hearing(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n") as (
        port,
        received,
    ):
        with stage.reaching("good.test", 80, port) as one:
            one.sendall(request() + request(host="evil.test"))
            with contextlib.suppress(ConnectionResetError):
                assert b"evil" not in everything_from(one)
        assert b"evil" not in b"".join(received)


def test_a_server_that_refuses_a_body_early_is_heard(stage: Stage) -> None:
    def serve(one: socket.socket) -> None:
        one.recv(1000)
        one.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
        one.shutdown(socket.SHUT_WR)
        while one.recv(1 << 16):
            pass

    with listening(serve) as port, stage.reaching("good.test", 80, port) as one:
        one.sendall(request(method="POST", extra="Content-Length: 50000000\r\n") + b"x" * 100_000)
        assert answer(one) == (413, b"big")


def test_a_client_that_goes_on_sending_can_still_read_the_early_answer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casemate.egress.connection._LAST_WORDS", 60.0)  # it takes less, also on a busy machine

    def serve(one: socket.socket) -> None:
        one.recv(1000)
        one.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")

    with listening(serve) as port, stage.reaching("good.test", 80, port) as one:
        one.sendall(request(method="POST", extra="Content-Length: 50000000\r\n") + b"x" * 10_000)
        select.select([one], [], [], 60)
        for _ in range(5):
            one.sendall(b"x" * 10_000)
            stage.ask("good.test")  # the egress proxy has had time to close, if it were to
        assert answer(one) == (413, b"big")


def test_a_server_that_answers_while_it_reads_is_not_held_up(stage: Stage) -> None:
    """Both directions full at once: neither may wait for the other."""
    size = 8 << 20

    def serve(one: socket.socket) -> None:
        data = one.recv(1 << 16)
        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        body = data.partition(b"\r\n\r\n")[2]
        sent = len(body)
        one.sendall(body)
        while sent < size:
            body = one.recv(1 << 16)
            one.sendall(body)
            sent += len(body)

    with listening(serve) as port:
        stage.allow("good.test")
        stage.internet.add("good.test", 80, port)
        posted = stage.inside.run(sys.executable, "-c", _ECHOED.format(size=size))
    assert posted.stdout.strip() == "200 True", posted.stderr


_ECHOED = """
import socket, threading
one = socket.create_connection(("good.test", 80), 60)
body = b"0123456789abcdef" * ({size} // 16)
head = b"POST / HTTP/1.1\\r\\nHost: good.test\\r\\nContent-Length: {size}\\r\\n\\r\\n"
threading.Thread(target=one.sendall, args=(head + body,)).start()
data = b""
while len(data.partition(b"\\r\\n\\r\\n")[2]) < {size}:
    more = one.recv(1 << 20)
    if not more: break
    data += more
print(data.split()[1].decode(), data.partition(b"\\r\\n\\r\\n")[2] == body)
"""


def test_a_connection_that_the_server_closes_is_closed_to_the_client(stage: Stage) -> None:
    def serve(one: socket.socket) -> None:
        one.recv(1000)
        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with listening(serve) as port, stage.reaching("good.test", 80, port) as one:
        one.sendall(request())
        assert answer(one) == (200, b"ok")
        assert one.recv(10) == b""


def through_connect(stage: Stage) -> socket.socket:
    one = stage.proxy()
    one.sendall(b"CONNECT good.test:80 HTTP/1.1\r\nHost: good.test:80\r\n\r\n")
    assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
    return one


@pytest.mark.parametrize("target", ["/", "http://good.test/"])
@pytest.mark.parametrize("is_tunnelled", [True, False])
def test_each_request_needs_the_permission_that_holds_when_it_comes(
    stage: Stage, http_port: int, target: str, is_tunnelled: bool
) -> None:
    opening = stage.allow("good.test")
    stage.internet.add("good.test", 80, http_port)
    with through_connect(stage) if is_tunnelled else stage.connect("good.test", 80) as one:
        one.sendall(request(target))
        assert answer(one)[0] == 200
        opening.change(EgressTerms(allowing("other.test")))
        one.sendall(request(target))
        assert answer(one)[0] == 403
    assert stage.crossing("good.test", 80)[-1] == ("denied", "no rule allows it")


def test_what_one_connection_was_permitted_is_remembered_for_some_hosts_only(stage: Stage, http_port: int) -> None:
    stage.allow("*.good.test")
    with stage.proxy() as one:
        for number in range(100):
            stage.internet.add(f"n{number}.good.test", 80, http_port)
            one.sendall(request(f"http://n{number}.good.test/", host=f"n{number}.good.test"))
            assert answer(one)[0] == 200
        (connection,) = stage.cell_proxy._connections
        assert len(connection._granted) <= 64


def test_what_a_cell_writes_is_not_in_the_reasons(stage: Stage) -> None:
    stage.allow("good.test")
    for number, method in enumerate((b"G", b"X" * 20_000, b"G\\" * 9000)):
        with stage.proxy() as one:
            one.sendall(method + b"%d " % number + b"\\" * 9000 + b" x y\r\n\r\n")
            assert answer(one)[0] == 403
    assert stage.crossing("proxy") == [
        ("denied", "its HTTP request is not accepted: its head is not valid HTTP/1.1 (RFC 9112)")
    ]


def test_rules_for_requests_hold_in_clear_and_forbid_what_hides_them(stage: Stage, http_port: int) -> None:
    rules = RequestRules((RequestRule(host_rule("good.test"), ("GET",), "/open"),))
    stage.open(EgressTerms(allowing("good.test"), requests=rules))
    stage.internet.add("good.test", 80, http_port)
    stage.internet.add("good.test", 443, http_port)
    codes = []
    for path, method in (("/open/x", "GET"), ("/open/../x", "GET"), ("/open", "POST"), ("/", "GET")):
        with stage.connect("good.test", 80) as one:
            one.sendall(request(path, method=method))
            codes.append(answer(one)[0])
    assert codes == [200, 403, 403, 403]
    assert stage.inside.run("curl", "-sS", "https://good.test/open").returncode != 0
    assert any("TLS hides them" in reason for _, reason in stage.crossing("good.test", 443))
