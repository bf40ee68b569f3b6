"""HTTP/2 (RFC 9113) inside TLS that ends at the door: stream by stream, each request checked and written anew.

Both sides speak HTTP/2; h2 keeps the state of both connections. What one side has sent and the other does not take yet
is kept within the window that was given for it: it is opened again only as the other side takes what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import h2.errors
import h2.events
import h2.exceptions

from casemate.egress.connection import Connection
from casemate.egress.frames import Flood, NoFrames, goaway
from casemate.egress.refusal import Refused
from casemate.egress.rewriting import answer, hiding, rewritten, watcher
from casemate.egress.secured import Secured
from casemate.egress.side import Headers, Kept, Side
from casemate.egress.streams import BadHead, Pair, head_of
from casemate.policy.hosts import HTTPS

# Bytes of a body that are waited for, where it is said to be so short, before its request is refused: a client that is
# answered while it still sends may lose the answer, or the connection (curl 7.88 does).
_SHORT = 1 << 16
_REFUSED_STREAM = h2.errors.ErrorCodes.REFUSED_STREAM


async def relay_h2(connection: Connection, name: str, port: int, server: Secured) -> None:
    """Carry requests to one host until either side ends. ``connection.client`` and ``server`` are there."""
    await _Relay(connection, name, port, server).run()


class _Relay:
    """One connection's two sides, and the streams that belong together."""

    def __init__(self, connection: Connection, name: str, port: int, server: Secured) -> None:
        self._connection, self._name, self._port = connection, name, port
        self._client = Side(connection.client, is_client=True)
        self._server = Side(server, is_client=False)
        self._of_client: dict[int, Pair] = {}
        self._of_server: dict[int, Pair] = {}
        self._refused: dict[int, Refused] = {}  # of the client, whose short bodies are still to come
        self._last = 0  # the last stream that the client began
        self._is_broken = False
        self._is_ending = False  # the server takes no more requests, or the client makes none

    async def run(self) -> None:
        """Raises ``OSError``."""
        await self._server.begin()
        await self._client.begin()
        try:
            async with asyncio.TaskGroup() as group:
                of_server = group.create_task(self._read(self._server))
                of_client = group.create_task(self._read(self._client))
                await asyncio.wait((of_server, of_client), return_when=asyncio.FIRST_COMPLETED)
                if of_server.done() and not self._is_broken and self._client.keeps_something:
                    await asyncio.wait((of_client,))
                of_server.cancel()
                of_client.cancel()
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        await self._connection.farewell()  # what it was told last would be lost if it still says something

    async def _read(self, side: Side) -> None:
        """What one side says, until it ends, or nothing is left to do."""
        count = self._connection.count_out if side is self._client else self._connection.count_in
        while not (self._is_ending and not self._of_client and not self._client.keeps_something):
            data = side.stream.taken()
            if not data:
                if await side.stream.fill():
                    continue
                await self._ended(side)
                return
            count(len(data))
            try:
                await self._understand(side, data)
            except (Flood, NoFrames, h2.exceptions.ProtocolError) as error:
                await self._broken(side, error)
                return
            await self._client.flush()
            await self._server.flush()

    async def _ended(self, side: Side) -> None:
        """``side`` says nothing more: what the server did not answer is not answered."""
        self._is_ending = True
        if side is self._server:
            for pair in [pair for pair in self._of_server.values() if not pair.has_answered]:
                self._client.reset(pair.client, h2.errors.ErrorCodes.INTERNAL_ERROR)
                self._drop(pair)
            await self._client.flush()

    async def _broken(self, side: Side, error: Exception) -> None:
        """``side`` does not speak HTTP/2 as it should."""
        self._is_broken = True
        code = h2.errors.ErrorCodes.PROTOCOL_ERROR
        if isinstance(error, Flood):
            self._connection.opening.ledger.note(self._name, self._port, "denied", f"HTTP/2: {error}")
            code = h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
        with contextlib.suppress(h2.exceptions.ProtocolError):
            side.h2.close_connection(code)
        await self._client.flush()

    async def _understand(self, side: Side, data: bytes) -> None:
        turns = self._connection.opening.turns
        taken = await turns.take(side.frames.take, data) if side.says_little else side.frames.take(data)
        is_small = side.says_little = side.is_little(taken.count, taken.carried)
        events = await turns.take(side.h2.receive_data, taken.data) if is_small else side.h2.receive_data(taken.data)
        begun = time.thread_time()
        for event in events:
            await self._happened(side, event)
        if is_small:
            turns.worked(time.thread_time() - begun)
        if taken.goes_away is not None:
            self._goes_away(side, taken.goes_away)

    async def _happened(self, side: Side, event: h2.events.Event) -> None:
        other = self._server if side is self._client else self._client
        if isinstance(event, h2.events.RequestReceived):
            await self._requested(event)
        elif isinstance(event, h2.events.DataReceived):
            self._data(side, other, event)
        elif isinstance(event, h2.events.WindowUpdated):
            side.send(event.stream_id or None)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            side.send(None)
        elif isinstance(event, h2.events.ResponseReceived | h2.events.InformationalResponseReceived):
            self._answered(event)
        elif isinstance(event, h2.events.TrailersReceived):
            self._trailers(side, other, event)
        elif isinstance(event, h2.events.StreamReset):
            self._reset(side, event.stream_id or 0, int(event.error_code or 0))

    # -- requests

    async def _requested(self, event: h2.events.RequestReceived) -> None:
        stream = event.stream_id or 0
        self._last = max(self._last, stream)
        is_whole = event.stream_ended is not None
        if self._is_ending or self._server.is_full:
            self._client.reset(stream, _REFUSED_STREAM)
            return
        name, port, connection = self._name, self._port, self._connection
        try:
            head = head_of(event.headers or [], name, port)
            await connection.permit(name, port)
            if not connection.terms.requests.allows(name, port, head.method, head.path):
                raise Refused(name, port, "no rule allows this request there")
            fields = rewritten(connection, name, port, head.method, head.path, head.fields, is_tls=True)
        except (BadHead, Refused) as error:
            said = f"its HTTP request is not accepted: {error}"
            refused = error if isinstance(error, Refused) else Refused(name, port, said)
            connection.note_refused(refused)
            if not is_whole and _has_short_body(event.headers or []):
                self._refused[stream] = refused
            else:
                self._refuse(stream, refused, is_whole=is_whole)
            return
        authority = name if port == HTTPS else f"{name}:{port}"
        at_server = self._server.ask(head.written(authority, fields), is_whole=is_whole)
        watch, hide = watcher(connection, name, port), hiding(connection, name)
        pair = Pair(stream, at_server, watch, hide, has_asked=is_whole)
        self._of_client[stream] = self._of_server[at_server] = pair

    def _refuse(self, stream: int, refused: Refused, *, is_whole: bool) -> None:
        """Say it as an answer."""
        body = f"{refused}\n".encode()
        fields = [(b":status", b"403"), (b"content-type", b"text/plain; charset=utf-8")]
        self._client.answer(stream, [*fields, (b"content-length", b"%d" % len(body))])
        self._client.keep(stream, Kept(body, is_last=True, then_reset=not is_whole))

    def _refuse_whole(self, side: Side, stream: int) -> None:
        """A request is whole now; if it is one of those that are refused, say so."""
        if side is self._client and stream in self._refused:
            self._refuse(stream, self._refused.pop(stream), is_whole=True)

    # -- what follows

    def _data(self, side: Side, other: Side, event: h2.events.DataReceived) -> None:
        stream = event.stream_id or 0
        pair = self._pair(side, stream)
        data, all_of_it = event.data or b"", event.flow_controlled_length or 0
        other.frames.carried(len(data))
        if pair is None:  # it was refused, or reset
            side.took(stream, all_of_it)
            if event.stream_ended is not None:
                self._refuse_whole(side, stream)
            return
        if side is self._client and pair.watch is not None:
            pair.watch(data)
        side.took(stream, all_of_it - len(data))
        is_last = event.stream_ended is not None
        if side is self._server and pair.hide is not None:
            data = pair.hide.feed(data) + (pair.hide.finish() if is_last else b"")
        if data or is_last:
            other.keep(pair.other(is_client=side is self._client), Kept(data, is_last=is_last, of=(side, stream)))
        if is_last:
            self._half(side, pair)

    def _answered(self, event: h2.events.ResponseReceived | h2.events.InformationalResponseReceived) -> None:
        stream = event.stream_id or 0
        pair = self._of_server.get(stream)
        if pair is None:
            return
        is_last = isinstance(event, h2.events.ResponseReceived) and event.stream_ended is not None
        fields = answer(self._connection, self._name, list(event.headers or []))
        self._client.answer(pair.client, fields, is_last=is_last)
        if is_last:
            self._half(self._server, pair)

    def _trailers(self, side: Side, other: Side, event: h2.events.TrailersReceived) -> None:
        stream = event.stream_id or 0
        pair = self._pair(side, stream)
        if pair is None:
            self._refuse_whole(side, stream)
        else:
            trailers = list(event.headers or [])
            if side is self._server:
                trailers = answer(self._connection, self._name, trailers)
                rest = b"" if pair.hide is None else pair.hide.finish()
                if rest:
                    other.keep(pair.client, Kept(rest, of=(side, stream)))
            other.keep(pair.other(is_client=side is self._client), Kept(b"", is_last=True, trailers=trailers))
            self._half(side, pair)

    def _reset(self, side: Side, stream: int, code: int) -> None:
        pair = self._pair(side, stream)
        side.forget(stream)
        if side is self._client:
            self._refused.pop(stream, None)
        if pair is not None:
            other = self._server if side is self._client else self._client
            other.reset(pair.other(is_client=side is self._client), code)
            self._drop(pair)

    def _goes_away(self, side: Side, last: int) -> None:
        self._is_ending = True
        if side is self._client:
            return
        for pair in [pair for pair in self._of_server.values() if pair.server > last]:
            self._client.reset(pair.client, _REFUSED_STREAM)
            self._drop(pair)
        self._client.more = goaway(self._last)

    # -- pairs of streams

    def _pair(self, side: Side, stream: int) -> Pair | None:
        return (self._of_client if side is self._client else self._of_server).get(stream)

    def _half(self, side: Side, pair: Pair) -> None:
        """``side`` has said all that it says."""
        if side is self._client:
            pair.has_asked = True
        else:
            pair.has_answered = True
        if pair.has_answered:
            self._client.frames.ended_well()
            self._server.frames.ended_well()
            if not pair.has_asked:
                return  # the server may say that it does not want the rest
            self._drop(pair)

    def _drop(self, pair: Pair) -> None:
        self._of_client.pop(pair.client, None)
        self._of_server.pop(pair.server, None)


def _has_short_body(head: Headers) -> bool:
    """Whether a request says how long its body is, and that it is short."""
    said = [value for name, value in head if name == b"content-length"]
    return len(said) == 1 and said[0].isdigit() and len(said[0]) < 9 and int(said[0]) <= _SHORT
