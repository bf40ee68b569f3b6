"""MCP's official conformance suite judges casemate as a client of servers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mcp_server.packages import node
from tests.outside.environments import conformance

CLIENT = Path(__file__).with_name("conformance_client.py")
FAILURES = Path(__file__).with_name("conformance_failures.yaml")
SECONDS = 290  # on a busy machine; it takes fifteen
SUMMARY = "=== SUITE SUMMARY ==="
WRONG = ("FAILURE", "WARNING")
TOLD = ("status", "id", "errorMessage", "details")


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


@pytest.fixture
def judged(request: pytest.FixtureRequest, command: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What the suite printed of the revision that is the parameter; what it saw is in ``tmp_path``. It has more time
    here than in a test, for all scenarios at once on a busy machine."""
    judge = [node(), str(conformance()), "client", "--command", command, "--requirements", request.param]
    bounds = ["--timeout", str(SECONDS * 1000), "--expected-failures", str(FAILURES), "--output-dir", str(tmp_path)]
    return subprocess.run([*judge, *bounds], capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path, check=False)


@pytest.mark.parametrize(("judged", "least"), [("2025-11-25", 300), ("2026-07-28", 450)], indirect=["judged"])
def test_everything_that_a_revision_requires_of_clients_holds(
    judged: subprocess.CompletedProcess[str], least: int, tmp_path: Path
) -> None:
    """All scenarios are judged at once. Two of them (``sse-retry``, ``elicitation-sep1034-client-defaults``) go wrong
    where a tool is called before the server is listened to, whose order is therefore ours (``remote.Listening``)."""
    assert judged.returncode == 0, verdict(judged, tmp_path)
    passed = re.search(r"Total: (\d+) passed", judged.stdout)
    assert passed, verdict(judged, tmp_path)
    assert int(passed[1]) >= least, verdict(judged, tmp_path)


def verdict(done: subprocess.CompletedProcess[str], results: Path) -> str:
    """What the judge says: its summary, then what it saw in each scenario that should have passed and did not, and what
    the client said there; last the end of all that was printed."""
    expected = set(re.findall(r"^ +- (\S+)$", FAILURES.read_text(encoding="utf-8"), re.MULTILINE))
    said = [done.stdout[done.stdout.find(SUMMARY) :] if SUMMARY in done.stdout else "no summary"]
    for file in sorted(results.rglob("checks.json")):
        scenario = str(file.parent.relative_to(results))[: -len("-2026-01-01T00-00-00-000Z")]
        checks = json.loads(file.read_text(encoding="utf-8"))
        if scenario in expected or not any(check["status"] in WRONG for check in checks):
            continue
        said.append(f"== {scenario}")
        said += [json.dumps({key: check.get(key) for key in TOLD}) for check in checks if check["status"] in WRONG]
        said += [f"{one['timestamp']} {one['status']} {one['id']}: {one['description']}"[:300] for one in checks]
        said.append(file.with_name("stderr.txt").read_text(encoding="utf-8"))
    return "\n".join([*said, "== the end of what was printed", (done.stdout + done.stderr)[-4000:]])
