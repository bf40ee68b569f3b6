"""The official conformance suite against casemate's own server, with the fixtures that the suite wants added to it."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from mcp.server.lowlevel import Server
from tests.mcp_server.conformance_fixtures import add_fixtures
from tests.mcp_server.packages import install, node
from tests.mcp_server.serving import by_http

from casemate.operations.operations import Operations
from casemate.surfaces.mcp.callers import Callers, LocalBackend
from casemate.surfaces.mcp.server import make_server

SECONDS = 100  # on a busy machine; it takes five


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    @contextlib.asynccontextmanager
    async def making() -> AsyncGenerator[Server[Callers]]:
        server = make_server(LocalBackend(nothing, may_approve=False))
        add_fixtures(server)
        yield server

    with by_http(making) as url:
        yield f"{url}/mcp"


async def nothing() -> Operations:
    raise AssertionError("the suite runs no program")


@pytest.mark.full
@pytest.mark.needs("npm", "node-wheel")
@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")  # of fixtures for older revisions
@pytest.mark.parametrize(("revision", "least"), [("2025-11-25", 80), ("2026-07-28", 160)])
def test_everything_that_a_revision_requires_of_servers_holds(
    revision: str, least: int, address: str, tmp_path: Path
) -> None:
    command = [node(), str(install() / "conformance"), "server", "--url", address, "--requirements", revision]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path, check=False)
    summary = done.stdout.rpartition("=== SUMMARY ===")[2]
    scored, _, unscored = summary.partition("Not scored")
    ignored = set(re.findall(r"[✗✓] ([\w-]+) \((?:extension|pending|added-after-release)\)", unscored))
    failed = [name for name in re.findall(r"✗ ([\w-]+):", scored) if name not in ignored]
    assert failed == [], done.stdout[-4000:]
    passed = re.search(r"Total: (\d+) passed", scored)
    assert passed, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(passed[1]) >= least, scored
    assert done.returncode == 0, done.stdout[-4000:]
