"""HTTP/2 (RFC 9113) inside TLS that ends at the egress proxy: each request is checked and written anew.

Both sides speak HTTP/2; h2 keeps the state of both connections. What one side has sent and the other does not take yet
is kept within the window that was granted for it: the window opens again only as the other side takes what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.frame_buffer
import h2.settings
import hyperframe.frame

from casemate.egress.accounting import EgressRefused
from casemate.egress.connection import EgressConnection
from casemate.egress.http1_relay import answer, body_redaction, body_watcher, rewrite_fields
from casemate.egress.http2 import (
    MOST_AT_ONCE,
    MOST_FRAME,
    PREFACE,
    BadRequestHead,
    FrameFlood,
    Frames,
    NotHttp2,
    StreamPair,
    cut,
    goaway,
    head_of,
)
from casemate.egress.stream import TcpStream, TlsStream
from casemate.policy.hosts import HTTPS

_STREAMS = 64  # at once
# Bytes that are kept of one stream, at most; of all streams of a connection there are twice as many.
_OF_REQUEST, _OF_ANSWER = 1 << 17, 1 << 18
_FIRST_WINDOW = (1 << 16) - 1  # that a connection begins with (RFC 9113, section 6.9.2)
_MOST_HEAD = 1 << 15  # bytes of a request's fields, as section 6.5.2 counts them
_MOST_ANSWER_HEAD = 1 << 16
_LEAST_FRAME = 1 << 10  # bytes of bodies for a frame on average, either way: reading what has less is counted as work
_MOST_CREDIT = 1 << 18  # bytes of bodies that were sent, for which it may answer in small frames
_JOINED = 1 << 12  # bytes up to which parts of a body are kept as one
Headers = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class PendingPart:
    """Part of a body, or its end. ``of``: the side and stream that it came from, whose window is opened as it goes;
    ``trailers`` end a stream; ``then_reset``: the rest of what the other side would say is not wanted."""

    data: bytes
    is_last: bool = False
    of: tuple[Http2Side, int] | None = None
    trailers: Headers | None = None
    then_reset: bool = False

    def takes(self, more: PendingPart) -> bool:
        """Whether ``more`` can be part of this one: each that is kept costs more than its few bytes."""
        is_plain = not self.is_last and self.trailers is None is more.trailers and not more.then_reset
        return is_plain and self.of == more.of and len(self.data) + len(more.data) <= _JOINED


class _Unlogged(h2.frame_buffer.FrameBuffer):
    """Frames that cost nothing to describe: h2 writes each that comes for its log, all of it and in hex, log or not.

    There is no documented way to have it leave that out: the names here may change, which makes it slower, not wrong.
    """

    def __next__(self) -> hyperframe.frame.Frame:
        frame = super().__next__()
        vars(frame)["_body_repr"] = str
        return frame


class Http2Side:
    """``stream``: where it is reached; ``is_client``: it is the cell."""

    def __init__(self, stream: TcpStream, *, is_client: bool) -> None:
        self.stream = stream
        self.frames = Frames(PREFACE, _MOST_HEAD) if is_client else Frames(b"", _MOST_ANSWER_HEAD)
        self.says_little = True  # in many frames, as it seems
        self._credit = 0  # bytes of bodies that it was sent, and has not yet answered
        self.more = b""  # frames that h2 does not know of
        self._kept: dict[int, deque[PendingPart]] = {}
        self._written: list[bytes | memoryview] = []  # what is to be sent before what h2 has
        config = h2.config.H2Configuration(client_side=not is_client, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.incoming_buffer = _Unlogged(server=is_client)
        self._window = _OF_REQUEST if is_client else _OF_ANSWER
        codes, most_head = h2.settings.SettingCodes, _MOST_HEAD if is_client else _MOST_ANSWER_HEAD
        self.h2.local_settings = h2.settings.Settings(
            client=not is_client,
            initial_values={
                codes.ENABLE_PUSH: 0,
                codes.MAX_CONCURRENT_STREAMS: _STREAMS,
                codes.INITIAL_WINDOW_SIZE: self._window,
                codes.MAX_FRAME_SIZE: MOST_FRAME,
                codes.MAX_HEADER_LIST_SIZE: most_head,
            },
        )
        self.h2.max_inbound_frame_size = MOST_AT_ONCE  # as frames are joined; what they had was looked at
        self.h2.decoder.max_header_list_size = most_head

    async def begin(self) -> None:
        """Say what may be sent. Raises ``OSError``."""
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(2 * self._window - _FIRST_WINDOW)
        await self.flush()

    async def flush(self) -> None:
        """Send what is to be sent. Raises ``OSError``."""
        data = self.to_send()
        if data:
            await self.stream.send(data)

    def to_send(self) -> bytes:
        """What is to be sent, which is then none of this one's business any more."""
        data = b"".join((*self._written, self.h2.data_to_send(), self.more))
        self._written, self.more = [], b""
        return data

    @property
    def is_full(self) -> bool:
        """Whether it takes no further request now."""
        most = min(_STREAMS, self.h2.remote_settings.max_concurrent_streams)
        return self.h2.open_outbound_streams >= most

    @property
    def keeps_something(self) -> bool:
        """Whether something waits for its windows."""
        return bool(self._kept)

    def is_little(self, count: int, carried: int) -> bool:
        """Whether so many frames, with so many bytes of bodies, say less than they cost. What it was sent may be
        answered: windows are opened by small frames."""
        lacks = max(0, count * _LEAST_FRAME - carried)
        is_little = lacks > self._credit
        self._credit -= min(lacks, self._credit)
        return is_little

    def ask(self, head: Headers, *, is_whole: bool) -> int:
        """Begin a stream with a request; its number."""
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, head, end_stream=is_whole)
        return stream

    def answer(self, stream: int, head: Headers, *, is_last: bool = False) -> None:
        """Begin to answer, or say something on the way to that."""
        with contextlib.suppress(h2.exceptions.StreamClosedError):
            self.h2.send_headers(stream, head, end_stream=is_last)

    def keep(self, stream: int, part: PendingPart) -> None:
        """Send ``part`` of a stream, as soon as its window allows."""
        parts = self._kept.setdefault(stream, deque())
        if parts and parts[-1].takes(part):
            parts[-1].data += part.data
            parts[-1].is_last = part.is_last
        else:
            parts.append(part)
        self.send(stream)

    def send(self, stream: int | None) -> None:
        """Send what its window allows of a stream, or of all."""
        for one in list(self._kept) if stream is None else [stream] if stream in self._kept else []:
            try:
                self._send(one, self._kept[one])
            except h2.exceptions.StreamClosedError:
                self.forget(one)

    def acknowledge(self, stream: int, count: int) -> None:
        """As much of what it sent is done with: its window opens again."""
        if count:
            with contextlib.suppress(h2.exceptions.StreamClosedError):
                self.h2.acknowledge_received_data(count, stream)

    def reset(self, stream: int, code: int) -> None:
        """End a stream early."""
        self.forget(stream)
        with contextlib.suppress(h2.exceptions.StreamClosedError):
            self.h2.reset_stream(stream, code)

    def forget(self, stream: int) -> None:
        """Send nothing more of a stream."""
        for part in self._kept.pop(stream, ()):
            if part.of is not None:
                part.of[0].acknowledge(part.of[1], len(part.data))

    def _send(self, stream: int, parts: deque[PendingPart]) -> None:
        while parts:
            part = parts[0]
            if part.trailers is not None:
                self.h2.send_headers(stream, part.trailers, end_stream=True)
                parts.popleft()
                continue
            room = min(self.h2.local_flow_control_window(stream), MOST_AT_ONCE)
            if part.data and room <= 0:
                return
            data, part.data = part.data[:room], part.data[room:]
            ends = part.is_last and not part.data
            self._write(stream, data, is_last=ends)
            if part.of is not None:
                part.of[0].acknowledge(part.of[1], len(data))
            if not part.data:
                parts.popleft()
            if ends and part.then_reset:
                self.h2.reset_stream(stream, h2.errors.ErrorCodes.NO_ERROR)
        del self._kept[stream]

    def _write(self, stream: int, data: bytes, *, is_last: bool) -> None:
        """Have h2 send ``data`` as one frame, and write those that it is instead. Raises
        ``h2.exceptions.ProtocolError``."""
        self._written.append(self.h2.data_to_send())
        most = self.h2.max_outbound_frame_size
        self.h2.max_outbound_frame_size = max(most, len(data))
        try:
            self.h2.send_data(stream, data, end_stream=is_last)
        finally:
            self.h2.max_outbound_frame_size = most
        self.h2.clear_outbound_data_buffer()
        self._credit = min(self._credit + len(data), _MOST_CREDIT)
        self._written.extend(cut(stream, data, most, is_last=is_last))


# Bytes of a body that are waited for, where it is said to be so short, before its request is refused: a client that is
# answered while it still sends may lose the answer, or the connection (curl 7.88 does).
_SHORT = 1 << 16
_REFUSED_STREAM = h2.errors.ErrorCodes.REFUSED_STREAM


async def relay_h2(connection: EgressConnection, name: str, port: int, server: TlsStream) -> None:
    """Carry requests to one host until either side ends. ``connection.client`` and ``server`` are there."""
    await _Relay(connection, name, port, server).run()


class _Relay:
    """One connection's two sides, and the streams that belong together."""

    def __init__(self, connection: EgressConnection, name: str, port: int, server: TlsStream) -> None:
        self._connection, self._name, self._port = connection, name, port
        self._client = Http2Side(connection.client, is_client=True)
        self._server = Http2Side(server, is_client=False)
        self._of_client: dict[int, StreamPair] = {}
        self._of_server: dict[int, StreamPair] = {}
        self._refused: dict[int, EgressRefused] = {}  # of the client, whose short bodies are still to come
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

    async def _read(self, side: Http2Side) -> None:
        """What one side says, until it ends, or nothing is left to do."""
        count = self._connection.count_out if side is self._client else self._connection.count_in
        while not (self._is_ending and not self._of_client and not self._client.keeps_something):
            data = side.stream.take()
            if not data:
                if await side.stream.fill():
                    continue
                await self._end_side(side)
                return
            count(len(data))
            try:
                await self._understand(side, data)
            except (FrameFlood, NotHttp2, h2.exceptions.ProtocolError) as error:
                await self._break_off(side, error)
                return
            await self._client.flush()
            await self._server.flush()

    async def _end_side(self, side: Http2Side) -> None:
        """``side`` says nothing more: what the server did not answer is not answered."""
        self._is_ending = True
        if side is self._server:
            for pair in [pair for pair in self._of_server.values() if not pair.has_answered]:
                self._client.reset(pair.client, h2.errors.ErrorCodes.INTERNAL_ERROR)
                self._drop(pair)
            await self._client.flush()

    async def _break_off(self, side: Http2Side, error: Exception) -> None:
        """``side`` does not speak HTTP/2 as it should."""
        self._is_broken = True
        code = h2.errors.ErrorCodes.PROTOCOL_ERROR
        if isinstance(error, FrameFlood):
            self._connection.cell.ledger.note(self._name, self._port, "denied", f"HTTP/2: {error}")
            code = h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
        with contextlib.suppress(h2.exceptions.ProtocolError):
            side.h2.close_connection(code)
        await self._client.flush()

    async def _understand(self, side: Http2Side, data: bytes) -> None:
        time_share = self._connection.cell.time_share
        taken = await time_share.run(side.frames.take, data) if side.says_little else side.frames.take(data)
        is_small = side.says_little = side.is_little(taken.count, taken.carried)
        events = (
            await time_share.run(side.h2.receive_data, taken.data) if is_small else side.h2.receive_data(taken.data)
        )
        begun = time.thread_time()
        for event in events:
            await self._handle(side, event)
        if is_small:
            time_share.charge(time.thread_time() - begun)
        if taken.goes_away is not None:
            self._goes_away(side, taken.goes_away)

    async def _handle(self, side: Http2Side, event: h2.events.Event) -> None:
        other = self._server if side is self._client else self._client
        if isinstance(event, h2.events.RequestReceived):
            await self._handle_request(event)
        elif isinstance(event, h2.events.DataReceived):
            self._data(side, other, event)
        elif isinstance(event, h2.events.WindowUpdated):
            side.send(event.stream_id or None)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            side.send(None)
        elif isinstance(event, h2.events.ResponseReceived | h2.events.InformationalResponseReceived):
            self._handle_answer(event)
        elif isinstance(event, h2.events.TrailersReceived):
            self._trailers(side, other, event)
        elif isinstance(event, h2.events.StreamReset):
            self._reset(side, event.stream_id or 0, int(event.error_code or 0))

    # -- requests

    async def _handle_request(self, event: h2.events.RequestReceived) -> None:
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
            if not connection.terms.requests.allows(name, port, head.method, head.path, head.fields):
                raise EgressRefused(name, port, "no rule allows this request there")
            fields = rewrite_fields(connection, name, port, head.method, head.path, head.fields, is_tls=True)
        except (BadRequestHead, EgressRefused) as error:
            said = f"its HTTP request is not accepted: {error}"
            refused = error if isinstance(error, EgressRefused) else EgressRefused(name, port, said)
            connection.note_refused(refused)
            if not is_whole and _has_short_body(event.headers or []):
                self._refused[stream] = refused
            else:
                self._refuse(stream, refused, is_whole=is_whole)
            return
        authority = name if port == HTTPS else f"{name}:{port}"
        at_server = self._server.ask(head.serialize(authority, fields), is_whole=is_whole)
        watch, hide = body_watcher(connection, name, port), body_redaction(connection, name)
        pair = StreamPair(stream, at_server, watch, hide, has_asked=is_whole)
        self._of_client[stream] = self._of_server[at_server] = pair

    def _refuse(self, stream: int, refused: EgressRefused, *, is_whole: bool) -> None:
        """Say it as an answer."""
        body = f"{refused}\n".encode()
        fields = [(b":status", b"403"), (b"content-type", b"text/plain; charset=utf-8")]
        self._client.answer(stream, [*fields, (b"content-length", b"%d" % len(body))])
        self._client.keep(stream, PendingPart(body, is_last=True, then_reset=not is_whole))

    def _refuse_whole(self, side: Http2Side, stream: int) -> None:
        """A request is whole now; if it is one of those that are refused, say so."""
        if side is self._client and stream in self._refused:
            self._refuse(stream, self._refused.pop(stream), is_whole=True)

    # -- what follows

    def _data(self, side: Http2Side, other: Http2Side, event: h2.events.DataReceived) -> None:
        stream = event.stream_id or 0
        pair = self._pair(side, stream)
        data, all_of_it = event.data or b"", event.flow_controlled_length or 0
        other.frames.count_carried(len(data))
        if pair is None:  # it was refused, or reset
            side.acknowledge(stream, all_of_it)
            if event.stream_ended is not None:
                self._refuse_whole(side, stream)
            return
        if side is self._client and pair.watch is not None:
            pair.watch(data)
        side.acknowledge(stream, all_of_it - len(data))
        is_last = event.stream_ended is not None
        if side is self._server and pair.hide is not None:
            data = pair.hide.feed(data) + (pair.hide.finish() if is_last else b"")
        if data or is_last:
            other.keep(
                pair.other(is_client=side is self._client), PendingPart(data, is_last=is_last, of=(side, stream))
            )
        if is_last:
            self._end_half(side, pair)

    def _handle_answer(self, event: h2.events.ResponseReceived | h2.events.InformationalResponseReceived) -> None:
        stream = event.stream_id or 0
        pair = self._of_server.get(stream)
        if pair is None:
            return
        is_last = isinstance(event, h2.events.ResponseReceived) and event.stream_ended is not None
        fields = answer(self._connection, self._name, list(event.headers or []))
        self._client.answer(pair.client, fields, is_last=is_last)
        if is_last:
            self._end_half(self._server, pair)

    def _trailers(self, side: Http2Side, other: Http2Side, event: h2.events.TrailersReceived) -> None:
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
                    other.keep(pair.client, PendingPart(rest, of=(side, stream)))
            other.keep(pair.other(is_client=side is self._client), PendingPart(b"", is_last=True, trailers=trailers))
            self._end_half(side, pair)

    def _reset(self, side: Http2Side, stream: int, code: int) -> None:
        pair = self._pair(side, stream)
        side.forget(stream)
        if side is self._client:
            self._refused.pop(stream, None)
        if pair is not None:
            other = self._server if side is self._client else self._client
            other.reset(pair.other(is_client=side is self._client), code)
            self._drop(pair)

    def _goes_away(self, side: Http2Side, last: int) -> None:
        self._is_ending = True
        if side is self._client:
            return
        for pair in [pair for pair in self._of_server.values() if pair.server > last]:
            self._client.reset(pair.client, _REFUSED_STREAM)
            self._drop(pair)
        self._client.more = goaway(self._last)

    # -- pairs of streams

    def _pair(self, side: Http2Side, stream: int) -> StreamPair | None:
        return (self._of_client if side is self._client else self._of_server).get(stream)

    def _end_half(self, side: Http2Side, pair: StreamPair) -> None:
        """``side`` has said all that it says."""
        if side is self._client:
            pair.has_asked = True
        else:
            pair.has_answered = True
        if pair.has_answered:
            self._client.frames.count_whole_stream()
            self._server.frames.count_whole_stream()
            if not pair.has_asked:
                return  # the server may say that it does not want the rest
            self._drop(pair)

    def _drop(self, pair: StreamPair) -> None:
        self._of_client.pop(pair.client, None)
        self._of_server.pop(pair.server, None)


def _has_short_body(head: Headers) -> bool:
    """Whether a request says how long its body is, and that it is short."""
    said = [value for name, value in head if name == b"content-length"]
    return len(said) == 1 and said[0].isdigit() and len(said[0]) < 9 and int(said[0]) <= _SHORT
