"""The files that a run leaves come back: which ones, under which names, and exactly their bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.contract import programs

from casemate import Artifact, Execution, Limits, sync

MADE = {"notes/plain.txt": b"made", "output/deep/table.csv": b"a,b\n1,2\n"}


def by_name(execution: Execution) -> dict[str, Artifact]:
    return {artifact.name: artifact for artifact in execution.artifacts}


def bytes_of(execution: Execution) -> dict[str, bytes]:
    return {artifact.name: artifact.read_bytes() for artifact in execution.artifacts}


def left(sandbox: sync.Sandbox, language: str) -> Execution:
    given = {"changed.txt": "given", "same.txt": "same", "untouched.txt": "u"}
    return sandbox.run(programs.LEAVE_FILES[language], language=language, files=given)


def test_every_file_made_or_changed_comes_back_and_given_ones_that_stayed_do_not(
    sandbox: sync.Sandbox, language: str
) -> None:
    execution = left(sandbox, language)
    assert execution.status == "ok", execution.stderr
    assert bytes_of(execution) == {**MADE, "changed.txt": b"given and changed"}


def test_links_and_pipes_are_left_behind_and_named(sandbox: sync.Sandbox, language: str) -> None:
    reasons = {}
    if language == "shell":
        execution = sandbox.run("ln -s /etc/passwd link; ln -s / folder; mkfifo fifo", language="shell")
        reasons = {file.name: file.reason for file in execution.skipped}
    else:
        code = {"python": "import os; os.symlink('/etc/passwd', 'link'); os.symlink('/', 'folder'); os.mkfifo('fifo')",
                "node": "const fs = require('fs'); fs.symlinkSync('/etc/passwd', 'link'); fs.symlinkSync('/', 'folder')"
                        ";require('child_process').execSync('mkfifo fifo')"}[language]  # fmt: skip
        execution = sandbox.run(code, language=language)
        reasons = {file.name: file.reason for file in execution.skipped}
    assert set(reasons) == {"link", "folder", "fifo"}
    assert all(reasons.values())
    assert execution.artifacts == ()


def test_the_hash_is_of_exactly_the_bytes_that_are_handed_out(sandbox: sync.Sandbox) -> None:
    code = "import os; d = os.urandom(3_000_000); open('big.bin', 'wb').write(d); import hashlib;"
    execution = sandbox.run(code + "print(hashlib.sha256(d).hexdigest(), end='')")
    (artifact,) = execution.artifacts
    assert artifact.sha256 == execution.stdout == hashlib.sha256(artifact.read_bytes()).hexdigest()
    assert artifact.size == 3_000_000


@pytest.mark.parametrize(("name", "kind"), [
    ("chart.png", "image/png"), ("table.csv", "text/csv"), ("page.html", "text/html"),
    ("data.json", "application/json"), ("unknown.xyz", "application/octet-stream"),
    ("none", "application/octet-stream")])  # fmt: skip
def test_the_media_type_follows_the_name(sandbox: sync.Sandbox, name: str, kind: str) -> None:
    (artifact,) = sandbox.run(f"open('output/{name}', 'w').write('x')").artifacts
    assert artifact.media_type == kind


def test_an_artifact_can_be_saved_and_replaces_what_is_there(sandbox: sync.Sandbox, tmp_path: Path) -> None:
    (artifact,) = sandbox.run("import os; open('run.sh', 'w').write('new'); os.chmod('run.sh', 0o755)").artifacts
    target = tmp_path / "run.sh"
    target.write_text("old")
    artifact.save(target)
    assert target.read_bytes() == artifact.read_bytes() == b"new"
    artifact.save(str(tmp_path / "as text"))
    assert (tmp_path / "as text").read_bytes() == b"new"


def test_artifacts_outlive_the_run_and_the_sandbox(wall: str, tmp_path: Path) -> None:
    with sync.Sandbox(isolation=wall, audit=tmp_path / "audit.db") as sandbox:
        execution = sandbox.run("open('small', 'w').write('s'); open('large', 'w').write('l' * 2_000_000)")
    assert bytes_of(execution) == {"small": b"s", "large": b"l" * 2_000_000}


def test_a_file_that_is_still_written_when_the_program_ends_is_collected_at_rest(sandbox: sync.Sandbox) -> None:
    code = """
import os, sys
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    with open("log", "w", buffering=1) as log:
        print("begun", file=log); os.write(w, b"x")
        while True: print("more", file=log)
os.read(r, 1)
"""
    execution = sandbox.run(code, limits=Limits(disk="8MiB"))
    artifact = by_name(execution)["log"]
    assert artifact.sha256 == hashlib.sha256(artifact.read_bytes()).hexdigest()
    assert artifact.read_bytes().startswith(b"begun\n")


@pytest.mark.full
def test_files_of_a_failed_or_ended_program_are_kept(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(programs.PARTIAL_THEN_SPIN[language], language=language, timeout=3)
    assert (execution.status, execution.stdout) == ("timeout", "begun\n")
    assert bytes_of(execution) == {"output/partial.txt": b"kept"}


def test_removing_what_was_given_and_the_output_folder_is_allowed(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("rm -rf output; rm given; mkdir given; echo 1 > given/x", language="shell",
                            files={"given": "g"})  # fmt: skip
    assert (execution.status, bytes_of(execution)) == ("ok", {"given/x": b"1\n"})


def test_a_file_that_is_too_large_is_named_and_does_not_make_the_output_truncated(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("open('sparse', 'wb').truncate(1 << 40); print('all of it')")
    assert [file.name for file in execution.skipped] == ["sparse"]
    assert (execution.stdout, execution.truncated) == ("all of it\n", False)


def test_artifacts_are_also_written_into_the_output_folder(wall: str, tmp_path: Path) -> None:
    target = tmp_path / "not" / "there yet"
    code = "import os; os.mkdir('sub'); open('sub/b', 'w').write('b'); open('output/a', 'w').write('a')"
    with sync.Sandbox(isolation=wall, audit=tmp_path / "audit.db", output_dir=target) as sandbox:
        execution = sandbox.run(code)
    assert set(by_name(execution)) == {"sub/b", "output/a"}
    assert {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()} == {
        "sub/b": "b", "a": "a"}  # fmt: skip


def test_a_thousand_small_files_come_back(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("for n in range(1000): open(f'{n:04}', 'w').write(str(n))")
    assert bytes_of(execution) == {f"{n:04}": str(n).encode() for n in range(1000)}
