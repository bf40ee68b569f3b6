"""The tests of this folder run in worlds of their own: all of one that were chosen once more, as one program in there.

What that says is reported here as if they had run here. Inside, fixtures give the world and a sandbox.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import world_of
from tests.network.visits import World

from casemate import sync

_WORLD = "CASEMATE_TESTS_WORLD"
_TOLD = "CASEMATE_TESTS_TOLD"
_SECONDS = 1800  # that all may take, on a busy machine
_reports: dict[str, list[pytest.TestReport]] = {}
_said: dict[str | None, str] = {}  # by world


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Outside: report what happened inside."""
    if _WORLD in os.environ or item.path.parent != Path(__file__).parent:
        return None
    world = world_of(item.nodeid)
    if world not in _said:
        _said[world] = _run_inside(item, world)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _reports.get(item.nodeid) or [_not_run(item, _said[world])]:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _run_inside(item: pytest.Item, world: str | None) -> str:
    """Run the tests of this world that were chosen; what was printed."""
    chosen = [one.nodeid for one in item.session.items if world_of(one.nodeid) == world]
    folder = Path(item.config.rootpath, ".world", Path(str(world)).name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    told = folder / "told"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--basetemp",
        str(folder / "tmp"),
        *chosen,
    ]
    faulthandler.cancel_dump_traceback_later()  # meant for one test, and here all of them run
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.network.world", str(folder), *command],
            cwd=item.config.rootpath, env={**os.environ, _TOLD: str(told)}, capture_output=True, text=True,
            timeout=_SECONDS, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        said = f"it took more than {_SECONDS} s\n{error.stdout!r}"
    for line in told.read_text().splitlines() if told.exists() else []:
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=json.loads(line))
        if isinstance(report.longrepr, list):  # JSON has no tuples; of a test that was skipped it is one
            report.longrepr = tuple(report.longrepr)
        _reports.setdefault(report.nodeid, []).append(report)
    shutil.rmtree(folder, ignore_errors=True)
    return said


def _not_run(item: pytest.Item, said: str) -> pytest.TestReport:
    return pytest.TestReport(
        item.nodeid, item.location, {}, "failed", f"it did not run inside:\n{said[-4000:]}", "call"
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Inside: tell the outside."""
    if _TOLD in os.environ and _hook is not None:
        data = _hook(report=report)
        with Path(os.environ[_TOLD]).open("a") as told:
            told.write(json.dumps(data) + "\n")


_hook = None


def pytest_configure(config: pytest.Config) -> None:
    """Remember how reports are written down."""
    global _hook
    import functools

    _hook = functools.partial(config.hook.pytest_report_to_serializable, config=config)


@pytest.fixture
def world() -> World:
    return World(Path(os.environ[_WORLD]))


@pytest.fixture
def sandbox(audit: Path) -> Iterator[sync.Sandbox]:
    """One that may reach good.test and what is below it, and one port more."""
    domains = ["good.test", "*.good.test", "good.test:7777", "good.test:22", "good.test:5432"]
    with sync.Sandbox(audit=audit, allowed_domains=domains) as made:
        yield made
