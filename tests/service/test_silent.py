"""Connections that say nothing, or too little, to a place that is listened at, with TLS and without."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import socket
import ssl
import struct
import weakref
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.network.servers import certified
from tests.service.daemon import tcp

from casemate.surfaces.http.exchange import Exchange
from casemate.surfaces.http.identity import Refused, read_headers
from casemate.surfaces.http.server import Server, listen

SECONDS = 30.0  # until something that must happen is taken as not happening; asyncio gives a handshake twice as long
NEVER = 1000.0
MUCH = 24 * 2**20  # bytes
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    certified(made, names=("localhost",))
    return made


@dataclass
class Place:
    server: Server
    where: tuple[str, int]
    trusting: ssl.SSLContext | None
    opened: list[asyncio.StreamWriter]

    @property
    def count(self) -> int:
        return len(self.server.server_state.connections)

    async def connect(self) -> Ends:
        """A connection that has said nothing yet, also not that it wants TLS."""
        reader, writer = await asyncio.open_connection(*self.where)
        self.opened.append(writer)
        return reader, writer

    async def enter(self) -> Ends:
        """One whose TLS is agreed on, where there is any."""
        given: dict[str, Any] = {"ssl": self.trusting, "server_hostname": "localhost"} if self.trusting else {}
        reader, writer = await asyncio.open_connection(*self.where, **given)
        self.opened.append(writer)
        return reader, writer

    async def until_there_are(self, count: int) -> None:
        async with asyncio.timeout(SECONDS):
            while self.count != count:
                await asyncio.sleep(0.01)

    async def until_read(self, part: bytes) -> None:
        """Wait until the only connection has read this part of a head."""
        async with asyncio.timeout(SECONDS):
            connections: Iterable[Any] = self.server.server_state.connections
            while [one.conn.trailing_data[0] for one in connections] != [part]:
                await asyncio.sleep(0)


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """As the service reads what it is asked."""
    exchange = Exchange(scope, receive, send, read_headers(scope["headers"]))
    try:
        await exchange.body()
    except Refused as refused:
        await exchange.answer(refused.status, refused.message, {"connection": "close"})


async def giving(scope: Any, receive: Any, send: Any) -> None:
    """More than sockets hold, at once."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": bytes(MUCH)})


@contextlib.asynccontextmanager
async def listened_at(folder: Path | None, app: Any = app) -> AsyncIterator[Place]:
    """A place, with TLS where a ``folder`` holds a certificate."""
    listening = listen("127.0.0.1", 0)
    pem = str(folder / "server.pem") if folder else ""
    server = Server(app, listening, (pem, pem) if folder else None)
    trusting = ssl.create_default_context(cafile=folder / "ca.pem") if folder else None
    place = Place(server, listening.getsockname(), trusting, [])
    serving = asyncio.create_task(server.until_ended())
    try:
        yield place
    finally:
        for writer in place.opened:
            writer.transport.abort()
        server.end()
        await serving


@pytest.fixture(params=["plain", "tls"])
def kind(request: pytest.FixtureRequest, folder: Path) -> Path | None:
    return folder if request.param == "tls" else None


async def asked(ends: Ends, request: bytes = REQUEST) -> bytes:
    """The first line of an answer; the rest of its head is read."""
    reader, writer = ends
    async with asyncio.timeout(SECONDS):
        writer.write(request)
        return (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0]


async def ended(ends: Ends) -> bytes:
    """What came until the server had ended the connection."""
    async with asyncio.timeout(SECONDS):
        try:
            return await ends[0].read()
        except OSError:
            return b""


def hello() -> bytes:
    """A ClientHello."""
    out = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


async def test_hundreds_that_are_silent_count_and_give_way_to_one_that_is_not(
    kind: Path | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for bound in ("_HEAD_WITHIN", "_HANDSHAKE_WITHIN"):  # what ends them is that others come
        monkeypatch.setattr(f"casemate.surfaces.http.server.{bound}", NEVER)
    for most in ("_MOST_CONNECTIONS", "_MOST_ENCRYPTED"):
        monkeypatch.setattr(f"casemate.surfaces.http.server.{most}", 40)
    async with listened_at(kind) as place:
        silent = [await place.connect() for _ in range(240)]
        await place.until_there_are(40)
        client = await place.enter()
        assert b"204" in await asked(client)
        assert await asyncio.gather(*(ended(one) for one in silent[:200])) == [b""] * 200
        assert b"204" in await asked(client)
        assert place.count == 40
    assert caplog.records == []


@pytest.mark.parametrize("said", ["nothing", "a byte", "a part of it", "all of it and no more", "no TLS"])
async def test_a_handshake_that_does_not_end_is_ended(
    folder: Path, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("casemate.surfaces.http.server._HANDSHAKE_WITHIN", 0.3)
    monkeypatch.setattr("casemate.surfaces.http.server._HEAD_WITHIN", NEVER)
    whole = hello()
    pieces = {"nothing": b"", "a byte": whole[:1], "a part of it": whole[:100], "no TLS": REQUEST}
    async with listened_at(folder) as place:
        one = await place.connect()
        one[1].write(pieces.get(said, whole))
        answer = await ended(one)
        assert b"HTTP" not in answer
        await place.until_there_are(0)
        assert b"204" in await asked(await place.enter())
    assert caplog.records == []


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(folder: Path) -> None:
    async with listened_at(folder) as place:
        reader, writer = await place.connect()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        assert place.trusting is not None
        tls = place.trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65536))
            tls.write(REQUEST)
            writer.write(outgoing.read())  # the last of the handshake and the request, at once
            answer = b""
            while b"\r\n\r\n" not in answer:
                incoming.write(await reader.read(65536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    answer += tls.read(65536)
    assert answer.startswith(b"HTTP/1.1 204")


async def test_a_handshake_that_comes_byte_by_byte_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("casemate.surfaces.http.server._HANDSHAKE_WITHIN", 0.3)
    monkeypatch.setattr("casemate.surfaces.http.server._HEAD_WITHIN", NEVER)
    async with listened_at(folder) as place:
        one = await place.connect()
        one[1].write(hello()[:6])
        assert await ended_while_sending(one, b"\0")


async def ended_while_sending(ends: Ends, piece: bytes, answer: bytearray | None = None) -> bool:
    """Whether the server ends a connection over which ``piece`` comes again and again; ``answer`` has what it said."""
    reader, writer = ends
    async with asyncio.timeout(SECONDS):
        while not reader.at_eof() and reader.exception() is None:
            writer.write(piece)
            with contextlib.suppress(TimeoutError, OSError):
                said = await asyncio.wait_for(reader.read(1000), 0.02)
                (answer if answer is not None else bytearray()).extend(said)
    return True


async def test_a_first_head_that_does_not_come_is_not_waited_for(
    kind: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casemate.surfaces.http.server._HEAD_WITHIN", 0.3)
    async with listened_at(kind) as place:
        for said in (b"", b"G", REQUEST[:-2]):
            one = await place.enter()
            one[1].write(said)
            assert await ended(one) == b""
        await place.until_there_are(0)


@pytest.mark.parametrize("piece", [b"", b"a"])
async def test_a_later_head_that_does_not_come_is_not_waited_for(
    kind: Path | None, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casemate.surfaces.http.server._HEAD_WITHIN", 0.3)
    async with listened_at(kind) as place:
        one = await place.enter()
        assert b"204" in await asked(one)
        one[1].write(b"GET / HTTP/1.1\r\nX: ")
        assert await ended_while_sending(one, piece)
        await place.until_there_are(0)


async def test_one_whose_head_came_in_parts_is_answered_and_may_be_idle(
    kind: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casemate.surfaces.http.server._HEAD_WITHIN", 2.0)
    async with listened_at(kind) as place:
        one = await place.enter()
        for _ in range(3):
            one[1].write(REQUEST[:9])
            await place.until_read(REQUEST[:9])
            assert b"204" in await asked(one, REQUEST[9:])
        assert await ended(await place.enter()) == b""  # it has come later, so the other's time would be over, too
        assert b"204" in await asked(one)


async def test_a_body_that_comes_byte_by_byte_is_not_waited_for(
    kind: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casemate.surfaces.http.exchange._BODY_WITHIN", 0.5)
    async with listened_at(kind, reading) as place:
        one = await place.enter()
        one[1].write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n")
        answer = bytearray()
        assert await ended_while_sending(one, b"a", answer)
        assert answer.startswith(b"HTTP/1.1 408")


async def test_who_takes_nothing_of_what_is_left_of_an_answer_is_left(
    kind: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casemate.surfaces.http.server._TAKEN_WITHIN", 0.3)
    async with listened_at(kind, giving) as place:
        one = await place.enter()
        one[1].transport.pause_reading()  # type: ignore[attr-defined]
        one[1].write(REQUEST)
        await place.until_there_are(1)
        await place.until_there_are(0)


async def test_nothing_is_left_of_a_connection_that_is_reset_while_it_is_idle(kind: Path | None) -> None:
    async with listened_at(kind) as place:
        one = await place.enter()
        assert b"204" in await asked(one)
        left = weakref.ref(next(iter(place.server.server_state.connections)))
        one[1].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one[1].transport.abort()
        await place.until_there_are(0)
        async with asyncio.timeout(SECONDS):
            while left() is not None:
                await asyncio.sleep(0.01)
                gc.collect()


async def test_few_are_accepted_in_one_turn_however_many_wait(kind: Path | None) -> None:
    async with listened_at(kind) as place, contextlib.AsyncExitStack() as stack:
        for _ in range(200):  # all of them wait when it first looks
            stack.enter_context(tcp(place.where[1]))
        counts = [0]
        async with asyncio.timeout(SECONDS):
            while counts[-1] < 200:
                await asyncio.sleep(0)
                counts.append(place.count)
        assert max(later - sooner for sooner, later in itertools.pairwise(counts)) <= 24


async def test_what_is_no_request_is_answered_and_not_noted(
    kind: Path | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with listened_at(kind) as place:
        for said in (b"\0\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: x\r\nConnection: upgrade, close\r\n\r\n"):
            assert await asked(await place.enter(), said)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
