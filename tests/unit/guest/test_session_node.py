"""The Node interpreter of a session behaves as a REPL that remembers, and says all that the host has to know."""

from __future__ import annotations

import base64
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.guest.session_driver import Step
from tests.unit.guest.session_node_driver import NodeSession
from tests.unit.guest.stage import GUEST
from tests.unit.guest.test_node import nodes

pytestmark = pytest.mark.needs("node")

# What src/casemate/guest/node/interrupts.cjs asks for.
SURVIVES = "--no-force-async-hooks-checks"


def release(node: str) -> int:
    return int(subprocess.check_output([node, "--version"], text=True).lstrip("v").split(".")[0])


@pytest.fixture(params=nodes())
def node(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def session(tmp_path: Path, node: str) -> Iterator[NodeSession]:
    with NodeSession(tmp_path, node, flags=[SURVIVES] if release(node) >= 24 else []) as started:
        assert started.ready == {"type": "ready"}
        yield started


# --- values ----------------------------------------------------------------------------------------------------------


def test_the_last_value_of_a_step_is_its_result(session: NodeSession) -> None:
    for code, result in [
        ("1 + 1", "2"),
        ("'a\\n' + \"b\"", "'a\\nb'"),
        ("let a = 1\nlet b = 2\n\na + b", "3"),
        ("await Promise.resolve(7)", "7"),
        ("await new Promise((resolve) => setTimeout(() => resolve('late'), 5))", "'late'"),
        ("for (const i of [1, 2]) { i * 2 }", "4"),
        ("for await (const i of [1, 2]) i", "2"),
        ("({ a: [1, { b: 2 }] })", "{ a: [ 1, { b: 2 } ] }"),
        ("[] instanceof Array && new Error() instanceof Error && new Map() instanceof Map", "true"),
        ("Object.getPrototypeOf(await (async () => ({}))()) === Object.prototype", "true"),
        ("(async () => 1)() instanceof Promise && import('fs') instanceof Promise", "true"),
        ("this === globalThis && global === globalThis", "true"),
        ("null", "null"),
        ("'use strict'; (function () { return this })()", None),
        ("undefined", None),
        ("1; const c = 2", "1"),
        ("const c = 2", None),
        ("function f() {}", None),
        ("class C {}", None),
        ("", None),
        ("// nothing", None),
        ("#!/usr/bin/env node\n5", "5"),
    ]:
        step = session.run(code)
        assert (step.result, step.done["exit"]) == (result, 0)


def test_the_last_value_is_underscore_until_the_user_takes_that_name(session: NodeSession) -> None:
    assert session.results("6 * 7", "_ + 1", "var _ = 'mine'; 5", "_") == ["42", "43", "5", "'mine'"]


def test_a_promise_is_shown_and_not_awaited(session: NodeSession) -> None:
    assert session.run("Promise.resolve(5)").result == "Promise { 5 }"


def test_what_waits_is_shown_as_plain_node_shows_it(session: NodeSession) -> None:
    assert session.run("console.log(new Promise(() => {}))").out == "Promise { <pending> }\n"
    for code in ["setTimeout(() => {}, 1)", "setImmediate(() => {})"]:
        shown = session.run(code).result
        assert shown is not None
        assert "kResourceStore" not in shown


def test_a_huge_value_is_shown_cut(session: NodeSession) -> None:
    text = session.run("'x'.repeat(5e7)").result
    assert text is not None
    assert len(text) < 2**20
    assert text.endswith("more characters")
    deep = session.run("let deep = {}; for (let i = 0; i < 1000; i++) deep = { deep }; deep").result
    assert deep is not None
    assert "[Object]" in deep


# --- names and what steps share --------------------------------------------------------------------------------------


def test_any_name_can_be_declared_again_in_any_way(session: NodeSession) -> None:
    for then in ["const x = 2; x", "let x = 2; x", "var x = 2; x", "function x() {} x = 2; x"]:
        for first in ["const x = 1", "let x = 1", "var x = 1", "function x() {}", "class x {}"]:
            session.run(first)
            assert session.run(then).result == "2"


def test_what_a_step_declares_the_next_ones_see(session: NodeSession) -> None:
    session.run("const a = 1, { b, c: [d] } = { b: 2, c: [3] }; let e = 4; var f = 5; function g() { return e }")
    session.run("class H { static value = 7 }; async function i() { return 8 }")
    session.run("const [j] = await Promise.resolve([9])\nlet k = () => j")
    assert session.run("[a, b, d, e, f, g(), H.value, await i(), j, k()].join()").result == "'1,2,3,4,5,4,7,8,9,9'"


def test_a_variable_declared_without_a_value_forgets_the_old_one(session: NodeSession) -> None:
    session.run("let a = 1, b = 2, c = 3")
    assert session.run("let a, b\nlet c\n;[a, b, c]").result == "[ undefined, undefined, undefined ]"


def test_a_name_of_nodes_own_can_be_declared(session: NodeSession) -> None:
    session.run("const crypto = require('node:crypto'); const navigator = 1; let fetch = 2; class URL {}")
    session.run("const { fs } = { fs: 3 }")
    shown = session.run("[typeof crypto.createHash, navigator, fetch, fs, typeof URL.parse]").result
    assert shown == "[ 'function', 1, 2, 3, 'undefined' ]"


def test_names_are_told_when_they_are_bound_and_when_they_are_gone(session: NodeSession) -> None:
    assert session.run("const a = 1; let b; var c; function d() {} class E {}; globalThis.f = 1").done["new"] == [
        *["a", "b", "c", "d", "E", "f"]
    ]
    assert session.run("a; { let inner = 1 } (() => { var local })()").done["new"] == []
    step = session.run("delete globalThis.f; const a = 2; const fs = 1; implied = 3")
    assert (step.done["new"], step.done["gone"]) == (["fs", "implied"], ["f"])


# --- text that looks like a declaration or an import -----------------------------------------------------------------


def test_only_declarations_at_the_top_are_taken_for_such(session: NodeSession) -> None:
    for code, result in [
        ("const a = `const ${`let ${1}`} import x from 'y'`; a", "\"const let 1 import x from 'y'\""),
        ("const r = /const x = [/`]import('y')/; let s = r.source.length / 5 / 1; s", "5"),
        (
            "const o = { let: 1, const: 2, class: 3, import: 4, import2() {} }; o.let + o.const + o.class + o.import",
            "10",
        ),
        ("const o = { import(x) { return x + 1 } }; o.import(1)", "2"),
        ("class A { import(x) { return x }\n static class = 5 }\n[1].length + A.class", "6"),
        ("class A extends class {} {}\nclass B extends (class { x() { return 1 } }) {}\nnew B().x()", "1"),
        ("const a = 1\n/* const b */ // let c\nconst b = a\n++b", "2"),
        (
            "const f = (x) => { switch (x) { case 1: { let y = 2; return y } default: { const z = 3 } } }; f(1)",
            "2",
        ),
        ("label: for (;;) { const a = 1; break label }\nconst x = class Named {}; x.name", "'Named'"),
        ("const a = 4, g = 2; let i = 1; a / i / g", "2"),
        ("if (true) { let q = 1 } else { const q = 2 }\nlet let1 = 5\nlet1", "5"),
        ("let async = 1; let of = 2; async + of", "3"),
        ("const Ünï = 1, \\u0061b = 2; Ünï + ab", "3"),
    ]:
        assert session.run(code).result == result
        assert session.run(code).result == result


# --- modules ---------------------------------------------------------------------------------------------------------


def put(session: NodeSession, **files: str) -> None:
    for name, text in files.items():
        path = session.workspace / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def test_import_statements_of_every_kind_work(session: NodeSession) -> None:
    put(session, lib_dot_mjs="export default 'd'; export const a = 'a', b = 'b'; let s = 's'; export { s as 'a b' }")
    put(
        session,
        side_dot_mjs="globalThis.side = true",
        data_dot_json='{"n": 1}',
        old_dot_cjs="module.exports = { ['x' + 1]: 5 }",
    )
    session.run(
        "import d, { a, b as c, 'a b' as s } from './lib.mjs'\nimport * as space from './lib.mjs';import './side.mjs'"
    )
    session.run(
        "import d2, * as space2 from './lib.mjs'\nimport {\n  a as a2,\n} from './lib.mjs'\n"
        "import { x1 } from './old.cjs'"
    )
    assert session.run("[d, a, c, s, space.b, side, d2, space2.a, a2, x1].join()").result == "'d,a,b,s,b,true,d,a,a,5'"


def test_an_import_statement_ends_where_its_line_does(session: NodeSession) -> None:
    assert session.run("import fs from 'node:fs'\n(() => typeof fs.readFileSync)()").result == "'function'"


def test_json_is_imported_with_an_attribute(session: NodeSession) -> None:
    put(session, data_dot_json='{"n": 1}')
    assert session.run("import data from './data.json' with { type: 'json' }\ndata.n").result == "1"
    assert (
        session.run(
            "(await import('./data.json', { with: { type: 'json' }, assert: { type: 'json' } })).default.n"
        ).result
        == "1"
    )


def test_an_import_that_is_not_there_is_an_error_that_names_it(session: NodeSession) -> None:
    put(session, lib_dot_mjs="export const a = 1")
    missing = session.run("import { nope } from './lib.mjs'").error
    assert (missing["name"], "'nope'" in missing["value"]) == ("SyntaxError", True)
    assert "./nowhere.mjs" in session.run("import './nowhere.mjs'").error["value"].replace(str(session.workspace), ".")


def test_modules_and_packages_are_found_from_the_working_directory_at_the_start(session: NodeSession) -> None:
    put(session, node_modules__pkg__index_dot_js="module.exports = 'package'", helper_dot_js="exports.h = 'helper'")
    put(session, more_dot_mjs="export const more = 'more'")
    session.run("process.chdir('/')")
    code = "[require('pkg'), require('./helper').h, (await import('./more.mjs')).more, (await import('pkg')).default]"
    assert session.run(f"{code}.join()").result == "'package,helper,more,package'"
    assert session.run("const late = () => import('./more.mjs'); (await late()).more").result == "'more'"


def test_what_a_repl_and_a_script_offer_is_there(session: NodeSession) -> None:
    kinds = (
        "[typeof require, typeof module, typeof exports, typeof fs.readFileSync, typeof path.join, typeof fetch].join()"
    )
    assert session.run(kinds).result == "'function,object,object,function,function,function'"
    assert session.run("__dirname === process.cwd() && require.main === module").result == "true"
    assert session.run("import.meta.url").result == f"'file://{session.workspace}/session.cjs'"
    assert session.run("fs").done["new"] == []


# --- output ----------------------------------------------------------------------------------------------------------


def test_what_a_step_writes_goes_into_its_own_pipes_in_order(session: NodeSession) -> None:
    step = session.run(
        "console.log('é'); console.error('two'); process.stdout.write('three'); process.stderr.write(Buffer.from('4'))"
    )
    assert (step.out, step.err) == ("é\nthree", "two\n4")
    assert [frame["at"] for frame in step.of_type("mark")] == [[3, 0], [3, 4], [8, 4]]
    assert step.done["at"] == [8, 5]


def test_each_frame_says_how_much_was_written_before_it(session: NodeSession) -> None:
    step = session.run("console.log('a'); display(1); console.error('bc'); display.clear({ wait: true }); 5")
    ats = [(frame["type"], frame["at"]) for frame in step.frames]
    assert ats == [("display", [2, 0]), ("mark", [2, 0]), ("clear", [2, 3]), ("result", [2, 3]), ("done", [2, 3])]


def test_writes_to_descriptors_one_and_two_are_the_steps_and_counted(session: NodeSession) -> None:
    step = session.run(
        "import { writeSync } from 'node:fs'\n"
        "fs.writeSync(1, 'a'); writeSync(2, 'b'); fs.writeFileSync('/dev/stdout', 'c')\n"
        "await new Promise((resolve) => fs.write(1, Buffer.from('dd'), resolve))\n"
        "const stream = fs.createWriteStream(null, { fd: 2, autoClose: false })\n"
        "await new Promise((resolve) => stream.write('e', resolve))"
    )
    session.wait_for(lambda: len(step.out) == 4)
    assert (step.out, step.err) == ("acdd", "be")
    assert step.done["at"] == [3, 2]


def test_callbacks_pipes_and_streams_to_stdout_work(session: NodeSession) -> None:
    step = session.run(
        "await new Promise((resolve) => process.stdout.write('a', resolve))\n"
        "await new Promise((resolve) => process.stdout.end('b', resolve))\n"
        "const { Readable, promises: { pipeline } } = require('node:stream')\n"
        "await pipeline(Readable.from(['c', 'd']), process.stdout)\n"
        "console.table([{ x: 1 }]); console.group(); console.log('in'); console.groupEnd(); process.stdout.isTTY"
    )
    assert step.out.startswith("abcd┌")
    assert step.out.endswith("  in\n")
    assert step.result is None
    assert session.run("process.stdout.write('more')").out == "more"


def test_what_is_written_by_code_left_over_goes_into_its_own_steps_pipes(session: NodeSession) -> None:
    left = session.run(
        "const { setTimeout: sleep } = require('node:timers/promises')\n"
        "setTimeout(() => { console.log('timer'); fs.writeSync(1, 'raw ') }, 30)\n"
        "sleep(30).then(() => console.error('promise')); setImmediate(() => console.log('immediate')); 0"
    )
    mine = session.run("console.log('mine'); await sleep(100); console.log('mine still')")
    assert mine.out == "mine\nmine still\n"
    assert mine.err == ""
    session.wait_for(lambda: left.err == "promise\n" and sorted(left.out.split()) == ["immediate", "raw", "timer"])


def test_a_server_left_running_serves_later_steps_and_writes_for_its_own(session: NodeSession) -> None:
    left = session.run(
        "const net = require('node:net')\n"
        "const server = net.createServer((c) => { console.log('served'); c.end('hi') })\n"
        "await new Promise((resolve) => server.listen('server.sock', resolve)); 0"
    )
    step = session.run(
        "await new Promise((resolve) => net.connect('server.sock').on('data', (data) => resolve(String(data))))"
    )
    assert step.result == "'hi'"
    assert step.out == ""
    session.wait_for(lambda: left.out == "served\n")


def until_both(session: NodeSession, step: Step) -> None:
    session.wait_for(lambda: (step.out, step.err) == ("out", "err"))


def test_children_write_into_the_pipes_of_the_step_that_starts_them(session: NodeSession) -> None:
    for start in [
        "spawn('sh', ['-c', SCRIPT], { stdio: 'inherit' })",
        "spawn('sh', ['-c', SCRIPT], { stdio: ['ignore', 1, 2] })",
        "spawn('sh', ['-c', SCRIPT], { stdio: ['inherit', process.stdout, process.stderr] })",
        "execSync(SCRIPT, { stdio: 'inherit' })",
        "spawnSync('sh', ['-c', SCRIPT], { stdio: ['pipe', 'inherit', 'inherit'] })",
        "execFileSync('sh', ['-c', SCRIPT], { stdio: 'inherit' })",
        "fork('./child.js')",
    ]:
        put(session, child_dot_js="process.stdout.write('out'); process.stderr.write('err')")
        session.run("const { spawn, fork, execSync, spawnSync, execFileSync } = require('node:child_process')")
        session.run(
            "const SCRIPT = 'printf out; printf err >&2'; const sleep = require('node:timers/promises').setTimeout"
        )
        now = session.run(f"{start}; 0")
        until_both(session, now)
        left = session.run(f"setTimeout(() => {start}, 20); 0")
        later = session.run("await sleep(150)")
        until_both(session, left)
        assert (later.out, later.err) == ("", "")


def test_what_a_synchronous_child_says_on_stderr_is_the_steps(session: NodeSession) -> None:
    step = session.run("String(require('node:child_process').execSync('echo out; echo err >&2'))")
    assert (step.result, step.err) == ("'out\\n'", "err\n")


def test_a_child_that_makes_its_pipe_nonblocking_does_not_cut_what_the_step_writes(session: NodeSession) -> None:
    step = session.run(
        "const code = 'process.stdout.write(`c`)', { spawn } = require('node:child_process')\n"
        "const child = spawn(process.execPath, ['-e', code], { stdio: 'inherit' })\n"
        "await new Promise((r) => child.on('exit', r)); process.stdout.write('x'.repeat(3e6)); 0"
    )
    session.wait_for(lambda: len(step.out) == 3_000_001)


def test_a_worker_writes_into_the_pipes_of_the_step_that_made_it(session: NodeSession) -> None:
    code = "const { Worker } = require('node:worker_threads')\n"
    made = session.run(
        code + "const w = new Worker(\"setTimeout(() => console.log('worker'), 50)\", { eval: true }); 0"
    )
    other = session.run("await new Promise((resolve) => w.on('exit', resolve))")
    session.wait_for(lambda: made.out == "worker\n")
    assert other.out == ""


def test_long_output_is_whole(session: NodeSession) -> None:
    for code in [
        "process.stdout.write('x'.repeat(2e7))",
        "process.stdout.write(Buffer.alloc(2e7, 'x'))",
        "for (let i = 0; i < 2e5; i++) console.log('x'.repeat(99))",
        "process.stdout.write('é'.repeat(1e7))",
        "process.stdout.write('a' + '😀'.repeat(5e6 - 1) + 'bcd')",
    ]:
        step = session.run(f"{code}; 0")
        assert len(step.out_pipe.data) == 20_000_000
        assert step.done["at"] == [20_000_000, 0]
        step.out.encode()


def test_a_step_whose_reader_is_gone_goes_on(session: NodeSession) -> None:
    code = "console.log('x'.repeat(1e6)); console.error(1); fs.writeSync(1, 'x'); 'through'"
    step = session.begin(f"console.log('begun'); await new Promise((r) => setTimeout(r, 100)); {code}")
    session.wait_for(lambda: step.out == "begun\n")
    session.stop_reading(step)
    session.wait_for(lambda: bool(step.of_type("done")))
    assert step.result == "'through'"


def test_many_steps_leave_no_more_than_a_few_descriptors_open(session: NodeSession) -> None:
    session.run("const count = () => fs.readdirSync('/proc/self/fd').length; setInterval(() => console.log('old'), 1)")
    for _ in range(40):
        session.run("0")
    few = session.run("count()").result
    for _ in range(20):
        session.run("0")
    assert session.run("count()").result == few
    assert session.run("await new Promise((r) => setTimeout(r, 30))").out == ""


# --- standard input --------------------------------------------------------------------------------------------------


def test_a_step_reads_the_text_it_was_given_and_then_the_end(session: NodeSession) -> None:
    for code in [
        "let all = ''; for await (const chunk of process.stdin) all += chunk; all",
        "await new Promise((r) => { let all = ''; process.stdin.on('data', (d) => all += d).on('end', () => r(all)) })",
        "fs.readFileSync(0, 'utf8')",
        "fs.readFileSync('/dev/stdin', 'utf8')",
        "String(require('node:child_process').execSync('cat', { stdio: ['inherit', 'pipe', 'pipe'] }))",
        "process.stdin.setEncoding('utf8'); let all = ''; for await (const c of process.stdin) all += c; all",
    ]:
        assert session.run(code, stdin="one\ntwo").result == "'one\\ntwo'"
        assert session.run(code).result == "''"
        assert session.run(code, stdin="three").result == "'three'"


def test_lines_of_standard_input_can_be_asked_for(session: NodeSession) -> None:
    code = "const lines = [], { createInterface } = require('node:readline')\n"
    code += "for await (const line of createInterface({ input: process.stdin })) lines.push(line)\nlines"
    assert session.run(code, stdin="a\nb\n").result == "[ 'a', 'b' ]"


# --- results and displays --------------------------------------------------------------------------------------------


def test_plain_objects_are_given_as_json_too(session: NodeSession) -> None:
    assert session.run("({ a: [1, 'b', null, { c: true }] })").bundle["application/json"] == {
        "a": [1, "b", None, {"c": True}]
    }
    for code in ["new Map()", "[1n]", "({ a: undefined })", "[() => 1]", "new Date(0)", "Array(1e6).fill(0)", "5"]:
        assert list(session.run(code).bundle) == ["text/plain"], code


def test_an_object_that_knows_how_to_show_itself_is_asked(session: NodeSession) -> None:
    bundle = session.run(
        "({ [Symbol.for('Jupyter.display')]() { return { 'text/html': '<b>', 'image/png': Buffer.from('p') } } })"
    ).bundle
    assert (bundle["text/html"], base64.b64decode(bundle["image/png"])) == ("<b>", b"p")
    assert session.run("({ toHtml: () => '<i>' })").bundle["text/html"] == "<i>"
    picture = session.run("Buffer.from('89504e470d0a1a0a00', 'hex')").bundle["image/png"]
    assert base64.b64decode(picture) == bytes.fromhex("89504e470d0a1a0a00")


def test_display_shows_values_and_ready_made_bundles(session: NodeSession) -> None:
    step = session.run(
        "display([1])\n"
        "const picture = new Uint8Array([1])\n"
        "const bundle = { 'text/html': '<b>', 'application/json': { a: 1 }, 'image/png': picture, x: null }\n"
        "display(bundle, { raw: true })\n"
        "display('first', { id: 'one' }); display('second', { id: 'one', update: true })"
    )
    frames = step.of_type("display")
    assert frames[0]["bundle"] == {"text/plain": "[ 1 ]", "application/json": [1]}
    assert frames[1]["bundle"] == {"text/html": "<b>", "application/json": {"a": 1}, "image/png": "AQ=="}
    assert [(frame["id"], frame["update"]) for frame in frames] == [
        (None, False),
        (None, False),
        ("one", False),
        ("one", True),
    ]


def test_a_representation_that_fails_or_is_too_large_is_left_out_and_said(session: NodeSession) -> None:
    step = session.run(
        "({ [Symbol.for('Jupyter.display')]() { throw new Error('oops') }, toHtml: () => 'x'.repeat(2e7) })"
    )
    assert list(step.bundle) == ["text/plain"]
    assert "Jupyter.display failed: Error: oops" in step.err
    assert "text/html failed" in step.err


def test_an_object_that_fights_being_shown_does_no_harm(session: NodeSession) -> None:
    for code in [
        "new Proxy({}, { get() { throw 1 }, ownKeys() { throw 2 }, getPrototypeOf() { throw 3 } })",
        "({ [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('no') } })",
        "({ get [Symbol.for('Jupyter.display')]() { throw new Error('no') } })",
        "const o = {}; o.o = o; o",
    ]:
        assert session.run(code).result


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_error_has_name_message_stack_and_number(session: NodeSession) -> None:
    step = session.run("function deep() { fs.readFileSync('/nope') }\n\ndeep()")
    assert (step.error["name"], step.error["errno"], step.done["exit"]) == ("Error", 2, 1)
    assert step.error["value"] == "ENOENT: no such file or directory, open '/nope'"
    assert "    at deep (step_1:1:" in step.error["traceback"]
    assert "    at step_1:3:1" in step.error["traceback"]


def test_no_stack_shows_the_interpreter_itself(session: NodeSession) -> None:
    for code in [
        "throw new TypeError('boo')",
        "await 0; throw new TypeError('boo')",
        "null.x",
        "try { null.x } catch (e) { console.log(e.stack); console.log(e) } Promise.reject(new Error('r'))",
        "new Error('value')",
        "console.log(new Error().stack); process.stdout.write(5)",
        "await import('./nope.mjs')",
    ]:
        step = session.run(code)
        told = step.out + str(step.frames)
        assert str(GUEST) not in told
        assert "node:vm" not in told
        assert "node:inspector" not in told


def test_anything_can_be_thrown(session: NodeSession) -> None:
    for code, name, value in [
        ("throw new RangeError('far')", "RangeError", "far"),
        ("class Odd extends Error { name = 'Odd' }; throw new Odd('o')", "Odd", "o"),
        ("throw 'text'", "string", "'text'"),
        ("throw undefined", "undefined", "undefined"),
        ("throw { a: 1 }", "object", "{ a: 1 }"),
        ("await Promise.reject(5)", "number", "5"),
        ("nowhere", "ReferenceError", "nowhere is not defined"),
        ("await nowhere", "ReferenceError", "nowhere is not defined"),
    ]:
        error = session.run(code).error
        assert (error["name"], error["value"]) == (name, value)
        assert "\x1b" not in error["traceback"]


def test_an_error_that_fights_being_shown_is_an_error(session: NodeSession) -> None:
    step = session.run(
        "throw { get message() { throw 1 }, get stack() { throw 2 }, get name() { throw 3 }, get errno() { throw 4 } }"
    )
    assert step.error["name"] == "object"
    assert (
        session.run(
            "const e = new Error('x'); Object.defineProperty(e, 'message', { get() { throw 1 } }); throw e"
        ).error["value"]
        == ""
    )
    assert session.run("1").result == "1"


def test_a_syntax_error_shows_its_line_and_nothing_runs(session: NodeSession) -> None:
    for code, line, text in [
        ("let a = 1\nlet b = = 2", 2, "let b = = 2"),
        ("const a = 1\n}", 2, "}"),
        ("await 1\nfoo bar", 2, "foo bar"),
        ("return 5", 1, "return 5"),
        (".exit", 1, ".exit"),
        ("import fs from 'fs'\nimport { from 'x'", 2, "import { from 'x'"),
    ]:
        step = session.run(code)
        assert step.error["name"] == "SyntaxError"
        assert step.error["traceback"].startswith(f"step_{step.number}:{line}\n{text}\n")
        assert step.done["new"] == []


def test_an_error_that_nobody_handles_is_an_error_of_the_step_that_runs(session: NodeSession) -> None:
    for code, value in [
        ("Promise.reject(new Error('nobody'))", "nobody"),
        ("process.nextTick(() => { throw new Error('nobody') }); 0", "nobody"),
        ("setTimeout(() => { throw new Error('nobody') }, 1); await new Promise((r) => setTimeout(r, 50))", "nobody"),
        ("(async () => { await 0; throw 'nobody' })(); await new Promise((r) => setTimeout(r, 20))", "'nobody'"),
    ]:
        step = session.run(f"var before = 1; {code}")
        assert (step.error["value"], step.done["exit"]) == (value, 1)
        assert session.run("before").result == "1"


def test_an_error_that_comes_after_the_step_is_told_on_its_stderr(session: NodeSession) -> None:
    left = session.run(
        "setTimeout(() => { throw new Error('late') }, 20); setTimeout(() => Promise.reject('later'), 30); 0"
    )
    assert left.done["exit"] == 0
    other = session.run("await new Promise((r) => setTimeout(r, 80))")
    session.wait_for(lambda: left.err.count("Uncaught") == 2)
    assert left.err.startswith("Uncaught Error: late\n    at ")
    assert left.err.endswith("Uncaught 'later'\n")
    assert (other.err, other.done["exit"]) == ("", 0)


def test_the_users_own_handlers_are_asked_instead(session: NodeSession) -> None:
    session.run(
        "process.on('uncaughtException', (error) => console.log('caught', error.message))\n"
        "process.on('unhandledRejection', (reason) => console.log('rejected', reason))"
    )
    step = session.run(
        "setTimeout(() => { throw new Error('x') }, 1); Promise.reject(5); await new Promise((r) => setTimeout(r, 50))"
    )
    assert step.out == "rejected 5\ncaught x\n"
    assert step.done["exit"] == 0


def test_the_interpreter_survives_when_all_listeners_are_removed(session: NodeSession) -> None:
    session.run("process.removeAllListeners('uncaughtException'); process.removeAllListeners('unhandledRejection')")
    assert session.run("Promise.reject(new Error('x'))").error["value"] == "x"
    assert (
        session.run("setTimeout(() => { throw 1 }, 1); await new Promise((r) => setTimeout(r, 30))").error["value"]
        == "1"
    )


# --- interrupting ----------------------------------------------------------------------------------------------------


def interrupted(session: NodeSession, code: str) -> None:
    """Interrupt it when it says BEGUN, or at its start."""
    said = "console.log('begun')"
    first = "" if "BEGUN" in code else said
    step = session.begin(f"var kept = (globalThis.kept ?? 0) + 1; {first};\n{code.replace('BEGUN', said)}")
    session.wait_for(lambda: step.out == "begun\n")
    session.interrupt(again=False)
    session.finish(step)
    assert (step.error["name"], step.done["exit"]) == ("Interrupted", 1)


@pytest.mark.parametrize(
    "code",
    [
        "for (;;);",
        "while (true) { try { null.x } catch {} finally { continue } }",
        "for (;;) JSON.parse('[1]')",
        "/(a+)+b/.test('a'.repeat(40))",
        "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
        "await new Promise(() => {})",
        "await new Promise((r) => setTimeout(r, 100000))",
        "await new Promise((r) => require('node:child_process').spawn('sleep', ['100']).on('exit', r))",
        "for (;;) await new Promise((r) => setTimeout(r, 1))",
    ],
)
def test_a_step_is_interrupted_and_its_state_kept(session: NodeSession, code: str) -> None:
    interrupted(session, code)
    interrupted(session, code)
    assert session.results("kept", "await 5") == ["2", "5"]


@pytest.mark.parametrize(
    "code",
    [
        "await 0; BEGUN; for (;;);",
        "for (;;) await null",
        "await new Promise((r) => setTimeout(r, 5)); BEGUN; for (;;);",
        "setTimeout(() => { BEGUN; for (;;); }, 5); await new Promise(() => {})",
        "await fs.promises.readFile('/dev/null'); BEGUN; for (;;);",
        "const net = await import('node:net'); BEGUN; for (;;);",
    ],
)
def test_code_after_an_await_and_in_callbacks_is_interrupted_too(session: NodeSession, node: str, code: str) -> None:
    if release(node) < 24:
        pytest.skip("older Nodes do not survive it: the host ends them")
    session.run("await 0")
    interrupted(session, code)
    interrupted(session, code)
    step = session.run("setTimeout(() => console.log('timer'), 1); await new Promise((r) => setTimeout(r, 50)); kept")
    assert (step.result, step.out) == ("2", "timer\n")


def test_an_interrupt_between_steps_is_ignored(session: NodeSession) -> None:
    session.run("var kept = 1; await 0; process.on('SIGINT', () => {})")
    for _ in range(3):
        session.interrupt(again=False)
        session.until_it_rests()
        assert session.run("kept").result == "1"
    interrupted(session, "for (;;);")
    session.interrupt(again=False)
    session.until_it_rests()
    assert session.run("await new Promise((r) => setTimeout(r, 20)); 1").result == "1"


def test_a_node_that_gives_nothing_away_is_interrupted_too(tmp_path: Path, node: str) -> None:
    (tmp_path / "without.cjs").write_text("process.binding = undefined")
    with NodeSession(tmp_path, node, flags=["--require", str(tmp_path / "without.cjs")]) as session:
        interrupted(session, "for (;;);")
        interrupted(session, "setTimeout(() => BEGUN, 20); await new Promise((r) => setTimeout(r, 100000))")
        assert session.run("kept").result == "2"


def test_an_awaited_promise_that_is_collected_does_not_end_the_interpreter(session: NodeSession) -> None:
    interrupted(session, "await new Promise(() => {})")
    session.run("require('node:v8').setFlagsFromString('--expose-gc'); require('node:vm').runInNewContext('gc')()")
    session.run("await 0; require('node:vm').runInNewContext('gc')()")
    assert session.run("1").result == "1"


# --- endings ---------------------------------------------------------------------------------------------------------


def test_the_end_of_the_requests_is_the_end_of_the_interpreter(session: NodeSession) -> None:
    session.run("setInterval(() => {}, 1000); 0")
    assert session.hang_up() == 0


def test_the_fatal_message_of_the_engine_is_on_the_steps_stderr(tmp_path: Path, node: str) -> None:
    with NodeSession(tmp_path, node, flags=["--max-old-space-size=40"]) as session:
        step = session.begin("const list = []; for (;;) list.push(new Array(1000).fill(list.length))")
        assert session.wait_for_death() == -signal.SIGABRT
        session.wait_for(lambda: "heap out of memory" in step.err)


def test_children_and_workers_do_not_get_the_interpreters_pipes(session: NodeSession) -> None:
    code = "String(require('node:child_process').execSync('ls -l /proc/self/fd; true')).match(/ [36] -> pipe/g)"
    assert session.run(code).result == "null"
    fork = "const again = require('node:child_process').fork(process.argv[1])\n"
    fork += "await new Promise((resolve) => again.on('exit', (code) => resolve(code)))"
    assert session.run(fork).result == "0"
    worker = (
        "await new Promise((r) => new (require('node:worker_threads').Worker)(process.argv[1]).on('exit', (c) => r(c)))"
    )
    assert session.run(worker).result == "0"


# --- hostile or clumsy code ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "JSON.stringify = JSON.parse = null",
        "for (const name of ['push', 'map', 'filter', 'slice', 'join', Symbol.iterator]) [].__proto__[name] = null",
        "Object.prototype.polluted = 1; Array.prototype.last = () => 1; Object.prototype.toString = null",
        "Object.keys = Object.entries = Object.defineProperty = Reflect.ownKeys = null",
        "String.prototype.slice = String.prototype.split = RegExp.prototype.test = RegExp.prototype.exec = null",
        "console.log = console.error = null; delete globalThis.console",
        "process.stdout.write = () => { throw 1 }; process.stderr.write = null",
        "Object.defineProperty(process, 'stdout', { value: null })",
        "for (const name of ['Array', 'Object', 'JSON', 'Buffer', 'Promise', 'process']) delete globalThis[name]",
        "Promise = Map = Set = Array = Error = Buffer = null",
        "Error.prepareStackTrace = () => { throw 1 }; Error.stackTraceLimit = 'x'",
        "const f = require('node:fs'); for (const name of ['writeSync', 'openSync', 'closeSync']) f[name] = null",
        "globalThis.__proto__ = null",
    ],
)
def test_code_that_breaks_its_own_world_does_not_break_the_session(session: NodeSession, code: str) -> None:
    session.run(f"{code}; 0")
    assert session.run("const a = 1; a + 1").result == "2"
    assert session.run("throw 'error'").error["name"] == "string"
    session.run("await 0")
    assert session.value("get", name="a") == 1
    assert session.run("var b = 2").done["new"] == ["b"]


def test_code_can_catch_what_it_prints(session: NodeSession) -> None:
    step = session.run(
        "const said = []; const { write } = process.stdout; process.stdout.write = (text) => said.push(text)\n"
        "console.log('caught'); process.stdout.write = write; console.log('free'); said"
    )
    assert (step.result, step.out) == ("[ 'caught\\n' ]", "free\n")


# --- requests between steps ------------------------------------------------------------------------------------------


def test_variables_are_listed_in_order_with_type_size_and_looks(session: NodeSession) -> None:
    session.run("const n = 1.5, s = 'é\\'', a = [1, 'b', {}], o = { x: 1, y: [2] }; const m = new Map([['k', 1]])")
    session.run(
        "class Foo { constructor() { this.z = 1 } }; const foo = new Foo(), u = undefined, nil = null, big = 10n"
    )
    session.run(
        "const buffer = Buffer.alloc(10), f = () => 1, d = new Date(0), e = new Error('bad'), t = true\n"
        "const set = new Set([1])"
    )
    listed = {entry["name"]: (entry["type"], entry["size"], entry["repr"]) for entry in session.value("variables")}
    assert list(listed) == [*"nsaom", "Foo", "foo", "u", "nil", "big", "buffer", *"fdet", "set"]
    assert listed["n"] == ("number", None, "1.5")
    assert listed["s"] == ("string", 3, "'é\\''")
    assert listed["a"] == ("Array", None, "[ 1, 'b', Object ]")
    assert listed["o"] == ("Object", None, "{ x: 1, y: Array(1) }")
    assert listed["m"] == ("Map", None, "Map(1) { 'k' => 1 }")
    assert listed["Foo"][0] == "class"
    assert listed["foo"] == ("Foo", None, "Foo { z: 1 }")
    assert [listed[name][2] for name in ("u", "nil", "big", "t")] == ["undefined", "null", "10n", "true"]
    assert listed["buffer"][:2] == ("Buffer", 10) or listed["buffer"][:2] == ("Uint8Array", 10)
    assert listed["f"][0] == "function"
    assert listed["e"][2].startswith("Error: bad")
    assert listed["set"] == ("Set", None, "Set(1) { 1 }")


def test_listing_variables_runs_no_code_of_the_users(session: NodeSession) -> None:
    session.run(
        "var ran = []\n"
        "const trap = new Proxy({}, { get() { ran.push('get') }, ownKeys() { ran.push('keys'); return [] } })\n"
        "Object.defineProperty(globalThis, 'getter', { get() { ran.push('getter') }, configurable: true })\n"
        "class Odd { get [Symbol.toStringTag]() { ran.push('tag'); return '' } get x() { ran.push('x') }\n"
        "  [Symbol.for('nodejs.util.inspect.custom')]() { ran.push('inspect') } toString() { ran.push('s') }\n"
        "  static get name() { ran.push('name') } }\n"
        "const odd = new Odd(); const text = 'x'.repeat(1e6); 0"
    )
    listed = {entry["name"]: entry for entry in session.value("variables")}
    assert session.run("ran").result == "[]"
    assert listed["getter"]["type"] == "getter"
    assert (listed["text"]["size"], len(listed["text"]["repr"])) == (1_000_000, 200)


def test_what_is_set_is_an_ordinary_variable(session: NodeSession) -> None:
    session.value("set", name="x", value=[1])
    assert session.run("x instanceof Array && x.length").result == "1"
    assert session.run("const x = 2; x").result == "2"
    session.value("set", name="x", value={"a": 1})
    assert session.run("Object.getPrototypeOf(x) === Object.prototype && x.a").result == "1"
    session.value("set", name="fs", value="mine")
    assert session.run("fs").result == "'mine'"
    assert [entry["name"] for entry in session.value("variables")] == ["x", "fs"]


@pytest.mark.parametrize(
    "name", ["", "a b", "1a", "class", "let x", "a.b", "a;b", "process", "undefined", "__casemate__", "x" * 300]
)
def test_only_a_name_that_can_be_declared_is_set(session: NodeSession, name: str) -> None:
    assert "is not a name that a variable can have" in session.ask("set", name=name, value=1)["error"]


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("undefined", "undefined is not JSON"),
        ("NaN", "NaN is not JSON"),
        ("10n ** 5000n", "a BigInt of more than 4300 digits is not JSON"),
        ("() => 1", "a function is not JSON"),
        ("Symbol()", "a symbol is not JSON"),
        ("[1, { a: [undefined] }]", "undefined at [1].a[0] is not JSON"),
        ("({ 'a b': new Map() })", 'a Map at ["a b"] is not JSON'),
        ("({ when: new Date() })", "a Date at .when is not JSON"),
        ("[, 1]", "undefined at [0] is not JSON"),
        ("({ get x() { return 1 } })", "a getter at .x is not JSON"),
        ("new Proxy({}, {})", "a Proxy is not JSON"),
        ("new (class Foo {})()", "a Foo is not JSON"),
        ("Object.assign([], [[]]).map((x) => x.push(x) && x)", "a reference to itself at [0][0] is not JSON"),
    ],
)
def test_what_json_cannot_hold_is_an_error_that_says_what_and_where(
    session: NodeSession, code: str, error: str
) -> None:
    session.run(f"const x = {code}")
    assert session.ask("get", name="x")["error"] == error


def test_what_is_not_there_or_too_large_is_an_error(session: NodeSession) -> None:
    assert session.ask("get", name="nope")["error"] == "there is no variable nope"
    session.run(
        "const large = 'x'.repeat(2e7), deep = []; let at = deep; for (let i = 0; i < 1e4; i++) at.push(at = [])"
    )
    assert session.ask("get", name="large")["error"] == "the value is too large"
    assert "levels deep" in session.ask("get", name="deep")["error"]
    assert "is not a request" in session.ask("dance")["error"]


# --- working directory -----------------------------------------------------------------------------------------------


# --- starting --------------------------------------------------------------------------------------------------------


def test_without_its_pipes_the_program_ends_at_once(tmp_path: Path, node: str) -> None:
    ended = subprocess.run(
        [node, str(GUEST / "node_session.cjs")], capture_output=True, timeout=30, check=False, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
