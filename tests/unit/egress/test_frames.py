"""Frames of HTTP/2 are told apart, however they come, and floods of them are noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.egress.http2 import MOST_FRAME, PREFACE, FrameFlood, Frames, NotHttp2, goaway


def frame(kind: int, payload: bytes = b"", stream: int = 1, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


FRAMES = st.lists(st.tuples(st.sampled_from([0, 1, 4, 6, 8, 100]), st.binary(max_size=40)), max_size=20)


@given(FRAMES, st.lists(st.integers(1, 30), max_size=60), st.booleans())
def test_pieces_make_no_difference(frames: list[tuple[int, bytes]], sizes: list[int], has_preface: bool) -> None:
    body = b"".join(payload for kind, payload in frames if kind == 0)
    whole = (PREFACE if has_preface else b"") + b"".join(frame(*one) for one in frames)
    reading = Frames(PREFACE if has_preface else b"")
    at, out, count, carried = 0, b"", 0, 0
    for size in [*sizes, len(whole)]:
        taken = reading.take(whole[at : at + size])
        at += size
        out += taken.data
        count += taken.count
        carried += taken.carried
    assert (count, carried) == (len(frames), len(body))
    assert joined(out) == joined(whole)


def joined(said: bytes) -> list[tuple[int, bytes]]:
    """The frames, as if those of a body that follow each other were one."""
    said = said.removeprefix(PREFACE)
    frames: list[tuple[int, bytes]] = []
    while said:
        end = 9 + int.from_bytes(said[:3])
        kind, payload, said = said[3], said[9:end], said[end:]
        if kind == 0 and frames and frames[-1][0] == 0:
            frames[-1] = 0, frames[-1][1] + payload
        else:
            frames.append((kind, payload))
    return frames


def test_a_frame_that_is_not_whole_is_kept_for_later() -> None:
    reading = Frames()
    assert reading.take(frame(0, b"abc")[:-1]).data == b""
    assert reading.take(b"c").data == frame(0, b"abc")


def test_the_end_of_a_connection_is_told_and_not_passed_on() -> None:
    taken = Frames().take(frame(1, b"a") + goaway(7) + frame(0, b"b"))
    assert (taken.data, taken.goes_away) == (frame(1, b"a") + frame(0, b"b"), 7)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nXX"])
def test_what_does_not_begin_as_http_2_is_refused(data: bytes) -> None:
    with pytest.raises(NotHttp2):
        Frames(PREFACE).take(data)


def test_a_frame_that_is_longer_than_was_announced_is_refused_by_its_header() -> None:
    with pytest.raises(NotHttp2):
        Frames().take((MOST_FRAME + 1).to_bytes(3) + bytes(6))


@pytest.mark.parametrize(
    ("kind", "payload", "count"), [(3, b"\0\0\0\x08", 201), (9, b"", 17), (4, b"", 2001), (0, b"", 2001)]
)
def test_a_flood_is_noticed_at_its_bound_and_not_before(kind: int, payload: bytes, count: int) -> None:
    reading = Frames()
    reading.take(frame(kind, payload) * (count - 1))
    with pytest.raises(FrameFlood):
        reading.take(frame(kind, payload))


@pytest.mark.parametrize(
    "frames",
    [
        frame(4, bytes(65 * 6)),
        frame(1, bytes(20_000)) + frame(9, bytes(20_000)),
        frame(1, bytes(20_000)) + frame(8, b"\0\0\0\1") + frame(9, bytes(20_000)),
    ],
)
def test_what_takes_long_to_read_is_refused_before_it_is_read(frames: bytes) -> None:
    with pytest.raises(FrameFlood):
        Frames(most_head=32_768).take(frames)


def test_each_head_and_all_usual_settings_are_taken() -> None:
    frames = (frame(1, bytes(20_000)) + frame(9, bytes(12_000))) * 3 + frame(4, bytes(10 * 6))
    assert Frames(most_head=32_768).take(frames).data == frames


def test_only_bytes_of_bodies_are_carried() -> None:
    assert Frames().take(frame(0, b"abc") + frame(1, bytes(500)) + frame(4)).carried == 3


def test_what_was_carried_allows_for_frames_that_carry_nothing() -> None:
    reading = Frames()
    for _ in range(5000):
        reading.count_carried(100)
        reading.take(frame(8, b"\0\0\0\1"))


def test_streams_that_ended_well_allow_for_some_that_did_not() -> None:
    reading = Frames()
    for _ in range(1000):
        reading.count_whole_stream()
        reading.take(frame(3, b"\0\0\0\x08"))
