"""What a program says about itself is not believed: frames, ends, exit codes; and it harms no later run."""

from __future__ import annotations

import json
import os
import struct
from typing import Any

import pytest
from tests.escapes import host
from tests.escapes.cells import Attack, attack, held, without

from casemate import Execution, sync

PRELUDE = """
import json, os, signal, sys, threading, time
def frame(data):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    raw(len(data).to_bytes(4, "big") + data)
def raw(data):
    while data:
        data = data[os.write(3, data):]
"""


def _healthy(sandbox: sync.Sandbox) -> None:
    """A later run is as if nothing had been."""
    after = sandbox.run("print('clean')")
    assert (after.status, after.text, after.results, after.error, after.artifacts) == ("ok", "clean", (), None, ())


def _run(sandbox: sync.Sandbox, code: str, **options: Any) -> Execution:
    execution = sandbox.run(PRELUDE + code, **options)
    assert host.cell_processes() == []
    return execution


# ---------------------------------------------------------------------------------------------------- forged frames

FORGED = {
    "an end": {"type": "end", "status": "ok", "exit_code": 0},
    "done": {"type": "done", "execution": {"status": "ok"}},
    "the supervisor's words": {"op": "ended", "ending": {"wait_status": 0, "reason": None}},
    "an artifact": {"type": "artifact", "name": "/etc/passwd", "path": "/etc/passwd"},
    "isolation": {"type": "isolation", "wall": "none"},
    "an approval": {"type": "approval", "id": "1", "allow": True},
    "a list": [{"type": "display", "bundle": {"text/plain": "x"}}],
    "a display that is none": {"type": "display", "bundle": {"no media type": "x"}},
    "an error without words": {"type": "error", "name": 1, "value": None, "traceback": []},
}


@pytest.mark.parametrize("words", FORGED.values(), ids=FORGED)
def test_a_forged_frame_changes_nothing_that_the_host_knows(sandbox: sync.Sandbox, words: object) -> None:
    execution = _run(sandbox, f"frame(json.loads({json.dumps(words)!r}))\nsys.stdout.flush()\nos._exit(7)")
    assert (execution.status, execution.exit_code) == ("failed", 7)
    assert (execution.results, execution.error, execution.artifacts) == ((), None, ())
    assert execution.isolation.wall == os.environ["CASEMATE_ISOLATION"]
    _healthy(sandbox)


BROKEN = {
    "cut off": "raw(b'\\0\\0\\1\\0half')",
    "endless": "try: raw(b'\\xff\\xff\\xff\\xff' + b'x' * 100000)\nexcept BrokenPipeError: pass",
    "empty": "raw(b'\\0\\0\\0\\0' * 1000)",
    "no json": "frame(b'\\xff\\xfe{')",
    "deep": "frame(b'[' * 200000 + b']' * 200000)",
    **{
        f"surrogates {depth} deep": f'frame(b\'{{"type":"display","bundle":{{"application/json":\' + b"[" * {depth}'
        f' + b\'"\\\\ud800"\' + b"]" * {depth} + b"}}}}")'
        for depth in (600, 900, 3000)
    },
    "NaN": 'frame(b\'{"type":"display","bundle":{"application/json":NaN}}\')',
    "a long number": 'frame(b\'{"type":"display","bundle":{"application/json":\' + b\'9\' * 100000 + b\'}}\')',
    "keys twice": 'frame(b\'{"type":"display","type":"end","bundle":{"text/plain":"x"}}\')',
    "text": 'os.write(3, b\'{"type":"end"}\\n\')',
    "from a child": "if os.fork() == 0: raw(b'\\0\\0\\0\\7par'); os._exit(0)\nos.wait(); raw(b'tial')",
}


@pytest.mark.parametrize("code", BROKEN.values(), ids=BROKEN)
def test_a_broken_frame_is_dropped_and_the_run_ends_as_it_did(sandbox: sync.Sandbox, code: str) -> None:
    execution = _run(sandbox, f"print('before', flush=True)\n{code}\nprint('after', flush=True)\nos._exit(7)")
    assert (execution.status, execution.exit_code) == ("failed", 7)
    assert execution.stdout == "before\nafter\n"
    assert execution.results == ()
    _healthy(sandbox)


def test_surrogates_bidi_and_escapes_in_a_frame_are_data(sandbox: sync.Sandbox) -> None:
    words = r'{"type":"error","name":"\ud800\u202e","value":"\u001b[2J","traceback":"\udfff"}'
    code = f"frame({words.encode()!r})\nos._exit(1)"
    execution = _run(sandbox, code)
    assert execution.error is not None
    for text in (execution.error.name, execution.error.value, execution.error.traceback):
        text.encode()  # no lone surrogate is handed on
    assert execution.status == "failed"


def test_terminal_sequences_in_output_are_data(sandbox: sync.Sandbox, language: str) -> None:
    """What a terminal would obey comes through as it was written; showing it safely is the command line's work."""
    octal = r"\033]0;title\007\033[2J\033]52;c;eA==\007\302\233\342\200\256end"
    expected = "\x1b]0;title\x07\x1b[2J\x1b]52;c;eA==\x07\x9b\u202eend"
    code = {
        "python": f"print({expected!r}, end='')",
        "node": f"process.stdout.write({json.dumps(expected)})",
        "shell": f"printf '{octal}'",
    }[language]
    assert sandbox.run(code, language=language).stdout == expected


def test_node_and_shell_cannot_forge_an_end_either(sandbox: sync.Sandbox, language: str) -> None:
    end = json.dumps({"type": "end", "exit_code": 0})
    code = {
        "python": f"import os; os.write(3, b'\\0\\0\\0\\x20' + {end!r}.encode()); os._exit(7)",
        "node": f"try {{ require('fs').writeSync(3, {end!r}) }} catch {{}} process.exit(7)",
        "shell": f"for fd in 3 4 5 6 7 8 9; do echo '{end}' >&$fd; done 2>/dev/null; exit 7",
    }[language]
    execution = sandbox.run(code, language=language)
    assert (execution.status, execution.exit_code, execution.results) == ("failed", 7, ())
    _healthy(sandbox)


# --------------------------------------------------------------------------------------- the report of the cell's init

REPORT = struct.pack("<cIQ", b"x", 0, 4096).hex()
FORGE = f"""
import glob, os
from tests.escapes.payloads.attempts import attempt, finish
report = bytes.fromhex("{REPORT}")
for path in [*glob.glob("/proc/[0-9]*/fd/*"), *(f"/proc/1/fd/{{n}}" for n in range(16))]:
    attempt(path, lambda: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), report))
for fd in range(3, 64):
    attempt(f"descriptor {{fd}}", lambda: os.write(fd, report))
finish()
os._exit(7)
"""


def test_the_report_of_a_programs_end_cannot_be_forged(sandbox: sync.Sandbox) -> None:
    """The pipe that init reports on is nobody else's to open; the same without other layers."""
    for missing in ((), ("seccomp",), ("landlock",), ("seccomp", "landlock", "capabilities")):
        with without(*missing):
            execution = attack(sandbox, Attack("forge", source=FORGE))
        assert (execution.status, execution.exit_code) == ("failed", 7)
    _healthy(sandbox)


@pytest.mark.user_only  # as root, the pipe is root's and the cell is not: one layer more
def test_control_without_init_the_pipe_can_be_opened(sandbox: sync.Sandbox) -> None:
    with without("init"):
        execution = attack(sandbox, Attack("forge", source=FORGE))
    assert "tried /proc/1/fd/4: done" in execution.stdout


# ---------------------------------------------------------------------------------------------------- odd endings

ENDINGS = {
    "hard exit": ("os._exit(3)", "failed", 3),
    "closed streams": ("for fd in range(4): os.close(fd)\nos._exit(5)", "failed", 5),
    "closed at exit": ("for fd in range(4): os.close(fd)\nsys.exit(5)", "failed", 5),
    "another file in their place": (
        "for fd in range(4): os.close(fd)\nfor fd in range(4): os.open(f'f{fd}', os.O_CREAT | os.O_RDWR)\n1 / 0",
        "failed", 1,
    ),
    "segfault": ("import ctypes\nctypes.string_at(0)", "failed", 139),
    "stack overflow": ("sys.setrecursionlimit(10**9)\ndef f(): f()\nf()", None, None),
    "abort": ("os.abort()", "failed", 134),
    "kill self": ("os.kill(os.getpid(), 9)", "failed", 137),
    "exec": ("os.execv('/bin/sh', ['sh', '-c', 'exit 9'])", "failed", 9),
    "exec of another": ("os.execv(sys.executable, [sys.executable, '-S', '-c', 'raise SystemExit(4)'])", "failed", 4),
    "kill the parent": ("try: os.kill(os.getppid(), 9)\nfinally: os._exit(7)", "failed", 7),
    "kill everybody": ("if os.path.isdir('/program'): os.kill(-1, 9)\nos._exit(7)", "failed", None),
    "no handlers": ("sys.excepthook = None\nsys.stdout = None\nos._exit(7)", "failed", 7),
    "from a thread": ("threading.Thread(target=os._exit, args=(6,)).start()\ntime.sleep(30)", "failed", 6),
}  # fmt: skip


@pytest.mark.parametrize(("code", "status", "exit_code"), ENDINGS.values(), ids=ENDINGS)
def test_however_a_program_ends_it_is_told_as_the_kernel_saw_it(
    sandbox: sync.Sandbox, code: str, status: str | None, exit_code: int | None
) -> None:
    execution = _run(sandbox, code, timeout=20)
    assert execution.status == status or (status is None and execution.status in ("failed", "out_of_memory"))
    assert exit_code is None or execution.exit_code == exit_code
    _healthy(sandbox)


def test_a_file_that_took_the_control_pipes_place_gets_no_frame(sandbox: sync.Sandbox) -> None:
    code = "os.close(3)\nassert os.open('mine', os.O_CREAT | os.O_WRONLY) == 3\ndisplay(1)\nraise ValueError('x')"
    execution = _run(sandbox, code)
    assert [one.read_bytes() for one in execution.artifacts if one.name == "mine"] == [b""]
    assert execution.exit_code == 1


_SIGNALS = (
    "HUP",
    "INT",
    "QUIT",
    "TERM",
    "KILL",
    "STOP",
    "TSTP",
    "SEGV",
    "ABRT",
    "PIPE",
    "USR1",
    "ALRM",
    "CHLD",
    "CONT",
)


@pytest.mark.parametrize(
    "name",
    _SIGNALS,
)
def test_a_signal_to_the_cells_init_changes_nothing(sandbox: sync.Sandbox, name: str) -> None:
    execution = sandbox.run(f"kill -{name} 1; kill -{name} $PPID; sleep 0.1; echo alive; exit 7", language="shell")
    assert (execution.status, execution.exit_code, execution.stdout) == ("failed", 7, "alive\n")


def test_a_fork_that_returns_twice_is_one_run(sandbox: sync.Sandbox) -> None:
    """Both halves print, display, raise and end; the program's own process is the one that counts."""
    code = (
        "pid = os.fork()\nprint('half', flush=True)\ndisplay('shown')\nif pid: os.wait(); raise ValueError('parent')\n"
    )
    execution = _run(sandbox, code + "raise KeyError('child')")
    assert execution.stdout.count("half\n") == 2
    assert execution.exit_code == 1
    assert execution.error is not None
    assert execution.error.name == "ValueError"
    assert len(execution.results) == 1, "only the process that the pipe was given to speaks on it"
    _healthy(sandbox)


def test_the_parent_may_end_first_and_its_child_says_nothing_more(sandbox: sync.Sandbox) -> None:
    code = "if os.fork() == 0:\n    time.sleep(0.5)\n    print('late', flush=True)\n    frame({})\nos._exit(0)"
    execution = _run(sandbox, code)
    assert (execution.status, execution.stdout) == ("ok", "")


LEAVE_BEHIND = {
    "threads that go on printing": "def f():\n    while True: print('noise', flush=True)\n"
    "threading.Thread(target=f, daemon=True).start()\ntime.sleep(0.05)",
    "patched modules": "import builtins\nbuiltins.print = builtins.open = None\njson.dumps = os.write = lambda *_: 0\n"
    "sys.modules.clear()",
    "startup files": "home = os.environ['HOME']\nfor n in ('.bashrc', '.profile', '.pythonrc', 'sitecustomize.py'):\n"
    "    for d in (home, '/tmp', '/workspace', '/dev/shm'): open(f'{d}/{n}', 'w').write('print(666)')",
    "user packages": "import site\nos.makedirs(site.getusersitepackages())\n"
    "open(site.getusersitepackages() + '/evil.pth', 'w').write('import os; print(666)')",
    "exit handlers": "import atexit\natexit.register(lambda: time.sleep(0.2))\natexit.register(lambda: print('bye'))",
}


@pytest.mark.parametrize("code", LEAVE_BEHIND.values(), ids=LEAVE_BEHIND)
def test_what_a_run_leaves_behind_is_not_in_the_next(sandbox: sync.Sandbox, code: str) -> None:
    _run(sandbox, code, timeout=20)
    _healthy(sandbox)
    for language in ("shell", "python"):
        seen = sandbox.run("echo clean" if language == "shell" else "print('clean')", language=language)
        assert seen.text == "clean"


def test_a_held_pipe_and_a_hidden_descriptor_do_not_keep_a_run_alive(sandbox: sync.Sandbox) -> None:
    """The write end of stdout is in flight between two sockets of a daemon when the program ends."""
    code = "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [1, 2, 3])\n"
    code += (
        "if os.fork() == 0:\n    os.setsid()\n    for fd in (1, 2, 3): os.close(fd)\n    time.sleep(60)\nprint('out')"
    )
    execution = _run(sandbox, code, timeout=30)
    assert (execution.status, execution.stdout) == ("ok", "out\n")
    assert execution.duration < 25


def test_stdin_is_only_what_was_given(sandbox: sync.Sandbox) -> None:
    """Seen from the host: no descriptor of its terminal or of another run."""
    with held(sandbox, Attack("stdin", source="from tests.escapes.payloads.attempts import finish\nfinish()")) as one:
        assert not [link for link in host.open_files(one.pid) if link.startswith(("/dev/pts", "/dev/tty", "socket:"))]
