"""Pipes and files over a stream: what goes in at one end comes out at the other, and what makes no sense ends it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest

from casemate.supervisor import carriage
from casemate.supervisor.carriage import CREDIT, DATA, END, MESSAGE, CarriageReader, Channels, frame
from casemate.supervisor.readiness import Poller


class Loop(Poller):
    """A poller that is turned by hand."""

    def serve(self, fd: int) -> None:
        if fd in self._handlers:
            self._handlers[fd]()

    def turn(self) -> bool:
        ready = self._poll.wait(0)
        for fd, _ in ready:
            self.serve(fd)
        return bool(ready)


def new_file() -> int:
    return os.memfd_create("test")


class Two:
    """Both ends of a stream."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.messages: list[bytes] = []
        readers = CarriageReader(), CarriageReader()

        def deliver(to: int) -> Callable[[bytes], None]:
            def receive(data: bytes) -> None:
                for each in readers[to].feed(data):
                    self.take(to, *each)

            return receive

        self.here = Channels(deliver(1), self.loop, 1, new_file, 1000)
        self.there = Channels(deliver(0), self.loop, 2, new_file, 1000)

    def take(self, to: int, kind: bytes, number: int, payload: bytes) -> None:
        if kind == MESSAGE:
            self.messages.append(payload)
        else:
            (self.here, self.there)[to].take(kind, number, payload)

    def turn(self) -> None:
        while self.loop.turn():
            pass


def test_frames_come_out_as_they_went_in_however_they_are_cut() -> None:
    frames = [(DATA, 7, b"x" * 5000), (END, 7, b""), (MESSAGE, 0, b"m" * 100_000)]
    data, cut, found = b"".join(frame(*each) for each in frames), random.Random(1), []
    reader = CarriageReader()
    while data:
        size = cut.randint(1, 9000)
        found += list(reader.feed(data[:size]))
        data = data[size:]
    assert found == frames


@pytest.mark.parametrize("kind", [DATA, MESSAGE])
def test_a_frame_that_is_too_long_is_refused_before_it_has_come(kind: bytes) -> None:
    with pytest.raises(carriage.CarriageError):
        list(CarriageReader().feed(carriage.HEADER.pack(kind, 1, 1 << 24)))


def test_what_is_written_to_a_pipe_here_is_read_from_one_there_and_so_is_its_end() -> None:
    two = Two()
    (source, write), (read, target) = os.pipe(), os.pipe()
    two.there.add(3, target, writes=True)
    two.here.add(3, source, reads=True)
    sent = random.Random(2).randbytes(1 << 20)
    got, at = b"", 0
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    while len(got) < len(sent):
        if at < len(sent):
            try:
                at += os.write(write, sent[at : at + 65536])
            except BlockingIOError:
                pass
        two.turn()
        try:
            got += os.read(read, 65536)
        except BlockingIOError:
            pass
    assert got == sent
    os.close(write)
    two.turn()
    assert os.read(read, 1) == b""


def test_a_reader_that_stands_still_is_sent_no_more_than_its_window() -> None:
    two = Two()
    (source, write), (read, target) = os.pipe(), os.pipe()
    there = two.there.add(3, target, writes=True)
    two.here.add(3, source, reads=True)
    os.set_blocking(write, False)
    written = 0
    while True:
        try:
            written += os.write(write, bytes(65536))
        except BlockingIOError:
            break
        two.turn()
    assert len(there.unsent) <= carriage.WINDOW
    assert written <= carriage.WINDOW + 3 * 65536
    os.close(read)


def test_a_writer_hears_that_its_reader_is_gone() -> None:
    two = Two()
    (source, write), (read, target) = os.pipe(), os.pipe()
    two.there.add(3, target, writes=True)
    two.here.add(3, source, reads=True)
    os.close(read)
    os.write(write, b"x")
    two.turn()
    with pytest.raises(BrokenPipeError):
        os.write(write, b"x")


def test_text_is_sent_before_what_was_said_after_it() -> None:
    frames: list[bytes] = []
    loop = Loop()
    here = Channels(frames.append, loop, 1, new_file, 0)
    (text_end, text), (control_end, control) = os.pipe(), os.pipe()
    earlier = here.add(3, text_end, reads=True)
    here.add(5, control_end, reads=True, before=(earlier,))
    os.write(text, b"text")
    os.write(control, b"told")
    loop.serve(control_end)  # whichever is ready first
    assert frames == [frame(DATA, 3, b"text"), frame(DATA, 5, b"told")]


def test_a_sender_that_ignores_its_window_is_refused() -> None:
    here = Channels(lambda _: None, Loop(), 1, new_file, 0)
    read, write = os.pipe()
    here.add(3, write, writes=True)
    with pytest.raises(carriage.CarriageError):
        for _ in range(40):
            here.take(DATA, 3, bytes(65536))
    os.close(read)


@pytest.mark.parametrize(
    "frames",
    [
        [(carriage.CONTENT, 9, b""), (carriage.CONTENT, 9, b"")],
        [(carriage.CONTENT, 9, b""), (DATA, 9, bytes(1001))],
        [(carriage.CONTENT, number, b"") for number in range(20)],
    ],
    ids=["twice", "too much", "too many"],
)
def test_contents_beyond_the_bounds_are_refused(frames: list[tuple[bytes, int, bytes]]) -> None:
    here = Channels(lambda _: None, Loop(), 1, new_file, 1000)
    with pytest.raises(carriage.CarriageError):
        for each in frames:
            here.take(*each)


def test_a_content_is_given_out_once_and_makes_room() -> None:
    here = Channels(lambda _: None, Loop(), 1, new_file, 1000)
    for number in (9, 11):
        here.take(carriage.CONTENT, number, b"")
        here.take(DATA, number, bytes(900))
        assert os.read(here.take_content(number), 2000) == bytes(900)
    with pytest.raises(carriage.CarriageError):
        here.take_content(11)


@pytest.mark.parametrize("seed", range(20))
def test_random_frames_raise_nothing_but_what_ends_the_stream(seed: int) -> None:
    chance, loop = random.Random(seed), Loop()
    here = Channels(lambda _: None, loop, 1, new_file, 1 << 20)
    _, write = os.pipe()
    here.add(1, write, writes=True)
    kinds = (DATA, END, CREDIT, carriage.DEAF, carriage.CONTENT, b"?")
    try:
        for _ in range(200):
            here.take(chance.choice(kinds), chance.randrange(4), chance.randbytes(chance.randrange(9)))
            loop.turn()
    except carriage.CarriageError:
        pass
    here.close_all()
