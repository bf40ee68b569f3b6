"""The Python interpreter of a session: what a step gives, and what is left of it for the next."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.guest.python_session import FORKED, PROGRAM, needs_ipython, start
from tests.unit.guest.session_driver import Session, Step
from tests.unit.guest.stage import pythons

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Opens a session in the test's own way."""
    sessions: list[Session] = []

    def open_session(program: str = PROGRAM, **options: Any) -> Session:
        sessions.append(start(tmp_path, program, **options))
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.close()


def test_without_ipython_the_host_is_told_what_to_install(opened: Callable[..., Session]) -> None:
    session = opened("import sys\nsys.modules['IPython'] = None\n" + PROGRAM)
    assert "IPython cannot be imported" in session.ready["problem"]
    assert "-m pip install ipython" in session.ready["problem"]
    assert session.wait_for_death() == 0


@pytest.mark.parametrize("python", pythons())
def test_every_python_of_this_machine_runs_steps_or_says_what_it_lacks(
    python: str, opened: Callable[..., Session]
) -> None:
    session = opened(python=python)
    if subprocess.call([python, "-c", "import IPython"], stderr=subprocess.DEVNULL):
        assert session.ready["problem"].startswith("IPython cannot be imported")
        return
    assert session.ready == {"type": "ready"}
    assert session.run("x = 20\nprint('out')").out == "out\n"
    assert session.run("x + 1").bundle == {"text/plain": "21"}
    assert session.run("1 / 0").error["name"] == "ZeroDivisionError"
    assert session.run("f(").error["name"] == "SyntaxError"
    assert session.run("import asyncio\nawait asyncio.sleep(0)\n!echo $((x))\n%cd /").exit == 0
    assert session.run("%%bash\necho b").out == "b\n"
    assert session.run("display(x, display_id='d')").displays == [{"text/plain": "20"}]
    assert session.run("get_ipython().run_cell('1/0').success").err.count("ZeroDivisionError") == 0
    assert session.own_output == ""


def test_an_ipython_that_is_too_old_is_refused_with_the_remedy(opened: Callable[..., Session]) -> None:
    old = "import sys\nold = sys.modules['IPython'] = type(sys)('IPython')\n"
    session = opened(old + "old.version_info, old.__version__ = (7, 34, 0), '7.34.0'\n" + PROGRAM)
    assert session.ready["problem"].startswith("IPython 7.34.0 is too old, 8.0 is needed")


@needs_ipython
def test_the_shell_that_a_zygote_has_made_is_fresh_and_nothing_else_sees_it(opened: Callable[..., Session]) -> None:
    session = opened(FORKED)
    names = session.run("import sys\nprint(sys.in_zygote, sorted(n for n in globals() if not n.startswith('_')))")
    assert names.out.startswith(
        "(1, False, False, '<stdout>') ['In', 'Out', 'exit', 'get_ipython', 'open', 'quit', 'sys']"
    )
    assert session.run("print(len(In), Out, _, __, ___, repr(_i))").out == (
        "3 {}    "
        + repr("import sys\nprint(sys.in_zygote, sorted(n for n in globals() if not n.startswith('_')))")
        + "\n"
    )
    assert (
        session.run("__name__, __spec__, hasattr(sys, 'last_value')").bundle["text/plain"]
        == "('__main__', None, False)"
    )


@needs_ipython
def test_nothing_of_the_users_home_is_read_or_written(opened: Callable[..., Session], tmp_path: Path) -> None:
    startup = tmp_path / "home" / ".ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("planted = 1")
    (startup.parent / "ipython_config.py").write_text("c.InteractiveShellApp.exec_lines = ['planted = 1']")
    before = sorted(str(path) for path in (tmp_path / "home").rglob("*"))
    session = opened(env={"PYTHONSTARTUP": str(startup / "00.py")})
    session.run("%cd /\n%history\n%store\nx = 1")
    assert session.run("planted").error["name"] == "NameError"
    assert sorted(str(path) for path in (tmp_path / "home").rglob("*")) == before


# --- what a step gives ------------------------------------------------------------------------------------------------


@needs_ipython
def test_a_result_is_kept_in_underscore_and_out(one: Session) -> None:
    assert one.run("[1, 2]").exit == 0
    assert one.run("_ + [3]").bundle == {"text/plain": "[1, 2, 3]"}


@needs_ipython
def test_only_the_last_fifty_results_are_kept_alive(new: Session) -> None:
    new.run("import weakref\nclass Big: pass\nfirst = Big()\ngone = weakref.ref(first)\nfirst")
    new.run("del first")
    steps = [new.run("object()") for _ in range(55)]
    assert [step.err for step in steps if step.err] == []
    assert new.run("gone() is None, len(Out) <= 50").bundle["text/plain"] == "(True, True)"


@needs_ipython
def test_a_bundle_of_any_media_types_goes_through(one: Session) -> None:
    plotly = {
        "application/vnd.plotly.v1+json": {"data": [], "layout": {}},
        "application/vnd.vegalite.v5+json": {"mark": "bar"},
    }
    step = one.run(f"display({{**{plotly!r}, 'image/jpeg': b'j'}}, raw=True)")
    assert step.displays == [{**plotly, "image/jpeg": "ag=="}]


@needs_ipython
def test_what_json_cannot_hold_is_left_out_of_a_bundle_with_a_word(one: Session) -> None:
    step = one.run("display({'text/plain': 'p', 'application/json': {1, 2}}, raw=True)")
    assert step.displays == [{"text/plain": "p"}]
    assert "application/json failed: TypeError: set is not JSON" in step.err


@needs_ipython
def test_the_largest_part_is_left_out_of_a_bundle_that_is_larger_than_a_frame(one: Session) -> None:
    step = one.run("display({'text/plain': 'p', 'text/html': 'h' * (16 << 20)}, raw=True)")
    assert step.displays == [{"text/plain": "p"}]
    assert "text/html failed: ValueError: more than 16777216 bytes" in step.err


@needs_ipython
def test_a_line_reaches_the_host_while_the_step_runs(one: Session) -> None:
    step = one.begin("print('now')\nprint('dots', end='')\nimport time\nwhile True: time.sleep(0.01)")
    one.wait_for(lambda: step.out == "now\ndots", "the printed text")
    assert not step.is_done
    one.interrupt()
    one.finish(step)


@needs_ipython
def test_nothing_that_is_printed_can_fail(one: Session) -> None:
    step = one.run(r"print('\udc80é\ud800', 'ok', flush=True)")
    assert step.exit == 0
    assert step.out == "\\udc80é\\ud800 ok\n"


@needs_ipython
def test_the_end_of_a_flood_of_lines_reaches_the_host_while_the_step_goes_on(one: Session) -> None:
    step = one.begin("for i in range(9000): print(i)\nimport time\nwhile True: time.sleep(10)")
    one.wait_for(lambda: step.out.endswith("8999\n"), "the last line")
    one.interrupt()
    assert one.finish(step).exit == 130
    assert one.run("import signal; signal.getsignal(signal.SIGALRM) == signal.SIG_DFL").bundle["text/plain"] == "True"


@needs_ipython
def test_the_streams_look_like_any_programs(one: Session) -> None:
    step = one.run("""
import io, sys
for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
    assert stream.fileno() == number and stream.encoding == 'utf-8' and not stream.isatty() and stream.writable()
    assert isinstance(stream, io.TextIOBase) and stream.write('') == 0 and not stream.closed
assert sys.stdout is sys.__stdout__ and sys.stdout.name == '<stdout>'
sys.stdout.writelines(['1', '2\\n'])
sys.stdout.write('3')
sys.stdout.buffer.write(b'\\xff\\n')
try: sys.stdout.write(b'')
except TypeError as error: print(error)
sys.stdout.close()
print('open')""")
    assert step.exit == 0, step.frames
    assert bytes(step.out_pipe.data) == b"12\n3\xff\nwrite() argument must be str, not bytes\nopen\n"


# --- pictures ---------------------------------------------------------------------------------------------------------

needs_matplotlib = pytest.mark.needs("data")


def pictures(step: Step) -> list[bytes]:
    """The PNGs that a step has shown, as results or displays."""
    frames = [*step.of_type("display"), *step.of_type("result")]
    return [base64.b64decode(frame["bundle"]["image/png"]) for frame in frames if "image/png" in frame["bundle"]]


@needs_ipython
@needs_matplotlib
@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("plt.plot([1, 2])", 1),
        ("plt.plot([1]); plt.figure(); plt.plot([2])", 2),
        ("%matplotlib inline\nplt.plot([1, 2])", 1),
        ("figure, axes = plt.subplots()\nfigure", 1),
        ("figure, axes = plt.subplots()\ndisplay(figure)", 1),
        ("plt.plot([1])\nplt.show()\nplt.plot([2])\nplt.show()", 2),
        ("plt.plot([1])\nplt.savefig('/dev/null', format='png')\nplt.close()", 0),
        ("plt.figure()", 0),
        ("plt.plot([1])\n1 / 0", 1),
        ("x = 1", 0),
    ],
)
def test_every_figure_is_one_picture(one: Session, code: str, count: int) -> None:
    one.run("import matplotlib.pyplot as plt")
    shown = pictures(one.run(code))
    assert len(shown) == count
    assert all(picture.startswith(PNG) for picture in shown)
    assert one.run("plt.get_fignums()").bundle["text/plain"] == "[]"


@needs_ipython
@needs_matplotlib
def test_figures_can_be_asked_for_in_another_format(new: Session) -> None:
    step = new.run(
        "%config InlineBackend.figure_format = 'svg'\nimport matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()"
    )
    [bundle] = step.displays
    assert bundle["image/svg+xml"].startswith("<?xml")
    assert "image/png" not in bundle


@needs_ipython
@needs_matplotlib
def test_a_window_is_refused_with_the_reason(one: Session) -> None:
    error = one.run("%matplotlib qt").error
    assert error["name"] == "UsageError"
    assert "figures are shown in the step" in error["value"]


@needs_ipython
@needs_matplotlib
def test_an_image_of_pillow_is_one_png(one: Session) -> None:
    bundle = one.run("from PIL import Image\nImage.new('RGB', (2, 2))").bundle
    assert base64.b64decode(bundle["image/png"]).startswith(PNG)
    assert "image/jpeg" not in bundle


# --- errors -----------------------------------------------------------------------------------------------------------

FAILING = {
    "1 / 0": ("ZeroDivisionError", "division by zero"),
    "def f(:": ("SyntaxError", "invalid syntax (<"),
    "x = 1\n  y": ("IndentationError", "unexpected indent (<"),
    "return": ("SyntaxError", "'return' outside function (<"),
    "%nosuch": ("UsageError", "Line magic function `%nosuch` not found."),
    "%cd /nosuch": ("FileNotFoundError", "[Errno 2] No such file"),
    "raise KeyboardInterrupt('mine')": ("KeyboardInterrupt", "mine"),
    "def f(): f()\nf()": ("RecursionError", "maximum recursion depth exceeded"),
    "await nosuch": ("NameError", "name 'nosuch' is not defined"),
    "class E(Exception):\n    def __str__(self): 1 / 0\nraise E": ("E", "<exception str() failed>"),
    "class E(Exception):\n    def __getattribute__(self, name): 1 / 0\nraise E": ("E", ""),
    "e = ValueError('loop')\ne.__cause__ = e\nraise e": ("ValueError", "loop"),
    "class M(type):\n    __name__ = property(lambda s: 1 / 0)\nclass E(Exception, metaclass=M): pass\nraise E('m')": (
        "E",
        "m",
    ),
    "%%bash\nexit 3": ("CalledProcessError", "Command 'exit 3"),
    "x = [\x00]": ("SyntaxError", ""),
}


@needs_ipython
@pytest.mark.parametrize("code", FAILING)
def test_every_failure_is_one_error_and_nothing_is_printed(one: Session, code: str) -> None:
    name, value = FAILING[code]
    step = one.run(code)
    if name != "FileNotFoundError":  # %cd says it, and goes on
        assert step.error["name"] == name or (name == "SyntaxError" and step.error["name"] == "ValueError")
        assert value in step.error["value"]
        assert name in step.error["traceback"] or "ValueError" in step.error["traceback"] or name == "E"
        assert "\x1b" not in step.error["traceback"]
        assert "_casemate" not in step.error["traceback"]
        assert step.exit == (130 if name == "KeyboardInterrupt" else 1)
        assert (step.out, step.err) == ("", "")
    assert one.run("1 + 1").bundle == {"text/plain": "2"}


@needs_ipython
def test_the_error_number_of_the_system_is_told(one: Session) -> None:
    assert one.run("open('/nosuch')").error["errno"] == 2
    assert one.run("raise OSError('plain')").error["errno"] is None


@needs_ipython
def test_exception_groups_are_shown_whole(one: Session) -> None:
    trace = one.run("raise ExceptionGroup('both', [ValueError('a'), KeyError('b')])").error["traceback"]
    assert "ValueError: a" in trace
    assert "KeyError: 'b'" in trace


@needs_ipython
@pytest.mark.parametrize(
    ("call", "code"),
    [("exit", 0), ("quit()", 0), ("exit(3)", 3), ("%exit", 0), ("print(2); exit(); print(3)", 0), ("%quit 4", 4)],
)
def test_exit_really_ends_the_interpreter(new: Session, call: str, code: int) -> None:
    new.run("import atexit; atexit.register(print, 'at exit')")
    step = new.begin(f"print(1, end='')\n{call}" if "\n" in call else call)
    assert new.wait_for_death() == code
    assert step.of_type("done") == []
    assert step.out.endswith("at exit\n")
    assert "3" not in step.out


@needs_ipython
def test_a_script_that_fails_fails_the_step(one: Session) -> None:
    (one.workspace / "fails.py").write_text("print('ran')\nraise KeyError('inside')")
    step = one.run("%run fails.py")
    assert (step.out, step.error["name"]) == ("ran\n", "KeyError")
    (one.workspace / "leaves.py").write_text("import sys\nsys.exit(0)")
    assert one.run("%run leaves.py").exit == 0


@needs_ipython
def test_the_last_error_can_be_shown_again_and_the_debugger_says_what_it_needs(one: Session) -> None:
    one.run("1 / 0")
    assert "ZeroDivisionError" in one.run("%tb").err
    assert one.run("%debug").error["value"].startswith("the debugger: this step was given no standard input")
    assert one.run("breakpoint()").error["name"] == "NoStandardInput"
    one.run("def broken(local): return 1 / 0\nbroken(41)")
    assert "42" in one.run("%debug", stdin="p local + 1\nq\n").out


# --- commands ---------------------------------------------------------------------------------------------------------


@needs_ipython
def test_a_commands_output_is_the_steps_byte_for_byte_and_its_exit_code_is_kept(one: Session) -> None:
    step = one.run("!printf 'a\\377'; printf e >&2; [ -t 1 ] || exit 3")
    assert (bytes(step.out_pipe.data), step.err) == (b"a\xff", "e")
    assert one.run("_exit_code").bundle == {"text/plain": "3"}


@needs_ipython
def test_a_commands_lines_can_be_taken_as_a_value(one: Session) -> None:
    assert (
        one.run("what = 'b'\nlines = !printf 'a\\n'$what\nlines, lines.n").bundle["text/plain"]
        == "(['a', 'b'], 'a\\nb')"
    )
    assert one.run("%sx echo s").bundle["text/plain"] == "['s']"
    assert one.run("!!echo t").bundle["text/plain"] == "['t']"


@needs_ipython
def test_scripts_run_in_their_interpreter_and_give_their_output_as_names(one: Session) -> None:
    assert one.run("%%script python3 -\nprint('from script')").out == "from script\n"
    step = one.run("%%bash --out kept_out --err kept_err\necho o; echo e >&2")
    assert (step.out, step.err) == ("", "")
    assert one.run("kept_out, kept_err").bundle["text/plain"] == "('o\\n', 'e\\n')"
    assert one.run("%%bash --no-raise-error\nexit 3").exit == 0
    assert one.run("%%script nosuch\nx").error["name"] == "FileNotFoundError"


@needs_ipython
def test_captured_output_of_commands_and_displays_is_not_the_steps(one: Session) -> None:
    step = one.run("%%capture caught\nprint(1)\n!echo 2\ndisplay(3)")
    assert step.timeline() == ["done"]
    assert one.run("caught.stdout, len(caught.outputs)").bundle["text/plain"] == "('1\\n2\\n', 1)"


@needs_ipython
@pytest.mark.parametrize("command", ["!(read x < {go}; echo late) & echo started", "!(read x < {go}; echo late) &"])
def test_what_a_command_leaves_running_writes_into_its_own_step(one: Session, command: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    first = one.run(command.format(go=tmp_path / "go"))
    second = one.run("print('second')")
    (tmp_path / "go").write_text("\n")
    one.wait_for(lambda: first.out.endswith("late\n"), "what was left")
    assert second.out == "second\n"


@needs_ipython
@pytest.mark.parametrize("code", ["!echo up; exec sleep 1000", "%%bash\necho up; sleep 1000; true", "x = !sleep 1000"])
def test_an_interrupt_ends_a_command(one: Session, code: str) -> None:
    step = one.begin(code)
    one.wait_for(lambda: step.out == "up\n" or code.startswith("x"), "the command's first line")
    one.interrupt()
    assert one.finish(step).error["name"] == "KeyboardInterrupt"


# --- standard input ---------------------------------------------------------------------------------------------------


@needs_ipython
@pytest.mark.parametrize("code", ["input('name? ')", "import getpass; getpass.getpass()"])
def test_asking_without_standard_input_says_how_to_give_one(one: Session, code: str) -> None:
    step = one.run(code)
    assert step.error["value"] == "input(): this step was given no standard input; give it with stdin=…"
    assert "EOFError" in one.run("type(sys.last_value).__mro__").bundle["text/plain"]
    assert one.run("import sys; sys.stdin.read(), sys.stdin.readline()").bundle["text/plain"] == "('', '')"


@needs_ipython
def test_standard_input_is_read_by_the_step_and_its_children_in_turn(one: Session) -> None:
    code = """
a = input('name? ')
import sys
b = sys.stdin.readline()
!head -c 2
c = sys.stdin.buffer.readline()
d = sys.stdin.read(2)
!cat
print([a, b, c, d])
input()"""
    step = one.run(code, stdin="Ada\nsécond\nxyz\né1rest\n")
    assert step.out == "name? xyrest\n['Ada', 'sécond\\n', b'z\\n', 'é1']\n"
    assert step.error["value"] == "the standard input that this step was given has ended"
    assert one.run("!cat").out == ""


@needs_ipython
def test_standard_input_needs_no_memory_file(new: Session) -> None:
    new.run("import sys; sys.modules['_casemate.session_streams']._memory_file = lambda *a: open('/nosuch')")
    assert new.run("input(), list(sys.stdin)", stdin="a\nb\nc").bundle["text/plain"] == "('a', ['b\\n', 'c'])"


# --- names ------------------------------------------------------------------------------------------------------------


@needs_ipython
def test_a_step_tells_which_names_it_has_bound_and_deleted(new: Session) -> None:
    assert new.run("b = 1; a = 2; _private = 3; import os as c\ndef d(): pass\n5").done["new"] == [
        "b",
        "a",
        "_private",
        "c",
        "d",
    ]
    step = new.run("a = 7; del b; e = 8\n!true")
    assert (step.done["new"], step.done["gone"]) == (["e"], ["b"])
    step = new.run("%reset -f")
    assert sorted(step.done["gone"]) == ["_private", "a", "c", "d", "e"]
    assert new.run("1 + 1").bundle == {"text/plain": "2"}


@needs_ipython
def test_very_many_and_very_long_names_are_cut(new: Session) -> None:
    done = new.run("globals().update({f'n{i}': i for i in range(12000)}); globals()['l' * 500] = 1").done
    assert len(done["new"]) == 10_000
    assert new.run("globals()['l' * 501] = 1").done["new"] == ["l" * 199 + "…"]


@needs_ipython
def test_variables_are_told_without_running_code_of_the_users(new: Session) -> None:
    new.run("""
class Evil:
    def __repr__(self): raise SystemExit
    __class__ = property(lambda self: 1 / 0)
    __len__ = __sizeof__ = __hash__ = __eq__ = __repr__
class Meta(type):
    __repr__ = lambda cls: 1 / 0
class Odd(metaclass=Meta): pass
class Sub(list):
    __iter__ = __repr__ = lambda self: 1 / 0
number, text, many = 7, 'x' * 1000, list(range(10_000_000))
evil, nested, sub, huge = Evil(), {'k': [Evil(), (1,), {2}]}, Sub([1]), 10 ** 100000
def function(): pass
import math
cycle = []; cycle.append(cycle)
""")
    values = {value["name"]: value for value in new.ask("variables")["value"]}
    assert list(values)[:4] == ["Evil", "Meta", "Odd", "Sub"]
    told = {name: (value["type"], value["repr"]) for name, value in values.items()}
    assert told["number"] == ("int", "7")
    assert told["evil"] == ("__main__.Evil", "<__main__.Evil object>")
    assert told["nested"] == ("dict", "{'k': [<__main__.Evil object>, (1,), {2}]}")
    assert told["sub"] == ("__main__.Sub", "<__main__.Sub object>")
    assert told["Odd"] == ("__main__.Meta", "<class __main__.Odd>")
    assert told["function"] == ("function", "<function function>")
    assert told["math"] == ("module", "<module math>")
    assert told["huge"][1].startswith("<int of 332193 bits>")
    assert told["cycle"][1] == "[[[[[…]]]]]"
    assert values["many"]["size"] > 80_000_000
    assert len(values["text"]["repr"]) == 200
    assert values["many"]["repr"].startswith("[0, 1, 2, ")


@needs_ipython
@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("v = float('nan')", "v is nan, which JSON does not have"),
        ("v = [1, {'a': (0, float('inf'))}]", "v[1]['a'][1] is inf, which JSON does not have"),
        ("v = {'a': {1, 2}}", "v['a'] is of type set, which JSON does not have"),
        ("v = {1: 2}", "v has a key of type int; keys in JSON are texts"),
        ("v = []\nv.append(v)", "is nested deeper than 200 levels"),
        ("v = '\\ud800'", "v is not valid Unicode text"),
        ("v = 'x' * (17 << 20)", "v is larger than 16777216 bytes"),
        ("v = '\\n' * (15 << 20)", "the answer is larger than a frame can be"),
        ("v = 10 ** 5000", "v is an integer of 16610 bits"),
        ("del v", "there is no variable 'v'"),
    ],
)
def test_what_json_cannot_hold_exactly_is_not_got(one: Session, code: str, problem: str) -> None:
    one.run("v = 1")
    one.run(code)
    assert problem in one.ask("get", name="v")["error"]


@needs_ipython
@pytest.mark.needs("data")
def test_numpys_numbers_and_tuples_are_got_as_jsons(one: Session) -> None:
    one.run("import numpy\nv = (numpy.int64(3), numpy.float64(0.5), numpy.bool_(True))")
    assert one.ask("get", name="v")["value"] == [3, 0.5, True]


# --- the main module --------------------------------------------------------------------------------------------------


@needs_ipython
def test_the_users_code_is_the_main_module(one: Session) -> None:
    step = one.run("""
import pickle, sys, typing, dataclasses
@dataclasses.dataclass
class Point:
    x: 'typing.Optional[Point]' = None
assert __name__ == '__main__' and sys.modules['__main__'].Point is Point
assert pickle.loads(pickle.dumps(Point())) == Point()
assert typing.get_type_hints(Point)['x'] == typing.Optional[Point]
import inspect
def shown(): return 'source'
print(inspect.getsource(shown), end='')""")
    assert (step.exit, step.out) == (0, "def shown(): return 'source'\n"), step.frames


@needs_ipython
def test_a_zygotes_shell_forgets_where_it_was_made(opened: Callable[..., Session]) -> None:
    session = opened("import os\nos.environ['HOME'] = '/nosuch'\nos.chdir('/')\n" + FORKED.replace(
        "sys.in_zygote", "os.environ['HOME'] = '/tmp'\nos.chdir('/usr')\nsys.in_zygote"))  # fmt: skip
    assert session.run("_dh").bundle["text/plain"] == "['/usr']"
    assert session.run("%cd\nimport os; print(os.getcwd())").out.endswith("/tmp\n")


@needs_ipython
def test_the_end_of_the_requests_is_the_end_of_the_interpreter(new: Session) -> None:
    new.run("x = 1")
    assert new.hang_up() == 0


# --- as in a notebook -------------------------------------------------------------------------------------------------


@needs_ipython
@needs_matplotlib
@pytest.mark.parametrize("program", [PROGRAM, f"import pandas\n{FORKED}"])
def test_a_wide_table_has_all_of_its_columns(opened: Callable[..., Session], program: str) -> None:
    table = "pandas.DataFrame({f'column_{n}': [1] for n in range(12)})"
    session = opened(program)
    step = session.run(f"import pandas\nprint({table})\n{table}")
    assert all(f"column_{n}" in step.out and f"column_{n}" in step.bundle["text/plain"] for n in range(12))
    assert max(map(len, step.out.splitlines())) <= 80


@needs_ipython
def test_what_asks_ipython_what_it_is_sees_a_notebook_where_widgets_are_shown(new: Session) -> None:
    asks = "shell = get_ipython()\n(type(shell).__name__ == 'ZMQInteractiveShell', 'IPKernelApp' in shell.config)"
    assert new.run(asks).bundle["text/plain"] == "(False, False)"
    assert new.run(asks, front="a message").bundle["text/plain"] == "(True, True)"


@needs_ipython
@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("open('bad.py', 'w').write('x = 1\\nx = (1 +* 2)')\nimport bad", "ad.py:2\n    x = (1 +* 2)\n            ^\n"),
        ("import ast; ast.parse('a b')", "File <unknown>:1\n    a b\n      ^\n"),
        ("exec('a b')", "File <string>:1\n    a b\n      ^\n"),
        ("eval('1 +')", "File <string>:1\n    1 +\n      ^\n"),
        ("compile('a b', 'mine.py', 'exec')", "File mine.py:1\n    a b\n      ^\n"),
        ("a b", "  Cell In["),
    ],
)  # fmt: skip
def test_a_syntax_error_has_its_file_its_line_and_a_caret(one: Session, code: str, place: str) -> None:
    error = one.run(code).error
    assert error["name"] == "SyntaxError"
    assert place in error["traceback"]
    assert "^" in error["traceback"]


@needs_ipython
@needs_matplotlib
def test_a_plot_in_captured_code_is_among_what_was_captured(one: Session) -> None:
    one.run("import matplotlib.pyplot as plt")
    assert one.run("%%capture cap\nlines = plt.plot([1])").displays == []
    assert one.run("[sorted(output.data) for output in cap.outputs]").bundle["text/plain"] == (
        "[['image/png', 'text/plain']]"
    )


@needs_ipython
@needs_matplotlib
def test_figures_that_stay_open_are_shown_again_only_when_they_change(new: Session) -> None:
    new.run("import matplotlib.pyplot as plt\n%config InlineBackend.close_figures = False")
    shown = [len(new.run(code).displays) for code in ("plt.plot([1]);", "1", "plt.plot([2]);", "plt.close()")]
    assert shown == [1, 0, 1, 0]
    refused = new.run("%config InlineBackend.figure_formats = ['webp']")
    assert "'webp'" in refused.err
    told = new.run("%config InlineBackend")
    assert told.of_type("error") == []
    assert "InlineBackend.figure_format=" in told.out
    new.run("%config InlineBackend.figure_formats = ['svg', 'pdf']\n%config InlineBackend.rc = {'figure.dpi': 50}")
    (bundle,) = new.run("plt.plot([1])\nprint(plt.rcParams['figure.dpi'])").displays
    assert {"image/svg+xml", "application/pdf"} <= set(bundle)
    assert "image/png" not in bundle


@needs_ipython
def test_a_magic_works_or_says_why_it_does_not(one: Session) -> None:
    assert one.run("%gui asyncio").err == ""
    for name in ("edit", "less", "more", "man"):
        assert f"%{name} is not there" in one.run(f"%{name} x").error["value"]
    assert one.run("stored = 5\n%store stored\ndel stored\n%store -r\nstored").bundle["text/plain"] == "5"
    one.run("open('loaded.py', 'w').write('print(77)')")
    for code, text in (("%load loaded.py", "print(77)"), ("get_ipython().set_next_input('next')", "next")):
        (bundle,) = one.run(code).displays
        assert bundle["text/plain"].endswith(text)
    assert one.run("%recall -1").displays or one.run("%recall 1").displays


@needs_ipython
def test_colours_that_code_turns_off_stay_off(new: Session) -> None:
    assert "\x1b[" in new.run("1 / 0", colours=True).error["traceback"]
    new.run("%colors nocolor", colours=True)
    assert "\x1b[" not in new.run("1 / 0", colours=True).error["traceback"]


@needs_ipython
def test_a_value_is_kept_where_the_one_before_could_not_be_shown(new: Session) -> None:
    bad = "class Bad:\n    def __repr__(self): 1 / 0\n"
    assert new.run(f"{bad}Bad()").error["name"] == "ZeroDivisionError"
    assert new.run("7").bundle == {"text/plain": "7"}
    step = new.run("display(Bad())\n8")
    assert (step.of_type("error"), step.bundle) == ([], {"text/plain": "8"})
    assert "ZeroDivisionError" in step.err
    assert new.run("(_, Out[max(Out)])").bundle == {"text/plain": "(8, 8)"}


@needs_ipython
@pytest.mark.parametrize("value", ["Bad()", "[Bad()]"])
def test_a_last_expression_whose_repr_raises_fails_the_step(one: Session, value: str) -> None:
    step = one.run(f"class Bad:\n    def __repr__(self): 1 / 0\n{value}")
    assert (step.error["name"], step.err, step.exit) == ("ZeroDivisionError", "", 1)
    assert one.run("5").bundle == {"text/plain": "5"}
