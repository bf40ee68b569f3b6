"""A step sees what the ones before it made, and where and with what it runs is as asked for."""

from __future__ import annotations

import asyncio

import pytest
from tests.sessions.driver import Open, said
from tests.sessions.driver import both_starts as start  # noqa: F401 - a fixture
from tests.support.languages import every_language

from casemate import InvalidArgument, Sandbox

MAKE = {
    "python": "x = 20\ndef double(n): return 2 * n\nimport math as m",
    "node": "let x = 20; const double = (n) => 2 * n; class Kept {}",
    "shell": "x=20; double() { echo $((2 * $1)); }; declare -A map=([a]=1); set -f",
}
USE = {
    "python": ("print(double(x) + 1, m.floor(1.5))", "41 1\n"),
    "node": ("console.log(double(x) + 1, typeof Kept)", "41 function\n"),
    "shell": ("echo $(($(double $x) + 1)) ${map[a]} *", "41 1 *\n"),
}


@every_language
async def test_a_step_sees_what_the_ones_before_it_made(opened: Open, language: str) -> None:
    session = opened(language)
    made = await session.run(MAKE[language])
    assert (made.status, made.exit_code, made.state, made.lost_names) == ("ok", 0, "kept", ())
    code, printed = USE[language]
    assert await said(session, code) == printed
    assert await said(session, code) == printed


@every_language
async def test_cells_start_as_this_file_means_them_to(opened: Open, language: str, start: str) -> None:  # noqa: F811
    execution = await opened(language).run("1" if language != "shell" else ":")
    assert execution.isolation.start in {"exec": ("exec",), "warm": ("pool", "zygote")}[start], execution.isolation
    assert execution.isolation.proved


@every_language
async def test_a_step_that_fails_keeps_what_it_did_before(opened: Open, language: str) -> None:
    code = {
        "python": "kept = 1; print('before'); raise KeyError('häß')",
        "node": "var kept = 1; console.log('before'); throw new RangeError('häß')",
        "shell": "kept=1; echo before; set -e; false; echo after",
    }[language]
    session = opened(language)
    failed = await session.run(code)
    assert (failed.status, failed.exit_code, failed.stdout, failed.state) == ("failed", 1, "before\n", "kept")
    assert failed.cause is None
    show = {"python": "print(kept)", "node": "console.log(kept)", "shell": "set +e; echo $kept"}
    assert await said(session, show[language]) == "1\n"


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [
        ("def broken():\n    raise KeyError('häß')\nbroken()", "KeyError", "'häß'"),
        ("1 / 0", "ZeroDivisionError", "division by zero"),
        ("x = = 1", "SyntaxError", "invalid syntax"),
        ("open('/nowhere')", "FileNotFoundError", "[Errno 2] No such file or directory: '/nowhere'"),
        ("%nosuchmagic", "UsageError", "nosuchmagic"),
    ],
)
async def test_an_error_of_python_is_told_in_fields(opened: Open, code: str, name: str, value: str) -> None:
    execution = await opened().run(f"{code}\n")
    if name == "UsageError":
        assert value in execution.stderr + str(execution.error)
        return
    assert execution.error is not None
    assert execution.error.name == name
    assert value in execution.error.value
    assert "\x1b" not in execution.error.traceback
    assert name in execution.error.traceback
    assert execution.status == "failed"


async def test_a_traceback_shows_the_lines_of_its_step_and_no_others(opened: Open) -> None:
    session = opened()
    await said(session, "def broken():\n    raise LookupError('first step')")
    execution = await session.run("print('before')\nbroken()")
    assert execution.error is not None
    trace = execution.error.traceback
    assert "raise LookupError('first step')" in trace
    assert "broken()" in trace
    assert "_casemate" not in trace
    assert "site-packages/IPython" not in trace
    assert execution.stdout == "before\n"


@pytest.mark.needs("node")
async def test_an_error_of_node_is_told_in_fields(opened: Open) -> None:
    execution = await opened("node").run("console.log('before');\nfunction broken() { null.x }\nbroken()")
    assert execution.error is not None
    assert (execution.error.name, execution.stdout) == ("TypeError", "before\n")
    assert "broken" in execution.error.traceback
    assert "casemate" not in execution.error.traceback
    assert "\x1b" not in execution.error.traceback


@pytest.mark.needs("node")
async def test_node_declares_anew_and_awaits_as_in_its_own_repl(opened: Open) -> None:
    session = opened("node")
    await said(session, "const x = 1; class A {}")
    assert await said(session, "const x = 2; class A { b() { return 3 } }\nconsole.log(x, new A().b())") == "2 3\n"
    execution = await session.run("const y = await Promise.resolve(5); y + 1")
    assert execution.results[0].text == "6"
    assert await said(session, "import { basename } from 'node:path'; console.log(basename('/a/b'), y)") == "b 5\n"


async def test_python_awaits_and_has_magics_and_shell_commands(opened: Open) -> None:
    session = opened()
    assert await said(session, "import asyncio\nx = await asyncio.sleep(0, 5)\nprint(x)") == "5\n"
    assert await said(session, "!echo from the shell; echo {x}") == "from the shell\n5\n"
    assert await said(session, "lines = !printf 'a\\nb\\n'\nprint(lines[1])") == "b\n"
    assert await said(session, "%%bash\nfor n in 1 2; do echo $n; done") == "1\n2\n"
    assert (await session.run("%timeit -n1 -r1 x")).ok


@every_language
async def test_two_sessions_know_nothing_of_each_other(opened: Open, language: str) -> None:
    make = {
        "python": "import os; secret = 1; open('file', 'w').write('x'); open('/tmp/t', 'w'); os.environ['E'] = '1'",
        "node": "var secret = 1; fs.writeFileSync('file', 'x'); fs.writeFileSync('/tmp/t', ''); process.env.E = '1'",
        "shell": "secret=1; touch file /tmp/t; export E=1",
    }
    look = {
        "python": "print('secret' in globals(), os.listdir(), 't' in os.listdir('/tmp'), os.environ.get('E'))",
        "node": "console.log(typeof secret, fs.readdirSync('.'), fs.existsSync('/tmp/t'), process.env.E)",
        "shell": "echo ${secret-none} * $(ls /tmp) ${E-none}",
    }
    first, second = opened(language), opened(language)
    await said(first, make[language])
    seen = await said(second, ("import os\n" if language == "python" else "") + look[language])
    none = {
        "python": "False ['output'] False None\n",
        "node": "undefined [ 'output' ] false undefined\n",
        "shell": "none output none\n",
    }
    assert seen == none[language]


async def test_a_session_sees_only_its_own_processes(opened: Open) -> None:
    first, second = opened(), opened()
    await said(first, "import subprocess\nheld = subprocess.Popen(['sleep', '98765'])")
    look = (
        "import glob\nprint([open(p).read() for p in glob.glob('/proc/[0-9]*/cmdline') if '98765' in open(p).read()])"
    )
    assert await said(second, look) == "[]\n"
    assert "98765" in await said(first, look)


@pytest.mark.full
async def test_eight_sessions_that_start_at_once_all_start(opened: Open) -> None:
    sessions = [opened() for _ in range(8)]
    async with asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(said(one, f"x = {n}\nprint(x)")) for n, one in enumerate(sessions)]
    assert [run.result() for run in runs] == [f"{n}\n" for n in range(8)]


@every_language
async def test_variables_and_files_are_given_for_the_whole_session(opened: Open, language: str) -> None:
    session = opened(language, env={"GREETING": "häß = '1'"}, files={"in/data.txt": "given", "b.bin": b"\0\xff"})
    code = {
        "python": "import os\nprint(os.environ['GREETING'], open('in/data.txt').read(), os.path.getsize('b.bin'))",
        "node": "console.log(process.env.GREETING, fs.readFileSync('in/data.txt', 'utf8'), fs.statSync('b.bin').size)",
        "shell": "echo $GREETING $(cat in/data.txt) $(wc -c < b.bin)",
    }[language]
    first = await session.run(code)
    assert (first.stdout, first.artifacts) == ("häß = '1' given 2\n", ())
    assert await said(session, code) == "häß = '1' given 2\n"


WHERE = {"python": "import os; print(os.getcwd())", "node": "console.log(process.cwd())", "shell": "pwd"}
GO = {"python": "os.chdir('/tmp')", "node": "process.chdir('/tmp')", "shell": "cd /tmp"}


@every_language
async def test_the_working_directory_is_kept_from_step_to_step(opened: Open, language: str) -> None:
    session = opened(language)
    assert await said(session, WHERE[language]) == "/workspace\n"
    await said(session, GO[language])
    assert await said(session, WHERE[language]) == "/tmp\n"


@pytest.mark.parametrize(
    ("cwd", "place"),
    [("sub", "/workspace/sub"), (None, "/workspace"), (".", "/workspace"), ("./sub/.", "/workspace/sub")],
)
@every_language
async def test_the_working_directory_is_restored_where_that_is_asked_for(
    opened: Open, language: str, cwd: str | None, place: str
) -> None:
    session = opened(language, files={"sub/x": "x"}, cwd=cwd, restore_cwd=True)
    assert await said(session, WHERE[language]) == f"{place}\n"
    await said(session, GO[language])
    assert await said(session, WHERE[language]) == f"{place}\n"


@every_language
async def test_a_session_begins_in_the_folder_that_it_is_given_and_moves_on_from_there(
    opened: Open, language: str
) -> None:
    session = opened(language, files={"sub/x": "x"}, cwd="/workspace/sub")
    assert await said(session, WHERE[language]) == "/workspace/sub\n"
    await said(session, GO[language])
    assert await said(session, WHERE[language]) == "/tmp\n"


async def test_a_module_beside_the_working_directory_is_found(opened: Open) -> None:
    session = opened("python", files={"src/found_there.py": "value = 7"})
    await said(session, "%cd src")
    assert await said(session, "import found_there; print(found_there.value)") == "7\n"
    assert await said(session, "import sys; print(repr(sys.path[0]))") == "''\n"


@every_language
async def test_a_working_directory_that_is_not_there_is_an_error_of_the_step(opened: Open, language: str) -> None:
    session = opened(language, cwd="missing")
    failed = await session.run(WHERE[language])
    assert failed.status == "failed"
    assert "missing" in failed.stderr + str(failed.error)


@pytest.mark.parametrize("cwd", ["../x", "/etc", "a/../../b", "a\0b"])
async def test_a_working_directory_outside_the_workspace_is_refused(sandbox: Sandbox, cwd: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await sandbox.session(cwd=cwd).close()
    assert raised.value.argument == "cwd"


@every_language
async def test_a_step_reads_the_standard_input_that_it_is_given_and_the_next_one_none(
    opened: Open, language: str
) -> None:
    code = {
        "python": "import sys; print(repr(sys.stdin.read()))",
        "node": "console.log(JSON.stringify(fs.readFileSync(0, 'utf8')).replaceAll('\"', \"'\"))",
        "shell": 'read -r line; printf "\'%s%s\'\\n" "$line" "${line:+\\n}"',
    }[language]
    session = opened(language)
    assert await said(session, code, stdin="häß\n") == "'häß\\n'\n"
    assert (await session.run(code)).stdout == "''\n"
    assert await said(session, code, stdin=b"again\n") == "'again\\n'\n"


async def test_input_is_answered_line_by_line_and_without_any_says_how_to_give_it(opened: Open) -> None:
    session = opened()
    code = "a = input('first? '); b = input(); print(a + b)"
    execution = await session.run(code, stdin="one\ntwo\nthree\n")
    assert execution.stdout == "first? onetwo\n"
    failed = await session.run("input('name? ')")
    assert failed.error is not None
    assert failed.status == "failed"
    assert "stdin" in failed.error.value
    assert (await session.run("a + b")).text == "'onetwo'"
