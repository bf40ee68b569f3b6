"""A program under the hook, and in a process that a warm interpreter forked, behaves as in plain Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.guest.programs import HELPERS, PROGRAMS
from tests.unit.guest.stage import HOOK, PRELOADED, Outcome, guest, plain, pythons, warm

PYTHONS = pythons()
# What plain Python prints of these is not the last word on the exception.
SILENT = ("exits", "SystemExit", "atexit", "dies by", "in a thread", "in a destructor", "in a fork", "hooks exceptions")


FAILING = [name for name in PROGRAMS if name.startswith(("raises", "has", "is ", "misses", "interrupts"))]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_and_prints_what_it_does_in_plain_python(tmp_path: Path, name: str) -> None:
    expected = plain(tmp_path, PYTHONS[0], PROGRAMS[name], "5", stdin="in\nput", files=HELPERS)
    outcome = guest(tmp_path, PYTHONS[0], PROGRAMS[name], "5", stdin="in\nput", files=HELPERS)
    assert outcome.visible == expected.visible
    from_warm = warm(tmp_path, PYTHONS[0], PROGRAMS[name], "5", stdin="in\nput", files=HELPERS, preload=PRELOADED)
    assert from_warm.visible == expected.visible
    if name in FAILING:
        assert_error_frame(name, outcome)


@pytest.mark.parametrize("python", PYTHONS[1:])
def test_programs_do_what_they_do_in_plain_python_of_other_versions(tmp_path: Path, python: str) -> None:
    differences = {}
    for name in ("names itself", "raises in a helper", "raises a chain", "exits by text", "has a syntax error",
                 "runs processes by spawn", "sees no hook", "warns", "is interrupted", "raises a group"):  # fmt: skip
        expected = plain(tmp_path / name, python, PROGRAMS[name], files=HELPERS)
        outcome = guest(tmp_path / name, python, PROGRAMS[name], files=HELPERS)
        if outcome.visible != expected.visible:
            differences[name] = (expected.visible, outcome.visible)
    assert differences == {}


def assert_error_frame(name: str, outcome: Outcome) -> None:
    """An uncaught exception is one error frame with the printed traceback."""
    errors = outcome.of_type("error")
    if outcome.exit == 0 or any(word in name for word in SILENT):
        assert errors == []
    else:
        (error,) = errors
        assert error["traceback"] == outcome.stderr or (
            # Python 3.11 and 3.12 print these two with other marks under the line than their own traceback module.
            error["name"] in ("IndentationError", "TabError")
            and error["traceback"].splitlines()[-1] == outcome.stderr.splitlines()[-1]
        )


def test_the_error_frame_has_the_name_the_message_and_the_number_of_the_error(tmp_path: Path) -> None:
    (error,) = guest(tmp_path, PYTHONS[0], "open('/nope')").of_type("error")
    assert (error["name"], error["errno"]) == ("FileNotFoundError", 2)
    assert error["value"] == "[Errno 2] No such file or directory: '/nope'"


def test_an_exception_that_the_program_prints_in_its_own_way_is_reported_all_the_same(tmp_path: Path) -> None:
    outcome = guest(tmp_path, PYTHONS[0], PROGRAMS["hooks exceptions itself"])
    assert [error["name"] for error in outcome.of_type("error")] == ["ZeroDivisionError"]
    assert outcome.stderr == "mine ZeroDivisionError division by zero\n"


@pytest.mark.parametrize(
    "name", ["exits by text", "exits by number", "fails in a fork", "raises in a thread", "prints"]
)
def test_what_is_no_uncaught_exception_of_the_program_sends_no_error(tmp_path: Path, name: str) -> None:
    assert guest(tmp_path, PYTHONS[0], PROGRAMS[name]).frames == []


def test_lines_that_were_printed_are_not_lost_when_the_program_is_killed(tmp_path: Path) -> None:
    program = "import os\nprint('one')\nprint('two')\nos.kill(os.getpid(), 9)"
    assert plain(tmp_path, PYTHONS[0], program).stdout == ""
    assert guest(tmp_path, PYTHONS[0], program).stdout == "one\ntwo\n"


def test_a_run_leaves_no_bytecode_in_the_workspace(tmp_path: Path) -> None:
    guest(tmp_path, PYTHONS[0], "import helper", files=HELPERS)
    assert sorted(path.name for path in (tmp_path / "guest/workspace").rglob("*")) == ["broken.py", "helper.py"]


def test_a_search_path_of_the_callers_own_is_kept(tmp_path: Path) -> None:
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra/extra_module.py").write_text("x = 1")
    env = {"PYTHONPATH": f"{HOOK}:{tmp_path}/extra"}
    program = "import os, extra_module\nprint(os.environ['PYTHONPATH'])"
    assert guest(tmp_path, PYTHONS[0], program, env=env).stdout == f"{tmp_path}/extra\n"


def test_the_environments_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("print('own')")
    program = "import sys\nprint(sys.modules['sitecustomize'].__file__, callable(display))"
    outcome = guest(tmp_path, PYTHONS[0], program, env={"PYTHONPATH": f"{HOOK}:{tmp_path}/own"})
    assert outcome.stdout == f"own\n{tmp_path}/own/sitecustomize.py True\n"


def test_what_the_program_starts_does_not_hold_the_control_pipe(tmp_path: Path) -> None:
    program = "import os\nos.system('ls /proc/self/fd')"
    assert guest(tmp_path, PYTHONS[0], program).stdout.split() == ["0", "1", "2", "3"]  # 3 is the listed folder


def test_without_a_control_pipe_a_program_runs_and_display_prints(tmp_path: Path) -> None:
    program = "import os\nos.closerange(3, 9)\ndisplay({'a': 1})\nraise ValueError"
    outcome = guest(tmp_path, PYTHONS[0], program)
    assert (outcome.exit, outcome.stdout, outcome.frames) == (1, "{'a': 1}\n", [])
