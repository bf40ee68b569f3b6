"""One JSON object per line, from an untrusted cell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from casemate.errors import InvalidArgument
from casemate.files.lines import Crowded, LineBudget, line_of, read_line, read_object, while_there


class Pieces:
    """A client whose bytes come in pieces, and then end."""

    def __init__(self, *pieces: bytes) -> None:
        self.ahead = bytearray()
        self._pieces = list(pieces)

    async def fill(self) -> bool:
        if not self._pieces:
            return False
        self.ahead += self._pieces.pop(0)
        return True

    def take(self, count: int | None = None) -> bytes:
        data = bytes(self.ahead[:count])
        del self.ahead[: len(data)]
        return data

    def watch(self, gone: Callable[[], object], most: int) -> Callable[[], None]:
        raise AssertionError(most)

    async def send(self, data: bytes) -> None:
        raise AssertionError(data)


def lines(client: Pieces, most: int = 100) -> list[bytes]:
    async def read() -> list[bytes]:
        found = []
        while (line := await read_line(client, most)) is not None:
            found.append(line)
        return found

    return asyncio.run(read())


@pytest.mark.parametrize(
    "pieces",
    [
        (b'{"a":1}\n{"b":2}\n',),
        (b'{"a":', b'1}\n{"b"', b":2}", b"\n"),
        tuple(b'{"a":1}\n{"b":2}\n'[n : n + 1] for n in range(16)),
    ],
)
def test_lines_are_the_same_however_they_come(pieces: tuple[bytes, ...]) -> None:
    assert lines(Pieces(*pieces)) == [b'{"a":1}', b'{"b":2}']


def test_a_line_of_the_most_bytes_is_read_and_one_of_more_is_not() -> None:
    assert lines(Pieces(b"x" * 100 + b"\n")) == [b"x" * 100]
    with pytest.raises(InvalidArgument, match="longer than 100 bytes"):
        lines(Pieces(b"x" * 101 + b"\n"))


def test_a_line_without_an_end_is_no_more_than_its_bound() -> None:
    client = Pieces(*[b"x" * 10] * 1000)
    with pytest.raises(InvalidArgument, match="longer than 100 bytes"):
        lines(client)
    assert len(client.ahead) <= 110


def test_a_line_that_is_cut_off_is_an_error_and_no_line() -> None:
    with pytest.raises(InvalidArgument, match="cut off"):
        lines(Pieces(b'{"a":1}\n{"b"'))


def test_a_line_in_endless_small_pieces_is_given_up() -> None:
    with pytest.raises(InvalidArgument, match="too many pieces"):
        lines(Pieces(*[b"x"] * 5000), 1 << 20)


@pytest.mark.parametrize("line", [b"[]", b'"text"', b"1", b"null", b"", b"{", b'{"a":1,"a":2}', b'{"a":NaN}', b"\xff"])
def test_what_is_no_object_or_none_that_readers_agree_on_is_refused(line: bytes) -> None:
    with pytest.raises(InvalidArgument, match="request"):
        read_object(line)


def test_a_value_is_one_line_of_ascii() -> None:
    assert line_of({"text": "ä\n\u2028\ud800"}) == b'{"text":"\\u00e4\\n\\u2028\\ud800"}\n'


async def test_lines_of_several_connections_share_their_room_until_each_reads_its_next() -> None:
    budget = LineBudget(100)

    with budget.share() as first, budget.share() as second:
        answered = Pieces(b"x" * 59 + b"\n", b"y\n")
        assert await read_line(answered, share=first) == b"x" * 59
        with pytest.raises(Crowded):
            await read_line(Pieces(b"x" * 30, b"x" * 30 + b"\n"), share=second)
        assert await read_line(answered, share=first) == b"y"
        assert await read_line(Pieces(b"x" * 30, b"x" * 30 + b"\n"), share=second) == b"x" * 60
    with budget.share() as third:
        assert await read_line(Pieces(b"x" * 99 + b"\n"), share=third) == b"x" * 99


class Silent(Pieces):
    """A client that says nothing more, and stays."""

    async def fill(self) -> bool:
        return await asyncio.Event().wait()


async def test_a_line_that_was_begun_has_to_become_whole_and_one_that_was_not_can_wait() -> None:
    dripping = Silent()
    dripping.ahead += b'{"a":'
    with pytest.raises(InvalidArgument, match=r"not complete after 0\.05 s"):
        await read_line(dripping, within=0.05)
    idle = asyncio.ensure_future(read_line(Silent(), within=0.05))
    done, _ = await asyncio.wait((idle,), timeout=0.5)
    assert not done
    idle.cancel()


class Watched(Pieces):
    """A client that goes when ``goes`` is set. ``watching``: how often it is watched."""

    def __init__(self) -> None:
        super().__init__()
        self.goes = asyncio.Event()
        self.watching = 0

    def watch(self, gone: Callable[[], object], most: int) -> Callable[[], None]:
        async def look() -> None:
            await self.goes.wait()
            gone()

        looking = asyncio.ensure_future(look())
        self.watching += 1

        def stop() -> None:
            looking.cancel()
            self.watching -= 1

        return stop


async def _never(ended: list[bool]) -> bool:
    try:
        return await asyncio.Event().wait()
    finally:
        ended.append(True)


async def test_what_comes_of_the_work_is_given_while_its_client_is_there() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    client = Watched()
    assert await while_there(client, work()) == "done"
    assert client.watching == 0


async def test_work_ends_when_its_client_goes_and_whoever_asked_for_it_goes_on() -> None:
    client, ended = Watched(), list[bool]()
    asyncio.get_running_loop().call_soon(client.goes.set)
    assert await while_there(client, _never(ended)) is None
    assert (ended, client.watching) == ([True], 0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_what_work_raises_is_told_also_when_its_client_goes_meanwhile() -> None:
    async def work(client: Watched) -> None:
        client.goes.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise InvalidArgument("request", "is no good")

    client = Watched()
    with pytest.raises(InvalidArgument, match="is no good"):
        await while_there(client, work(client))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("also_goes", [False, True])
async def test_a_cancellation_from_elsewhere_is_not_lost(also_goes: bool) -> None:
    client, ended = Watched(), list[bool]()
    serving = asyncio.ensure_future(while_there(client, _never(ended)))
    while not client.watching:
        await asyncio.sleep(0)
    if also_goes:
        client.goes.set()
        asyncio.get_running_loop().call_soon(serving.cancel)
    else:
        serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert (ended, client.watching) == ([True], 0)
