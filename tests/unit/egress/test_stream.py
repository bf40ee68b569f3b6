"""A connection that is watched while something is done for it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from casemate.egress.stream import TcpStream

_SECONDS = 60
_MOST = 100


def watched(case: Callable[[TcpStream, socket.socket, asyncio.Event, Callable[[], None]], Awaitable[None]]) -> None:
    """Run ``case`` with a stream that is watched, its other side, what is set when that goes, and what ends that."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            other = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        stream, gone = TcpStream(accepted), asyncio.Event()
        try:
            async with asyncio.timeout(_SECONDS):
                await case(stream, other, gone, stream.watch(gone.set, _MOST))
        finally:
            other.close()
            stream.close()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["closed", "half closed", "reset"])
def test_that_the_other_side_goes_is_told_and_what_it_said_before_is_kept(how: str) -> None:
    async def case(stream: TcpStream, other: socket.socket, gone: asyncio.Event, stop: Callable[[], None]) -> None:
        other.sendall(b"some bytes")
        while not stream.ahead:
            await asyncio.sleep(0)
        assert not gone.is_set()
        if how == "reset":
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half closed":
            other.shutdown(socket.SHUT_WR)
        else:
            other.close()
        await gone.wait()
        stop()
        assert stream.take() == b"some bytes"

    watched(case)


def test_who_sends_more_than_the_most_is_looked_at_no_longer() -> None:
    async def case(stream: TcpStream, other: socket.socket, gone: asyncio.Event, stop: Callable[[], None]) -> None:
        other.sendall(b"x" * (_MOST + 1))
        while len(stream.ahead) <= _MOST:
            await asyncio.sleep(0)
        other.sendall(b"y" * 10)
        other.close()
        for _ in range(50):
            await asyncio.sleep(0)
        assert not gone.is_set()
        stop()
        assert await stream.fill()
        assert stream.take() == b"x" * (_MOST + 1) + b"y" * 10

    watched(case)


def test_after_the_watching_bytes_are_read_as_ever() -> None:
    async def case(stream: TcpStream, other: socket.socket, gone: asyncio.Event, stop: Callable[[], None]) -> None:
        stop()
        other.sendall(b"later")
        for _ in range(50):
            await asyncio.sleep(0)
        assert not stream.ahead
        assert await stream.fill()
        assert stream.take() == b"later"
        other.close()
        assert not await stream.fill()
        assert not gone.is_set()

    watched(case)
