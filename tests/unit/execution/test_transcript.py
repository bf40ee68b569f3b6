"""Head and tail of two streams: exact to the byte, whatever the pieces."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from casemate.execution.capture import Stream, Transcript

pieces = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=60)), max_size=40)
letters = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text("abcä漢\n", max_size=20)), max_size=40)


def whole(given_pieces: list[tuple[str, bytes]], stream: str) -> bytes:
    return b"".join(data for name, data in given_pieces if name == stream)


@given(pieces, st.integers(2, 200))
def test_a_stream_is_kept_whole_up_to_the_limit_and_by_head_and_tail_beyond(
    given_pieces: list[tuple[str, bytes]], limit: int
) -> None:
    transcript = Transcript(limit)
    cut = False
    for name, data in given_pieces:
        stream = cast("Stream", name)
        cut = cut or transcript.would_cut(stream, len(data))
        transcript.add(stream, data)
    for name in ("stdout", "stderr"):
        data = whole(given_pieces, name)
        text = transcript.text_of(cast("Stream", name))
        if len(data) <= limit:
            assert text == data.decode("utf-8", "replace")
        else:
            head, tail = data[: limit // 2], data[len(data) - (limit - limit // 2) :]
            mark = f"\n[... {len(data) - limit} bytes cut ...]\n"
            assert text == head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace")
    assert (
        transcript.is_truncated == cut == any(len(whole(given_pieces, name)) > limit for name in ("stdout", "stderr"))
    )


@given(pieces)
def test_as_long_as_nothing_is_cut_all_bytes_are_there_in_order(given_pieces: list[tuple[str, bytes]]) -> None:
    transcript = Transcript(10_000)
    for name, data in given_pieces:
        transcript.add(cast("Stream", name), data)
    assert transcript.raw() == b"".join(data for _, data in given_pieces)


@given(letters)
def test_all_text_is_merged_in_the_order_in_which_it_came(given_pieces: list[tuple[str, str]]) -> None:
    transcript = Transcript(10_000)
    for name, text in given_pieces:
        transcript.add(cast("Stream", name), text.encode())
    assert transcript.merge([]) == "".join(text for _, text in given_pieces).strip()


def test_results_stand_on_lines_of_their_own_between_the_texts() -> None:
    transcript = Transcript(1000)
    transcript.add("stdout", b"one")
    transcript.add_result()
    transcript.add("stderr", b"two\n")
    transcript.add_result()
    transcript.add_result()
    assert transcript.merge(["first", "second", "third"]) == "one\nfirst\ntwo\nsecond\nthird"


def test_memory_is_bounded_whatever_is_written() -> None:
    transcript = Transcript(1000)
    for number in range(30_000):
        transcript.add("stdout" if number % 2 else "stderr", b"x" * 100)
    kept = transcript.text_of("stdout") + transcript.text_of("stderr")
    assert len(kept) < 2100
    assert len(transcript.merge([])) < 2200
