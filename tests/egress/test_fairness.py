"""Whatever one cell does with the egress proxy, others are served."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from tests.egress.servers import listening
from tests.egress.stage import PROXY, Inside, Stage, beside
from tests.egress.test_http import answer, request

TINY = b"1\r\nx\r\n" * 20_000
CHUNKED = "Transfer-Encoding: chunked\r\n"


def get(cell: Inside, url: str) -> int:
    host = url.split("/")[2]
    with cell.connect(*PROXY) as one:
        one.sendall(request(url, host=host, extra="Connection: close\r\n"))
        return answer(one)[0]


def drains(one: socket.socket) -> None:
    while one.recv(1 << 16):
        pass


def pours(one: socket.socket) -> None:
    one.recv(1 << 16)
    one.sendall(b"HTTP/1.1 200 OK\r\n" + CHUNKED.encode() + b"\r\n")
    while True:
        one.sendall(TINY)


def upload(one: socket.socket) -> None:
    one.sendall(request(method="POST", extra=CHUNKED))
    while True:
        one.sendall(TINY)


def upload_plain(one: socket.socket) -> None:
    one.sendall(request(method="POST", extra="Content-Length: 1000000000000\r\n"))
    while True:
        one.sendall(bytes(1 << 20))


def download(one: socket.socket) -> None:
    one.sendall(request())
    drains(one)


@pytest.mark.parametrize(("client", "server"), [(upload, drains), (upload_plain, drains), (download, pours)])
@pytest.mark.parametrize("how_many", [1, 8])
def test_connections_that_never_pause_do_not_hold_up_another_cell(
    stage: Stage, neighbour: Inside, http_port: int, client: object, server: object, how_many: int
) -> None:
    def busy(one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client(one)  # type: ignore[operator]

    with listening(server) as port:  # type: ignore[arg-type]
        stage.allow("good.test")
        beside(stage, neighbour, "other.test")
        stage.internet.add("good.test", 80, port)
        stage.internet.add("other.test", 80, http_port)
        connections = [stage.connect("good.test", 80) for _ in range(how_many)]
        threads = [threading.Thread(target=busy, args=(one,), daemon=True) for one in connections]
        for thread in threads:
            thread.start()
        codes = [get(neighbour, "http://other.test/") for _ in range(3)]
        assert any(thread.is_alive() for thread in threads)
        for one in connections:
            one.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(60)
        for one in connections:
            one.close()
    assert codes == [200] * 3


def test_many_small_chunks_arrive_all_the_same(stage: Stage) -> None:
    def serve(one: socket.socket) -> None:
        said = b""
        while not said.endswith(b"\r\n0\r\n\r\n"):
            said += one.recv(1 << 16)
        count = said.count(b"1\r\nx\r\n")
        one.sendall(b"HTTP/1.1 200 OK\r\n" + CHUNKED.encode() + b"\r\n" + b"1\r\ny\r\n" * count + b"0\r\n\r\n")

    with listening(serve) as port, stage.reaching("good.test", 80, port) as one:
        one.sendall(request(method="POST", extra=CHUNKED) + TINY + b"0\r\n\r\n")
        received = b""
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += one.recv(1 << 16)
    assert received.count(b"1\r\ny\r\n") == 20_000
