"""Machines that refuse what a cell needs: the reason and the remedy are named, and nothing runs unprotected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.journeys import provoke

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
