"""Tools in real cells: every language, sessions and children, by the cell's own resolver."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from tests.tools.peer import Peer, Tools

from casemate import Execution, Sandbox

CALL = "from mcptools.files.list_directory import run, Params\nprint(run(Params(path='.')).content)\n"
node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is missing")


def offering(peer: Peer, **arguments: Any) -> Sandbox:
    sandbox = Sandbox(network="none", **arguments)
    context = sandbox._context
    sandbox._context = replace(context, supplies=replace(context.supplies, offers=lambda: (Tools(peer),)))
    return sandbox


def ran(code: str, language: str = "python", **arguments: Any) -> tuple[Execution, Peer]:
    peer = Peer()

    async def run() -> Execution:
        async with offering(peer) as sandbox:
            return await sandbox.run(code, language=language, **arguments)

    return bounded(run()), peer


def bounded(work: Coroutine[Any, Any, Any]) -> Any:
    async def with_a_bound() -> Any:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(with_a_bound())


def test_what_nobody_uses_is_not_loaded_and_not_on_the_path() -> None:
    execution, peer = ran(
        "import sys; print([p for p in sys.path if p.startswith('/opt/casemate')], 'mcptools' in sys.modules)"
    )
    assert execution.stdout == "[] False\n"
    assert peer.connections == 0


@pytest.mark.parametrize(
    ("command", "said", "code"),
    [
        ("tool files.list_directory path=. depth=2", '"of ."', 0),
        ("tool files.echo b=7 a=null c:=1.5", '{"a": null, "b": 7, "c": 1.5}', 0),
        ("""tool files.echo --json '{"a": "x y"}'""", '{"a": "x y"}', 0),
        ("tool files.echo a=$'quo\"te\\\\ \\n\\t\\x01 é😀'",
         '{"a": "quo\\"te\\\\ \\n\\t\\u0001 \\u00e9\\ud83d\\ude00"}', 0),
        ("tool admin-server.admin.tools.list", "{}", 0),
        ("tool list", "mcptools.files.list_directory", 0),
        ("tool search directory", "mcptools.files.list_directory: List a directory.", 0),
        ("tool files.list_directory 2>&1", "tool: invalid", 1),
        ("tool files.fail kind=denied 2>&1", "tool: denied", 1),
        ("tool nonsense 2>&1", "tool: invalid", 1),
        (f"python3 -c \"{CALL}\"", "of .", 0),
    ],
)  # fmt: skip
def test_a_shell_calls_tools(command: str, said: str, code: int) -> None:
    execution, _ = ran(command, "shell")
    assert said in execution.stdout, execution.text
    assert execution.exit_code == code


@node
@pytest.mark.parametrize("name", ["main.cjs", "main.mjs"])
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("console.log((await files.list_directory({path: '.'})).content, contentOf(await files.picture()).length)",
         "of . 5"),
        ("console.log((await files['import']({class: 'x'})).text)", '{"class": "x"}'),
        ("try { await files.fail({kind: 'denied'}) } catch (e) { console.log(e instanceof ToolError, e.kind,"
         "e.content[0].text) }",
         "true denied it said so"),
        ("try { await files.none() } catch (e) { console.log(e.kind) }", "unknown"),
        ("try { await files.echo({c: NaN}) } catch (e) { console.log(e.kind) }", "invalid"),
        ("console.log((await Promise.all([1, 2].map((b) => files.echo({b})))).map((o) => o.text).join())",
         '{"b": 1},{"b": 2}'),
    ],
)  # fmt: skip
def test_a_node_program_calls_tools(name: str, code: str, said: str) -> None:
    if name.endswith("cjs"):
        code = f"const {{ files, ToolError, contentOf }} = require('mcptools');\n(async () => {{ {code} }})();"
    else:
        code = f"import {{ files, ToolError, contentOf }} from 'mcptools';\n{code}"
    execution, _ = ran(code, "node", program_name=name)
    assert execution.stdout == f"{said}\n", execution.text


@node
@pytest.mark.parametrize("begin", ["const { files } = require('mcptools')", "import { files } from 'mcptools'"])
def test_a_node_session_calls_tools(begin: str) -> None:
    async def run() -> Execution:
        async with offering(Peer()) as sandbox, sandbox.session("node") as session:
            await session.run(begin)
            return await session.run("(await files.list_directory({ path: '.' })).content")

    execution = bounded(run())
    assert "of ." in execution.text, execution.text
