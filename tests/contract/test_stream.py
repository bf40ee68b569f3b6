"""Events while a program runs: which, in which order, and that they add up to the execution."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.contract import programs, witness

from casemate import Display, Done, ErrorEvent, Event, Execution, Limits, Output, sync


def events_of(sandbox: sync.Sandbox, code: str, **options: Any) -> list[Event]:
    return list(sandbox.stream(code, **options))


def execution_of(events: list[Event]) -> Execution:
    assert isinstance(events[-1], Done)
    assert not any(isinstance(event, Done) for event in events[:-1])
    return events[-1].execution


def text_of(events: list[Event], stream: str) -> str:
    return "".join(event.text for event in events if isinstance(event, Output) and event.stream == stream)


def test_a_stream_ends_with_done_and_its_text_is_the_executions(sandbox: sync.Sandbox, language: str) -> None:
    events = events_of(sandbox, programs.BOTH_STREAMS[language], language=language)
    execution = execution_of(events)
    assert execution.ok
    assert (text_of(events, "stdout"), text_of(events, "stderr")) == (execution.stdout, execution.stderr) == (
        "out\n", "err\n")  # fmt: skip


def test_output_is_given_while_the_program_runs(sandbox: sync.Sandbox, language: str) -> None:
    with witness.leaving(sandbox.stream(programs.STAY[language], language=language, timeout=60)) as stream:
        first = next(stream)
        assert isinstance(first, Output)
        assert first.text == "ready\n"


def test_an_uncaught_error_is_an_event(sandbox: sync.Sandbox) -> None:
    events = events_of(sandbox, programs.FAIL["python"])
    execution = execution_of(events)
    errors = [event.error for event in events if isinstance(event, ErrorEvent)]
    assert errors == [execution.error]
    assert errors[0] is not None
    assert errors[0].name == "KeyError"


def test_what_is_displayed_is_an_event_between_the_texts(sandbox: sync.Sandbox) -> None:
    code = """
import fcntl, termios, time
def until_read(fd):
    while fcntl.ioctl(fd, termios.FIONREAD, bytes(4)) != bytes(4): time.sleep(0.001)
for n in range(5):
    print("text", n); until_read(1); display(n); until_read(3)
"""
    events = events_of(sandbox, code)
    execution = execution_of(events)
    seen = [event.text.strip() if isinstance(event, Output) else event.result.text
            for event in events if isinstance(event, Output | Display)]  # fmt: skip
    assert seen == list(itertools.chain(*[(f"text {n}", str(n)) for n in range(5)]))
    assert execution.text == "\n".join(str(item) for item in seen)
    assert [result.text for result in execution.results] == [str(n) for n in range(5)]


def test_characters_cut_by_a_read_arrive_whole(sandbox: sync.Sandbox) -> None:
    code = "import os, time\nfor byte in 'ä漢🦊'.encode(): os.write(1, bytes([byte])); time.sleep(0.01)"
    events = events_of(sandbox, code)
    assert text_of(events, "stdout") == execution_of(events).stdout == "ä漢🦊"
    assert "\ufffd" not in "".join(event.text for event in events if isinstance(event, Output))


def test_a_character_that_is_never_finished_is_the_same_in_both(sandbox: sync.Sandbox) -> None:
    events = events_of(sandbox, r"import os; os.write(1, b'abc\xe2\x82')")
    assert text_of(events, "stdout") == execution_of(events).stdout


def test_a_slow_reader_loses_nothing(sandbox: sync.Sandbox) -> None:
    code = programs.NUMBERED["python"].format(lines=60_000)  # 6 MB: more than waits in pipes and queue
    events = []
    data = []
    for event in sandbox.stream(code, limits=Limits(output=10_000)):
        events.append(event)
        if isinstance(event, Output):
            data.append(event.data)
    assert b"".join(data) == programs.numbered(60_000)
    assert execution_of(events).truncated


def test_a_reader_that_does_not_read_holds_the_program_up_but_not_its_deadline(sandbox: sync.Sandbox) -> None:
    stream = sandbox.stream("import os\nwhile True: os.write(1, b'x' * 65536)", timeout=2.0,
                            limits=Limits(full_output="1GiB"))  # fmt: skip
    first = next(stream)
    with witness.watching(witness.in_cells()) as watched:
        assert sandbox.run("print(1)").ok
        assert watched.wait()  # meanwhile nobody reads
    events = [first, *stream]
    assert execution_of(events).status == "timeout"
    assert sum(len(event.data) for event in events if isinstance(event, Output)) < 8 << 20


@pytest.mark.full
def test_a_program_that_is_ended_by_a_limit_is_done_too(sandbox: sync.Sandbox, language: str) -> None:
    events = events_of(sandbox, programs.PARTIAL_THEN_SPIN[language], language=language, timeout=3)
    execution = execution_of(events)
    assert (execution.status, text_of(events, "stdout")) == ("timeout", "begun\n")


def test_a_stream_that_nobody_has_read_to_its_end_outlives_its_sandbox_in_silence(tmp_path: Path) -> None:
    with sync.Sandbox(audit=tmp_path / "audit.db") as sandbox:
        left = sandbox.stream("print('here', flush=True); import time; time.sleep(1000)")
        event = next(iter(left))
    assert isinstance(event, Output)
    left.close()  # type: ignore[attr-defined]
    assert list(left) == []
