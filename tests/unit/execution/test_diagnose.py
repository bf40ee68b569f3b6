"""From what was measured to a verdict: every reason, and what only looks like one."""

from __future__ import annotations

import errno
import signal
from typing import Any

import pytest

from casemate import Limits, ProgramError
from casemate.execution.seal import EndDiagnosis, Evidence, diagnose
from casemate.walls.wall import CellEnding

MIB = 2**20


def judged(
    number: int | None = None, error: str | None = None, limits: Limits | None = None, **ending: Any
) -> EndDiagnosis:
    """The verdict on a program that ended well but for what is given."""
    facts: dict[str, Any] = {
        "wait_status": 0, "reason": None, "seconds": 1.5, "cpu_seconds": 0.5, "peak_memory": 10 * MIB, "tasks": 3,
        "begun": 3, "oom": False, "space_left": 100 * MIB, "inodes_left": 1000, "tree_fd": -1,
    }  # fmt: skip
    failure = None if error is None else ProgramError(error.partition(":")[0], error.partition(":")[2], "")
    return diagnose(Evidence(CellEnding(**{**facts, **ending}), limits or Limits(), 1.0, 5000, failure, number))


def exited(code: int) -> int:
    return code << 8


def brief(verdict: EndDiagnosis) -> tuple[str, int | None, str | None]:
    return verdict.status, verdict.exit_code, verdict.cause.code if verdict.cause else None


@pytest.mark.parametrize(("ending", "expected"), [
    ({}, ("ok", 0, None)),
    ({"wait_status": exited(3)}, ("failed", 3, None)),
    ({"wait_status": exited(137)}, ("failed", 137, None)),
    ({"wait_status": signal.SIGTERM}, ("failed", 143, None)),
    ({"wait_status": signal.SIGSEGV | 128}, ("failed", 139, None)),
    ({"wait_status": None}, ("killed", None, "killed")),
    ({"reason": "timeout"}, ("timeout", None, "timeout")),
    ({"reason": "memory"}, ("out_of_memory", None, "memory_limit")),
    ({"reason": "cpu"}, ("killed", None, "cpu_limit")),
    ({"reason": "output"}, ("killed", None, "output_limit")),
    ({"reason": "cancelled"}, ("cancelled", None, "cancelled")),
    ({"reason": "anything else"}, ("killed", None, "killed")),
    ({"oom": True, "wait_status": signal.SIGKILL}, ("out_of_memory", None, "memory_limit")),
    ({"wait_status": signal.SIGXCPU}, ("killed", None, "cpu_limit")),
    ({"wait_status": exited(1), "inodes_left": 0}, ("failed", 1, "inode_limit")),
    ({"wait_status": exited(1), "space_left": 0}, ("failed", 1, "disk_limit")),
    ({"wait_status": exited(1), "tasks": 64}, ("failed", 1, "process_limit")),
    ({"wait_status": signal.SIGABRT, "peak_memory": 500 * MIB}, ("out_of_memory", 134, "memory_limit")),
    ({"wait_status": signal.SIGABRT, "peak_memory": 50 * MIB}, ("failed", 134, None)),
    ({"wait_status": exited(134), "peak_memory": 500 * MIB}, ("out_of_memory", 134, "memory_limit")),
    # A program that copes with what was refused ends well.
    ({"inodes_left": 0, "space_left": 0, "tasks": 64}, ("ok", 0, None)),
])  # fmt: skip
def test_the_verdict_follows_the_evidence(ending: dict[str, Any], expected: tuple[str, int | None, str | None]) -> None:
    assert brief(judged(**ending)) == expected


@pytest.mark.parametrize(("number", "cause"), [
    (errno.ENOSPC, "disk_limit"), (errno.EMFILE, "open_files_limit"), (errno.EAGAIN, "process_limit"),
    (errno.ENOENT, None), (None, None)])  # fmt: skip
def test_the_errno_of_the_uncaught_error_names_the_limit(number: int | None, cause: str | None) -> None:
    assert brief(judged(number, "OSError:x", wait_status=exited(1), begun=64)) == ("failed", 1, cause)


@pytest.mark.parametrize(("begun", "cause"), [(63, None), (64, "process_limit"), (65, None)])
def test_a_program_that_catches_the_refusal_and_exits_met_the_limit_of_processes(begun: int, cause: str | None) -> None:
    assert brief(judged(wait_status=exited(3), begun=begun)) == ("failed", 3, cause)


def test_eagain_is_about_processes_only_where_so_many_were_begun() -> None:
    assert brief(judged(errno.EAGAIN, "BlockingIOError:x", wait_status=exited(1), begun=63)) == ("failed", 1, None)


@pytest.mark.parametrize(("tasks", "message"), [(64, "No more processes"), (3, "started 70 processes")])
def test_processes_are_said_to_be_refused_only_where_so_many_were_seen(tasks: int, message: str) -> None:
    verdict = judged(errno.EAGAIN, "BlockingIOError:x", wait_status=exited(1), begun=70, tasks=tasks)
    assert verdict.cause is not None
    assert message in verdict.cause.message


@pytest.mark.parametrize(("error", "expected"), [
    ("MemoryError:", ("out_of_memory", 1, "memory_limit")),
    ("RuntimeError:can't start new thread", ("failed", 1, "process_limit")),
    ("RuntimeError:anything else", ("failed", 1, None))])  # fmt: skip
def test_errors_that_carry_no_errno_are_known_by_name(error: str, expected: tuple[str, int, str]) -> None:
    assert brief(judged(error=error, wait_status=exited(1))) == expected


def test_death_by_sigkill_is_the_cpu_limit_only_where_the_time_was_used() -> None:
    limits = Limits(cpu_time=1)
    assert brief(judged(limits=limits, wait_status=signal.SIGKILL, cpu_seconds=1.0))[2] == "cpu_limit"
    assert brief(judged(limits=limits, wait_status=signal.SIGKILL, cpu_seconds=0.2)) == ("failed", 137, None)


@pytest.mark.parametrize("ending", [{"reason": reason} for reason in ("timeout", "memory", "cpu", "output")])
def test_a_cause_says_the_limit_and_what_was_used(ending: dict[str, Any]) -> None:
    limits = Limits(cpu_time=7, memory="512MiB", full_output="64MiB")
    cause = judged(limits=limits, **ending).cause
    assert cause is not None
    said = {"timeout": ("1.50 s", "1 s"), "memory": ("10 MiB", "512 MiB"), "cpu": ("0.50 s", "7.0 s"),
            "output": ("4.883 KiB", "64 MiB")}[ending["reason"]]  # fmt: skip
    assert all(part in cause.message for part in said), cause.message
    assert cause.remediation


@pytest.mark.parametrize(("wall", "told"), [(60, "up to the 60 s of limits.wall"), (1, "limits.wall to be raised")])
def test_a_longer_timeout_is_advised_where_it_would_help(wall: float, told: str) -> None:
    cause = judged(limits=Limits(wall=wall), reason="timeout").cause
    assert cause is not None
    assert told in cause.remediation
