"""The explicit proxy: CONNECT and whole URLs, under the same rules as connections that know of no proxy."""

from __future__ import annotations

import contextlib
import socket

import pytest
from tests.egress.stage import Stage, everything_from
from tests.egress.test_http import answer, hearing, request


def connect(one: socket.socket, where: str) -> None:
    one.sendall(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n\r\n".encode())


def test_connect_to_a_permitted_port_is_a_tunnel(stage: Stage, echo_port: int) -> None:
    stage.allow("good.test:5432")
    stage.internet.add("good.test", 5432, echo_port)
    with stage.proxy() as one:
        connect(one, "GOOD.test.:5432")
        assert one.recv(1000) == b"HTTP/1.1 200 Connection established\r\n\r\n"
        one.sendall(b"hello")
        assert one.recv(10) == b"hello"
        one.shutdown(socket.SHUT_WR)
        assert one.recv(10) == b""


@pytest.mark.parametrize(
    "where",
    [
        "evil.test:443",
        "good.test:22",
        "good.test:6379",
        "93.184.1.1:443",
        "1.1.1.1:443",
        "127.0.0.1:443",
        "198.18.1.0:443",
        "2130706433:443",
        "0x7f000001:443",
        "0177.0.0.1:443",
        "127.1:443",
        "[::1]:443",
        "[::ffff:127.0.0.1]:443",
        "localhost:443",
        "good.test@evil.test:443",
        "good.test\0.evil.test:443",
        "good.test.evil.test:443",
        "xn--god-sed.test:443",
        "good.test",
        "good.test:",
        "good.test:0",
        "good.test:65536",
        "good.test:443:80",
        ":443",
    ],
)
def test_connect_to_anything_else_is_refused_with_a_reason(stage: Stage, where: str) -> None:
    stage.allow("good.test")
    stage.ask("good.test")
    with stage.proxy() as one:
        connect(one, where)
        code, text = answer(one)
        assert everything_from(one) == b""
    assert code == 403
    assert text.startswith(b"casemate: ")
    assert (stage.internet.resolved, stage.internet.dialled) == ([], [])


def test_connect_needs_no_host_field_but_another_host_there_is_refused(stage: Stage, echo_port: int) -> None:
    stage.allow("good.test:7", "evil.test:7")
    stage.internet.add("good.test", 7, echo_port)
    codes = []
    for rest in ("HTTP/1.0\r\n", "HTTP/1.1\r\nHost: evil.test:7\r\n", "HTTP/1.1\r\nHost: good.test:8\r\n"):
        with stage.proxy() as one:
            one.sendall(f"CONNECT good.test:7 {rest}\r\n".encode())
            codes.append(answer(one)[0])
    assert codes == [200, 403, 403]


def test_a_refusal_says_what_would_permit_it(stage: Stage) -> None:
    stage.allow("good.test")
    with stage.proxy() as one:
        connect(one, "other.test:5432")
        assert b"other.test:5432 as allowed_domains" in answer(one)[1]


def test_a_url_reaches_its_host_and_another_one_on_the_same_connection_another(stage: Stage, http_port: int) -> None:
    stage.allow("good.test", "other.test:8080")
    stage.internet.add("good.test", 80, http_port)
    stage.internet.add("other.test", 8080, http_port)
    with stage.proxy() as one:
        for _ in range(2):
            one.sendall(request("http://good.test/a?b") + request("http://other.test:8080", host="other.test:8080"))
            assert answer(one) == (200, b"GET good.test /a?b ")
            assert answer(one) == (200, b"GET other.test:8080 / ")
        one.sendall(request("http://evil.test/", host="evil.test"))
        assert answer(one)[0] == 403
    assert stage.internet.resolved == ["good.test", "other.test"] * 2


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("http://good.test/", "evil.test"),
        ("http://evil.test/", "good.test"),
        ("http://good.test:81/", "good.test"),
        ("http://good.test@evil.test/", "good.test"),
        ("https://good.test/", "good.test"),
        ("ftp://good.test/", "good.test"),
        ("/", "good.test"),
        ("http://127.0.0.1/", "127.0.0.1"),
        ("http://[::1]/", "good.test"),
        ("http://2130706433/", "2130706433"),
        ("http:///", "good.test"),
    ],
)
def test_a_url_for_another_host_than_the_one_it_names_is_refused(stage: Stage, target: str, host: str) -> None:
    with hearing() as (port, received):
        stage.allow("good.test")
        stage.internet.add("good.test", 80, port)
        with stage.proxy() as one:
            one.sendall(request(target, host))
            assert answer(one)[0] == 403
        assert received == []


def test_http_inside_a_tunnel_to_port_80_is_read_too(stage: Stage, http_port: int) -> None:
    stage.allow("good.test")
    stage.internet.add("good.test", 80, http_port)
    with stage.proxy() as one:
        connect(one, "good.test:80")
        assert answer(one)[0] == 200
        one.sendall(request())
        assert answer(one)[0] == 200
        one.sendall(request(host="evil.test"))
        assert answer(one)[0] == 403


def test_credentials_for_the_proxy_are_not_passed_on(stage: Stage) -> None:
    with hearing() as (port, received):
        stage.allow("good.test")
        stage.internet.add("good.test", 80, port)
        with stage.proxy() as one:
            one.sendall(
                request("http://good.test/", extra="Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: x\r\n")
            )
            assert answer(one)[0] == 200
        assert b"roxy" not in b"".join(received)


@pytest.mark.parametrize("first", [b"\5\1\0", b"\4\1\0\x50\x5d\xb8\1\1\0"])
def test_a_client_of_socks_hears_at_once_that_it_is_not_spoken(stage: Stage, first: bytes) -> None:
    stage.allow("good.test")
    with stage.proxy() as one:
        one.sendall(first)
        code, text = answer(one)
    assert (code, b"not SOCKS" in text) == (403, True)
    assert stage.internet.dialled == []


@pytest.mark.parametrize(
    "first", [b"\4\1\0\x50\x5d\xb8\1\1\0", b"\5\1\2", b"\0\0\0\0", b"\x16\3\1\0\5hello", b"\r\n\r\n"]
)
def test_what_no_proxy_speaks_leads_nowhere(stage: Stage, first: bytes) -> None:
    stage.allow("good.test")
    with stage.proxy() as one:
        one.sendall(first)
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_WR)
        try:
            said = everything_from(one)
        except ConnectionResetError:
            said = b""
    assert said == b"" or said.startswith(b"HTTP/1.1 403 ")
    assert stage.internet.dialled == []


def test_a_tunnel_that_cannot_be_made_is_said_before_it_is_promised(stage: Stage) -> None:
    stage.allow("good.test")
    stage.internet.addresses["good.test"] = ["93.184.5.5"]
    with stage.proxy() as one:
        connect(one, "good.test:443")
        assert answer(one)[0] == 502
