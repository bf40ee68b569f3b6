"""Runs the tests of CPython and of bash bare and in cells, and prints each test that ends differently in a cell.

    python -m tests.outside.programs [--wall native] [--wall landlock] [--modules test_os ...] [--bash FOLDER]

It is a script, and no part of ``./test``: what it finds is kept in docs/internals/other-suites.md. A bare run is the
user nobody's, in an empty home, with a network and processes of its own, so that nothing leaves the machine.

It needs root, the tests of /usr/bin/python3 (Debian's ``libpython3.11-testsuite``, or the package of its version) and,
for bash's tests, the unpacked source of the machine's bash (``apt-get source bash``) and a C compiler. For landlock it
has itself to run on an interpreter that every user can reach, such as an environment made with /usr/bin/python3.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from casemate import Limits
from casemate.sync import Sandbox

PYTHON = "/usr/bin/python3"
_MOST_LINES = 60  # shown of how a test differs
_MOST_NAMES = 20  # shown of tests that differ in the same way
_LIMITS = Limits(memory="4GiB", cpus=2, processes=4096, wall=600.0, full_output="1GiB", disk="8GiB", open_files=4096)
_MODULES = """
    test_asyncio.test_events test_asyncio.test_server test_asyncio.test_sock_lowlevel test_asyncio.test_streams
    test_asyncio.test_subprocess test_asyncio.test_unix_events test_atexit test_bz2 test_dbm test_eintr test_epoll
    test_fcntl test_file test_fileinput test_fileio test_fork1 test_getpass test_glob test_grp test_gzip test_ioctl
    test_json test_largefile test_locale test_lzma test_mailbox test_mmap test_multiprocessing_fork test_openpty
    test_os test_pathlib test_platform test_poll test_popen test_posix test_pty test_pwd test_queue test_resource
    test_select test_selectors test_shelve test_shutil test_signal test_site test_socket test_socketserver
    test_subprocess test_sys test_syslog test_tarfile test_tempfile test_thread test_threading test_threadsignals
    test_time test_tracemalloc test_uuid test_wait3 test_wait4 test_zipapp
"""
_BASH = r"""
touch support/bashansi.h support/config.h
for name in recho zecho printenv xcase; do
    cc -include string.h -include stdlib.h -o tests/$name support/$name.c || exit
done
chmod +x tests/*.sub
results=$PWD/results
cd tests
export PATH=.:$PATH THIS_SH=/bin/bash BUILD_DIR=.. BASH_TSTOUT=$TMPDIR/output
for one in run-*; do
    case $one in run-all | run-minimal | run-gprof) continue ;; esac
    printf '%s\n' "$one" >> "$results"
    timeout 100 sh "$one" < /dev/null 2>&1 | tr -d '\0' >> "$results"
    printf '\0' >> "$results"
done
"""
# Starts its arguments as the user nobody, with a loopback alone; everything that it leaves ends with it.
_BARE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
_BARE += ['ip link set lo up && exec env --default-signal setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"']
_BARE += ["sh"]


@dataclass
class Program:
    """A program that leaves ``results``; ``files`` are put where it starts, by name."""

    title: str
    language: str
    code: str
    arguments: list[str] = field(default_factory=list)
    files: Mapping[str, Path] = field(default_factory=dict)


def programs(modules: list[str], bash: Path | None) -> Iterator[Program]:
    """What to run: one for each of CPython's test modules, one for all of bash's tests."""
    judge = Path(__file__).with_name("judge.py").read_text(encoding="utf-8")
    for module in modules:
        yield Program(module, "python", judge, [f"test.{module}"])
    if bash is not None:
        found = [path for folder in ("tests", "support") for path in (bash / folder).rglob("*") if path.is_file()]
        yield Program("bash", "shell", _BASH, files={str(path.relative_to(bash)): path for path in found})


def bare(program: Program, seconds: float) -> dict[str, str]:
    """Run it as nobody in folders of its own; the outcomes by test."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for one in ("work", "home", "tmp"):
            (folder / one).mkdir()
        for file, source in program.files.items():
            path = folder / "work" / file
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_bytes(source.read_bytes())
        (folder / "program").write_text(program.code, encoding="utf-8")
        subprocess.run(["chown", "-R", "nobody:nogroup", name], check=True)
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": f"{name}/home", "TMPDIR": f"{name}/tmp"}
        env |= {"USER": "nobody", "LOGNAME": "nobody", "SHELL": "/bin/sh", "LANG": "C.UTF-8", "TZ": "UTC"}
        start = [PYTHON if program.language == "python" else "/bin/bash", f"{name}/program", *program.arguments]
        command = partial(subprocess.run, cwd=folder / "work", env=env, stdin=subprocess.DEVNULL, capture_output=True)
        try:
            command([*_BARE, *start], check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            print(f"{program.title}: bare, it took more than {seconds:g} seconds")
        results = folder / "work" / "results"
        return outcomes(results.read_bytes() if results.exists() else b"")


def celled(program: Program, sandbox: Sandbox, seconds: float) -> dict[str, str]:
    """Run it in a cell; the outcomes by test."""
    done = sandbox.run(
        program.code,
        language=program.language,
        arguments=program.arguments,
        files=program.files,
        timeout=seconds,
    )
    if done.cause is not None:
        print(f"{program.title}: in a cell, {done.cause.message}")
    return outcomes(next((file.read_bytes() for file in done.artifacts if file.name == "results"), b""))


def outcomes(results: bytes) -> dict[str, str]:
    """What is in a file of results: how each test ended, by its name."""
    records = results.decode("utf-8", "replace").split("\0")[:-1]
    return {name: outcome for name, _, outcome in (record.partition("\n") for record in records)}


def alike(program: Program, one: str, other: str) -> bool:
    """Whether a test ended the same way: CPython's by how, bash's by all it printed but numbers and temporary names."""
    if program.language == "python":
        return one.partition("\n")[0] == other.partition("\n")[0]
    return re.sub(r"/tmp/[\w./-]+|\d+", "", one) == re.sub(r"/tmp/[\w./-]+|\d+", "", other)


def compare(program: Program, here: Mapping[str, str], there: Mapping[str, str]) -> tuple[int, int]:
    """Print the tests that end differently in a cell; how many there are, and how many are different."""
    different = {name: there.get(name, "not run") for name in here}
    different = {name: text for name, text in different.items() if not alike(program, here[name], text)}
    failed = sum(text.startswith(("failed", "did not end")) for text in here.values())
    print(f"{program.title}: {len(here)} tests ({failed} fail bare), {len(different)} different", flush=True)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, text in different.items():
        lines = difflib.ndiff(here[name].splitlines(), text.splitlines())
        groups.setdefault(tuple(line[:300] for line in lines if line[0] in "+-"), []).append(name)
    for difference, names in groups.items():
        print(f"    {len(names)}:", *names[:_MOST_NAMES])
        print(*[f"        {line}" for line in difference[:_MOST_LINES]], sep="\n", flush=True)
    return len(here), len(different)


def missing(bash: Path | None) -> str:
    """What of the machine is needed and not there, or nothing."""
    if os.geteuid():
        return "the bare runs need root, which makes them another user's"
    if subprocess.run([PYTHON, "-c", "import test.test_os"], capture_output=True, check=False).returncode:
        return f"{PYTHON} has no tests: apt-get install libpython3.11-testsuite, or that of its version"
    if bash is not None and not (bash / "tests" / "run-all").exists():
        return f"{bash} is not bash's source: apt-get source bash unpacks it (with deb-src among apt's sources)"
    return ""


def main() -> int:
    """Run what the command line asks for; 1 where something is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wall", action="append", choices=["native", "landlock"], help="unless given, native")
    parser.add_argument(
        "--modules", nargs="*", default=_MODULES.split(), help="CPython's; unless given, a list of them"
    )
    parser.add_argument("--bash", type=Path, help="the source folder of bash, whose tests are run too")
    parser.add_argument("--seconds", type=float, default=300.0, help="for one module, or all of bash's tests")
    given = parser.parse_args()
    if why := missing(given.bash):
        print(why, file=sys.stderr)
        return 1
    walls = given.wall or ["native"]
    totals = {wall: [0, 0] for wall in walls}
    for program in programs(given.modules, given.bash):
        here = bare(program, given.seconds)
        for wall in walls:
            print(end=f"{wall} ")
            with Sandbox(environment=PYTHON, isolation=wall, limits=_LIMITS) as sandbox:
                counts = compare(program, here, celled(program, sandbox, given.seconds))
            totals[wall] = [total + count for total, count in zip(totals[wall], counts, strict=True)]
    for wall, (count, different) in totals.items():
        print(f"{wall}: {count} tests, {different} different")
    return 0


if __name__ == "__main__":
    sys.exit(main())
