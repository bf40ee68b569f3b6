"""The main part of ./test, once .venv exists: prepares the machine, runs every stage, and reports the results.

    ./test                 what CI runs; for root also the tests that may differ for an ordinary user
    ./test --all           all tests, all combinations of languages and ways to start, for both users, and wheels
    ./test --quick         formatting, lint, types, layers and the fast unit tests
    ./test --outcomes FILE ...  also writes each test's outcome and duration to FILE, one JSON object a line
    ./test --outside       only the test suites of other projects, each in a separate environment
    ./test ARGS...         the same checks, with ARGS for pytest: ./test tests/escapes -k fork

Started by root, it also tests as an ordinary user, at the same time, from a copy that is installed in that user's home
as a user would do it. A failed test runs once more, alone, at the end. A test that passes then is listed as flaky; more
than five flaky tests fail the whole run.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
USER = "casemate-test"
USERS_PYTHON = "/usr/bin/python3"  # root's own may be in a folder closed to other users
LOCK = "/run/lock/casemate-test"  # the ordinary user's copy serves one run at a time
MOST_FLAKY = 5
SLOWEST = 10
# pytest's processes for each user. There are more of them than cores, because tests wait half of their time. With this
# split both users end at about the same time.
SPREAD, USERS_SPREAD = ["--processes=7"], ["--processes=2"]
EQUAL_SPREAD = ["--processes=3"], ["--processes=2"]  # if both users run the same tests
# Tests that may differ for an ordinary user. All other code does not depend on the user.
USERS_FOLDERS = ("escapes", "contract", "settings", "wrap", "unit/supervisor", "unit/audit", "unit/workspace")
# Unit tests that start interpreters or wait for processes. --quick leaves them out.
SLOW_UNITS = tuple(f"unit/{one}" for one in ("guest", "supervisor", "walls", "sessions", "tools", "benchmarks"))
# Without --all only the ordinary user runs these: root's privileges could make them pass.
THEIRS_ALONE = ("wrap", "unit/audit", "unit/workspace")
# Programs that tests need, with their Debian packages.
DEBIAN = {
    "cc": "gcc libc6-dev", "bwrap": "bubblewrap", "node": "nodejs", "npm": "npm", "curl": "curl", "git": "git",
    "ip": "iproute2", "ssh": "openssh-client", "wget": "wget", "chromium-headless-shell": "chromium-headless-shell",
    "certutil": "libnss3-tools", "make": "make",
}  # fmt: skip
# Only for --all: programs that build and run the image, which takes minutes.
ENGINES = {"dockerd": "docker.io", "debootstrap": "debootstrap", "podman": "podman", "runsc": "runsc"}
PASSED_ON = ("CASEMATE_TESTS_EXPECT", "CASEMATE_TESTS_ENGINE", "DOCKER_HOST")  # variables that the ordinary user gets
CHECKS = {
    "ruff format": ["ruff", "format", "--check", "."],
    "ruff": ["ruff", "check", "."],
    "mypy": ["mypy"],
    "import-linter": ["lint-imports"],
}


@dataclass
class Outcome:
    """The results of the whole run."""

    failed: list[str] = field(default_factory=list)  # stages and tests
    flaky: list[str] = field(default_factory=list)  # tests
    stages: dict[str, float] = field(default_factory=dict)  # seconds
    files: Counter[str] = field(default_factory=Counter)  # seconds
    rows: list[dict[str, Any]] = field(default_factory=list)  # for --outcomes

    def report(self) -> int:
        """Print the results. Returns the exit code."""
        say("time")
        for name, seconds in self.stages.items():
            print(f"{seconds:8.1f} s  {name}")
        say(f"the {SLOWEST} slowest files")
        for name, seconds in self.files.most_common(SLOWEST):
            print(f"{seconds:8.1f} s  {name}")
        if self.flaky:
            say("flaky: failed, and passed alone")
            print("\n".join(self.flaky))
        if len(self.flaky) > MOST_FLAKY:
            self.failed.append(f"{len(self.flaky)} flaky tests are more than {MOST_FLAKY}")
        say("failed:\n" + "\n".join(self.failed) if self.failed else "passed")
        return int(bool(self.failed))


@dataclass(frozen=True)
class Suite:
    """A run of pytest: its arguments, its working folder, and its user (None: the current user)."""

    name: str
    arguments: Sequence[str]
    folder: Path = ROOT
    user: str | None = None

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command that runs pytest with ``arguments`` as the suite's user."""
        command = [str(self.folder / ".venv" / "bin" / "python"), "-m", "pytest", *arguments]
        if self.user is None:
            return command
        home = pwd.getpwnam(self.user).pw_dir
        path = f"{self.folder}/.venv/bin:/usr/bin:/bin"
        variables = [
            f"HOME={home}",
            f"USER={self.user}",
            f"PATH={path}",
            "LANG=C.UTF-8",
            *(f"{name}={os.environ[name]}" for name in PASSED_ON if name in os.environ),
        ]
        return ["runuser", "-u", self.user, "--", "env", "-i", *variables, *command]


def main(arguments: list[str]) -> int:
    """Run the stages for ``arguments``. Returns 0 if everything passed."""
    if "--help" in arguments or "-h" in arguments:
        print(__doc__)
        return 0
    if "--outside" in arguments:
        return run_outside()
    is_quick, is_all = "--quick" in arguments, "--all" in arguments
    rest = [one for one in arguments if one not in ("--quick", "--all")]
    outcomes = _take_value(rest, "--outcomes")
    as_root = os.geteuid() == 0 and not is_quick
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and programs that tests signal would inherit that
    os.environ["PATH"] = f"{ROOT}/.venv/bin:{os.environ['PATH']}"
    os.environ.setdefault("CASEMATE_TESTS_EXPECT", "bwrap,node,npm,data,browser" if as_root else "")
    outcome = Outcome()
    with contextlib.ExitStack() as held, ThreadPoolExecutor() as threads:
        if as_root:
            held.enter_context(_lock())
            timed(outcome, "Debian packages", install_debian_packages, is_all)
            timed(outcome, "init.c", build_init)
        works: list[Future[None]] = [threads.submit(check, outcome)]
        if as_root:
            copying = threads.submit(timed, outcome, f"preparing {USER}", prepare_ordinary_user)
            timed(outcome, "servers that tests talk to", install_peers, is_all)
            copying.result()
            if is_all:
                timed(outcome, "an engine with the image", start_engine, held)
            copy_peers()
        suites = suites_for(is_quick, is_all, as_root, rest)
        works.extend([threads.submit(run_suite, suite, outcome) for suite in suites])
        try:
            for work in works:
                work.result()
        except BaseException:
            end_suites()
            raise
    if outcomes:
        Path(outcomes).write_text("".join(json.dumps(row) + "\n" for row in outcome.rows))
    return outcome.report()


def run_outside() -> int:
    """Run Jupyter's kernel tests, MCP's conformance suite for clients and servers, and the site's checks."""
    from tests.outside import environments

    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ["PATH"] = f"{ROOT}/.venv/bin:{os.environ['PATH']}"
    outcome = Outcome()
    alone = ["--noconftest", "-q", "-o", "addopts=", "-W", "ignore"]  # this environment lacks our tests' dependencies
    ours = ["-q", "--all", "--outside", "tests/outside", "--ignore=tests/outside/test_kernels.py"]
    for name, program, arguments in (
        ("Jupyter's tests of kernels", environments.kernels(), [*alone, "tests/outside/test_kernels.py"]),
        ("MCP's conformance suite, and the site", Path(sys.executable), ours),
    ):
        say(name)
        began = time.monotonic()
        done = subprocess.run([str(program), "-m", "pytest", *arguments], cwd=ROOT, check=False)
        outcome.stages[name] = time.monotonic() - began
        outcome.failed += [name] * bool(done.returncode)
    return outcome.report()


def _take_value(arguments: list[str], option: str) -> str | None:
    """Remove an option and its value from ``arguments``, which go to pytest. Returns the value."""
    if option not in arguments:
        return None
    place = arguments.index(option)
    _, value = arguments[place : place + 2]
    del arguments[place : place + 2]
    return value


def suites_for(is_quick: bool, is_all: bool, as_root: bool, rest: Sequence[str]) -> Iterator[Suite]:
    """The runs of pytest."""
    spread, users = EQUAL_SPREAD if is_all or rest else (SPREAD, USERS_SPREAD)
    if any("::" in one or one.startswith("-k") for one in rest):
        spread, users = [], []
    usual = ["-q", *(["--all"] if is_all else [])]
    named = list(rest) or (["tests/unit", "tests/docs"] if is_quick else ["tests"])
    left_out = () if rest or is_all else SLOW_UNITS if is_quick else THEIRS_ALONE if as_root else ()
    named += [f"--ignore=tests/{folder}" for folder in left_out]
    yield Suite(f"pytest as {pwd.getpwuid(os.geteuid()).pw_name}", [*usual, *spread, *named])
    if as_root:
        folder = Path(pwd.getpwnam(USER).pw_dir, "casemate")
        theirs = rest or (["tests"] if is_all else [f"tests/{one}" for one in USERS_FOLDERS])
        yield Suite("pytest as an ordinary user", [*usual, "--second-user", *users, *theirs], folder, USER)


def run_suite(suite: Suite, outcome: Outcome) -> None:
    """Run a suite, then each failed test once more, alone."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        file = Path(place, "outcomes")
        began = time.monotonic()
        code, said = _run(suite, [*suite.arguments, f"--outcomes={file}"], is_live=suite.user is None)
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        outcome.rows.extend({**row, "suite": suite.name} for row in rows)
        for row in rows:
            outcome.files[f"{row['test'].split('::')[0]} ({suite.name.removeprefix('pytest as ')})"] += row["seconds"]
        failed = list(dict.fromkeys(row["test"] for row in rows if row["outcome"] == "failed"))
        outcome.stages[suite.name] = time.monotonic() - began
        if said:
            say(f"{suite.name}: {outcome.stages[suite.name]:.0f} s")
            print(said, flush=True)
        if code not in (0, 1, 5) or (code == 1 and not failed):
            outcome.failed.append(f"{suite.name}: exit code {code}")
        for test in failed:
            again, said = _run(suite, ["-q", "--all", test])
            name = f"{test} ({suite.name})"
            if again == 0:
                outcome.flaky.append(name)
            else:
                outcome.failed.append(name)
                print(said, flush=True)


def _run(suite: Suite, arguments: Sequence[str], *, is_live: bool = False) -> tuple[int, str]:
    """Run pytest. Returns its exit code and its output. With ``is_live`` the output is shown at once instead."""
    process = subprocess.Popen(
        suite.command(arguments), cwd=suite.folder, stdin=subprocess.DEVNULL,
        stdout=None if is_live else subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    _suites.append(process)
    said, _ = process.communicate()
    return process.returncode, said or ""


_suites: list[subprocess.Popen[str]] = []


def end_suites() -> None:
    """Kill every running pytest with its process group."""
    for process in _suites:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def check(outcome: Outcome) -> None:
    """Check formatting, lint, types and layers."""
    for name, command in CHECKS.items():
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        outcome.stages[name] = time.monotonic() - began
        if done.returncode:
            outcome.failed.append(name)
            say(name)
            print(done.stdout + done.stderr, flush=True)


def install_debian_packages(is_all: bool) -> None:
    """Install the programs that some tests need. Tests whose program is missing are skipped and say so."""
    if shutil.which("apt-get") is None:
        return
    path = f"{os.environ['PATH']}:/usr/sbin"
    wanted = DEBIAN | ENGINES if is_all else DEBIAN
    missing = " ".join(names for program, names in wanted.items() if shutil.which(program, path=path) is None).split()
    if subprocess.run([USERS_PYTHON, "-c", "import ensurepip, venv"], capture_output=True, check=False).returncode:
        missing += ["python3", "python3-venv"]
    if not missing:
        return
    quietly = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    for command in (["apt-get", "update", "-qq"], install):
        subprocess.run(command, env=quietly, stdout=subprocess.DEVNULL, check=True)


def build_init() -> None:
    """Compile init.c again: casemate may have been installed before the compiler was."""
    subprocess.run([sys.executable, "packaging/build_init.py"], cwd=ROOT, check=False)  # reports its own failure


def install_peers(is_all: bool) -> None:
    """Install other projects' MCP servers; with ``is_all`` also the programs that check our server."""
    from tests.mcp_server import packages
    from tests.tools.connections import peers

    peers.install()
    if is_all:
        packages.install()


def start_engine(held: contextlib.ExitStack) -> None:
    """Start Docker with casemate's image, for both users' tests."""
    from tests.distribution import engines

    os.environ.update(held.enter_context(engines.with_image(USER)))


def prepare_ordinary_user() -> None:
    """Copy the tree to the ordinary user's home and install it there as a user would: not editable."""
    try:
        home = Path(pwd.getpwnam(USER).pw_dir)
    except KeyError:
        subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", USER], check=True)
        home = Path(pwd.getpwnam(USER).pw_dir)
    copy = home / "casemate"
    copy.mkdir(exist_ok=True)
    for one in copy.iterdir():
        if one.name != ".venv":
            shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
    left_out = shutil.ignore_patterns(
        ".git", ".venv", ".peers", ".outside", ".*_cache", "__pycache__", ".world", ".hypothesis"
    )
    shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True, dirs_exist_ok=True)
    make_venv(copy)


def copy_peers() -> None:
    """Copy the installed peers, so that the ordinary user needs no registry, and give that user the whole copy."""
    copy = Path(pwd.getpwnam(USER).pw_dir, "casemate")
    shutil.copytree(ROOT / ".peers", copy / ".peers", symlinks=True)
    subprocess.run(["chown", "-R", f"{USER}:", str(copy)], check=True)


def make_venv(folder: Path) -> None:
    """Make the folder's ``.venv``, or make it again if pyproject.toml has changed. Installs casemate in it."""
    venv, text = folder / ".venv", (ROOT / "pyproject.toml").read_bytes()
    stamp = venv / ".stamp"
    current = hashlib.sha256(text).hexdigest()
    uv = [str(ROOT / ".venv" / "bin" / "uv"), "--quiet"]
    # Copies, not links: a change to one user's files must not change another's.
    install = [
        *uv,
        "pip",
        "install",
        "--python",
        str(venv / "bin" / "python"),
        "--link-mode=copy",
        "--compile-bytecode",
    ]
    if not stamp.exists() or stamp.read_text() != current:
        shutil.rmtree(venv, ignore_errors=True)
        subprocess.run([*uv, "venv", "--seed", "--python", USERS_PYTHON, str(venv)], check=True)
        subprocess.run([*install, ".[test]"], cwd=folder, check=True)
        stamp.write_text(current)
    subprocess.run([*install, "--reinstall", "--no-deps", "."], cwd=folder, check=True)


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def timed(outcome: Outcome, name: str, work: Callable[..., object], *arguments: object) -> None:
    """Run ``work`` and record its duration."""
    began = time.monotonic()
    work(*arguments)
    outcome.stages[name] = time.monotonic() - began


_printing = threading.Lock()


def say(text: str) -> None:
    """Print a heading."""
    with _printing:
        print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
