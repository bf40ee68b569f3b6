"""The event log: what was written is read back by number and by text, from memory or a file, by any reader."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.execution.event_log import EventLog, read_log
from casemate.model.approval import ApprovalRequest
from casemate.model.events import Display, ErrorEvent, Event, Output, ResultEvent
from casemate.model.execution import ProgramError, Result

REQUEST = ApprovalRequest("id", "tool", "read a", "default", None, "run", {"path": "a"}, "hash", "files", "read")
ALL: list[Event] = [
    Output("stdout", "text\n", data=b"text\n"),
    Output("stderr", "\ufffd", background=True, data=b"\xff"),
    Output("stdout", "é", data=b"\xa9"),  # a character that two reads cut in two
    Output("stdout", "", data=b""),
    Output("stdout", "rest"),
    Display(Result({"text/plain": "shown"}), "name", update=False),
    Display(Result({"text/plain": "anew", "image/png": "aGk="}), "name", update=True),
    ResultEvent(Result({"text/plain": "42"})),
    ErrorEvent(ProgramError("ValueError", "no", "Traceback\n")),
    REQUEST,
]


def answer(_request: str) -> None: ...


def read_all(log: EventLog) -> list[Event]:
    events: list[Event] = []
    while batch := log.read_events(len(events), answer):  # type: ignore[arg-type]
        events += batch
    return events


def write(log: EventLog, events: list[Event]) -> None:
    for event in events:
        log.append(event)


def test_each_event_is_read_as_it_was_written() -> None:
    log = EventLog(is_step=True)
    write(log, ALL)
    read = read_all(log)
    assert read == ALL
    assert [one.data for one in read if isinstance(one, Output)] == [b"text\n", b"\xff", b"\xa9", b"", b""]
    log._recent.clear()
    assert read_all(log) == ALL
    log.close()
    assert not log.is_readable


@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(0, 40))
def test_any_bytes_and_any_cursor(pieces: list[bytes], cursor: int) -> None:
    log = EventLog(is_step=False)
    events: list[Event] = [Output("stdout", data.decode("utf-8", "replace"), data=data) for data in pieces]
    write(log, events)
    log._recent.clear()
    assert log.read_events(cursor, answer) == events[cursor:]  # type: ignore[arg-type]
    assert [one["text"] for one in log.read(cursor)] == [one.text for one in events[cursor:] if isinstance(one, Output)]
    log.close()


@pytest.mark.parametrize("kind", ["unnamed", "at a path", "moved"])
def test_what_is_larger_than_memory_is_in_a_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    log = EventLog(path if kind == "at a path" else None, is_step=False)
    events: list[Event] = [Output("stdout", f"{n:05}\n", data=f"{n:05}\n".encode()) for n in range(5000)]
    write(log, events[:3000])
    if kind == "moved":
        log.keep_at(path)
    write(log, events[3000:])
    assert read_all(log) == events
    assert log.read_recent(4990) == log.read(4990)
    assert log.read_recent(0) == []
    assert sum(map(len, log._memory.split())) <= 1 << 16
    assert len(log._recent) <= 256
    assert log.read_text(6 * 2500 - 1, 7) == ("\n02500\n", 6 * 2501)
    log.close()
    assert log.is_readable is (kind != "unnamed")
    if kind != "unnamed":
        assert len(log.read(4000)) == 1000
        assert len(list(read_log(path))) == 5000


def test_a_log_that_was_cut_is_read_up_to_there(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", is_step=True)
    write(log, ALL)
    log.close()
    with (tmp_path / "log").open("ab") as file:
        file.write(b'{"event": "output", "te')
    again = EventLog.reopen(tmp_path / "log", is_step=True)
    assert (again.events, again.chars, again.size) == (log.events, log.chars, log.size)
    assert again.read(0) == log.read(0)
    assert again.read_text(0, 10_000) == log.read_text(0, 10_000)


def test_text_has_what_was_shown_on_lines_of_its_own() -> None:
    log = EventLog(is_step=True)
    write(log, ALL)
    text, cursor = log.read_text(0, 10_000)
    assert text == "text\n\ufffdérest\nshown\n42\nTraceback\n"
    assert cursor == log.chars == len(text)
    assert "".join(log.read_text(at, 1)[0] for at in range(log.chars)) == text
    assert log.read_text(log.chars + 5, 5) == ("", log.chars)
    log.close()


def test_control_characters_take_little_more_than_themselves() -> None:
    log = EventLog(is_step=False)
    log.append(Output("stdout", "\0" * 100_000, data=b"\0" * 100_000))
    assert log.size < 140_000
    assert log.read(0)[0]["text"] == "\0" * 100_000
    assert log.read_text(0, 10) == ("\0" * 10, 10)
    log.close()


def test_documents_are_json_without_what_only_the_log_reads() -> None:
    log = EventLog(is_step=True)
    write(log, ALL)
    for document in log.read(0):
        assert not [key for key in document if key.startswith("_")]
        json.dumps(document)
    assert log.read(9)[0]["request"]["state"] == "asked"
    log.close()


def test_several_readers_wait_for_the_same_event() -> None:
    log = EventLog(is_step=False)

    async def follow() -> list[Event]:
        events: list[Event] = []
        while not (log._is_finished and len(events) == log.events):
            await log.wait(len(events))
            events += log.read_events(len(events), answer)  # type: ignore[arg-type]
        return events

    async def write_and_follow() -> list[list[Event]]:
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(follow()) for _ in range(3)]
            for event in ALL:
                await asyncio.sleep(0)
                log.append(event)
            log.finish()
        return [reader.result() for reader in readers]

    assert asyncio.run(write_and_follow()) == [ALL] * 3
    log.close()
