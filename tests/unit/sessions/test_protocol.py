"""Text of two pipes and frames of a third come out in the order in which they were said."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from casemate.model.front_end import CommMessage, LineRequest
from casemate.sessions.protocol import CommandRequest, MessageOrder, OrderMark, StepMessage, parse


def _said(out: int, err: int, number: int = 0) -> StepMessage:
    return StepMessage(1, (out, err), OrderMark(), number)


def test_text_that_was_written_after_a_frame_comes_after_it() -> None:
    order = MessageOrder()
    assert list(order.add_frame(_said(3, 0))) == []
    assert list(order.add_text("stdout", b"abcdef")) == [("stdout", b"abc"), _said(3, 0), ("stdout", b"def")]
    assert not order.waits


def test_text_after_a_frame_is_held_until_the_other_pipes_text_has_come() -> None:
    order = MessageOrder()
    list(order.add_frame(_said(1, 1)))
    assert list(order.add_text("stdout", b"ab")) == [("stdout", b"a")]
    assert list(order.add_text("stderr", b"xy")) == [("stderr", b"x"), _said(1, 1), ("stdout", b"b"), ("stderr", b"y")]


def test_a_frame_that_waits_for_text_which_never_comes_is_told_when_the_pipes_are_empty() -> None:
    order = MessageOrder()
    list(order.add_frame(_said(1000, 0)))
    assert list(order.add_text("stdout", b"ab")) == [("stdout", b"ab")]
    assert list(order.settle()) == [_said(1000, 0)]


def test_a_frame_without_a_place_comes_after_all_text_that_is_there() -> None:
    order = MessageOrder()
    after = StepMessage(1, None, OrderMark(), 0)
    assert list(order.add_frame(after)) == []
    assert list(order.add_text("stdout", b"ab")) == [("stdout", b"ab")]
    assert list(order.settle()) == [after]


def test_any_mixture_comes_out_as_it_was_said_however_it_is_cut_up() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        said: list[tuple[str, bytes] | int] = []
        pipes = {"stdout": b"", "stderr": b""}
        frames = []
        for number in range(chance.randrange(1, 40)):
            if chance.random() < 0.5:
                stream, data = chance.choice(("stdout", "stderr")), bytes([65 + number % 26]) * chance.randrange(1, 9)
                # The interpreter marks each change of stream.
                frames.append(_said(len(pipes["stdout"]), len(pipes["stderr"]), -1))
                pipes[stream] += data
                said.append((stream, data))
            else:
                frames.append(_said(len(pipes["stdout"]), len(pipes["stderr"]), number))
                said.append(number)
        received = _heard(chance, pipes, frames)
        assert received == _joined(said), seed


def _heard(chance: random.Random, pipes: dict[str, bytes], frames: list[StepMessage]) -> list[object]:
    """The same in the order of a host that reads in pieces: what is said before a piece of text was read has come."""
    order = MessageOrder()
    received: list[object] = []
    left = dict(pipes)
    for frame in frames:
        received += order.add_frame(frame)
    while any(left.values()):
        stream = chance.choice([name for name, data in left.items() if data])
        size = chance.randrange(1, 12)
        received += order.add_text(stream, left[stream][:size])  # type: ignore[arg-type]
        left[stream] = left[stream][size:]
    received += order.settle()
    return _joined([item if isinstance(item, tuple) else item.size for item in received if not _is_mark(item)])  # type: ignore[attr-defined]


def _is_mark(item: object) -> bool:
    return isinstance(item, StepMessage) and item.size == -1


def _joined(items: Sequence[object]) -> list[object]:
    """Pieces of one stream that follow each other as one."""
    joined: list[object] = []
    for item in items:
        last = joined[-1] if joined else None
        if isinstance(item, tuple) and isinstance(last, tuple) and last[0] == item[0]:
            joined[-1] = (item[0], last[1] + item[1])
        else:
            joined.append(item)
    return joined


COMM: dict[str, Any] = {
    "type": "comm", "kind": "msg", "comm": "c", "target": "", "data": {"n": 1}, "metadata": {}, "buffers": ["AP8="],
}  # fmt: skip
LINE: dict[str, Any] = {"type": "input", "id": 3, "prompt": "name? ", "hidden": True}


def _content(message: dict[str, Any]) -> object:
    parsed = parse(json.dumps({"step": 1, "at": [0, 0], **message}).encode())
    return parsed.content if isinstance(parsed, StepMessage) else parsed


def test_what_a_front_end_is_to_get_is_read() -> None:
    assert _content(COMM) == CommMessage("msg", "c", "", {"n": 1}, {}, (b"\x00\xff",))
    assert _content(LINE) == LineRequest(3, "name? ", hidden=True)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "run"},
        {"kind": ["msg"]},
        {"comm": "c" * 201},
        {"comm": 1},
        {"target": None},
        {"data": [1]},
        {"metadata": "x"},
        {"buffers": "AP8="},
        {"buffers": ["A"]},
        {"buffers": ["A P8="]},
        {"buffers": [None]},
    ],
    ids=str,
)
def test_a_message_of_a_widget_that_does_not_fit_is_dropped(change: dict[str, Any]) -> None:
    assert _content({**COMM, **change}) is None


@pytest.mark.parametrize(
    "change", [{"id": -1}, {"id": True}, {"id": "3"}, {"prompt": None}, {"prompt": ["x"]}], ids=str
)
def test_a_question_that_does_not_fit_is_dropped(change: dict[str, Any]) -> None:
    assert _content({**LINE, **change}) is None


def test_a_prompt_is_cut_and_only_true_hides_what_is_typed() -> None:
    assert _content({**LINE, "prompt": "x" * 20_000, "hidden": 1}) == LineRequest(3, "x" * 10_000, hidden=False)


@pytest.mark.parametrize(("said", "shown"), [(3, 3), (None, None), (0, None), (-1, None), (1 << 30, None), ("3", None)])
def test_the_line_that_a_command_asks_from_is_a_small_number_or_absent(said: Any, shown: int | None) -> None:
    frame = {"type": "ask", "step": 1, "at": [0, 0], "id": 1, "kind": "shell", "arguments": {"command": "ls"}}
    message = parse(json.dumps({**frame, "line": said}).encode())
    assert isinstance(message, StepMessage)
    assert message.content == CommandRequest("shell", 1, {"command": "ls"}, shown)
