"""Machines that refuse what a cell needs: the reason and the remedy are named, and nothing runs unprotected."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.journeys import provoke
from tests.support.waiting import MAX_WAIT

import casemate
from casemate.audit.log import AuditLog
from casemate.supervisor import landlock

EXPECTED = {
    "seccomp": "seccomp=seccomp.json",
    "userns_limit": "sysctl -w user.max_user_namespaces",
    "masked_proc": "systempaths=unconfined",
}


def provoked(kind: str, folder: Path, isolation: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(Path(casemate.__file__).parents[1]), "XDG_CACHE_HOME": str(folder)}
    folder.chmod(0o777)
    done = subprocess.run(
        [sys.executable, provoke.__file__, kind, str(folder / "audit.db"), isolation],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_machine_that_refuses_is_told_apart_and_the_remedy_named(tmp_path: Path, kind: str) -> None:
    told = provoked(kind, tmp_path, "native")
    assert told.get("reason") in (kind, f"container_{kind}"), told
    assert EXPECTED[kind] in told["remedy"]
    assert "ran" not in told
    log = AuditLog(tmp_path / "audit.db")
    assert log.head().count == 0
    log.close()


@pytest.mark.skipif(landlock.abi() < 6, reason="needs Landlock's version 6: Linux 6.12 or newer")
def test_where_the_native_wall_is_refused_there_is_the_landlock_wall(tmp_path: Path) -> None:
    assert provoked("masked_proc", tmp_path, "auto") == {"ran": "ran\n", "wall": "landlock"}


def test_where_nothing_refuses_it_runs(tmp_path: Path) -> None:
    assert provoked("nothing", tmp_path, "auto") == {"ran": "ran\n", "wall": "native"}


def test_the_root_of_a_user_namespace_gets_cells_or_a_reason(tmp_path: Path) -> None:
    told = provoked("root of a user namespace", tmp_path, "auto")
    assert told.get("ran") == "ran\n" or told.get("reason"), told


_INSTALLED_ANEW = """
import asyncio, os, shutil, sys
import casemate
from casemate import Sandbox

async def main():
    folder = os.path.dirname(casemate.__file__)
    async with Sandbox(audit=sys.argv[1]) as sandbox:
        print((await sandbox.run("print('before')")).stdout, end="")
        shutil.copytree(folder, f"{folder}.new")
        os.rename(folder, f"{folder}.old")
        os.rename(f"{folder}.new", folder)
        try:
            await sandbox.run("print('after')")
        except casemate.Unavailable as error:
            print(error.message, error.remediation)
        try:
            async with sandbox.session() as session:
                await session.run("1")
        except casemate.Unavailable as error:
            print(error.kind)

asyncio.run(main())
"""


def test_a_process_under_which_casemate_was_installed_anew_says_so(tmp_path: Path) -> None:
    copy = tmp_path / "packages" / "casemate"
    shutil.copytree(Path(casemate.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", _INSTALLED_ANEW, str(tmp_path / "audit.db")],
        env={**os.environ, "PYTHONPATH": str(copy.parent)}, stdout=subprocess.PIPE, text=True, timeout=MAX_WAIT,
        check=True,
    )  # fmt: skip
    before, said, kind = done.stdout.splitlines()
    assert (before, kind) == ("before", "unavailable")
    assert "reinstalled while" in said
    assert "casemate service stop" in said


_CLOSED_PIPES = """
import signal, sys
import casemate
from casemate.sync import Sandbox

with Sandbox(audit=sys.argv[1]) as sandbox:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        sandbox.run("print('ran')")
    except casemate.Unavailable as error:
        print(error.remediation)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    print(sandbox.run("print('ran')").stdout, end="")
"""


def test_a_process_that_a_cell_could_end_by_closing_a_pipe_has_none(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CLOSED_PIPES, str(tmp_path / "audit.db")],
        stdout=subprocess.PIPE, text=True, timeout=MAX_WAIT, check=True,
    )  # fmt: skip
    remedy, ran = done.stdout.splitlines()
    assert "signal.signal(signal.SIGPIPE, signal.SIG_IGN)" in remedy
    assert ran == "ran"
