"""MCP's official conformance suite judges casemate as a client of servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mcp_server.packages import install, node

CLIENT = Path(__file__).with_name("conformance_client.py")
FAILURES = Path(__file__).with_name("conformance_failures.yaml")
SECONDS = 110  # on a busy machine; it takes fifteen


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The program that the suite runs."""
    home = tmp_path_factory.mktemp("home")
    env = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    env |= {"HOME": str(home), "BROWSER": f"{sys.executable} -I -S {CLIENT} --browse %s"}
    place = str(home / "socket")
    serving = [sys.executable, str(CLIENT), "--serve", place]
    with subprocess.Popen(serving, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as served:
        assert served.stdout
        assert served.stdout.readline() == "ready\n"
        yield f"{sys.executable} -I -S {CLIENT} --at {place}"
        assert served.stdin
        served.stdin.close()
        assert served.wait(SECONDS) == 0


@pytest.mark.needs("npm", "node-wheel")
@pytest.mark.parametrize(("revision", "least"), [("2025-11-25", 300), ("2026-07-28", 450)])
def test_everything_that_a_revision_requires_of_clients_holds(
    revision: str, least: int, command: str, tmp_path: Path
) -> None:
    judge = [node(), str(install() / "conformance"), "client", "--command", command, "--requirements", revision]
    bounds = ["--timeout", str(SECONDS * 1000), "--expected-failures", str(FAILURES)]
    done = subprocess.run([*judge, *bounds], capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path, check=False)
    told = done.stdout + done.stderr
    assert done.returncode == 0, told[-8000:]
    passed = re.search(r"Total: (\d+) passed", told)
    assert passed, told[-8000:]
    assert int(passed[1]) >= least, told[-8000:]
