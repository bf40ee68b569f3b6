"""Frames of bodies that are put together and cut say the same as before, and h2 judges them as it would have."""

from __future__ import annotations

from itertools import groupby
from typing import cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.egress.http2 import MOST_AT_ONCE, MOST_FRAME, FrameJoiner, cut
from casemate.egress.http2_relay import Http2Side, PendingPart
from casemate.egress.stream import TcpStream

HEAD = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a.test"), (b":path", b"/")]
OK = (b":status", b"200")
END, PADDED, HEADERS = 0x1, 0x8, 1
WINDOW = 1 << 18  # of a stream of answers
Parsed = tuple[int, int, int, bytes]  # kind, flags, stream, payload


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def parsed(said: bytes) -> list[Parsed]:
    frames = []
    while said:
        end = 9 + int.from_bytes(said[:3])
        frames.append((said[3], said[4], int.from_bytes(said[5:9]), said[9:end]))
        said = said[end:]
    return frames


def joined(frames: list[bytes]) -> list[Parsed]:
    joining = FrameJoiner()
    for one in frames:
        joining.add(memoryview(one))
    return parsed(joining.take_all())


FRAMES = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, 1, 8]), st.sampled_from([0, 0, END, PADDED, END | PADDED]),
              st.sampled_from([1, 1, 3, 0]), st.binary(max_size=20)),
    max_size=30,
)  # fmt: skip


@given(FRAMES)
def test_what_is_joined_says_the_same_in_the_same_order(frames: list[Parsed]) -> None:
    ends = 0

    def body(one: Parsed) -> tuple[object, ...]:
        """The same for frames that may be one."""
        nonlocal ends
        kind, flags, stream, _ = one
        ended = ends
        if kind or flags & (END | PADDED):
            ends += 1
        return (stream, ended) if not kind and not flags & PADDED else (kind, flags, stream, ends)

    wanted = []
    for _, run in groupby(frames, body):
        parts = list(run)
        wanted.append((*parts[-1][:3], b"".join(part[3] for part in parts)))
    assert joined([frame(*one) for one in frames]) == wanted


def test_no_more_is_joined_than_h2_takes() -> None:
    frames = [frame(0, 0, 1, bytes(MOST_FRAME))] * 5 + [frame(0, END, 1, b"x")]
    assert [len(payload) for _, _, _, payload in joined(frames)] == [MOST_AT_ONCE, MOST_FRAME + 1]


@given(st.binary(max_size=300), st.integers(1, 100), st.booleans())
def test_what_is_cut_is_the_same_body_and_ends_once(data: bytes, most: int, is_last: bool) -> None:
    frames = parsed(b"".join(cut(5, data, most, is_last=is_last)))
    assert b"".join(payload for _, _, _, payload in frames) == data
    assert all(len(payload) <= most for _, _, _, payload in frames)
    assert all(payload for _, _, _, payload in frames) or len(frames) == 1
    flags = [flags for _, flags, _, _ in frames]
    assert flags == [0] * (len(flags) - 1) + [END if is_last else 0]
    assert {(kind, stream) for kind, _, stream, _ in frames} == {(0, 5)}


# -- the side of a server that lies


def asked(*head: tuple[bytes, bytes]) -> tuple[Http2Side, bytes]:
    """A side that has asked on streams 1 and 3, and an answer's head on 1."""
    side = Http2Side(cast(TcpStream, None), is_client=False)
    side.h2.initiate_connection()
    side.h2.increment_flow_control_window(2 * WINDOW - 65_535)
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    peer.initiate_connection()
    side.ask(HEAD, is_whole=True)
    side.ask(HEAD, is_whole=True)
    peer.receive_data(side.to_send())
    peer.send_headers(1, [OK, *head])
    return side, peer.data_to_send()


def received(side: Http2Side, said: bytes) -> list[h2.events.Event]:
    return side.h2.receive_data(side.frames.take(said).data)


LENGTH = (b"content-length", b"6")
BODY = frame(0, 0, 1, b"abc")
LIES = {
    "more than was announced": ([LENGTH], [BODY, BODY, BODY]),
    "less than was announced": ([LENGTH], [BODY, frame(0, END, 1, b"de")]),
    "less, told by an empty frame": ([LENGTH], [BODY, frame(0, END, 1)]),
    "more than a stream's window": ([], [frame(0, 0, 1, bytes(1 << 15))] * 9),
    "more than a stream's window, by padding": ([], [frame(0, PADDED, 1, b"\xff" + bytes(1 << 15))] * 8),
    "on a stream that nobody began": ([], [frame(0, 0, 5, b"abc"), frame(0, 0, 5, b"abc")]),
    "on no stream": ([], [frame(0, 0, 0, b"abc"), frame(0, 0, 0, b"abc")]),
    "before the head": ([], [frame(0, 0, 3, b"abc"), frame(0, 0, 3, b"abc")]),
    "padding that is too long": ([], [BODY, frame(0, PADDED, 1, b"\x09abc")]),
    "inside a head": ([], [frame(1, 0, 3, b"\x88"), BODY, BODY]),
}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
@pytest.mark.parametrize("lie", LIES)
def test_a_body_that_is_none_is_refused_as_if_its_frames_came_one_by_one(lie: str, at_once: bool) -> None:
    head, frames = LIES[lie]
    side, begin = asked(*head)
    received(side, begin)
    with pytest.raises(h2.exceptions.ProtocolError):
        for one in [b"".join(frames)] if at_once else frames:
            received(side, one)


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
def test_a_body_that_goes_on_after_its_end_is_not_heard(at_once: bool) -> None:
    side, begin = asked()
    received(side, begin)
    side.to_send()
    frames = [BODY, frame(0, END, 1, b"abc"), BODY, BODY]
    events = [event for one in ([b"".join(frames)] if at_once else frames) for event in received(side, one)]
    bodies = [event.data or b"" for event in events if isinstance(event, h2.events.DataReceived)]
    assert b"".join(bodies) == b"abcabc"
    assert {(kind, stream) for kind, _, stream, _ in parsed(side.to_send())} == {(3, 1)}


def test_a_body_that_fills_its_window_and_length_is_taken_with_its_padding() -> None:
    side, begin = asked((b"content-length", b"%d" % (WINDOW - 10)))
    whole, rest = divmod(WINDOW - 10 - 6, MOST_FRAME)
    sizes = [MOST_FRAME] * whole + [rest]
    frames = [frame(0, PADDED, 1, b"\x03abcdef" + bytes(3)), *(frame(0, 0, 1, bytes(size)) for size in sizes)]
    frames[-1] = frame(0, END, 1, bytes(rest))
    events = received(side, begin + b"".join(frames))
    bodies = [event for event in events if isinstance(event, h2.events.DataReceived)]
    assert sum(len(event.data or b"") for event in bodies) == WINDOW - 10
    assert sum(event.flow_controlled_length or 0 for event in bodies) == WINDOW - 6
    assert len(bodies) == 2
    assert any(isinstance(event, h2.events.StreamEnded) for event in events)
    assert side.h2.inbound_flow_control_window == WINDOW + 6


def test_bodies_of_two_streams_stay_apart_and_trailers_come_after() -> None:
    side, begin = asked()
    trailers = frame(HEADERS, END | 0x4, 1, b"\x00\x01x\x01y")
    said = [BODY, BODY, frame(1, 4, 3, b"\x88"), frame(0, 0, 3, b"xyz"), BODY, trailers, frame(0, END, 3, b"!")]
    events = received(side, begin + b"".join(said))
    bodies = [(one.stream_id, one.data) for one in events if isinstance(one, h2.events.DataReceived)]
    assert bodies == [(1, b"abcabc"), (3, b"xyz"), (1, b"abc"), (3, b"!")]
    kinds = [type(one) for one in events]
    assert kinds.index(h2.events.TrailersReceived) == len(kinds) - 4


def test_what_is_sent_is_cut_as_the_other_side_takes_it_and_stays_within_its_windows() -> None:
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    sending = Http2Side(cast(TcpStream, None), is_client=False)
    sending.h2.initiate_connection()
    peer.initiate_connection()
    stream = sending.ask(HEAD, is_whole=False)
    peer.receive_data(sending.to_send())
    sending.h2.receive_data(peer.data_to_send())
    sending.keep(stream, PendingPart(bytes(100_000), is_last=True))
    said = sending.to_send()
    bodies = [payload for kind, _, _, payload in parsed(said) if kind == 0]
    assert [len(body) for body in bodies] == [16_384] * 3 + [65_535 - 3 * 16_384]
    assert sending.keeps_something
    peer.receive_data(said)
    peer.increment_flow_control_window(100_000)
    peer.increment_flow_control_window(100_000, stream)
    sending.h2.receive_data(peer.data_to_send())
    sending.send(None)
    events = peer.receive_data(sending.to_send())
    assert any(isinstance(event, h2.events.StreamEnded) for event in events)
    assert not sending.keeps_something


def test_a_frame_that_was_let_go_before_the_limit_grew_has_the_old_one() -> None:
    side, _ = asked()
    stream = side.ask(HEAD, is_whole=False)
    side.h2.receive_data(frame(4, 0, 0))
    side.to_send()
    side.keep(stream, PendingPart(bytes(20_000)))
    side.h2.receive_data(frame(4, 0, 0, b"\0\5\0\0\x80\0"))  # frames of 32 KiB
    side.keep(stream, PendingPart(bytes(20_000)))
    frames = parsed(side.to_send())
    sizes = [(kind, len(payload)) for kind, _, _, payload in frames]
    assert sizes == [(0, 16_384), (0, 20_000 - 16_384), (4, 0), (0, 20_000)]


def test_small_frames_are_none_too_many_for_what_was_sent_and_are_for_nothing() -> None:
    side, _ = asked()
    stream = side.ask(HEAD, is_whole=False)
    side.h2.receive_data(frame(4, 0, 0))
    assert side.is_little(2, 0)
    side.keep(stream, PendingPart(bytes(4096)))
    assert not side.is_little(3, 0)
    assert not side.is_little(1, 0)
    assert side.is_little(1, 0)
    assert not side.is_little(1, 1024)
