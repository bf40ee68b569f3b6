"""The protocol's pipes, with a browser that says what it likes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from casemate.web import cdp
from casemate.web.cdp import CdpEnded, CdpPipe, CdpRefused, Nonsense, part


class Peer:
    """What is at the other ends."""

    def __init__(self) -> None:
        self.ends, self.read, self.write = 0, -1, -1
        self.pipe = CdpPipe(self._count)
        self.heard: list[tuple[str, Mapping[str, Any]]] = []
        self.pipe.handlers["s"] = lambda method, params: self.heard.append((method, params))

    def _count(self) -> None:
        self.ends += 1

    async def say(self, data: bytes) -> None:
        """All of it, however much that is."""
        while data and not self.pipe.why_ended:
            try:
                data = data[os.write(self.write, data) :]
            except BlockingIOError:
                await asyncio.sleep(0)
            except BrokenPipeError:
                return
        for _ in range(3):
            await asyncio.sleep(0)

    async def hear(self) -> dict[str, Any]:
        """The next thing that is asked."""
        data = await asyncio.to_thread(os.read, self.read, 1 << 16)
        assert data.endswith(b"\0")
        said: dict[str, Any] = json.loads(data[:-1])
        return said


@asynccontextmanager
async def talking() -> AsyncIterator[Peer]:
    """A pipe to a peer."""
    peer = Peer()
    peer.read, writable = os.pipe()
    readable, peer.write = os.pipe()
    os.set_blocking(peer.write, False)
    await peer.pipe.open(readable, writable)
    peer.pipe.allow_more(afresh=True)
    try:
        yield peer
    finally:
        peer.pipe.end("over")
        for fd in (peer.read, peer.write):
            os.close(fd)
        await asyncio.sleep(0)


async def asked(peer: Peer, said: dict[str, Any]) -> dict[str, Any]:
    """The result of a call that is answered so."""
    call = asyncio.ensure_future(peer.pipe.call("Some.method", "s", key=1))
    question = await peer.hear()
    assert (question["method"], question["params"], question["sessionId"]) == ("Some.method", {"key": 1}, "s")
    await peer.say(json.dumps({"id": question["id"], **said}).encode() + b"\0")
    return await call


async def test_a_call_has_the_answer_with_its_number() -> None:
    async with talking() as peer:
        assert await asked(peer, {"result": {"a": 1}}) == {"a": 1}
        with pytest.raises(CdpRefused, match="no such thing"):
            await asked(peer, {"error": {"code": 1, "message": "no\n such\tthing"}})


async def test_events_are_told_to_their_session_also_in_pieces() -> None:
    async with talking() as peer:
        await peer.say(b'{"method": "A", "params": {}, "sess')
        await peer.say(b'ionId": "s"}\0{"method": "B", "params": {"x": "\\ud800"}, "sessionId": "s"}\0')
        await peer.say(b'{"method": "C", "params": {}, "sessionId": "other"}\0{"method": "D", "params": {}}\0')
        assert peer.heard == [("A", {}), ("B", {"x": "?"})]


async def test_answers_that_nobody_waits_for_are_nothing() -> None:
    async with talking() as peer:
        await peer.say(
            b'{"id": 99, "result": {}}\0{"id": "1", "result": {}}\0{"id": 7, "result": {}, "sessionId": "s"}\0'
        )
        assert (peer.pipe.why_ended, peer.heard) == ("", [])


@pytest.mark.parametrize(
    "said",
    [
        b"\0",
        b"no JSON\0",
        b"[1]\0",
        b"7\0",
        b'{"a": NaN}\0',
        b"\xff\xfe\0",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\0",
        b'{"a": [' + b"[]," * 300_000 + b"0]}\0",
        b'{"a": ' + b"9" * 10_000 + b"}\0",
        b'{"method": 1, "params": {}, "sessionId": "s"}\0',
        b'{"method": "A", "params": [], "sessionId": "s"}\0',
        b'{"method": "A", "sessionId": "s"}\0',
    ],
    ids=range(12),
)
async def test_what_makes_no_sense_ends_it(said: bytes) -> None:
    async with talking() as peer:
        call = asyncio.ensure_future(peer.pipe.call("Some.method"))
        await peer.say(said)
        with pytest.raises(CdpEnded, match="an invalid message"):
            await call
        assert (peer.ends, peer.heard[-1:]) == (1, [("", {})])
        with pytest.raises(CdpEnded):
            await peer.pipe.call("Some.method")


@pytest.mark.parametrize("said", [b"x", b'{"id": 99}\0', b"\0"], ids=["no end", "messages", "nothing"])
async def test_who_says_too_much_is_ended(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(cdp, "MOST_SAID", 1 << 20)
    monkeypatch.setattr(cdp, "decode", lambda _: {})
    async with talking() as peer:
        peer.pipe.allow_more(afresh=True)
        await peer.say(said * ((1 << 20) // len(said) + 1000))
        assert peer.pipe.why_ended == "it said more than 1 MiB"
        assert peer.ends == 1


async def test_a_long_text_with_many_commas_is_one_value() -> None:
    async with talking() as peer:
        text = ",[{" * 300_000 + '"\\'
        assert await asked(peer, {"result": {"html": text}}) == {"html": text}


async def test_where_the_other_end_closes_every_call_is_told() -> None:
    async with talking() as peer:
        call = asyncio.ensure_future(peer.pipe.call("Some.method"))
        await asyncio.sleep(0)
        os.close(peer.write)
        with pytest.raises(CdpEnded, match="it ended"):
            await call
        peer.write = os.dup(peer.read)


@pytest.mark.parametrize("value", [None, 1, [], {}, {"a": 1}, {"a": {"b": 1}}, {"a": {"b": None}}])
def test_a_part_of_another_kind_makes_no_sense(value: object) -> None:
    with pytest.raises(Nonsense, match=r"its a\.b is not of type str"):
        part(value, "a", "b", kind=str)
    assert part({"a": {"b": "c"}}, "a", "b", kind=str) == "c"
