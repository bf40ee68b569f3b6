"""A warm cell does what its run asks for, and what cannot be told to a process that waits takes the slower way."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.languages import LANGUAGES, every_language
from tests.warm.ready import start_of
from tests.warmth import starting

from casemate import Execution, Limits, sync

Run = Callable[..., Execution]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sync.Sandbox]:
    """One for all tests of this file: that they do not disturb each other is part of what is asked."""
    with sync.Sandbox(audit=tmp_path_factory.mktemp("audit") / "audit.db") as one, starting("warm"):
        yield one


@pytest.fixture
def warm(shared: sync.Sandbox) -> Run:
    """Run something in a cell that must be warm."""

    def run(code: str, **arguments: Any) -> Execution:
        execution = shared.run(code, **arguments)
        assert start_of(execution)[0] in ("pool", "zygote"), start_of(execution)
        return execution

    return run


@pytest.fixture
def by_exec(shared: sync.Sandbox) -> Callable[..., tuple[Execution, str]]:
    """Run something whose cell cannot be warm; also why."""

    def run(code: str, **arguments: Any) -> tuple[Execution, str]:
        execution = shared.run(code, **arguments)
        start, reason = start_of(execution)
        assert start == "exec", execution
        return execution, reason

    return run


# -- the environment


ENV = {
    "python": "import os, subprocess\nprint(os.environ.get('ASKED'), flush=True)\n"
    "subprocess.run(['printenv', 'ASKED'])",
    "node": "console.log(process.env.ASKED ?? 'None');"
    "require('child_process').spawnSync('printenv', ['ASKED'], {stdio: 'inherit'})",
    "shell": 'echo "${ASKED-None}"; printenv ASKED',
}
VALUE = "é = \"x\" 'y'\nz $HOME `id` !"


@every_language
def test_a_variable_is_there_for_its_run_and_gone_in_the_next(warm: Run, language: str) -> None:
    assert warm(ENV[language], language=language, env={"ASKED": VALUE}).stdout == f"{VALUE}\n{VALUE}\n"
    assert warm(ENV[language], language=language).stdout == "None\n"


CLOCK = {
    "python": "import time; print(time.localtime(1700000000).tm_hour, time.tzname[0])",
    "node": "console.log(new Date(1700000000000).getHours(), new Date(0).toTimeString().includes('Japan') ? 'JST' : 0)",
    "shell": "date -d @1700000000 '+%-H %Z'",
}


@every_language
def test_the_time_zone_is_the_runs(warm: Run, language: str) -> None:
    assert warm(CLOCK[language], language=language, env={"TZ": "Asia/Tokyo"}).stdout == "7 JST\n"
    assert warm(CLOCK[language], language=language).stdout.startswith("22 ")


SEES = {
    "python": "import os; print(os.environ['HOME'], os.path.expanduser('~'), os.getcwd())",
    "node": "console.log(process.env.HOME, require('os').homedir(), process.cwd())",
    "shell": "echo $HOME ~ $(pwd -P)",
}


@every_language
def test_home_and_working_directory_are_the_cells(warm: Run, language: str) -> None:
    assert warm(SEES[language], language=language).stdout == "/home/user /home/user /workspace\n"


@every_language
def test_the_environment_is_the_one_that_a_started_interpreter_has(shared: sync.Sandbox, language: str) -> None:
    env = {"ASKED": "1", "PATH": "/usr/bin:/bin:/asked"}
    code = {
        "python": "import os; print(sorted(os.environ.items()))",
        "node": "console.log(Object.entries(process.env).sort())",
        "shell": "export -p",
    }[language]
    with starting("exec"):
        expected = shared.run(code, language=language, env=env).stdout
    warm = shared.run(code, language=language, env=env)
    assert start_of(warm)[0] == "pool"
    assert warm.stdout == expected


LOCALE = {
    "python": "import locale, sys; print(sys.flags.utf8_mode, locale.setlocale(locale.LC_CTYPE), locale.strxfrm('a'))",
    "shell": "x=é; echo ${#x}",
}


@pytest.mark.parametrize("name", ["LC_ALL", "LANG", "LC_CTYPE"])
def test_a_locale_that_is_asked_for_is_in_force(by_exec: Callable[..., tuple[Execution, str]], name: str) -> None:
    env = {"LC_ALL": "", name: "C"}
    execution, reason = by_exec(LOCALE["shell"], language="shell", env=env)
    assert (execution.stdout, "is read when a process starts" in reason) == ("2\n", True)
    execution, reason = by_exec(LOCALE["shell"], language="shell", env={name: "C.UTF-8"})
    assert (execution.stdout, name in reason) == ("1\n", True)


def test_python_is_started_in_the_locale_that_is_asked_for(by_exec: Callable[..., tuple[Execution, str]]) -> None:
    execution, reason = by_exec(LOCALE["python"], env={"LC_ALL": "C"})
    assert (execution.stdout, "LC_ALL" in reason) == ("1 C a\n", True)


@pytest.mark.parametrize(("name", "language"), [
    ("PYTHONHASHSEED", "python"), ("OMP_NUM_THREADS", "python"), ("MPLBACKEND", "python"), ("HOME", "python"),
    ("LD_PRELOAD", "python"), pytest.param("NODE_OPTIONS", "node", marks=pytest.mark.needs("node")),
    ("BASH_ENV", "shell"), ("PS4", "shell"), ("LD_LIBRARY_PATH", "shell")])  # fmt: skip
def test_a_variable_that_is_read_at_the_start_takes_a_new_process(
    by_exec: Callable[..., tuple[Execution, str]], name: str, language: str
) -> None:
    code = {"python": "import os; print(os.environ[%r])", "node": "console.log(process.env[%r])",
            "shell": "printenv %s"}[language] % name  # fmt: skip
    value = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "LD_PRELOAD": ""}.get(name, "/tmp")
    if name == "NODE_OPTIONS":
        value = "--no-warnings"
    execution, reason = by_exec(code, language=language, env={name: value})
    assert (execution.stdout, reason) == (f"{value}\n", f"the variable {name} is read when a process starts")


@every_language
def test_an_environment_that_is_too_large_takes_a_new_process(
    by_exec: Callable[..., tuple[Execution, str]], language: str
) -> None:
    code = {
        "python": "import os; print(len(os.environ['BIG']))",
        "node": "console.log(process.env.BIG.length)",
        "shell": "echo ${#BIG}",
    }[language]
    execution, reason = by_exec(code, language=language, env={"BIG": "x" * 20_000})
    assert (execution.stdout, "too long" in reason) == ("20000\n", True)


def test_an_environment_that_just_fits_is_whole(shared: sync.Sandbox) -> None:
    found = set()
    for size in range(5000, 6400, 200):
        execution = shared.run(f"import os; print(os.environ['BIG'] == 'x' * {size})", env={"BIG": "x" * size})
        assert execution.stdout == "True\n"
        found.add(start_of(execution)[0])
    assert found == {"exec", "pool"}, "both sides of the bound were to be tried"


# -- the command line, the program's name


ARGUMENTS = ["one", "t w o", "", "--help", "é", "'\"$x`\n", "-c"]


@pytest.mark.parametrize("language", LANGUAGES[:2])
def test_arguments_arrive_as_they_are(warm: Run, language: str) -> None:
    code = {
        "python": "import json, sys; print(json.dumps([sys.argv[0], *sys.argv[1:]]))",
        "node": "console.log(JSON.stringify(process.argv.slice(1)))",
    }[language]
    import json

    execution = warm(code, language=language, arguments=ARGUMENTS)
    assert json.loads(execution.stdout) == [f"/program/main.{'py' if language == 'python' else 'js'}", *ARGUMENTS]
    assert len(json.loads(warm(code, language=language).stdout)) == 1


def test_a_shell_program_with_arguments_takes_a_new_process(by_exec: Callable[..., tuple[Execution, str]]) -> None:
    execution, reason = by_exec('printf "%s|" "$@"', language="shell", arguments=ARGUMENTS)
    assert (execution.stdout, reason) == ("|".join([*ARGUMENTS, ""]), "its program has arguments")


@every_language
def test_a_program_with_a_name_of_its_own_takes_a_new_process(
    by_exec: Callable[..., tuple[Execution, str]], language: str
) -> None:
    code = {"python": "print(__file__)", "node": "console.log(__filename)", "shell": "echo $0"}[language]
    name = {"python": "job.py", "node": "job.js", "shell": "job.sh"}[language]
    execution, reason = by_exec(code, language=language, program_name=name)
    assert execution.stdout == f"/program/{name}\n"
    assert name in reason


@every_language
@pytest.mark.parametrize("size", [100, 40_000, 300_000])
def test_a_program_of_any_size_begins_warm(warm: Run, language: str, size: int) -> None:
    comment = "//" if language == "node" else "#"
    last = "console.log('end')" if language == "node" else "echo end" if language == "shell" else "print('end')"
    assert warm(f"{comment}{'x' * size}\n{last}", language=language).stdout == "end\n"


# -- standard input


READ = {
    "python": "import sys; data = sys.stdin.buffer.read(); print(len(data), data[-3:])",
    "node": "const d = require('fs').readFileSync(0); console.log(d.length, `b'${d.slice(-3)}'`)",
    "shell": "cat > x; echo $(wc -c < x) \"b'$(tail -c 3 x)'\"",
}


@every_language
@pytest.mark.parametrize("size", [0, 3, 300 << 10])
def test_standard_input_is_whole_and_ends(warm: Run, language: str, size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    said = warm(READ[language], language=language, stdin=data).stdout
    assert said == f"{size} b'{data[-3:].decode()}'\n"


GROWS = """
import os
found = []
for flags in (os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_TRUNC):
    try:
        fd = os.open("/proc/self/fd/0", flags)
        found.append(f"wrote {os.write(fd, bytes(1 << 20))}")
    except OSError as error:
        found.append(error.strerror)
    try:
        os.ftruncate(0, 64 << 20)
    except OSError as error:
        found.append(error.strerror)
print(found, os.fstat(0).st_size)
"""


@pytest.mark.parametrize("stdin", [b"", b"given"])
def test_standard_input_cannot_become_memory_that_no_limit_counts(warm: Run, stdin: bytes) -> None:
    said, _, size = warm(GROWS, stdin=stdin).stdout.rpartition(" ")
    assert ("wrote" in said, int(size)) == (False, len(stdin)), said


# -- files, folders


@every_language
def test_given_files_lie_in_a_private_workspace(warm: Run, language: str, tmp_path: Path) -> None:
    (tmp_path / "host.bin").write_bytes(b"h" * 2_000_000)
    files = {"a.txt": "text", "deep/er/b.bin": b"\0\1", "host.bin": tmp_path / "host.bin"}
    code = {
        "python": "from os.path import getsize as size\n"
        "print(open('a.txt').read(), size('deep/er/b.bin'), size('host.bin'))",
        "node": "const f = require('fs'); const size = n => f.statSync(n).size;"
        "console.log(String(f.readFileSync('a.txt')), size('deep/er/b.bin'), size('host.bin'))",
        "shell": "echo $(cat a.txt) $(wc -c < deep/er/b.bin) $(wc -c < host.bin)",
    }[language]
    assert warm(code, language=language, files=files).stdout == "text 2 2000000\n"


def test_given_modules_are_imported_and_nothing_of_them_is_left_for_the_next(warm: Run) -> None:
    assert warm("import own; print(own.value)", files={"own.py": "value = 1"}).stdout == "1\n"
    assert warm("import own; print(own.value)", files={"own.py": "value = 2"}).stdout == "2\n"
    assert "ModuleNotFoundError" in warm("import own").stderr


def test_a_given_file_called_output_takes_a_new_process(by_exec: Callable[..., tuple[Execution, str]]) -> None:
    execution, reason = by_exec("print(open('output').read())", files={"output": "a file"})
    assert (execution.stdout, "output" in reason) == ("a file\n", True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    (made / "name.txt").write_text("first")
    return made


def test_files_over_a_callers_folder_take_a_new_process(audit: Path, folder: Path) -> None:
    with sync.Sandbox(audit=audit, preload=(), workspace=folder) as sandbox, starting("warm"):
        execution = sandbox.run("print(open('name.txt').read(), open('x').read())", files={"x": "given"})
    assert (execution.stdout, *start_of(execution)) == (
        "first given\n", "exec", "files are given over a caller's folder")  # fmt: skip


CHANGE = {
    "python": "print(open('name.txt').read()); open('name.txt', 'w').write('changed'); open('new', 'w').write('n')",
    "node": "const f = require('fs'); console.log(String(f.readFileSync('name.txt')));"
    "f.writeFileSync('name.txt', 'changed'); f.writeFileSync('new', 'n')",
    "shell": "cat name.txt; echo; printf changed > name.txt; printf n > new",
}


@every_language
@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_what_a_warm_cell_changes_in_a_callers_folder_is_there_afterwards(
    audit: Path, folder: Path, language: str, mode: str
) -> None:
    with sync.Sandbox(audit=audit, preload=(), workspace=folder, workspace_mode=mode) as sandbox, starting("warm"):
        execution = sandbox.run(CHANGE[language], language=language)
        assert (execution.stdout, execution.status) == ("first\n", "ok"), execution
        assert start_of(execution)[0] == "pool"
        assert {path.name: path.read_text() for path in folder.iterdir() if path.is_file()} == {
            "name.txt": "changed", "new": "n"}  # fmt: skip
        assert sandbox.run(CHANGE[language], language=language).stdout == "changed\n"


@every_language
@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_what_the_caller_changes_while_cells_wait_is_seen(audit: Path, folder: Path, language: str, mode: str) -> None:
    with sync.Sandbox(audit=audit, preload=(), workspace=folder, workspace_mode=mode) as sandbox, starting("warm"):
        for text in ("one", "two", "three"):
            (folder / "name.txt").unlink()
            (folder / "name.txt").write_text(text)
            execution = sandbox.run(CHANGE[language], language=language)
            assert (execution.stdout, start_of(execution)[0]) == (f"{text}\n", "pool")


@every_language
@pytest.mark.parametrize("mode", ["overlay", "direct"])
def test_a_folder_that_was_replaced_is_seen_as_the_new_one(audit: Path, folder: Path, language: str, mode: str) -> None:
    with sync.Sandbox(audit=audit, preload=(), workspace=folder, workspace_mode=mode) as sandbox, starting("warm"):
        assert sandbox.run(CHANGE[language], language=language).stdout == "first\n"
        for turn in ("second", "third"):
            folder.rename(folder.with_name(f"before {turn}"))
            folder.mkdir()
            (folder / "name.txt").write_text(turn)
            assert sandbox.run(CHANGE[language], language=language).stdout == f"{turn}\n"
            assert (folder / "name.txt").read_text() == "changed"
            assert (folder / "new").read_text() == "n"
        shutil.rmtree(folder)
        folder.mkdir()
        (folder / "name.txt").write_text("fourth")
        assert sandbox.run(CHANGE[language], language=language).stdout == "fourth\n"


# -- limits that are narrower than those that the cell was made with


NARROW = {
    "memory": (Limits(memory="96MiB", disk="1MiB"), "x = [bytes([1]) * (1 << 20) for _ in range(300)]",
               "out_of_memory", "memory_limit"),
    "processes": (Limits(processes=12), "import os, time\nfor _ in range(50):\n    if os.fork() == 0: time.sleep(1000)",
                  "failed", "process_limit"),
    "open_files": (Limits(open_files=40), "x = [open('/dev/null') for _ in range(200)]", "failed", "open_files_limit"),
    "disk": (Limits(disk="4MiB"), "f = open('/tmp/x', 'wb', buffering=0)\nwhile True: f.write(bytes(1 << 16))",
             "failed", "disk_limit"),
    "inodes": (Limits(inodes=50), "for n in range(500): open(f'/tmp/{n}', 'w')", "failed", "inode_limit"),
    "cpu_time": (Limits(cpu_time=0.4), "while True: pass", "killed", "cpu_limit"),
    "cpu_time, whole seconds": (Limits(cpu_time=1), "while True: pass", "killed", "cpu_limit"),
    "wall": (Limits(wall=0.5), "import time; time.sleep(1000)", "timeout", "timeout"),
}  # fmt: skip


@pytest.mark.parametrize("preloaded", [False, True], ids=["light", "preloaded"])
@pytest.mark.parametrize("name", NARROW)
def test_a_limit_of_the_run_is_in_force_whatever_the_cell_was_made_with(
    shared: sync.Sandbox, name: str, preloaded: bool
) -> None:
    limits, code, status, cause = NARROW[name]
    execution = shared.run(f"{code}\n# {'numpy' if preloaded else ''}", limits=limits, timeout=20)
    assert execution.status == status, execution
    assert execution.cause is not None
    assert execution.cause.code == cause
    assert shared.run("print(1)").stdout == "1\n"


@every_language
@pytest.mark.parametrize("open_files", [200, 40])
def test_a_run_with_narrower_limits_begins_in_a_cell_that_was_made_with_more(
    warm: Run, language: str, open_files: int
) -> None:
    code = {"python": "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])",
            "node": "console.log(require('child_process').execSync('ulimit -Hn') + '')",
            "shell": "ulimit -Hn"}[language]  # fmt: skip
    assert warm(code, language=language, limits=Limits(open_files=open_files)).stdout.split() == [str(open_files)]


@every_language
def test_limits_may_be_narrow_while_the_cell_is_still_being_made(audit: Path, language: str) -> None:
    with sync.Sandbox(audit=audit, preload=()) as sandbox, starting("warm"):
        for _ in range(6):
            program = {"python": "pass", "node": "0", "shell": ":"}[language]
            assert sandbox.run(program, language=language, limits=Limits(open_files=40)).ok


def test_a_timeout_of_the_run_is_in_force(warm: Run) -> None:
    assert warm("import time; time.sleep(1000)", timeout=0.3).status == "timeout"


RLIMITS = """
import resource
print([resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in ("NOFILE", "NPROC", "CPU", "CORE")])
"""


def test_the_limits_that_a_program_can_ask_for_are_those_of_its_run(shared: sync.Sandbox) -> None:
    limits = Limits(open_files=77, processes=33, memory="128MiB", cpu_time=7)
    found = {}
    for how in ("exec", "warm"):
        with starting(how):
            found[how] = [shared.run(RLIMITS, limits=one).stdout for one in (limits, None)]
    assert found["warm"] == found["exec"]
    assert found["warm"][0] != found["warm"][1]
    assert "(77, 77)" in found["warm"][0]


def test_limits_that_narrow_nodes_heap_are_in_force(shared: sync.Sandbox) -> None:
    code = "console.log(require('v8').getHeapStatistics().heap_size_limit >> 20)"
    sizes = [shared.run(code, language="node", limits=limits) for limits in (Limits(memory="96MiB"), None)]
    assert int(sizes[0].stdout) < int(sizes[1].stdout)
