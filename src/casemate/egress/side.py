"""One side of a relay of HTTP/2: its connection as h2 has it, and what waits for its window."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass

import h2.config
import h2.connection
import h2.errors
import h2.exceptions
import h2.frame_buffer
import h2.settings
import hyperframe.frame

from casemate.egress.bodies import MOST_AT_ONCE, cut
from casemate.egress.frames import MOST_FRAME, PREFACE, Frames
from casemate.egress.stream import Stream

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
class Kept:
    """Part of a body, or its end. ``of``: the side and stream that it came from, whose window is opened as it goes;
    ``trailers`` end a stream; ``then_reset``: the rest of what the other side would say is not wanted."""

    data: bytes
    is_last: bool = False
    of: tuple[Side, int] | None = None
    trailers: Headers | None = None
    then_reset: bool = False

    def takes(self, more: Kept) -> bool:
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


class Side:
    """``stream``: where it is reached; ``is_client``: it is the cell."""

    def __init__(self, stream: Stream, *, is_client: bool) -> None:
        self.stream = stream
        self.frames = Frames(PREFACE, _MOST_HEAD) if is_client else Frames(b"", _MOST_ANSWER_HEAD)
        self.says_little = True  # in many frames, as it seems
        self._credit = 0  # bytes of bodies that it was sent, and has not yet answered
        self.more = b""  # frames that h2 does not know of
        self._kept: dict[int, deque[Kept]] = {}
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

    def keep(self, stream: int, part: Kept) -> None:
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

    def took(self, stream: int, count: int) -> None:
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
                part.of[0].took(part.of[1], len(part.data))

    def _send(self, stream: int, parts: deque[Kept]) -> None:
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
                part.of[0].took(part.of[1], len(data))
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
