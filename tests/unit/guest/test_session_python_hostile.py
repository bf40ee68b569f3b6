"""The Python interpreter of a session under interrupts, with work left over, forks, and code that breaks things."""

from __future__ import annotations

import os
import signal

import pytest
from tests.unit.guest.python_session import needs_ipython
from tests.unit.guest.session_driver import Session

pytestmark = needs_ipython
CANNOT_SPEAK = 70


# --- whose output is whose --------------------------------------------------------------------------------------------

WAITERS = {
    "thread": "import threading\nthreading.Thread(target=late, daemon=True).start()",
    "thread of a thread": "import threading\n"
    "threading.Thread(target=lambda: threading.Thread(target=late).start()).start()",
    "pool": "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(1).submit(late)",
    "raw thread": "import _thread\n_thread.start_new_thread(late, ())\nwhile not begun: time.sleep(0.001)",
    "child": "import os\nif os.fork() == 0:\n    late()\n    os._exit(0)",
    "process": "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=late, daemon=True).start()",
}


@pytest.mark.parametrize("kind", WAITERS)
def test_what_a_step_leaves_running_writes_into_that_steps_pipes(new: Session, kind: str) -> None:
    new.run("""
import os, sys, time
begun = []
def late():
    print('begun'); begun.append(1)
    with open('go') as go: go.read()
    print('late', kind); print('late error', file=sys.stderr)
os.mkfifo('go')""")
    first = new.run(f"kind = {kind!r}\n{WAITERS[kind]}\nprint('started')")
    second = new.begin(
        "print('second')\nimport threading\nwhile 'go on' not in input(): pass\nprint('third')", stdin="go on\n"
    )
    with (new.workspace / "go").open("w") as go:
        go.write("now")
    new.finish(second)
    new.wait_for(
        lambda: first.out.endswith(f"late {kind}\n") and first.err == "late error\n", "what the first step has left"
    )
    assert set(first.out.splitlines()) == {"begun", "started", f"late {kind}"}
    assert second.out == "second\nthird\n"


def test_a_display_of_a_thread_is_a_frame_of_its_own_step(one: Session) -> None:
    first = one.run(
        "import threading\ngo = threading.Event()\ndef late(): go.wait(); display('late')\n"
        "t = threading.Thread(target=late); t.start()"
    )
    second = one.run("go.set(); t.join()")
    assert [bundle["text/plain"] for bundle in first.displays] == ["'late'"]
    assert second.displays == []


def test_output_of_a_step_long_ago_goes_into_the_oldest_that_is_kept(new: Session) -> None:
    new.run(
        "import threading\ngo = threading.Event()\n"
        "def late(): go.wait(); print('late')\nt = threading.Thread(target=late); t.start()"
    )
    steps = [new.run("pass") for _ in range(20)]
    last = new.run("import os\ngo.set(); t.join(); len(os.listdir('/proc/self/fd')) < 60")
    assert last.bundle == {"text/plain": "True"}
    new.wait_for(lambda: any(step.out for step in steps), "the late line")
    assert [step.out for step in (*steps, last) if step.out] == ["late\n"]
    assert last.out == ""
    assert steps[-15].out == "late\n"


def test_a_task_goes_on_after_its_step_and_speaks_for_it(new: Session) -> None:
    first = new.run(
        "import asyncio\nasync def tick():\n    for i in range(3):\n"
        "        await asyncio.sleep(0.01)\n        print('tick', i)\n"
        "task = asyncio.create_task(tick())\nawait asyncio.sleep(0)"
    )
    new.wait_for(lambda: first.out.count("tick") == 3, "the task's output between steps")
    assert new.run("task.done()").bundle == {"text/plain": "True"}
    second = new.run("task = asyncio.get_event_loop().create_task(tick())")
    new.wait_for(lambda: second.out.count("tick") == 3, "the task that was made without await")


def test_a_task_goes_on_while_other_steps_run_and_while_variables_are_asked(new: Session) -> None:
    new.run(
        "import asyncio\nn = 0\nasync def count():\n    global n\n"
        "    while True:\n        n += 1\n        await asyncio.sleep(0)\n"
        "task = asyncio.create_task(count())\nawait asyncio.sleep(0)"
    )
    first = new.ask("get", name="n")["value"]
    new.wait_for(lambda: new.ask("get", name="n")["value"] > first + 100, "the counting")
    assert new.run("await asyncio.sleep(0.001)\nprint('here')").out == "here\n"
    assert new.run("task.cancel()").exit == 0


def test_asyncio_run_works_in_a_step_without_await_and_the_loop_survives_it(one: Session) -> None:
    one.run("import asyncio\nawait asyncio.sleep(0)\nfirst_loop = asyncio.get_event_loop()")
    assert one.run("async def f(): return 7\nasyncio.run(f())").bundle == {"text/plain": "7"}
    assert one.run("x = await f()\nasyncio.get_running_loop() is first_loop").bundle == {"text/plain": "True"}
    assert one.run("import warnings; asyncio.get_event_loop() is first_loop").bundle == {"text/plain": "True"}


def test_a_task_that_ends_the_process_or_fails_does_not_end_the_session(one: Session) -> None:
    one.run(
        "import asyncio\nasync def leave(): raise SystemExit(3)\nasync def fail(): 1 / 0\n"
        "tasks = [asyncio.create_task(leave()), asyncio.create_task(fail())]\nawait asyncio.sleep(0)"
    )
    assert one.run("x = 1\nawait asyncio.sleep(0)").exit == 0
    assert one.run("1 + 1").bundle == {"text/plain": "2"}


# --- interrupts -------------------------------------------------------------------------------------------------------

ENDLESS = {
    "loop": "while True: pass",
    "sleep": "import time; time.sleep(1000)",
    "await": "import asyncio; await asyncio.sleep(1000)",
    "await in a loop": "import asyncio\nwhile True: await asyncio.sleep(0)",
    "blocking in a coroutine": "import asyncio, time; await asyncio.sleep(0); time.sleep(1000)",
    "asyncio.run": "import asyncio; asyncio.run(asyncio.sleep(1000))",
    "C": "import itertools\nfor _ in itertools.repeat(0): pass",
    "regular expression": "import re; re.match('(a*)*b', 'a' * 40)",
    "join": "import threading; threading.Event().wait()",
    "printing": "while True: print('x' * 50)",
    "display": "while True: display(1)",
    "finalizers": "class F:\n    def __del__(self):\n        for _ in range(10_000): pass\nwhile True: F()",
    "subprocess": "import subprocess; subprocess.run(['sleep', '1000'])",
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_interrupt_ends_a_step_and_keeps_what_it_did(one: Session, kind: str) -> None:
    step = one.begin(f"done_before = {kind!r}\nprint('up')\n{ENDLESS[kind]}")
    one.wait_for(lambda: step.out.startswith("up\n"), "the first line")
    one.interrupt()
    one.finish(step)
    assert (step.error["name"], step.exit) == ("KeyboardInterrupt", 130)
    assert one.run("done_before").bundle == {"text/plain": repr(kind)}


def test_a_rain_of_interrupts_neither_cuts_a_frame_nor_loses_an_end(one: Session) -> None:
    for _ in range(30):
        step = one.begin("while True: display({'text/plain': 'x' * 100000}, raw=True); print('y'); 1")
        # An interrupt of the step before may come so late that it ends this one before it displays anything.
        one.wait_for(lambda step=step: bool(step.displays or step.of_type("done")), "the first display")  # type: ignore[misc]
        for _ in range(20):
            one.interrupt()
        one.finish(step)
        assert step.error["name"] == "KeyboardInterrupt"
        assert len(step.of_type("done")) == 1
        assert len(step.out) == step.done["at"][0]
    if (step := one.run("1 + 1")).of_type("error"):  # the same, of the last one
        assert step.error["name"] == "KeyboardInterrupt"
        step = one.run("1 + 1")
    assert step.bundle == {"text/plain": "2"}


def test_a_second_interrupt_while_the_first_is_dealt_with_ends_the_step_as_an_interrupt(new: Session) -> None:
    new.run("""
import os, signal, time
import IPython.core.interactiveshell as shell
made, known = [], shell.ExecutionInfo
def interrupt(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1000)
def info(*given, **named):
    made.append(1)
    return known(*given, **named) if len(made) == 1 else interrupt()
shell.ExecutionInfo = info  # which IPython makes one of at the beginning, and again where it has failed itself
get_ipython().compile.cache = interrupt""")
    step = new.run("1")
    assert (step.error["name"], step.exit) == ("KeyboardInterrupt", 130)


def test_a_step_that_catches_an_interrupt_goes_on_and_can_be_interrupted_again(one: Session) -> None:
    step = one.begin(
        "import time\ntry:\n    print('a')\n    time.sleep(1000)\n"
        "except KeyboardInterrupt:\n    print('b')\n    time.sleep(1000)"
    )
    one.wait_for(lambda: "a" in step.out, "the first line")
    one.interrupt()
    one.wait_for(lambda: "b" in step.out, "the handler's line")
    one.interrupt()
    assert one.finish(step).exit == 130


def test_a_coroutine_can_clean_up_when_it_is_interrupted(one: Session) -> None:
    step = one.begin(
        "import asyncio\ntry:\n    print('a')\n    await asyncio.sleep(1000)\n"
        "finally:\n    await asyncio.sleep(0.01)\n    print('cleaned')"
    )
    one.wait_for(lambda: "a" in step.out, "the first line")
    one.interrupt(again=False)  # which would end the cleaning, too
    assert one.finish(step).error["name"] == "KeyboardInterrupt"
    assert step.out == "a\ncleaned\n"


def test_an_interrupt_in_the_instant_before_the_loop_waits_ends_the_wait(one: Session) -> None:
    step = one.begin("""
import asyncio, threading, _thread
def interrupt():
    waiting = f'/proc/self/task/{threading.main_thread().native_id}/syscall'
    while 'running' in (now := open(waiting).read()) or now.split()[0] not in EPOLLS: pass
    _thread.interrupt_main()  # as a signal that has come, without what a signal does to a wait that has begun
EPOLLS = {'232', '281', '441', '22'}
threading.Thread(target=interrupt).start()
await asyncio.sleep(1000)""")
    one.finish(step)
    assert (step.error["name"], step.exit) == ("KeyboardInterrupt", 130)


def test_a_wake_up_descriptor_of_a_steps_own_stays(new: Session) -> None:
    new.run("import asyncio, os, signal\ncame = []")
    new.run("asyncio.get_event_loop(); await asyncio.sleep(0)")
    new.run("asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, came.append, 1); await asyncio.sleep(0)")
    new.run("await asyncio.sleep(0)")
    new.process.send_signal(signal.SIGUSR1)
    new.run("while not came: await asyncio.sleep(0.01)")
    assert new.run("before = len(os.listdir('/proc/self/fd'))\nawait asyncio.sleep(0)").exit == 0
    assert new.run("len(os.listdir('/proc/self/fd')) - before").bundle == {"text/plain": "0"}


def test_a_loop_that_takes_no_reader_costs_no_descriptors(new: Session) -> None:
    new.run("""
import asyncio, os
await asyncio.sleep(0)
def refuse(*_): raise NotImplementedError
asyncio.selector_events.BaseSelectorEventLoop.add_reader = refuse
def pipes():
    return sum(os.path.realpath(f'/proc/self/fd/{fd}').rpartition('/')[2].startswith('pipe:')
               for fd in os.listdir('/proc/self/fd'))
before = pipes()""")
    for _ in range(5):
        assert new.run("await asyncio.sleep(0)").exit == 0
    assert new.run("pipes() <= before").bundle == {"text/plain": "True"}


def test_an_interrupt_that_comes_with_the_request_is_not_lost(one: Session) -> None:
    for _ in range(20):
        step = one.begin("while True: pass")
        one.interrupt()
        one.finish(step)
        assert step.exit == 130


def test_a_handler_that_a_step_has_set_does_not_outlive_it(one: Session) -> None:
    one.run("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    step = one.begin("print('up')\nwhile True: pass")
    one.wait_for(lambda: step.out == "up\n", "the first line")
    one.interrupt()
    assert one.finish(step).exit == 130


def test_a_task_that_holds_the_loop_between_steps_gives_way_to_an_interrupted_request(new: Session) -> None:
    first = new.run(
        "import asyncio\nasync def hold():\n"
        "    await asyncio.sleep(0.01)\n    print('held')\n    while True: pass\n"
        "task = asyncio.create_task(hold())\nawait asyncio.sleep(0)"
    )
    new.wait_for(lambda: first.out == "held\n", "the task to hold the loop")
    step = new.begin("1 + 1")
    new.interrupt()
    assert new.finish(step).exit in (0, 130)
    assert new.run("1 + 1").bundle == {"text/plain": "2"}


# --- forks ------------------------------------------------------------------------------------------------------------


def test_a_child_that_is_left_does_not_hold_the_hosts_pipes(new: Session) -> None:
    step = new.run("import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(1000)\nprint(pid)")
    try:
        new.process.kill()
        new.wait_for(lambda: new._control.ended, "the end of the control pipe")
    finally:
        os.kill(int(step.out), signal.SIGKILL)


def test_another_program_in_its_place_does_not_hold_the_hosts_pipes(new: Session) -> None:
    step = new.begin("import os; os.execvp('sh', ['sh', '-c', 'echo replaced; ls /proc/self/fd'])")
    assert new.wait_for_death() == 0
    assert step.out.startswith("replaced\n0\n1\n2\n")
    assert "6" not in step.out
    assert step.of_type("done") == []


# --- code that breaks what it can reach -------------------------------------------------------------------------------

BREAKING = {
    "streams": "import sys; sys.stdout = sys.stderr = sys.stdin = None",
    "stream methods": "import sys; sys.stdout.write = sys.stdout.flush = None",
    "closed streams": "import sys; sys.stdout.close(); sys.stderr.close()",
    "redirected": "import contextlib, io; contextlib.redirect_stdout(io.StringIO()).__enter__()",
    "descriptors 0, 1, 2": "import os; os.close(0); os.close(1); os.close(2)",
    "json": "import json, sys; json.JSONEncoder.default = json.dumps = json.loads = json.JSONEncoder.encode = None\n"
    "json.encoder.c_make_encoder = json.scanner.c_make_scanner = None; del sys.modules['json']",
    "os": "import os; os.write = os.read = os.dup2 = os.open = os.close = os.fstat = os.getpid = os._exit = None",
    "print": "import builtins; builtins.print = builtins.input = None; open = None",
    "modules": "import sys\n"
    "for n in ('json', 'io', 'os', 'signal', 'threading', 'contextvars', 'asyncio'): sys.modules.pop(n, None)",
    "signals": "import signal; signal.signal = signal.getsignal = None",
    "displayhook": "import sys; sys.displayhook = sys.excepthook = None; sys.settrace(None)",
    "recursion limit": "import sys; sys.setrecursionlimit(60)",
    "main module": "import sys; del sys.modules['__main__']",
    "names": "for n in [n for n in globals() if not n.startswith('__')]: del globals()[n]",
}


@pytest.mark.parametrize("kind", BREAKING)
def test_the_session_goes_on_after_code_that_breaks(new: Session, kind: str) -> None:
    new.run("import asyncio\nawait asyncio.sleep(0)\nkeep = 1")
    broken = new.run(BREAKING[kind])
    assert broken.of_type("done")
    step = new.run("import builtins, sys\nsys.stdout.write('out\\n'); sys.stderr.write('err\\n')\n[1]\n7")
    assert (step.out, step.err) == ("out\n", "err\n"), step.frames
    assert step.bundle == {"text/plain": "7"}


@pytest.mark.parametrize(
    "name", ["len", "isinstance", "str", "getattr", "type", "int", "range", "set", "__import__", "BaseException"]
)
def test_the_host_is_answered_when_the_builtins_are_broken(new: Session, name: str) -> None:
    new.run("x = [1]")
    assert new.run(f"import builtins\nbuiltins.{name} = None").of_type("done")
    assert new.run("x").of_type("done")
    assert new.ask("get", name="x")["value"] == [1]
    assert "x" in [value["name"] for value in new.ask("variables")["value"]]


@pytest.mark.parametrize(
    "code", ["os.close(3)", "os.close(6)", "os.closerange(0, 1000)", "os.dup2(1, 3)", "os.dup2(0, 6)"]
)
def test_an_interpreter_that_can_no_longer_speak_ends_at_once(new: Session, code: str) -> None:
    new.begin(f"import os\n{code}")
    assert new.wait_for_death() == CANNOT_SPEAK


def test_output_that_nobody_reads_is_dropped(new: Session) -> None:
    step = new.begin(
        "print('first'); import time\n"
        "while not os.path.exists('closed') if 'os' in globals() else True:\n    import os\n"
        "print('x' * 100000)\nprint('y', file=__import__('sys').stderr)\n3"
    )
    new.wait_for(lambda: step.out == "first\n", "the first line")
    os.close(step.out_pipe.descriptor)
    step.out_pipe.descriptor = os.open(os.devnull, os.O_RDONLY)
    step.out_pipe.ended = True
    (new.workspace / "closed").touch()
    new.wait_for(lambda: bool(step.of_type("done")), "the end")
    assert step.bundle == {"text/plain": "3"}
    assert new.run("print('next')").out == "next\n"


def test_pipes_that_are_not_there_fail_the_step_and_no_other(new: Session) -> None:
    step = new.begin("print(1)")
    new.finish(step)
    lost = new.steps[2] = type(step)(2, step.out_pipe, step.err_pipe)
    new.send(
        {
            "op": "run",
            "asks": [],
            "task": "code",
            "front": None,
            "remembers": True,
            "colours": False,
            "step": 2,
            "code": "x = 1",
            "out": "/nosuch/out",
            "err": "/nosuch/err",
            "stdin": None,
            "cwd": None,
        }
    )
    new.wait_for(lambda: bool(lost.of_type("done")), "the end")
    assert lost.error["name"] == "FileNotFoundError"
    del new.steps[2]
    assert new.run("print('next')").out == "next\n"


def test_a_child_that_makes_the_pipes_nonblocking_loses_no_output(new: Session) -> None:
    step = new.run("import os\nos.set_blocking(1, False)\nprint('x' * 3_000_000)")
    assert len(step.out) == 3_000_001


def test_an_error_in_code_that_has_no_line_numbers_is_told_as_what_it_is(one: Session) -> None:
    step = one.run("def f(): 1 / 0\nf.__code__ = f.__code__.replace(co_linetable=b'')\nf()")
    assert (step.error["name"], step.exit) == ("ZeroDivisionError", 1)
