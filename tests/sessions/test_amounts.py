"""Any amount of output comes back exactly, within the limits that were set, and beyond them as told."""

from __future__ import annotations

import itertools
import time

import pytest
from tests.contract import programs, witness
from tests.sessions.driver import PNG, Open, done, events_of, said, told
from tests.support.languages import every_language

from casemate import Limits, Output
from casemate.execution.capture import Transcript
from casemate.sessions.session import Session
from casemate.walls.native import running

MIB = 2**20
CHARTS = 100
# Deterministic, and run both here and in the cell: what was said is then known.
SAYINGS = """
import random
def sayings(seed, count):
    choose = random.Random(seed)
    for number in range(count):
        kind = choose.choices(("stdout", "stderr", "display"), (60, 31, 9))[0]
        text = f"{number} " + "x" * choose.choice((0, 1, 10, 100, 300)) + choose.choice(("", "\\n"))
        yield kind, text
"""
SAY = (
    SAYINGS
    + """
import sys
for kind, text in sayings(SEED, COUNT):
    if kind == "display": display({"text/plain": text}, raw=True)
    else: print(text, end="", file=sys.stdout if kind == "stdout" else sys.stderr)
"""
)


@every_language
async def test_a_line_of_half_a_million_characters_comes_back_whole(opened: Open, language: str) -> None:
    execution = await opened(language).run(programs.LONG_LINE[language])
    assert execution.stdout == "x" * 500_000 + "\n"
    assert not execution.truncated


@every_language
async def test_fifty_thousand_lines_come_back_whole_and_the_next_step_has_none_of_them(
    opened: Open, language: str
) -> None:
    session = opened(language)
    assert await said(session, programs.MANY_LINES[language]) == "".join(f"{n}\n" for n in range(50_000))
    assert await said(session, programs.HELLO[language]) == "hello\n"


COLLECTED = """
import io, signal, sys
while not isinstance(sys.stdout.write.__self__, io.TextIOWrapper):
    print("many lines")
collected = sys.stdout.write.__self__.buffer
put = collected._put
def put_when_the_lines_seem_to_have_stopped(data):
    put.__self__._had_more = False
    signal.raise_signal(signal.SIGALRM)
    put(data)
collected._put = put_when_the_lines_seem_to_have_stopped
for letter in "abcdefghij":
    print(letter * 10_000)
"""


async def test_lines_stay_in_order_when_collecting_them_ends_while_they_are_put(opened: Open) -> None:
    lines = (await said(opened(), COLLECTED)).splitlines()
    assert lines[-10:] == [letter * 10_000 for letter in "abcdefghij"]


STOPPED = """
import io, signal, sys
while not isinstance(sys.stdout.write.__self__, io.TextIOWrapper):
    print("many lines")
flood = sys.stdout.write.__self__.buffer._put.__self__
class Stops:
    def __str__(self):  # between print's look at sys.stdout.write and its call, where Python looks for signals too
        flood._had_more = False
        signal.raise_signal(signal.SIGALRM)
        return "first"
kept = sys.stdout.write
print(Stops())
print("second")
kept("third\\n")
print("fourth")
"""


async def test_a_line_is_not_lost_when_collecting_ends_while_it_is_printed(opened: Open) -> None:
    session = opened()
    lines = (await said(session, STOPPED)).splitlines()
    assert lines[-4:] == ["first", "second", "third", "fourth"]
    assert await said(session, "_ = kept('of this step')") == "of this step"


@pytest.mark.parametrize("seed", [1, 2])
async def test_ten_thousand_prints_and_displays_at_random_come_in_order(opened: Open, seed: int) -> None:
    session = opened()
    known: dict[str, object] = {}
    exec(SAYINGS, known)
    wanted: list[tuple[str, str]] = []
    for kind, text in known["sayings"](seed, 10_000):  # type: ignore[operator]
        joins = wanted and wanted[-1][0] == kind != "display"
        wanted.append((kind, wanted.pop()[1] + text if joins else text))
    events = await events_of(session.stream(SAY.replace("SEED", str(seed)).replace("COUNT", "10_000")))
    assert told(events) == wanted, "what was told is not what was said"
    assert not done(events).truncated


async def test_more_than_a_thousand_displays_are_all_told_in_the_stream(session: Session) -> None:
    events = await events_of(session.stream("for n in range(3000): display(n)"))
    shown = told(events)
    assert shown == [("display", str(n)) for n in range(3000)], f"{len(shown)} were told"


@pytest.mark.needs("data")
async def test_a_chart_in_each_of_many_steps_and_no_picture_is_lost(session: Session) -> None:
    await said(session, "import matplotlib.pyplot as plt\nplt.rcParams['figure.figsize'] = (2, 1)")
    seen = set()
    for number in range(CHARTS):
        execution = await session.run(f"print({number}); plt.plot([0, {number}]); plt.title('{number}'); plt.show()")
        (image,) = execution.images
        assert image.data.startswith(PNG)
        assert execution.stdout == f"{number}\n"
        seen.add(image.data)
    assert len(seen) == CHARTS


@every_language
async def test_output_over_the_limit_is_whole_in_full_output(opened: Open, language: str) -> None:
    session = opened(language, limits=Limits(output=100_000))
    execution = await session.run(programs.NUMBERED[language].format(lines=5000))
    whole = programs.numbered(5000)
    assert execution.full_output is not None
    assert execution.full_output.read_bytes() == whole
    head, cut, tail = execution.stdout.partition(f"\n[... {len(whole) - 100_000} bytes cut ...]\n")
    assert cut
    assert (head.encode(), tail.encode()) == (whole[:50_000], whole[-50_000:])
    assert (execution.status, execution.truncated, execution.state) == ("ok", True, "kept")
    assert (await session.run(programs.HELLO[language])).full_output is None


FLOOD = {
    "python": "mine = 1\nimport os\nb = b'y' * 65536\nwhile True: os.write(1, b)",
    "node": "var mine = 1; const b = 'y'.repeat(65536); for (;;) process.stdout.write(b)",
    "shell": "mine=1; while :; do printf %065536d 1; done",
}
MINE = {"python": "print(mine)", "node": "console.log(mine)", "shell": "echo $mine"}


@every_language
async def test_a_flood_ends_the_step_and_the_session_goes_on(opened: Open, language: str) -> None:
    session = opened(language, limits=Limits(output="64KiB", full_output="4MiB"))
    execution = await session.run(FLOOD[language], timeout=None)
    assert execution.cause is not None
    assert (execution.status, execution.cause.code, execution.state) == ("killed", "output_limit", "kept")
    assert execution.full_output is not None
    assert execution.full_output.size == 4 * MIB
    assert execution.full_output.read_bytes()[:1] in (b"y", b"0")
    assert await said(session, MINE[language]) == "1\n"


async def test_a_flood_by_print_ends_the_step_and_the_session_goes_on(opened: Open) -> None:
    session = opened(limits=Limits(output="64KiB", full_output="4MiB"))
    execution = await session.run("mine = 1\nwhile True: print('line')", timeout=None)
    assert execution.cause is not None
    assert (execution.cause.code, execution.state) == ("output_limit", "kept")
    assert await said(session, "print(mine)") == "1\n"


async def test_a_flood_of_displays_ends_the_step_and_the_session_goes_on(opened: Open) -> None:
    session = opened(limits=Limits(full_output="4MiB"))
    execution = await session.run("mine = 1\nwhile True: display('x' * 1000)", timeout=None)
    assert execution.cause is not None
    assert (execution.status, execution.cause.code, execution.state) == ("killed", "output_limit", "kept")
    assert execution.truncated
    assert await said(session, "print(mine)") == "1\n"


async def test_a_flood_of_a_child_process_that_does_not_care_ends_with_it(opened: Open) -> None:
    session = opened(limits=Limits(output="64KiB", full_output="4MiB"))
    await said(session, "mine = 1")
    code = "import subprocess\nsubprocess.run(['sh', '-c', \"trap '' INT TERM; exec yes\"], stdout=1)"
    execution = await session.run(code, timeout=None)
    assert execution.cause is not None
    assert execution.cause.code == "output_limit"
    after = await session.run("print('alive')")
    assert (after.status, after.stdout) == ("ok", "alive\n")


async def test_the_hosts_memory_does_not_grow_with_the_output(opened: Open) -> None:
    session = opened(limits=Limits(output="64KiB", full_output="80MiB"))
    await said(session, "print('x' * 200_000)")  # what is made once is made now
    before = witness.resident()
    witness.reset_peak()
    execution = await session.run("!head -c 62914560 /dev/zero", timeout=None)
    grown = witness.resident(line="VmHWM") - before
    assert execution.full_output is not None
    assert execution.full_output.size == 60 * MIB
    assert grown < 32 * MIB, f"{grown / MIB:.1f} MiB"


async def test_a_slow_reader_loses_nothing(opened: Open) -> None:
    session = opened(limits=Limits(output=10_000))
    code = programs.NUMBERED["python"].format(lines=60_000)  # 6 MB: more than waits in pipes and queue
    data = []
    async for event in session.stream(code, timeout=None):
        if isinstance(event, Output):
            data.append(event.data)
            await said_nothing()
    assert b"".join(data) == programs.numbered(60_000)


async def test_output_comes_in_large_pieces_again_after_one_that_took_long(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, code = opened(), "import os; _ = os.write(1, b'x' * {})"
    with monkeypatch.context() as patch:
        patch.setattr(Transcript, "add", lambda *_: spin(2 * running._LONG))
        await session.run(code.format(MIB // 8), timeout=None)
    events = await events_of(session.stream(code.format(MIB)))
    pieces = [len(event.text) for event in events if isinstance(event, Output)]
    assert sum(pieces) == MIB
    assert len(pieces) < MIB / running._PIECE / 2


def spin(seconds: float) -> None:
    """Take so much of the processor's time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def said_nothing() -> None:
    """Let the loop turn, as a reader that does something else meanwhile."""
    import asyncio

    for _ in range(3):
        await asyncio.sleep(0)


async def test_characters_cut_by_a_write_arrive_whole(session: Session) -> None:
    code = "import os\nfor byte in 'ä漢🦊'.encode(): os.write(1, bytes([byte]))"
    events = await events_of(session.stream(code))
    assert "".join(event.text for event in events if isinstance(event, Output)) == "ä漢🦊"
    assert done(events).stdout == "ä漢🦊"


async def test_steps_in_a_row_are_all_exact(session: Session) -> None:
    for size, number in itertools.product((0, 1, 4095, 4096, 65535, 65536, 65537, 300_000), range(3)):
        assert await said(session, f"print('{number}' * {size}, end='')") == str(number) * size


async def test_the_usage_of_a_step_in_which_the_interpreter_ends_is_that_of_the_step(opened: Open) -> None:
    session = opened()
    busy = await session.run("import time\nwhile time.process_time() < 1: pass")
    last = await session.run("import os; os._exit(0)")
    assert busy.usage.cpu_seconds > 0.5
    assert last.usage.cpu_seconds < 0.5, "it is that of the interpreter's whole life"
