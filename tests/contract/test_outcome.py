"""How a program ended, in every language: exit codes, signals, uncaught errors, and what the report says."""

from __future__ import annotations

import signal
import time

import pytest
from tests.contract import programs

from casemate import ExecutionFailed, sync
from casemate.model.limits import LIMIT_BOUNDS


def test_a_program_that_ends_well_is_ok_with_exit_code_0(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(programs.HELLO[language], language=language)
    assert (execution.status, execution.ok, execution.exit_code, execution.cause, execution.error) == (
        "ok", True, 0, None, None)  # fmt: skip
    assert execution.raise_for_status() is execution


@pytest.mark.parametrize("code", [1, 3, 126, 255])
def test_an_exit_code_of_the_programs_own_is_given_as_it_is(sandbox: sync.Sandbox, language: str, code: int) -> None:
    execution = sandbox.run(programs.EXIT[language].format(code=code), language=language)
    assert (execution.status, execution.exit_code, execution.cause) == ("failed", code, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_death_by_a_signal_of_its_own_is_128_and_its_number(
    sandbox: sync.Sandbox, language: str, number: signal.Signals
) -> None:
    execution = sandbox.run(programs.KILL_SELF[language].format(signal=int(number)), language=language)
    assert (execution.status, execution.exit_code, execution.cause) == ("failed", 128 + number, None)


@pytest.mark.parametrize("broken", ["python", pytest.param("node", marks=pytest.mark.needs("node"))])
def test_an_uncaught_error_is_given_with_name_value_and_traceback(sandbox: sync.Sandbox, broken: str) -> None:
    execution = sandbox.run(programs.FAIL[broken], language=broken)
    assert execution.status == "failed"
    assert execution.exit_code == 1
    assert execution.error is not None
    name, value = {"python": ("KeyError", "'häß'"), "node": ("RangeError", "häß")}[broken]
    assert (execution.error.name, execution.error.value) == (name, value)
    assert "broken" in execution.error.traceback
    assert f"{name}: {value}" in execution.stderr


@pytest.mark.parametrize("name", ["sum of it.py", "größe 日本 (1).py", "-c", "a'b\"$x`.txt"])
def test_a_traceback_shows_the_lines_and_the_file_name_of_the_program(sandbox: sync.Sandbox, name: str) -> None:
    execution = sandbox.run("x = 1\n1 / 0  # here", program_name=name)
    assert f'File "/program/{name}", line 2' in execution.stderr
    assert "1 / 0  # here" in execution.stderr
    assert "casemate" not in execution.stderr


@pytest.mark.parametrize("name", ["größe (1)", "-x", ".hidden"])
def test_a_program_knows_the_name_of_its_file(sandbox: sync.Sandbox, language: str, name: str) -> None:
    code = {"python": "print(__file__)", "node": "console.log(__filename)", "shell": 'echo "$0"'}[language]
    execution = sandbox.run(code, language=language, program_name=name)
    assert execution.stdout.endswith(f"/program/{name}{'.js' if language == 'node' else ''}\n"), execution.text


def test_an_error_that_the_program_caught_is_none(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    print(e)")
    assert (execution.ok, execution.error, execution.stdout) == (True, None, "division by zero\n")


def test_a_failed_execution_raises_only_when_it_is_asked_to(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(programs.EXIT[language].format(code=4), language=language)
    with pytest.raises(ExecutionFailed, match="exit code 4") as raised:
        execution.raise_for_status()
    assert raised.value.execution is execution


def test_each_execution_has_a_name_of_its_own_and_carries_the_metadata(sandbox: sync.Sandbox, language: str) -> None:
    given = {"ticket": 7, "tags": ["a"]}
    executions = [sandbox.run(programs.HELLO[language], language=language, metadata=given) for _ in range(2)]
    assert executions[0].id != executions[1].id
    assert all(execution.metadata == given for execution in executions)


def test_time_and_use_are_measured(sandbox: sync.Sandbox) -> None:
    before = time.monotonic()
    execution = sandbox.run("import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass")
    elapsed = time.monotonic() - before
    assert 0.3 <= execution.duration <= elapsed
    assert 0.25 <= execution.usage.cpu_seconds <= elapsed + 0.1
    assert execution.usage.peak_memory > 1 << 20
    assert execution.usage.processes >= 1


def test_the_report_says_what_held_the_cell_and_that_it_was_proved(
    sandbox: sync.Sandbox, language: str, start: str, wall: str
) -> None:
    report = sandbox.run(programs.HELLO[language], language=language).isolation
    assert report.wall == wall
    assert report.proved
    assert len(report.proofs) >= 10
    assert 0 < report.proved_at <= time.time()
    assert report.layers
    assert (report.start == "exec") == (start == "exec")
    assert bool(report.start_reason) == (start == "exec")
    assert {mechanism.limit for mechanism in report.limits} == set(LIMIT_BOUNDS)
    assert all(mechanism.mechanism and mechanism.per in ("cell", "process") for mechanism in report.limits)


def test_a_run_sees_nothing_of_the_run_before(sandbox: sync.Sandbox) -> None:
    sandbox.run("open('left', 'w'); open('/tmp/left', 'w'); open('/dev/shm/left', 'w')").raise_for_status()
    seen = sandbox.run("import os; print(os.listdir('.'), os.listdir('/tmp'), os.listdir('/dev/shm'))")
    assert "left" not in seen.stdout
