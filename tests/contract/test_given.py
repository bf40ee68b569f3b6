"""What a program is given, and nothing else: code, arguments, environment, standard input, files, a folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.contract import programs

from casemate import sync
from casemate.languages.runtime import THREAD_COUNTS

BASH = "bash -c 'trap -p'"
BYTES = bytes(range(256)) * 4096  # 1 MiB, more than any pipe holds


def test_standard_input_arrives_byte_for_byte(sandbox: sync.Sandbox, language: str) -> None:
    text = "häß\n" * 50_000
    assert sandbox.run(programs.ECHO_STDIN[language], language=language, stdin=text).stdout == text
    assert sandbox.run(programs.ECHO_STDIN[language], language=language, stdin=b"a\0b").stdout == "a\0b"


def test_standard_input_is_empty_when_none_is_given(sandbox: sync.Sandbox, language: str) -> None:
    execution = sandbox.run(programs.ECHO_STDIN[language], language=language, timeout=20)
    assert (execution.status, execution.stdout) == ("ok", "")


def test_the_environment_is_the_documented_one_and_nothing_of_the_hosts(
    sandbox: sync.Sandbox, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "do not show")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    execution = sandbox.run(programs.ENVIRONMENT[language], language=language, env={"GREETING": "hi"})
    seen = dict(line.split("=", 1) for line in execution.stdout.split("\0") if line)
    common = {"PATH", "PYTHONPATH", "NODE_PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR",
              "CASEMATE_OUTPUT", "MPLBACKEND", "npm_config_fetch_retries", *THREAD_COUNTS}  # fmt: skip
    pythons = {"PYTHONDONTWRITEBYTECODE"} if language == "python" else set()
    shells = {"PWD", "OLDPWD", "SHLVL", "_"} if language == "shell" else set()  # bash's own
    assert set(seen) - shells == common | pythons | {"GREETING"}
    assert (seen["HOME"], seen["LANG"], seen["GREETING"]) == ("/home/user", "C.UTF-8", "hi")
    assert "do not show" not in execution.stdout


@pytest.mark.parametrize("value", ["", "a b", "häß 🦊", "quo\"te's $HOME `id` \\n\nline", "x" * 100_000])
def test_a_variable_arrives_as_it_was_given(sandbox: sync.Sandbox, language: str, value: str) -> None:
    execution = sandbox.run(programs.VARIABLE[language], language=language, env={"GREETING": value})
    assert execution.stdout == value


def test_signals_that_the_caller_ignores_are_not_ignored_in_cells(wall: str, start: str, tmp_path: Path) -> None:
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP, signal.SIGRTMIN)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        with sync.Sandbox(isolation=wall, audit=tmp_path / "audit.db") as sandbox:
            said = [sandbox.run("trap -p", language="shell").stdout]
            said += [sandbox.run(f"import os; os.system({BASH!r})").stdout]
            with sandbox.session("shell") as session:
                said += [session.run(BASH).stdout]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [text.replace("trap -- '' SIGPIPE\n", "").replace("trap -- '' SIGXFSZ\n", "") for text in said] == [""] * 3


def test_root_has_a_name(sandbox: sync.Sandbox) -> None:
    said = sandbox.run("import grp, pwd; print(pwd.getpwuid(0).pw_name, grp.getgrgid(0).gr_name)")
    assert said.stdout == "root root\n", said.stderr


def test_a_byte_order_mark_is_no_part_of_a_program(sandbox: sync.Sandbox, language: str) -> None:
    code = "\ufeff" + {"python": "print(1)", "node": "console.log(1)", "shell": "echo 1"}[language]
    with sandbox.session(language) as session:
        outcomes = sandbox.run(code, language=language), session.run(code), session.run(code.encode())
    assert [(one.status, one.stdout) for one in outcomes] == [("ok", "1\n")] * 3, outcomes


def test_arguments_arrive_one_by_one(sandbox: sync.Sandbox, language: str) -> None:
    given = ["a b", "", "-x", "--", "häß", "$HOME", "*", "'"]
    execution = sandbox.run(programs.ARGUMENTS[language], language=language, arguments=given)
    assert execution.stdout == "\n".join(given) + "\n"


def test_a_program_starts_in_the_workspace(sandbox: sync.Sandbox, language: str) -> None:
    assert sandbox.run(programs.FOLDER[language], language=language).stdout == "/workspace\n"


@pytest.mark.parametrize("form", ["bytes", "str", "path"])
def test_given_files_are_in_the_workspace(sandbox: sync.Sandbox, language: str, form: str, tmp_path: Path) -> None:
    text = "häß\n" * 1000
    source = tmp_path / "source"
    source.write_text(text, encoding="utf-8")
    content: Any = {"bytes": text.encode(), "str": text, "path": source}[form]
    execution = sandbox.run(programs.READ_FILE[language], language=language, files={"data/in.bin": content})
    assert (execution.stdout, execution.artifacts) == (text, ())


def test_a_large_file_arrives_whole(sandbox: sync.Sandbox) -> None:
    code = "import hashlib; print(hashlib.sha256(open('big', 'rb').read()).hexdigest(), end='')"
    import hashlib

    big = BYTES * 20
    assert sandbox.run(code, files={"big": big}).stdout == hashlib.sha256(big).hexdigest()


def test_a_thousand_files_with_long_names_all_arrive(sandbox: sync.Sandbox) -> None:
    files = {f"{'n' * 60}-{number:06}": b"x" for number in range(1000)}
    execution = sandbox.run("import os; print(len(os.listdir('.')) - 1, end='')", files=files)
    assert execution.stdout == "1000"


def test_as_many_files_as_are_allowed_all_arrive(sandbox: sync.Sandbox) -> None:
    files = {f"file-{number:06}.txt": b"x" for number in range(5500)}
    execution = sandbox.run("import os; print(len(os.listdir('.')) - 1, end='')", files=files)
    assert execution.stdout == "5500"


def test_names_of_any_script_arrive_and_come_back(sandbox: sync.Sandbox) -> None:
    names = ["häß.txt", "漢字", "a b", "-rf", "🦊.csv", "con", "x" * 255]
    code = "import os\nfor name in os.listdir('.'):\n    if name != 'output': open(name, 'a').write('+')"
    execution = sandbox.run(code, files=dict.fromkeys(names, b"1"))
    assert {artifact.name: artifact.read_bytes() for artifact in execution.artifacts} == dict.fromkeys(names, b"1+")


def test_modules_given_as_files_can_be_imported(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("import mine; print(mine.value)", files={"mine.py": "value = 7"})
    assert execution.stdout == "7\n"


@pytest.mark.needs("node")
def test_modules_given_as_files_can_be_required(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run("console.log(require('./mine.js').value)", language="node",
                            files={"mine.js": "exports.value = 7"})  # fmt: skip
    assert execution.stdout == "7\n"


def test_a_program_sees_only_the_descriptors_it_was_given(sandbox: sync.Sandbox) -> None:
    leaked = os.open("/etc/hostname", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        execution = sandbox.run("ls /proc/$$/fd", language="shell")
    finally:
        os.close(leaked)
    assert set(execution.stdout.split()) <= {"0", "1", "2", "255"}


def test_a_program_may_reopen_its_streams_by_name(sandbox: sync.Sandbox) -> None:
    execution = sandbox.run(
        "echo one > /dev/stdout; echo two > /dev/stderr; cat /dev/stdin", language="shell", stdin="in"
    )
    assert (execution.stdout, execution.stderr) == ("one\nin", "two\n")


def test_code_of_any_allowed_size_and_script_runs(sandbox: sync.Sandbox, language: str) -> None:
    comment = {"python": "#", "node": "//", "shell": "#"}[language]
    long = "\n".join([programs.UNICODE[language], *[f"{comment} {'漢' * 100}"] * 10_000])
    assert sandbox.run(long, language=language).stdout == "häß 漢字 🦊\n"
    assert sandbox.run(programs.UNICODE[language].encode(), language=language).stdout == "häß 漢字 🦊\n"
