"""``casemate run``: the program's output, exit code and files, and what casemate says when there is a reason."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.surfaces.conftest import Cli, InProcess

from casemate.surfaces.cli import failures

ROOT = Path(__file__).resolve().parents[2]


def strict(number: str) -> float:
    """A parser's answer to NaN and Infinity, which are not JSON."""
    raise ValueError(number)


# -- what it takes to start

# A run is to cost no more than a dozen starts of an interpreter, and each of these takes a noticeable part of one.
_NEVER = {
    "casemate.execution.frames", "casemate.walls.native.pool",
    "casemate.languages.node.runtime", "casemate.languages.shell.runtime",
    "casemate.policy.rules", "casemate.egress.proxy", "cyclopts", "importlib.metadata",
    "pydantic", "rich", "shutil", "tempfile", "yaml",
}  # fmt: skip
_LATER = {
    "casemate.artifacts.collect", "casemate.execution.collect", "casemate.execution.seal",
    "casemate.execution.gather", "casemate.files.walk",
    "casemate.model.approval", "casemate.model.events", "casemate.model.execution", "casemate.workspace.apply",
}  # fmt: skip
_TELLS_WHAT_IS_LOADED = """
import sys
from casemate.walls.native.link import SupervisorLink
from casemate.surfaces.cli import command

launch = SupervisorLink.launch
def launched(*given):
    print(*sys.modules, file=sys.stderr)
    return launch(*given)
SupervisorLink.launch = launched
command(["run", sys.argv[1]])
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("name", sorted(name for name in _NEVER | _LATER if name.startswith("casemate.")))
def test_what_is_not_to_be_loaded_is_named_as_it_is_called(name: str) -> None:
    assert find_spec(name) is not None


@pytest.mark.full
def test_what_a_program_does_not_need_is_not_loaded_and_what_its_end_needs_only_when_its_cell_has_started(
    cli: Cli,
) -> None:
    program = cli.program("print('hello')", "hello.py")
    assert cli("run", program).code == 0  # the self-test, which needs more, is in the cache from now on
    command = [sys.executable, "-c", _TELLS_WHAT_IS_LOADED, program]
    done = subprocess.run(command, cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=True)
    before, after = (set(line.split()) for line in done.stderr.splitlines())
    assert done.stdout == "hello\n"
    assert before & (_NEVER | _LATER) == set()
    assert after & _NEVER == set()
    assert {"casemate.execution.seal", "casemate.model.execution"} <= after


# -- the program's own output and exit code


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hello.py", "print('hello')"),
        ("hello.sh", "echo hello"),
        pytest.param("hello.js", "console.log('hello')", marks=pytest.mark.needs("node")),
        pytest.param("hello.mjs", "console.log(await 'hello')", marks=pytest.mark.needs("node")),
        pytest.param("hello.cjs", "console.log(require('util').format('hello'))", marks=pytest.mark.needs("node")),
    ],
)
def test_a_program_runs_in_the_language_of_its_name_and_its_output_is_alone(cli: Cli, name: str, text: str) -> None:
    done = cli("run", cli.program(text, name))
    assert (done.code, done.stdout, done.stderr) == (0, b"hello\n", b"")


def test_bytes_pass_exactly_into_pipes(cli: Cli) -> None:
    text = "out.buffer.write(bytes(range(256)) + b'\\xc3'); err.buffer.write(b'\\x1b]0;x\\a\\xff')"
    done = cli("run", cli.program(f"from sys import stdout as out, stderr as err; {text}"))
    assert (done.code, done.stdout, done.stderr) == (0, bytes(range(256)) + b"\xc3", b"\x1b]0;x\x07\xff")


def test_much_output_passes_whole(cli: Cli) -> None:
    done = cli("run", cli.program("import sys; sys.stdout.write('0123456789abcde\\n' * 300_000)"))
    assert (done.code, done.stdout == b"0123456789abcde\n" * 300_000, done.stderr) == (0, True, b"")


@pytest.mark.parametrize("end", [3, 255, 124])
def test_the_exit_code_is_the_programs_own(cli: Cli, end: int) -> None:
    done = cli("run", cli.program(f"exit {end}", "end.sh"))
    assert (done.code, done.stderr) == (end, b"")


def test_a_traceback_is_the_programs_own_and_names_its_file(cli: Cli) -> None:
    done = cli("run", cli.program("\n1/0", "division.py"))
    assert done.code == 1
    assert b'division.py", line 2, in <module>' in done.stderr
    assert b"casemate" not in done.stderr


_WHAT_OPENS_IT = b"casemate: only allowed hosts are found and reached: --allow %s"


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "text", "host"),
    [
        ("ask.py", "import socket\nsocket.getaddrinfo('api.test', 443)", b"HOST"),
        ("fetch.py", "import urllib.request\nurllib.request.urlopen('http://api.test/')", b"HOST"),
        ("named.py", "raise OSError(\"Failed to resolve 'api.test'\")", b"api.test"),  # as urllib3 says it
        pytest.param(
            "ask.mjs",
            "import d from 'dns/promises'\nawait d.lookup('api.test')",
            b"api.test",
            marks=pytest.mark.needs("node"),
        ),
        pytest.param("fetch.mjs", "await fetch('https://api.test/')", b"api.test", marks=pytest.mark.needs("node")),
        pytest.param(
            "caught.cjs",
            "fetch('https://api.test/').catch((error) => { console.error(error); process.exit(1) })",
            b"api.test",
            marks=pytest.mark.needs("node"),
        ),
        ("ask.sh", "exec 3<>/dev/tcp/api.test/443", b"api.test"),
        ("curl.sh", "echo 'curl: (6) Could not resolve host: api.test' >&2; exit 6", b"api.test"),  # as it says it
        ("wget.sh", "echo \"wget: unable to resolve host address 'api.test'\" >&2; exit 4", b"api.test"),
    ],
)
def test_a_name_asked_for_in_vain_without_network_is_told_with_the_option_that_opens_it(
    cli: Cli, name: str, text: str, host: bytes
) -> None:
    done = cli("run", cli.program(text, name))
    assert done.code != 0
    assert _WHAT_OPENS_IT % host in done.stderr.splitlines()


def test_a_host_that_nobody_allowed_is_told_with_the_whole_option_and_one_that_a_rule_denies_with_none(
    cli: Cli,
) -> None:
    program = cli.program("import socket\nsocket.create_connection(('api.example.org', 443)).recv(1)")
    assert _WHAT_OPENS_IT % b"api.example.org" in cli("run", "--allow", "other.test", program).stderr.splitlines()
    assert (
        _WHAT_OPENS_IT % b"api.example.org" in cli("run", "--allow", "other.test", "--format", "json", program).stderr
    )
    (cli.folder / "ask.yaml").write_text("rules: [{ask: egress, host: api.example.org}]")
    assert _WHAT_OPENS_IT % b"api.example.org" in cli("run", "--policy", "ask.yaml", program).stderr.splitlines()
    (cli.folder / "no.json").write_text('{"network": {"allowedDomains": [], "deniedDomains": ["api.example.org"]}}')
    denied = cli("run", "--policy", "no.json", program).stderr
    assert (b"not reached: api.example.org" in denied, b"--allow" in denied) == (True, False)


_WHAT_REACHES_THIS_MACHINE = (
    b"casemate: 127.0.0.1 is the program's own; it reaches a service on this machine as host.casemate.internal:PORT, "
    b"with --allow-local PORT; and a port other than 80 and 443 of another host with --allow HOST:PORT"
)


@pytest.mark.parametrize("host", ["host.casemate.internal", "127.0.0.1"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ask.py", "import urllib.request\nurllib.request.urlopen('http://{}:8000/')"),
        pytest.param("ask.mjs", "await fetch('http://{}:8000/')", marks=pytest.mark.needs("node")),
        ("ask.sh", "exec 3<>/dev/tcp/{}/8000"),
    ],
)
def test_a_service_of_this_machine_that_is_not_reached_is_told_with_the_option_that_opens_it(
    cli: Cli, name: str, text: str, host: str
) -> None:
    program = cli.program(text.format(host), name)
    for options in ((), ("--allow", "other.test")):
        assert _WHAT_REACHES_THIS_MACHINE in cli("run", *options, program).stderr.splitlines()
    done = cli("run", "--allow", f"{host}:8000", program)
    assert (done.code, b"--allow-local" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("read.py", "open('my data.csv')"),
        pytest.param("read.cjs", "require('fs').readFileSync('./my data.csv')", marks=pytest.mark.needs("node")),
        ("read.sh", "cat 'my data.csv'"),
    ],
)
def test_a_file_beside_the_program_that_it_does_not_find_is_told_with_the_options_that_give_it(
    cli: Cli, name: str, text: str
) -> None:
    (cli.folder / "sub").mkdir()
    (cli.folder / "sub" / "my data.csv").write_text("1")
    (cli.folder / "sub" / name).write_text(text)
    said = cli("run", f"sub/{name}").stderr
    assert b"casemate: my data.csv is in the program's folder" in said
    assert b"--file 'sub/my data.csv' gives it this file, --workspace sub the whole folder\n" in said
    assert cli("run", f"sub/{name}", "--file", "sub/my data.csv").code == 0


def test_only_whether_a_name_is_in_the_programs_folder_is_looked_at(cli: Cli) -> None:
    (cli.folder / "sub" / "data").mkdir(parents=True)
    (cli.folder / "outside.csv").write_text("1")
    (cli.folder / "sub" / ".env").write_text("1")
    for name, is_told in (("data/x.csv", True), ("../outside.csv", False), (str(cli.folder / "outside.csv"), False),
                          (".env", False), ("gone.csv", False), ("a\\0b", False)):  # fmt: skip
        text = f"import sys\nsys.exit(\"FileNotFoundError: [Errno 2] No such file or directory: '{name}'\")"
        (cli.folder / "sub" / "read.py").write_text(text)
        said = cli("run", "sub/read.py").stderr
        assert (b"--workspace sub" in said) is is_told, said
        assert b"--file" not in said


@pytest.mark.parametrize("home", [".", "sub", "sub/home"])
def test_no_program_has_the_users_home_proposed_as_its_workspace(cli: Cli, home: str) -> None:
    (cli.folder / "sub" / "home").mkdir(parents=True)
    (cli.folder / "sub" / "my.csv").write_text("1")
    (cli.folder / "sub" / "read.py").write_text("open('my.csv')")
    said = Cli(cli.folder, {**cli.env, "HOME": str(cli.folder / home)})("run", "sub/read.py").stderr
    assert b"--file sub/my.csv gives it this file" in said
    assert (b"--workspace" in said) is (home == ".")


def test_a_port_of_this_machine_that_is_allowed_and_where_nobody_listens_is_told_so_and_no_option(cli: Cli) -> None:
    with socket.socket() as silent:  # holds the port, so that nobody else listens there
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        text = f"import urllib.request\nurllib.request.urlopen('http://host.casemate.internal:{port}/')"
        said = cli("run", "--allow-local", str(port), cli.program(text)).stderr
    assert f"{port}: nothing listens on 127.0.0.1:{port} of the host".encode() in said
    assert b"--allow-local" not in said


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ask.py", "from mcptools.files import read"),
        pytest.param(
            "ask.mjs", "import { files } from 'mcptools'\nawait files.read({})", marks=pytest.mark.needs("node")
        ),
        ("ask.sh", "tool help"),
    ],
)
def test_a_program_without_the_tools_it_uses_is_told_which_option_gives_them_and_no_other(
    cli: Cli, name: str, text: str
) -> None:
    said = cli("run", cli.program(text, name)).stderr
    assert b"casemate run --tool-server NAME" in said
    assert b"Sandbox(tools=...)" in said
    assert b"--allow" not in said
    assert b"--with" not in said


def test_a_program_that_fails_otherwise_is_told_nothing_of_the_network(cli: Cli) -> None:
    text = "# Temporary failure in name resolution, Connection refused\nraise ValueError('gaierror')"
    assert b"casemate:" not in cli("run", cli.program(text)).stderr


def test_output_comes_while_the_program_runs(cli: Cli) -> None:
    program = cli.program("import time\nprint('here', flush=True)\ntime.sleep(60)")
    with cli.start("run", program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        assert process.poll() is None
        process.kill()


def test_arguments_reach_the_program(cli: Cli) -> None:
    program = cli.program("import sys; print(sys.argv[1:])")
    assert cli("run", program, "--", "a", "--timeout", "-").stdout == b"['a', '--timeout', '-']\n"
    assert cli("run", "--timeout", "9", program, "a", "--", "-b").stdout == b"['a', '-b']\n"


# -- where the program comes from


def test_a_hyphen_is_a_program_on_standard_input(cli: Cli) -> None:
    assert cli("run", "-", stdin=b"print('py')").stdout == b"py\n"
    assert cli("run", "-", "--language", "shell", stdin=b"echo $0").stdout == b"/program/main.sh\n"


def test_a_program_whose_name_cannot_be_kept_runs_with_a_word_about_it(cli: Cli) -> None:
    done = cli("run", cli.program("print(__file__)", "a\\b.py"))
    assert done.stdout == b"/program/main.py\n"
    assert b"its name contains a backslash" in done.stderr


def test_a_notebook_is_run_by_a_kernel(cli: Cli) -> None:
    done = cli("run", cli.program("{}", "a.ipynb"))
    assert (done.code, b"casemate kernel install" in done.stderr) == (2, True)


def test_a_process_that_may_open_too_few_files_says_so(cli: Cli) -> None:
    program = cli.program("print(1)")
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-m", "casemate", "run", program],
        capture_output=True, timeout=60, check=False, cwd=cli.folder, env=dict(cli.env),
    )  # fmt: skip
    assert (done.returncode, b"ulimit" in done.stderr) == (69, True), done.stderr


def test_typescript_that_is_run_as_javascript_is_named(cli: Cli) -> None:
    for program in (b"const x: number = 1", b"interface A { b: string }", b"let y = 1 as any"):
        done = cli("run", "-", "--language", "node", stdin=program)
        assert (done.code, b"casemate run --language ts" in done.stderr) == (1, True), done.stderr
        assert cli("run", "-", "--language", "ts", stdin=program).code == 0
    assert b"--language ts" not in cli("run", "-", "--language", "node", stdin=b"missing()").stderr


def test_an_empty_standard_input_is_no_program(cli: Cli) -> None:
    for words in (("run", "-"), ("validate", "-"), ("run", "-", "--language", "shell")):
        done = cli(*words, stdin=b"")
        assert (done.code, done.stdout) == (2, b"")
        assert b"standard input is empty, so there is no program" in done.stderr
        assert b"docker exec" in done.stderr


def test_a_name_that_says_nothing_needs_a_language(cli: Cli) -> None:
    program = cli.program("echo hi", "tool")
    refused = cli("run", program)
    assert refused.code == 2
    assert refused.stderr.startswith(b"casemate: --language: ")
    assert cli("run", program, "--language", "shell").stdout == b"hi\n"


# -- standard input


def test_what_is_piped_in_reaches_the_program(cli: Cli) -> None:
    program = cli.program("import sys; print(sys.stdin.read().upper())")
    assert cli("run", program, stdin=b"data").stdout == b"DATA\n"
    assert cli("run", program).stdout == b"\n"


@pytest.mark.full
def test_standard_input_may_be_a_file(cli: Cli) -> None:
    program = cli.program("import sys; print(sys.stdin.buffer.read())")
    (cli.folder / "data").write_bytes(b"\x00\xff")
    assert cli("run", program, "--stdin", "data").stdout == b"b'\\x00\\xff'\n"
    assert cli("run", program, "--stdin", "-", stdin=b"x").stdout == b"b'x'\n"
    assert cli("run", "-", "--stdin", "-", stdin=b"1").code == 2


def test_casemate_says_what_it_waits_for_when_a_pipe_stays_open(cli: Cli) -> None:
    with cli.start("run", cli.program("print('ran')"), stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"casemate: waiting for the end of standard input")
        assert process.communicate()[0] == b"ran\n"


# -- files, variables


def test_files_are_put_into_the_workspace(cli: Cli) -> None:
    (cli.folder / "a.csv").write_text("1,2")
    program = cli.program("import pathlib; print(*sorted(str(p) for p in pathlib.Path().rglob('*.csv')))")
    done = cli("run", program, "--file", "a.csv", "--file", "data/b.csv=a.csv")
    assert (done.stdout, done.stderr) == (b"a.csv data/b.csv\n", b"")


def test_variables_are_given_by_value_or_taken_from_here(make_cli: Callable[..., Cli]) -> None:
    cli = make_cli(TOKEN="here", OTHER="hidden")
    program = cli.program("import os; print(os.environ.get('A'), os.environ.get('TOKEN'), os.environ.get('OTHER'))")
    assert cli("run", program, "-e", "A=b=c", "--env", "TOKEN").stdout == b"b=c here None\n"


def test_what_a_program_leaves_goes_where_it_is_told_to(cli: Cli) -> None:
    program = cli.program("open('output/table.csv', 'w').write('1'); open('note', 'w').write('2')")
    done = cli("run", program, "--output", "out/here")
    assert {path.name: path.read_text() for path in (cli.folder / "out/here").iterdir()} == {
        "table.csv": "1",
        "note": "2",
    }
    assert done.stderr == b"casemate: saved in out/here: note, table.csv\n"


def test_what_is_not_kept_is_said(cli: Cli) -> None:
    done = cli("run", cli.program("open('output/table', 'w').write('1')"))
    assert done.stderr == b"casemate: not kept: output/table; --output DIR keeps what a program leaves\n"


def test_a_file_that_is_left_out_is_named_and_harmless(cli: Cli) -> None:
    program = cli.program("import os; os.symlink('/etc/passwd', 'output/\\x1b[31mlink')")
    done = cli("run", program, "--output", "out")
    assert b"casemate: left out: " in done.stderr
    assert b"\x1b" not in done.stderr
    assert not list(cli.folder.glob("out/*"))


def test_a_workspace_is_worked_in_and_brought_up_to_date(cli: Cli) -> None:
    work = cli.folder / "work"
    work.mkdir()
    (work / "data").write_text("1")
    program = cli.program("open('copy', 'w').write(open('data').read())")
    assert cli("run", program, "--workspace", "work").stderr == b""
    assert (work / "copy").read_text() == "1"


@pytest.mark.full
def test_an_env_file_of_a_workspace_is_hidden_unless_it_is_named(cli: Cli) -> None:
    work = cli.folder / "work"
    work.mkdir()
    (work / ".env").write_text("TOKEN=hidden-value")
    program = cli.program("print(open('.env').read())")
    hidden = cli("run", program, "--workspace", "work")
    assert hidden.code == 1
    assert b"PermissionError" in hidden.stderr
    assert hidden.stderr.count(b"'.env' in the workspace. A .env that allow_read (--read) names is shown.") == 1
    assert b"/workspace/.env" in cli("run", program, "--workspace", "work", "--explain").stdout
    shown = cli("run", program, "--workspace", "work", "--read", "work/.env")
    assert (shown.code, shown.stdout) == (0, b"TOKEN=hidden-value\n")
    for words, remedy in ((("--workspace", "work"), "Relative paths start at"), ((), "Give the workspace")):
        refused = cli("run", program, *words, "--read", ".env")
        assert refused.code == 2
        assert refused.stderr.startswith(b"casemate: --read: ")
        assert f"\n{remedy}".encode() in refused.stderr


# -- what is displayed

SHOW = """
import base64
png = base64.b64encode(b'picture').decode()
print('text')
display({'text/plain': 'a table', 'text/html': '<b>'}, raw=True)
display({'text/plain': '<Figure>', 'image/png': png}, raw=True)
display({'text/html': '<i>'}, raw=True)
"""


def test_text_that_is_displayed_is_output_and_pictures_are_saved(cli: Cli) -> None:
    program = cli.program(SHOW)
    done = cli("run", program, "--output", "out")
    assert done.stdout == b"text\na table\n"
    assert {path.name: path.read_bytes() for path in (cli.folder / "out").iterdir()} == {
        "display-1.png": b"picture",
        "display-2.html": b"<i>",
    }
    assert b"2 pictures; --output DIR saves them" in cli("run", program).stderr


def test_a_picture_replaces_a_link_and_does_not_follow_it(cli: Cli) -> None:
    (cli.folder / "out").mkdir()
    (cli.folder / "precious").write_text("mine")
    (cli.folder / "out" / "display-1.png").symlink_to("../precious")
    cli("run", cli.program(SHOW), "--output", "out")
    assert (cli.folder / "precious").read_text() == "mine"
    assert (cli.folder / "out" / "display-1.png").read_bytes() == b"picture"


def test_a_picture_does_not_take_the_place_of_a_file_that_the_program_left(cli: Cli) -> None:
    program = cli.program(SHOW + "open('output/display-1.png', 'w').write('own')")
    cli("run", program, "--output", "out")
    assert (cli.folder / "out" / "display-1.png").read_text() == "own"
    assert (cli.folder / "out" / "display-2.png").read_bytes() == b"picture"


# -- limits, and how casemate's endings differ from the program's


TOGETHER_TOO_MUCH = """
import os, time
ready, say_ready = os.pipe()
for _ in range(3):
    if not os.fork():
        kept = os.urandom(12 << 20)
        os.write(say_ready, b'.')
        time.sleep(30)
for _ in range(3):
    os.read(ready, 1)
kept = os.urandom(50 << 20)
time.sleep(30)
"""


@pytest.mark.parametrize(
    ("text", "options", "code", "said"),
    [
        ("while True: pass", ("--timeout", "0.3"), 124, b"timeout: "),
        ("while True: pass", ("--cpu-time", "0.3"), 152, b"killed: "),
        ("while True: print('y' * 1000)", ("--full-output", "64KiB"), 153, b"killed: "),
        (TOGETHER_TOO_MUCH, ("--memory", "64MiB", "--disk", "1MiB"), 137, b"out of memory: "),
    ],
    ids=["timeout", "cpu_time", "full_output", "memory"],
)
def test_a_limit_ends_the_program_with_a_code_and_one_line(
    cli: Cli, text: str, options: tuple[str, ...], code: int, said: bytes
) -> None:
    done = cli("run", cli.program(text), *options)
    assert done.code == code
    lines = [line for line in done.stderr.splitlines() if line.startswith(b"casemate: ")]
    assert len(lines) == 1
    assert lines[0].startswith(b"casemate: " + said)
    assert options[0].encode() in lines[0]


@pytest.mark.parametrize(
    ("text", "option", "value"),
    [
        ("import os; [os.fork() for _ in range(9)]", "--processes", "4"),
        ("open('x', 'wb').write(bytes(1 << 21))", "--disk", "1MiB"),
        ("[open(str(n), 'w').close() for n in range(99)]", "--inodes", "64"),
        ("kept = [open('/dev/null') for n in range(99)]", "--open-files", "32"),
    ],
    ids=["processes", "disk", "inodes", "open-files"],
)
def test_a_refusal_by_a_limit_is_told_with_the_option_that_raises_it(
    cli: Cli, text: str, option: str, value: str
) -> None:
    done = cli("run", cli.program(text), option, value)
    assert done.code == 1
    assert f"Raise it with {option}".encode() in done.stderr


def test_a_limit_that_a_policy_sets_is_told_with_the_place_to_raise_it_and_no_option(cli: Cli) -> None:
    (cli.folder / "most.yaml").write_text("limits:\n  memory: 64MiB\n  wall: 1\n")
    large = cli("run", cli.program("bytearray(1 << 31)"), "--policy", "most.yaml", "--memory", "1GiB").stderr
    assert b"Raise limits.memory in the policy (most.yaml:2), or do less." in large
    assert b"--memory" not in large
    for command in (("run", cli.program("sleep 60", "long.sh")), ("wrap", "--", "sleep", "60")):
        done = cli(command[0], "--policy", "most.yaml", *command[1:])
        assert (done.code, b"limits.wall in the policy (most.yaml:3)" in done.stderr) == (124, True)
    within = cli("run", "program.py", "--policy", "most.yaml", "--memory", "48MiB").stderr
    assert b"Raise it with --memory, or do less." in within


def test_a_timeout_may_be_longer_than_the_usual_one(cli: Cli) -> None:
    done = cli("run", cli.program("print(1)"), "--timeout", "300", "--explain", "--format", "json")
    assert (json.loads(done.stdout)["deadline"], json.loads(done.stdout)["limits"]["wall"]) == (300.0, 300.0)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_an_interrupt_ends_the_cell(cli: Cli, sent: signal.Signals, code: int) -> None:
    program = cli.program("import time\nprint('here', flush=True)\ntime.sleep(60)")
    with cli.start("run", program) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(sent)
        _, stderr = process.communicate()
    assert (process.returncode, stderr) == (code, b"")


def test_an_interrupt_also_ends_a_run_whose_reader_does_not_read(cli: Cli) -> None:
    with cli.start("run", cli.program("while True: print('y' * 1000)")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_a_reader_that_goes_away_ends_the_run_quietly(cli: Cli) -> None:
    with cli.start("run", cli.program("while True: print('y' * 1000)")) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


@pytest.mark.parametrize("words", [("--help",), ("sessions", "--help")])
def test_a_reader_of_help_that_goes_away_is_no_fault(cli: Cli, words: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    with cli.start(*words, stdout=write) as process:
        os.close(write)
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_output_that_cannot_be_written_is_an_error(cli: Cli) -> None:
    with open("/dev/full", "wb") as full, cli.start("run", cli.program("print(1)"), stdout=full.fileno()) as process:
        _, stderr = process.communicate()
    assert process.returncode == 74
    assert stderr.startswith(b"casemate: ")


def test_a_closed_standard_output_gets_nobody_elses_descriptor(cli: Cli) -> None:
    command = f"exec >&-; {sys.executable} -m casemate run {cli.program('print(1)')}"
    done = subprocess.run(["sh", "-c", command], cwd=cli.folder, env=cli.env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


# -- what is wrong is said before anything runs


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["run"], b"SCRIPT"),
        (["run", "missing.py"], b"missing.py"),
        (["run", "p.py", "--memory", "lots"], b"--memory"),
        (["run", "p.py", "--processes", "0"], b"--processes"),
        (["run", "p.py", "--output-limit", "1"], b"--output-limit"),
        (["run", "p.py", "--timeout", "soon"], b"--timeout"),
        (["run", "p.py", "--timeout", "-1"], b"--timeout"),
        (["run", "p.py", "--tiemout", "1"], b"--tiemout"),
        (["run", "p.py", "--verbose"], b"options go after --: casemate run SCRIPT -- ARGUMENTS"),
        (["wrap", "ls", "-l"], b"options go after --: casemate wrap -- COMMAND ARGUMENTS"),
        (["tools", "add", "x", "y", "-l"], b"options go after --: casemate tools add NAME -- COMMAND ARGUMENTS"),
        (["run", "--tiemout", "1", "p.py"], b"no option --tiemout"),
        (["run", "--backend", "docker", "p.py"], b"no option --backend; use --isolation"),
        (["run", "p.py", "--backend", "docker"], b"Or use --isolation"),
        (["validate", "--no-auto-fix", "p.py"], b"Or use validate as it is: it fixes only with --fix"),
        (["run", "p.py", "--file", "missing.csv"], b"missing.csv"),
        (["run", "p.py", "--file", "../x=p.py"], b"--file"),
        (["run", "p.py", "--file", "a=p.py", "--file", "a=p.py"], b"twice"),
        (["run", "p.py", "-e", "NOT_SET_ANYWHERE"], b"NOT_SET_ANYWHERE"),
        (["run", "p.py", "-e", "a-b=c"], b"--env"),
        (["run", "p.py", "--stdin", "missing"], b"--stdin"),
        (["run", "p.py", "--workspace", "missing"], b"--workspace"),
        (["run", "p.py", "--environment", "missing"], b"--environment"),
        (["run", "p.py", "--isolation", "paper"], b"--isolation"),
        (["run", "p.py", "--format", "xml"], b"--format"),
        (["jump"], b"jump"),
    ],
)
def test_a_mistake_is_named_and_nothing_runs(in_process: InProcess, arguments: list[str], names: bytes) -> None:
    in_process.program("print('ran')", "p.py")
    done = in_process.call(*arguments)
    assert (done.code, done.stdout) == (failures.USAGE, b"")
    assert done.stderr.startswith(b"casemate: ")
    assert names in done.stderr


def test_a_record_that_cannot_be_written_stops_the_run(make_cli: Callable[..., Cli]) -> None:
    cli = make_cli(XDG_STATE_HOME="/proc/nowhere")
    done = cli("run", cli.program("print('ran')"))
    assert (done.code, done.stdout) == (74, b"")


# -- json


def test_json_has_the_whole_outcome_and_the_programs_code(cli: Cli) -> None:
    program = cli.program("import sys; print('out'); open('output/x', 'w').write('1'); sys.exit('no')")
    done = cli("run", program, "--format", "json")
    outcome = json.loads(done.stdout)
    assert done.code == 1
    assert {name: outcome[name] for name in ("status", "ok", "exit_code", "stdout", "stderr", "cause")} == {
        "status": "failed",
        "ok": False,
        "exit_code": 1,
        "stdout": "out\n",
        "stderr": "no\n",
        "cause": None,
    }
    assert [artifact["name"] for artifact in outcome["artifacts"]] == ["output/x"]
    assert outcome["isolation"]["wall"] == "native"


HOSTILE = r"""
import json, os, sys
sys.stdout.buffer.write(b'\xff\xed\xa0\x80\x1b]0;x\a')
display({'text/plain': '\ud800 lone', 'application/json': {'inf': 1e999, 'deep': '\udfff'}}, raw=True)
"""


def test_json_is_valid_whatever_the_program_writes(cli: Cli) -> None:
    done = cli("run", cli.program(HOSTILE), "--format", "json")
    outcome = json.loads(done.stdout, parse_constant=strict)
    assert done.code == 0
    assert done.stdout.isascii()
    assert b"\x1b" not in done.stdout
    outcome_text = json.dumps(outcome, ensure_ascii=False)
    assert outcome_text.encode()  # no lone surrogates: every parser takes it
    assert outcome["stdout"].endswith("\x1b]0;x\x07")


def test_json_says_why_casemate_ended_it_or_ran_nothing(cli: Cli) -> None:
    program = cli.program("while True: pass")
    ended = cli("run", program, "--format", "json", "--timeout", "0.3")
    assert (ended.code, json.loads(ended.stdout)["cause"]["code"]) == (124, "timeout")
    refused = cli("run", program, "--format", "json", "--workspace", "missing")
    assert (refused.code, json.loads(refused.stdout)["status"], json.loads(refused.stdout)["kind"]) == (
        2,
        "error",
        "invalid",
    )


def test_json_with_cut_output_keeps_all_of_it_in_a_file(cli: Cli) -> None:
    program = cli.program("print('x' * 5000)")
    done = cli("run", program, "--format", "json", "--output-limit", "1KiB", "--output", "out")
    assert json.loads(done.stdout)["truncated"] is True
    assert (cli.folder / "out" / "full-output.txt").read_bytes() == b"x" * 5000 + b"\n"


# -- the plan


def test_the_plan_is_printed_and_nothing_runs(in_process: Cli) -> None:
    marker = in_process.folder / "work"
    marker.mkdir()
    program = in_process.program("open('ran', 'w')")
    arguments = ("run", program, "--workspace", "work", "--explain", "--memory", "64MiB", "-e", "A=b")
    text = in_process(*arguments)
    plan = json.loads(in_process(*arguments, "--format", "json").stdout)
    assert text.code == 0
    for part in (b"64 MiB", b"/usr", b"seccomp", b"network", str(marker).encode(), b"A "):
        assert part in text.stdout
    assert (plan["limits"]["memory"], plan["network"], plan["env"]["A"]) == (64 << 20, "none", "b")
    assert list(marker.iterdir()) == []
    assert list((in_process.folder.parent / "state").rglob("*.db-wal")) == []


def test_the_plan_says_what_another_wall_does_otherwise(in_process: Cli) -> None:
    arguments = ("run", in_process.program("1"), "--isolation", "landlock", "--explain")
    text = in_process(*arguments).stdout
    assert b"other programs can reach what listens there" in text
    assert b"namespaces" not in text
    plan = json.loads(in_process(*arguments, "--format", "json").stdout)
    assert plan["layers"] == ["landlock", "seccomp", "rlimits", "init"]
    assert not [one for one in plan["mounts"] if one["kind"] == "made"]


# -- on a terminal


def test_a_terminal_is_shown_inert_output(cli: Cli) -> None:
    program = cli.program(r"print('\x1b]52;c;aGk=\a\x1b[2J\x1b[31mred\x1b[0m', 'progress\rdone')")
    done = cli.on_terminal("run", program)
    assert done.code == 0
    assert done.stdout == b"\\x1b]52;c;aGk=\\x07\\x1b[2J\x1b[31mred\x1b[0m progress\ndone\n"


def test_a_terminal_gets_the_bytes_themselves_when_asked(cli: Cli) -> None:
    done = cli.on_terminal("run", cli.program(r"print('\x1b[2Jx')"), "--raw")
    assert done.stdout == b"\x1b[2Jx\n"


def test_a_program_on_a_terminal_has_an_empty_standard_input(cli: Cli) -> None:
    assert cli.on_terminal("run", cli.program("import sys; print(repr(sys.stdin.read()))")).stdout == b"''\n"


# -- help


def test_help_names_the_commands_and_every_exit_code(in_process: Cli) -> None:
    done = in_process("--help")
    assert done.code == 0
    for word in (b"run", b"doctor", *(str(code).encode() for code, _ in failures.MEANINGS)):
        assert word in done.stdout
    assert in_process("--version").stdout.startswith(b"casemate ")
    assert in_process().code == 2


def test_every_option_and_exit_code_is_documented(in_process: Cli) -> None:
    manual = (ROOT / "docs" / "reference" / "cli.md").read_text()
    options = {
        word.strip("│ ,") for word in in_process("run", "--help").stdout.decode().split() if word.startswith("--")
    }
    assert len(options) > 20
    assert [option for option in sorted(options) if f"`{option}" not in manual] == []
    assert [code for code, _ in failures.MEANINGS if f"| {code} |" not in manual] == []


# -- the main job


@pytest.mark.full
@pytest.mark.needs("data")
def test_the_example_leaves_its_table_and_its_chart(cli: Cli) -> None:
    examples = ROOT / "examples"
    given = f"penguins.csv={examples / 'penguins.csv'}"
    done = cli("run", os.fspath(examples / "analyse_penguins.py"), "--file", given, "--output", "out")
    assert done.code == 0
    assert done.stdout.startswith(b"342 penguins\n")
    assert (cli.folder / "out" / "bill_vs_flipper.png").read_bytes().startswith(b"\x89PNG")
    assert (cli.folder / "out" / "summary.csv").read_text().count("\n") == 4


@pytest.mark.parametrize(("name", "text"), [("a.js", "console.log(1)"), ("a.sh", "echo 1")])
def test_an_environment_is_refused_for_a_program_that_would_not_use_it(cli: Cli, name: str, text: str) -> None:
    done = cli("run", cli.program(text, name), "--environment", "/usr")
    assert (done.code, done.stdout) == (2, b"")
    assert b"--environment: '/usr' would not be used: it is for Python programs" in done.stderr
