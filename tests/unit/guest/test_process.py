"""A process that a warm interpreter forked behaves as an interpreter that was just started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.unit.guest.programs import HELPERS, PROGRAMS
from tests.unit.guest.stage import PRELOADED, framed, plain, pythons, warm

MODERN = [
    python
    for python in pythons()
    if python == sys.executable or not python.endswith(("3.9.18/bin/python3", "3.10.13/bin/python3"))
]


def test_what_was_loaded_ahead_is_not_taken_apart_at_the_end(tmp_path: Path) -> None:
    before = (
        "class D:\n    def __del__(self, write=os.write): write(1, b'taken apart')\nsys.modules['random'].kept = D()"
    )
    assert warm(tmp_path, sys.executable, "print(1)", preload=PRELOADED, before=before).visible == (0, "1\n", "")


def test_the_argument_list_stays_the_same_object(tmp_path: Path) -> None:
    before = "sys.kept = sys.argv"
    program = "import sys\nprint(sys.kept is sys.argv, sys.argv[1:])"
    assert warm(tmp_path, sys.executable, program, "a", before=before).stdout == "True ['a']\n"


@pytest.mark.parametrize("order", [b"", b"\0\0", framed({"env": {}, "arguments": []})[:-1]])
def test_without_a_whole_order_the_process_ends_quietly(tmp_path: Path, order: bytes) -> None:
    assert warm(tmp_path, sys.executable, "print('ran')", order=order).visible == (0, "", "")


@pytest.mark.parametrize(
    "order", [{"env": {}}, {"env": {"A": 1}, "arguments": []}, {"env": {}, "arguments": [], "x": 1}]
)
def test_what_is_no_order_is_refused(tmp_path: Path, order: object) -> None:
    before = "try: process.read_order(6)\nexcept (ValueError, KeyError): print('refused', flush=True)\nos._exit(0)"
    assert warm(tmp_path, sys.executable, "", order=framed(order), before=before).stdout == "refused\n"


def test_an_order_that_says_it_is_too_long_is_refused_before_it_is_read(tmp_path: Path) -> None:
    before = "try:\n    process.read_order(6)\nexcept ValueError as e:\n    print(e, flush=True)\nos._exit(0)"
    assert (
        warm(tmp_path, sys.executable, "", order=b"\x7f\0\0\0", before=before).stdout
        == "an order of 2130706432 bytes\n"
    )


def test_names_times_and_counters_start_anew(tmp_path: Path) -> None:
    before = (
        "import uuid, tempfile, logging, platform, threading, gc, time\n"
        "uuid._node = 5; uuid._last_timestamp = 2 ** 62; tempfile.tempdir = '/nowhere'\n"
        "logging._startTime = type(logging._startTime)(1); platform._uname_cache = 'old'\n"
        "t = threading.Thread(target=int); t.start(); t.join(); gc.disable()\n"
    )
    program = (
        "import uuid, tempfile, logging, platform, threading, gc, os\n"
        "print(uuid._node, uuid._last_timestamp, tempfile.gettempdir(), logging._startTime > 1)\n"
        "print(platform.uname().node == os.uname().nodename, threading.Thread().name, gc.isenabled())\n"
    )
    outcome = warm(tmp_path, sys.executable, program, before=before)
    assert outcome.stdout == "None None /tmp True\nTrue Thread-1 True\n"


def test_a_stream_can_be_sought_when_its_own_file_can(tmp_path: Path) -> None:
    before = (
        "held = os.dup(0); os.dup2(os.open('/dev/null', os.O_RDONLY), 0); os.closerange(7, 9)\n"
        "sys.stdin.close(); sys.stdin = sys.__stdin__ = open(0, closefd=False, newline='\\n'); sys.stdin.seekable()\n"
        "os.dup2(held, 0)\n"
    )
    program = (
        "import sys\nprint(sys.stdin.seekable(), sys.stdin.name, sys.stdin.mode, sys.__stdin__ is sys.stdin, input())"
    )
    assert warm(tmp_path, sys.executable, program, before=before, stdin="x").stdout == "False <stdin> r True x\n"


def test_settings_of_matplotlib_in_the_working_directory_count(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    before = "open('matplotlibrc', 'w').write('lines.linewidth: 7.5')\n"
    program = "import matplotlib\nprint(matplotlib.rcParams['lines.linewidth'])"
    assert warm(tmp_path, sys.executable, program, preload=["matplotlib"], before=before).stdout == "7.5\n"


def test_the_order_can_ask_for_more_threads_than_the_warm_interpreter_has(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    before = (
        "import numpy\ncalls = []\nprocess.find_blas()\nfound = len(process._blas)\n"
        "process._blas[:] = [calls.append]\nos.sched_getaffinity = lambda pid: {1, 2, 3}\nsys.calls = calls\n"
    )
    program = "import sys\nprint(sys.calls)"
    env = {"OMP_NUM_THREADS": "8"}
    assert warm(tmp_path, sys.executable, program, before=before, env=env).stdout == "[3]\n"
    assert warm(tmp_path, sys.executable, program, before=before).stdout == "[]\n"


def test_what_the_warm_interpreter_loaded_ahead_sends_to_the_pipe_of_the_program(tmp_path: Path) -> None:
    outcome = warm(tmp_path, sys.executable, "display(5)\n1 / 0")
    assert [frame["type"] for frame in outcome.frames] == ["display", "error"]


@pytest.mark.full
@pytest.mark.parametrize("python", MODERN[1:])
def test_other_versions_do_the_same(tmp_path: Path, python: str) -> None:
    differences = {}
    for name in ("names itself", "raises in a helper", "exits by text", "runs processes by spawn", "is interrupted"):
        expected = plain(tmp_path / name, python, PROGRAMS[name], files=HELPERS)
        outcome = warm(tmp_path / name, python, PROGRAMS[name], files=HELPERS, preload=PRELOADED)
        if outcome.visible != expected.visible:
            differences[name] = (expected.visible, outcome.visible)
    assert differences == {}
