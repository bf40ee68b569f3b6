"""What a program wrote comes back: both streams, any bytes, any amount, and nothing beyond the limits."""

from __future__ import annotations

import hashlib

import pytest
from tests.contract import programs, witness

from casemate import Done, Event, Limits, Output, sync

MIB = 2**20


def test_each_stream_comes_back_as_it_was_written(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(programs.BOTH_STREAMS[language], language=language)
    assert (execution.stdout, execution.stderr) == ("out\n", "err\n")
    assert sorted(execution.text.splitlines()) == ["err", "out"]
    assert (execution.truncated, execution.full_output) == (False, None)


def test_text_of_any_script_comes_back(sandbox: sync.Sandbox, language: str) -> None:
    assert sandbox.run(programs.UNICODE[language], language=language).stdout == "häß 漢字 🦊\n"


def test_bytes_that_are_no_text_are_replaced_one_by_one(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(programs.BINARY[language], language=language)
    assert execution.stdout == bytes(range(256)).decode("utf-8", "replace")
    assert execution.stdout.count("\ufffd") == 128


def test_a_line_of_half_a_million_characters_comes_back_whole(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(programs.LONG_LINE[language], language=language)
    assert execution.stdout == "x" * 500_000 + "\n"
    assert not execution.truncated


def test_fifty_thousand_lines_come_back_whole(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(programs.MANY_LINES[language], language=language)
    assert execution.stdout == "".join(f"{n}\n" for n in range(50_000))


def test_two_streams_written_at_once_lose_nothing(sandbox: sync.Sandbox) -> None:
    code = """
import os, threading
def write(fd, mark):
    for n in range(20_000):
        os.write(fd, b"%c%05d\\n" % (mark, n))
threads = [threading.Thread(target=write, args=pair) for pair in ((1, ord("o")), (2, ord("e")))]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    execution = sandbox.run(code)
    assert execution.stdout == "".join(f"o{n:05}\n" for n in range(20_000))
    assert execution.stderr == "".join(f"e{n:05}\n" for n in range(20_000))
    assert len(execution.text) == len(execution.stdout + execution.stderr) - 1


def test_text_has_both_streams_in_the_order_in_which_they_came(sandbox: sync.Sandbox) -> None:
    code = """
import fcntl, os, termios, time
def say(words, fd):
    os.write(fd, words)
    while fcntl.ioctl(fd, termios.FIONREAD, bytes(4)) != bytes(4): time.sleep(0.001)  # until the host has read it
for n in range(20):
    say(b"out %d\\n" % n, 1)
    say(b"err %d\\n" % n, 2)
"""
    execution = sandbox.run(code)
    assert execution.text == "\n".join(f"out {n}\nerr {n}" for n in range(20))


def test_output_of_a_child_that_outlives_the_program_is_kept(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("(echo from the child; exec sleep 1000) & wait -n 2>/dev/null & read line; echo end",
                            language="shell", stdin="\n", timeout=30)  # fmt: skip
    assert execution.status == "ok"
    assert "end\n" in execution.stdout


@pytest.mark.parametrize("lines", [999, 1000])
def test_output_up_to_the_limit_is_not_cut(sandbox: sync.Sandbox, language: str, lines: int) -> None:
    code = programs.NUMBERED[language].format(lines=lines)
    execution = sandbox.run(code, language=language, limits=Limits(output=100_000))
    assert execution.stdout.encode() == programs.numbered(lines)
    assert (execution.truncated, execution.full_output) == (False, None)


@pytest.mark.parametrize("lines", [1001, 1700, 5000])
def test_output_over_the_limit_has_head_and_tail_and_is_whole_in_full_output(
    sandbox: sync.Sandbox, language: str, lines: int
) -> None:
    code = programs.NUMBERED[language].format(lines=lines)
    execution = sandbox.run(code, language=language, limits=Limits(output=100_000))
    whole = programs.numbered(lines)
    head, cut, tail = execution.stdout.partition(f"\n[... {len(whole) - 100_000} bytes cut ...]\n")
    assert cut, execution.stdout[49_990:50_100]
    assert (head.encode(), tail.encode()) == (whole[:50_000], whole[-50_000:])
    assert (execution.status, execution.truncated) == ("ok", True)
    kept = execution.full_output
    assert kept is not None
    assert (kept.size, kept.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    assert kept.read_bytes() == whole


def test_full_output_holds_both_streams_to_the_last_byte(sandbox: sync.Sandbox) -> None:
    code = """
import os
for n in range(3000):
    os.write(1, b"o%098d\\n" % n); os.write(2, b"e%098d\\n" % n)
"""
    execution = sandbox.run(code, limits=Limits(output=50_000))
    assert execution.full_output is not None
    lines = execution.full_output.read_bytes().splitlines(keepends=True)
    assert b"".join(line for line in lines if line[:1] == b"o") == b"".join(b"o%098d\n" % n for n in range(3000))
    assert b"".join(line for line in lines if line[:1] == b"e") == b"".join(b"e%098d\n" % n for n in range(3000))
    assert len(lines) == 6000


def test_output_beyond_full_output_ends_the_cell_and_keeps_what_there_was(sandbox: sync.Sandbox, language: str) -> None:
    code = programs.NUMBERED[language].format(lines=100_000)
    execution = sandbox.run(code, language=language, limits=Limits(output=10_000, full_output=MIB))
    assert (execution.status, execution.exit_code) == ("killed", None)
    assert execution.cause is not None
    assert execution.cause.code == "output_limit"
    assert "1 MiB" in execution.cause.message
    assert execution.full_output is not None
    assert execution.full_output.read_bytes() == programs.numbered(100_000)[:MIB]


@pytest.mark.parametrize("surface", ["run", "stream", "session"])
def test_no_surface_hands_out_more_than_full_output(sandbox: sync.Sandbox, surface: str) -> None:
    code, limits = "import os\nwhile True: os.write(1, bytes(1 << 16))", Limits(output=MIB, full_output=8192)
    if surface == "session":
        with sandbox.session(limits=limits) as session:
            events: list[Event] = list(session.stream(code))
    elif surface == "stream":
        events = list(sandbox.stream(code, limits=limits))
    else:
        events = [Done(sandbox.run(code, limits=limits))]
    done = events[-1]
    assert isinstance(done, Done)
    assert done.execution.cause is not None
    assert done.execution.cause.code == "output_limit"
    assert len(done.execution.stdout) == 8192
    assert sum(len(event.text) for event in events if isinstance(event, Output)) == (0 if surface == "run" else 8192)


def test_more_than_full_output_is_told_also_when_the_program_ended_meanwhile(sandbox: sync.Sandbox) -> None:
    code = "import fcntl, os, termios, time\nos.write(1, b'ready')\n"
    code += "while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))): time.sleep(0.01)\n"
    code += (
        "for _ in range(16): os.write(1, bytes(65536))\nos.write(1, b'x'); time.sleep(0.3); os.write(1, bytes(3000))"
    )
    limits = Limits(output=10_000, full_output=1_050_000)
    with witness.leaving(sandbox.stream(code, limits=limits)) as stream:
        next(stream)  # and then nobody reads: a mebibyte waits here, and the rest in the pipe, however small that is
        with witness.watching(witness.in_cells()) as watched:
            assert watched.wait()
        *_, last = stream
    assert isinstance(last, Done)
    assert last.execution.full_output is not None
    assert last.execution.full_output.size == 1_050_000
    assert last.execution.status == "killed"


def test_a_flood_of_100_mb_is_ended_and_costs_the_host_little(sandbox: sync.Sandbox, language: str) -> None:
    flood = {"python": "import os\nb = b'y' * 65536\nfor _ in range(1600): os.write(1, b)",
             "node": "const b = 'y'.repeat(65536); for (let n = 0; n < 1600; n++) process.stdout.write(b)",
             "shell": "head -c 104857600 /dev/zero"}  # fmt: skip
    execution = sandbox.run(flood[language], language=language, limits=Limits(output="64KiB", full_output="8MiB"))
    assert execution.status == "killed"
    assert execution.full_output is not None
    assert execution.full_output.size == 8 * MIB


def test_the_hosts_memory_does_not_grow_with_the_output(sandbox: sync.Sandbox) -> None:
    limits = Limits(output="64KiB", full_output="80MiB")
    sandbox.run("print('x' * 200_000)", limits=limits)  # what is made once is made now
    before = witness.resident()
    witness.reset_peak()
    execution = sandbox.run("head -c 62914560 /dev/zero", language="shell", limits=limits)
    grown = witness.resident(line="VmHWM") - before
    assert execution.full_output is not None
    assert execution.full_output.size == 60 * MIB
    assert grown < 16 * MIB, f"{grown / MIB:.1f} MiB"
