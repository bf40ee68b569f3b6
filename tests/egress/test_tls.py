"""At 443 there must be TLS, and it must name the server that was permitted; elsewhere too, where it is TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.egress.servers import listening
from tests.egress.stage import Stage, was_reset
from tests.unit.egress.hellos import message, names, real, records

Open = Callable[[Stage, str, int], socket.socket]


def transparent(stage: Stage, name: str, port: int) -> socket.socket:
    return stage.connect(name, port)


def connect(stage: Stage, name: str, port: int) -> socket.socket:
    one = stage.proxy()
    one.sendall(f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n".encode())
    assert one.recv(1000).startswith(b"HTTP/1.1 200 ")
    return one


MODES = [transparent, connect]


@contextlib.contextmanager
def hearing() -> Iterator[tuple[int, list[bytes]]]:
    """A server that notes what it hears."""
    received: list[bytes] = []

    def serve(one: socket.socket) -> None:
        while data := one.recv(1 << 16):
            received.append(data)
            one.sendall(b"received")

    with listening(serve) as port:
        yield port, received


@pytest.mark.parametrize("open_", MODES)
def test_tls_to_the_permitted_name_is_carried_end_to_end(
    stage: Stage, https_port: int, trusting: ssl.SSLContext, open_: Open
) -> None:
    stage.allow("good.test")
    stage.internet.add("good.test", 443, https_port)
    with open_(stage, "good.test", 443) as raw, trusting.wrap_socket(raw, server_hostname="good.test") as one:
        one.sendall(b"GET /x HTTP/1.1\r\nHost: good.test\r\n\r\n")
        assert b"GET good.test /x" in one.recv(1000) + one.recv(1000)


REFUSED = {
    "another name": (real("evil.test"), "names another server"),
    "no name": (real(None), "no server name"),
    "two names": (records(message((0, names(b"good.test", b"evil.test")))), "not accepted"),
    "a name twice": (records(message((0, names(b"good.test")), (0, names(b"evil.test")))), "not accepted"),
    "a name with NUL": (records(message((0, names(b"good.test\0.evil.test")))), "not accepted"),
    "an address": (records(message((0, names(b"93.184.1.1")))), "names another server"),
    "plain text": (b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n", "plain text"),
    "ssh": (b"SSH-2.0-OpenSSH_9.6\r\n", "plain text"),
    "SSL 2": (b"\x80\x2e\1\0\2\0\x15\0\0\0\x10", "plain text"),
    "a huge hello": (b"\x16\3\1\x40\0\1\1\0\0" + b"\0" * 100, "not accepted"),
    "one byte in each record": (records(b"\1\0\x7f\xff" + b"a" * 5000, 1), "not accepted"),
}


@pytest.mark.parametrize("open_", MODES)
@pytest.mark.parametrize("said", REFUSED)
def test_what_is_not_tls_to_the_permitted_name_is_refused_at_443(stage: Stage, said: str, open_: Open) -> None:
    data, why = REFUSED[said]
    with hearing() as (port, received):
        stage.allow("good.test", "evil.test")
        stage.internet.add("good.test", 443, port)
        with open_(stage, "good.test", 443) as one:
            with contextlib.suppress(OSError):
                one.sendall(data)
                one.shutdown(socket.SHUT_WR)
            assert was_reset(one)
        assert received == []
    assert [why in reason for decision, reason in stage.crossing("good.test", 443) if decision == "denied"] == [True]


@pytest.mark.parametrize("size", [1, 7, 50])
@pytest.mark.parametrize("in_records", [True, False])
def test_a_hello_in_pieces_is_put_together(stage: Stage, size: int, in_records: bool) -> None:
    hello = message((0, names(b"good.test")))
    whole = records(hello, max(size, 7) if in_records else 1 << 14)
    with hearing() as (port, received):
        with stage.reaching("good.test", 443, port) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(whole), size):
                one.sendall(whole[at : at + size])
            assert one.recv(8) == b"received"
        assert b"".join(received) == whole


def test_tls_at_another_port_must_name_the_server_too(stage: Stage) -> None:
    with hearing() as (port, received):
        stage.allow("good.test:8443", "good.test")
        stage.internet.add("good.test", 8443, port)
        stage.internet.add("good.test", 80, port)
        for number in (8443, 80):
            with stage.connect("good.test", number) as one:
                one.sendall(real("evil.test"))
                assert was_reset(one)
            assert received == []
            with stage.connect("good.test", number) as one:
                one.sendall(real("good.test"))
                assert one.recv(8) == b"received"
            received.clear()


def test_a_server_at_another_port_may_speak_first(stage: Stage) -> None:
    def greets(one: socket.socket) -> None:
        one.sendall(b"SSH-2.0-server\r\n")
        one.sendall(b"you said " + one.recv(100))

    with listening(greets) as port:
        stage.allow("good.test:22")
        stage.internet.add("good.test", 22, port)
        with stage.connect("good.test", 22) as one:
            assert one.recv(100) == b"SSH-2.0-server\r\n"
            one.sendall(b"hello")
            assert one.recv(100) == b"you said hello"


def test_a_tunnel_is_no_way_to_another_host_afterwards(
    stage: Stage, https_port: int, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    stage.allow("good.test")
    stage.internet.add("good.test", 443, https_port)
    with connect(stage, "good.test", 443) as raw:
        raw.sendall(real("good.test"))
        assert raw.recv(1 << 16)[:1] == b"\x16"
        with contextlib.suppress(ConnectionError):
            raw.sendall(b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n")
            raw.recv(1000)
    assert stage.internet.resolved == ["good.test"]
