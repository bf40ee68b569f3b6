"""What casemate refuses: with an error that names the argument and what would be right, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract import witness

from casemate import CasemateError, InvalidArgument, Limits, RuntimeMissing, sync
from casemate.audit.log import AuditLog

SURROGATE = "\ud800"
RUN: list[Any] = [  # argument, value, what the message must say
    ("code", "print(1)\0", "NUL byte at offset 8"),
    ("code", b"print('\xff')", "not valid UTF-8"),
    ("code", f"print('{SURROGATE}')", "not valid UTF-8"),
    ("code", "#" * (50 << 20), "Give large data as files"),
    ("code", None, "must be str"),
    ("code", 5, "must be str"),
    ("language", "cobol", "give one of 'python', 'node', 'shell'"),
    ("language", "", "give one of"),
    ("language", None, "give one of"),
    ("timeout", 0, "positive number"),
    ("timeout", -1, "positive number"),
    ("timeout", float("nan"), "positive number"),
    ("timeout", float("inf"), "positive number"),
    ("timeout", "10", "positive number"),
    ("timeout", True, "positive number"),
    ("timeout", 10**400, "positive number"),
    ("limits", {"memory": "1GiB"}, "not a casemate.Limits"),
    ("files", {"../x": b""}, "beneath the workspace"),
    ("files", {"/etc/passwd": b""}, "beneath the workspace"),
    ("files", {"a/../../x": b""}, "beneath the workspace"),
    ("files", {"a//b": b""}, "beneath the workspace"),
    ("files", {".": b""}, "beneath the workspace"),
    ("files", {"": b""}, "relative path"),
    ("files", {"a\nb": b""}, "U+000A"),
    ("files", {"a\0b": b""}, "U+0000"),
    ("files", {"a\x1b[31m": b""}, "U+001B"),
    ("files", {"a\u202egnp": b""}, "U+202E"),
    ("files", {SURROGATE: b""}, "U+D800"),
    ("files", {"a\\b": b""}, "a backslash"),
    ("files", {"x" * 256: b""}, "plain relative path"),
    ("files", {"x/" * 600 + "x": b""}, "at most"),
    ("files", {5: b""}, "relative path"),
    ("files", {"a": 5}, "give bytes, str"),
    ("files", {"a": Path("/nowhere/at/all")}, "No such file"),
    ("files", {"a": Path("/")}, "not a regular file"),
    ("files", {"a": Path("/dev/zero")}, "not a regular file"),
    ("files", {"a": b"", "a/b": b""}, "as a file and as a folder"),
    ("files", ["a"], ""),
    ("files", {"a": SURROGATE}, ""),
    ("env", {"A B": "x"}, "letters, digits and _"),
    ("env", {"": "x"}, "letters, digits and _"),
    ("env", {"A=B": "x"}, "letters, digits and _"),
    ("env", {"A": "x\0y"}, "without NUL"),
    ("env", {"A": 5}, "must be a str"),
    ("env", {"A": "x" * (1 << 20)}, "too large"),
    ("env", ["A"], ""),
    ("env", {"A": SURROGATE}, ""),
    ("stdin", 5, "must be str or bytes"),
    ("stdin", SURROGATE, ""),
    ("arguments", ["a\0b"], "without NUL"),
    ("arguments", ["a"] * 5000, "at most"),
    ("arguments", [5], ""),
    ("arguments", None, ""),
    ("arguments", [SURROGATE], ""),
    ("arguments", "text", ""),
    ("arguments", ["x" * 200_000], ""),
    ("metadata", {5: "x"}, "str keys"),
    ("metadata", ["x"], "must be a mapping"),
]  # fmt: skip
CONSTRUCTOR: list[Any] = [
    ("isolation", "gvisor", "'auto', 'native'"),
    ("isolation", None, "'auto', 'native'"),
    ("workspace", "/nowhere/at/all", "give a folder that exists"),
    ("workspace", "/etc/passwd", "not a folder"),
    ("workspace", "/dev/null", "not a folder"),
    ("workspace_mode", "copy", "'overlay', 'direct'"),
    ("limits", {"memory": 5}, "not a casemate.Limits"),
    ("concurrency", 0, "whole number"),
    ("concurrency", 1.5, "whole number"),
    ("concurrency", True, "whole number"),
    ("namespace", "", "name of 1 to"),
    ("namespace", "x" * 500, "name of 1 to"),
    ("approve", "yes", "is not callable"),
    ("approval_timeout", -1, "positive number"),
    ("network", "everything", "choose one of"),
    ("namespace", SURROGATE, ""),
    ("workspace", 5, ""),
    ("workspace", "", ""),
    ("workspace", "a\0b", ""),
    ("output_dir", 5, ""),
    ("output_dir", "/etc/passwd", ""),
    ("audit", 5, ""),
]  # fmt: skip
LIMITS: list[Any] = [
    *[(field, value) for field in ("memory", "output", "full_output", "disk") for value in
      (-1, 0, "-5MiB", "", "lots", "12 parsecs", 1.5, None, True, 2**70, "nan", "1e9")],
    *[(field, value) for field in ("processes", "inodes", "open_files") for value in
      (-1, 0, 1.0, "64", None, True, 2**40)],
    *[(field, value) for field in ("cpus", "wall") for value in
      (-1, 0, "1", None, True, float("nan"), float("inf"), 1e12)],
    *[("cpu_time", value) for value in (-1, 0, "1", True, float("nan"), float("inf"), 1e12)],
    *[(field, 10**400) for field in ("cpus", "wall", "cpu_time")],
]  # fmt: skip


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sync.Sandbox]:
    with sync.Sandbox(audit=tmp_path_factory.mktemp("audit") / "audit.db") as one:
        yield one


@pytest.mark.parametrize(("argument", "value", "said"), RUN)
def test_a_wrong_argument_of_a_run_is_named_and_nothing_starts(
    refusing: sync.Sandbox, argument: str, value: object, said: str
) -> None:
    arguments: dict[str, Any] = {"code": "print(1)", argument: value}
    before = witness.supervisors()
    with pytest.raises(InvalidArgument) as raised:
        refusing.run(arguments.pop("code"), **arguments)
    assert raised.value.argument == argument
    assert said in raised.value.message
    assert len(raised.value.message) < 2000
    assert witness.supervisors() == before, "something was started"


@pytest.mark.parametrize(("argument", "value", "said"), CONSTRUCTOR)
def test_a_wrong_argument_of_a_sandbox_is_named_at_once(audit: Path, argument: str, value: object, said: str) -> None:
    arguments: dict[str, Any] = {"audit": audit, argument: value}
    with pytest.raises(InvalidArgument) as raised:
        sync.Sandbox(**arguments)
    assert raised.value.argument == argument
    assert said in raised.value.message


@pytest.mark.parametrize(("field", "value"), LIMITS)
def test_a_limit_that_is_none_is_named(field: str, value: object) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(InvalidArgument) as raised:
        Limits(**arguments)
    assert raised.value.argument == f"limits.{field}"


@pytest.mark.parametrize(("environment", "said"), [
    ("/nowhere/at/all", "does not exist"), ("/etc/passwd", ""), ("/usr/share", ""), (5, "not a path")])  # fmt: skip
def test_an_environment_without_interpreter_is_named_and_leaves_no_row(
    audit: Path, environment: Any, said: str
) -> None:
    with sync.Sandbox(audit=audit, environment=environment) as sandbox, pytest.raises(InvalidArgument) as raised:
        sandbox.run("print(1)")
    assert raised.value.argument == "environment"
    assert said in raised.value.message
    assert _rows(audit) == 0


def test_a_missing_runtime_says_how_to_get_it(audit: Path, tmp_path: Path) -> None:
    from casemate.languages.node.runtime import NodeRuntime

    with pytest.raises(RuntimeMissing, match="no Node was found") as raised:
        NodeRuntime(packages=(), path=str(tmp_path)).launch(None, "main.js", ())
    assert "pip install" in raised.value.remediation


@pytest.mark.user_only
def test_a_workspace_that_may_not_be_written_is_refused(audit: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidArgument, match="not writable"):
        sync.Sandbox(audit=audit, workspace=tmp_path)


def test_a_workspace_that_vanished_is_a_typed_error(audit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with sync.Sandbox(audit=audit, workspace=folder) as sandbox:
        sandbox.run("print(1)")
        folder.rmdir()
        with pytest.raises(CasemateError, match="workspace"):
            sandbox.run("print(1)")


@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_a_given_file_over_the_callers_own_is_refused(audit: Path, tmp_path: Path, mode: Any) -> None:
    (tmp_path / "mine").write_text("mine")
    with sync.Sandbox(audit=audit, workspace=tmp_path, workspace_mode=mode) as sandbox:
        with pytest.raises(InvalidArgument) as raised:
            sandbox.run("print(1)", files={"mine": "theirs"})
        assert raised.value.argument == "files"
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_given_file_beneath_a_file_of_the_callers_is_refused(audit: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with sync.Sandbox(audit=audit, workspace=tmp_path) as sandbox, pytest.raises(InvalidArgument):
        sandbox.run("print(1)", files={"mine/theirs": "theirs"})


def test_given_files_that_do_not_fit_are_refused_and_nothing_is_left(refusing: sync.Sandbox) -> None:
    with pytest.raises(InvalidArgument) as raised:
        refusing.run("print(1)", files={"big": bytes(2 << 20)}, limits=Limits(disk="1MiB"))
    assert raised.value.argument == "files"
    assert refusing.run("print(1)").ok
    assert witness.cells() == []


@pytest.mark.parametrize("mode", [0o000])
@pytest.mark.user_only
def test_a_file_that_may_not_be_read_is_refused(refusing: sync.Sandbox, tmp_path: Path, mode: int) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(mode)
    with pytest.raises(InvalidArgument, match="may not be read"):
        refusing.run("print(1)", files={"a": secret})


def test_metadata_that_cannot_be_shown_is_a_typed_error(refusing: sync.Sandbox) -> None:
    class Silent:
        def __str__(self) -> str:
            raise LookupError

        __repr__ = __str__

    with pytest.raises(CasemateError):
        refusing.run("print(1)", metadata={"a": Silent()})


def _rows(audit: Path) -> int:
    log = AuditLog(audit)
    try:
        return log.head().count
    finally:
        log.close()


def test_few_descriptors_are_an_error_of_ours_and_no_hang(tmp_path: Path) -> None:
    """Many cells at once in a process that may open few files: each run ends, well or with an error of casemate's."""
    import subprocess
    import sys

    import casemate

    code = """
import asyncio, resource, sys
from casemate import CasemateError, Sandbox
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
async def one(sandbox):
    try: return (await sandbox.run("print(1)")).status
    except CasemateError as error: return "CasemateError"
    except BaseException as error: return repr(error)
async def main():
    async with Sandbox(audit=sys.argv[1], concurrency=200) as sandbox:
        print(sorted(set(await asyncio.wait_for(asyncio.gather(*(one(sandbox) for _ in range(60))), 60))))
        async with asyncio.timeout(60):  # until the supervisor has closed what those runs used
            while (last := await one(sandbox)) in ("CasemateError", "killed"): pass
        print(last)
asyncio.run(main())
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(casemate.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "audit.db")], env=environment, timeout=100,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Error(" not in done.stdout
    assert done.stdout.splitlines()[-1] == "ok"
