"""A process that a warm interpreter forked behaves as an interpreter that was just started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.unit.guest.programs import HELPERS, PROGRAMS
from tests.unit.guest.stage import BASE_ENV, PRELOADED, framed, plain, pythons, warm

MODERN = [
    python
    for python in pythons()
    if python == sys.executable or not python.endswith(("3.9.18/bin/python3", "3.10.13/bin/python3"))
]


ENDS = {
    "clears itself": (
        "class D:\n"
        "    def __init__(self, n): self.n = n\n"
        "    def __del__(self): print('del', self.n, D is None)\n"
        "a = D('global'); b = [D('ring')]; b.append(b); del b\n"
        "class C: pass\n"
        "C.held = D('class')\n"
    ),
    "clears its modules": ("import helper\nclass D:\n    def __del__(self): print('del')\nhelper.kept = D()\n"),
    "orders its ends": (
        "import atexit, threading, sys, weakref\n"
        "atexit.register(print, 'first'); atexit.register(print, 'last')\n"
        "class O: pass\n"
        "o = O(); weakref.finalize(o, print, 'finalized')\n"
        "t = threading.Thread(target=lambda: (threading.main_thread().join(), print('thread')))\n"
        "t.start()\n"
        "sys.exit(5)\n"
    ),
    "imports at its end": (
        "import atexit, json\n"
        "def end():\n    import json, logging, decimal\n    print(json is j, logging.__name__, decimal.Decimal(1))\n"
        "j = json\n"
        "atexit.register(end)\n"
    ),
    "flushes": "import sys\nsys.stdout.write('no newline'); sys.stderr.write('too'); open('f', 'w').write('x' * 10)",
    "leaves a file open": "import sys\nf = open('left', 'w'); f.write('x' * 100); sys.f = f",
    "fails in a thread": "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()",
    "leaves a daemon": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_process_ends_as_plain_python_ends(tmp_path: Path, name: str) -> None:
    expected = plain(tmp_path, sys.executable, ENDS[name], files=HELPERS)
    outcome = warm(tmp_path, sys.executable, ENDS[name], files=HELPERS, preload=PRELOADED)
    assert outcome.visible == expected.visible


def test_what_was_loaded_ahead_is_not_taken_apart_at_the_end(tmp_path: Path) -> None:
    before = (
        "class D:\n    def __del__(self, write=os.write): write(1, b'taken apart')\nsys.modules['random'].kept = D()"
    )
    assert warm(tmp_path, sys.executable, "print(1)", preload=PRELOADED, before=before).visible == (0, "1\n", "")


SEES = """
import json, os, posix, subprocess, sys, time
print(json.dumps({
    "env": dict(os.environ), "same": list(os.environb.items()) == list(posix.environ.items()),
    "arguments": sys.argv[1:], "told": sys.orig_argv[-2:], "zone": time.tzname,
    "child": subprocess.check_output(["/usr/bin/env", "-0"]).decode("utf-8", "surrogateescape").split("\\0"),
    "held": os.path.exists("/proc/self/fd/6"),
}))
"""


def test_environment_arguments_and_time_zone_are_those_of_the_order(tmp_path: Path) -> None:
    env = {"TZ": "America/New_York", "TEXT": "é = 'x'\nz", "RAW": "\udcff"}
    whole = {"HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1", **BASE_ENV, **env}
    seen = json.loads(warm(tmp_path, sys.executable, SEES, "one", "t w o", env=whole).stdout)
    assert seen["env"] == whole
    assert sorted(filter(None, seen["child"])) == sorted(f"{name}={value}" for name, value in whole.items())
    assert (seen["same"], seen["held"]) == (True, False)
    assert seen["arguments"] == seen["told"] == ["one", "t w o"]
    assert seen["zone"] == ["EST", "EDT"]


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


# Two children of one process, and nothing tells a library that it was forked: neither hooks nor another process id.
TWINS = """
import ctypes, os, sys, threading
libc = ctypes.CDLL(None)
os.getpid = lambda: 7
for _ in range(2):
    sys.stdout.flush()
    if libc.syscall(SYS_CLONE, 17, 0, 0, 0, 0) == 0:
        break
    libc.wait(None)
else:
    os._exit(0)
read = os.pipe()
os.write(read[1], ORDER)
os.dup2(read[0], 6)
os.close(read[0]); os.close(read[1])
"""
DRAWS = {
    "random": ("random", "random.random()", "random.random()"),
    "numpy": ("numpy.random", "numpy.random.random()", "numpy.random.random()"),
    "numpy normal": ("numpy.random", "numpy.random.randn()", "numpy.random.randn()"),
    "numpy generator": ("numpy.random", "numpy.random.default_rng()", "numpy.random.default_rng().random()"),
    "ssl": ("ssl", "ssl.RAND_bytes(8)", "ssl.RAND_bytes(8)"),
    "tempfile": ("tempfile", "next(tempfile._get_candidate_names())", "next(tempfile._get_candidate_names())"),
    "authkey": ("multiprocessing.process", "0", "bytes(multiprocessing.process.current_process().authkey)"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_siblings_draw_different_numbers(tmp_path: Path, name: str) -> None:
    module, drawn_ahead, drawn = DRAWS[name]
    if module.startswith("numpy"):
        pytest.importorskip("numpy")
    number = {"x86_64": "56", "aarch64": "220"}.get(__import__("platform").machine())
    if number is None:
        pytest.skip("the number of the system call is not known here")
    order = framed({"env": {}, "arguments": []})
    twins = TWINS.replace("SYS_CLONE", number).replace("ORDER", repr(order))
    before = f"os.environ['OPENBLAS_NUM_THREADS'] = '1'\nimport {module}\n{drawn_ahead}\n{twins}"
    outcome = warm(tmp_path, sys.executable, f"import {module}\nprint({drawn})", before=before)
    first, second = outcome.stdout.split("\n")[:2]
    assert first
    assert second
    assert first != second, outcome.stderr


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


@pytest.mark.parametrize("python", MODERN[1:])
def test_other_versions_do_the_same(tmp_path: Path, python: str) -> None:
    differences = {}
    for name in ("names itself", "raises in a helper", "exits by text", "runs processes by spawn", "is interrupted"):
        expected = plain(tmp_path / name, python, PROGRAMS[name], files=HELPERS)
        outcome = warm(tmp_path / name, python, PROGRAMS[name], files=HELPERS, preload=PRELOADED)
        if outcome.visible != expected.visible:
            differences[name] = (expected.visible, outcome.visible)
    assert differences == {}
