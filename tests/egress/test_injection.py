"""Placeholders in HTTP in clear stay placeholders, wherever they are, and each place is on record."""

from __future__ import annotations

import socket
from base64 import b64encode

import pytest
from tests.egress.servers import listening
from tests.egress.stage import Stage, allowing
from tests.egress.test_http import answer, hearing, request

from casemate.egress.injection import Injection
from casemate.egress.terms import EgressTerms
from casemate.model.plan import Placeholder

VALUE, TEXT = "sk-RealRealRealRealReal1", "sk-aaaabbbbccccddddeeee2"
BASIC = b64encode(f"git:{TEXT}".encode()).decode()
HOST_FOR_PORTS = frozenset({("good.test", 443), ("good.test", 80)})


def injecting(form: str = "Bearer {}") -> EgressTerms:
    secret = Placeholder("TOKEN", TEXT, VALUE, HOST_FOR_PORTS, "authorization", form)
    return EgressTerms(allowing("good.test", "evil.test"), rewrite=Injection([secret]))


def notes(stage: Stage, host: str) -> list[str]:
    """What is on record of what was not put in."""
    return [reason for decision, reason in stage.crossing(host, 80) if decision == "denied"]


@pytest.mark.parametrize("host", ["good.test", "evil.test"])
@pytest.mark.parametrize(
    ("sent", "where"),
    [
        pytest.param({"extra": f"Authorization: Bearer {TEXT}\r\n"}, "", id="field"),
        pytest.param({"extra": f"Authorization: Basic {BASIC}\r\n"}, "", id="basic"),
        pytest.param({"extra": f"X-Other: {TEXT}\r\n"}, "", id="other field"),
        pytest.param({"path": f"/?key={TEXT}"}, "in the URL", id="query"),
        pytest.param({"path": f"/{TEXT}/x"}, "in the URL", id="path"),
    ],
)
@pytest.mark.parametrize("through", ["name", "proxy"])
def test_va_15_in_a_head_in_clear_nothing_is_put_in(
    stage: Stage, host: str, sent: dict[str, str], where: str, through: str
) -> None:
    stage.open(injecting())
    with hearing() as (port, received):
        stage.internet.add(host, 80, port)
        if through == "proxy":
            sent = {**sent, "path": f"http://{host}{sent.get('path', '/')}"}
        with stage.connect(host, 80) if through == "name" else stage.proxy() as one:
            one.sendall(request(host=host, **sent))
            assert answer(one) == (200, b"ok")
    said = b"".join(received)
    assert VALUE.encode() not in said
    assert TEXT.encode() in said or BASIC.encode() in said
    (note,) = notes(stage, host)
    assert (where or ("in clear" if host == "good.test" else "host that it is not for")) in note
    assert "TOKEN" in note


@pytest.mark.parametrize("in_chunks", [False, True])
def test_va_15_in_a_body_in_clear_nothing_is_put_in_and_it_is_on_record_once(stage: Stage, in_chunks: bool) -> None:
    stage.open(injecting())
    parts = [b"a=1&b=" + TEXT[:9].encode(), TEXT[9:].encode() + b"&c=", TEXT.encode()]
    framing = "Transfer-Encoding: chunked\r\n" if in_chunks else f"Content-Length: {sum(map(len, parts))}\r\n"
    received = bytearray()

    def serve(one: socket.socket) -> None:
        while not received.endswith((TEXT.encode(), b"0\r\n\r\n")):
            received.extend(one.recv(1 << 16))
        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with listening(serve) as port:
        stage.internet.add("good.test", 80, port)
        with stage.connect("good.test", 80) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.sendall(request(method="POST", extra=framing))
            for part in parts:
                one.sendall(b"%x\r\n%s\r\n" % (len(part), part) if in_chunks else part)
            if in_chunks:
                one.sendall(b"0\r\n\r\n")
            assert answer(one) == (200, b"ok")
    assert VALUE.encode() not in received
    assert notes(stage, "good.test") == ["the placeholder of TOKEN was sent in the body and not replaced"]


def test_requests_without_a_placeholder_are_as_they_were(stage: Stage) -> None:
    stage.open(injecting())
    with hearing() as (port, received):
        stage.internet.add("good.test", 80, port)
        with stage.connect("good.test", 80) as one:
            for _ in range(3):
                one.sendall(request(extra="Authorization: Bearer mine\r\nAccept-Encoding: gzip\r\n"))
                assert answer(one) == (200, b"ok")
    assert b"".join(received).count(b"Authorization: Bearer mine\r\nAccept-Encoding: gzip\r\n") == 3
    assert notes(stage, "good.test") == []
