"""A Node that was started before its program came behaves as one that was just started."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.guest.stage import BASE_ENV, Outcome, Stage, framed
from tests.unit.guest.test_node import FILES, HOOK, IMPORTS, PROGRAMS, UNCAUGHT, nodes

pytestmark = [pytest.mark.needs("node"), pytest.mark.parametrize("node", nodes())]


def warm(
    folder: Path,
    node: str,
    name: str,
    program: str,
    *arguments: str,
    files: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    order: bytes | None = None,
) -> Outcome:
    stage = Stage(folder)
    path = stage.put(f"program/{name}", program)
    for file, content in (files or {}).items():
        stage.put(f"workspace/{file}", content)
    wanted = {**BASE_ENV, "HOME": str(folder), **(env or {})}
    sent = framed({"env": wanted, "arguments": list(arguments)}) if order is None else order
    command = [node, "--max-old-space-size=200", "--require", str(HOOK), str(path)]
    return stage.run(command, {"CASEMATE_WAIT": "6", "ONLY_BEFORE": "1"}, path, "in", order=sent)


def cold(
    folder: Path, node: str, name: str, program: str, *arguments: str, env: dict[str, str] | None = None
) -> Outcome:
    stage = Stage(folder)
    path = stage.put(f"program/{name}", program)
    command = [node, "--max-old-space-size=200", "--require", str(HOOK), str(path), *arguments]
    return stage.run(command, env or {}, path, "in")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_prints_and_sends_what_it_does_in_a_new_node(tmp_path: Path, node: str, name: str) -> None:
    expected = cold(tmp_path, node, name, PROGRAMS[name])
    outcome = warm(tmp_path, node, name, PROGRAMS[name])
    assert outcome.visible == expected.visible
    assert len(outcome.frames) == len(expected.frames)
    assert outcome.frames or name not in UNCAUGHT


@pytest.mark.parametrize("name", IMPORTS)
def test_what_a_program_imports_is_found_by_the_program_that_came_late(tmp_path: Path, node: str, name: str) -> None:
    stage = Stage(tmp_path / "beside")
    for file, content in FILES.items():
        stage.put(f"workspace/{file}", content)
    path = stage.put(f"workspace/{name}", IMPORTS[name])
    expected = stage.run([node, str(path)], {}, path)
    assert warm(tmp_path / "warm", node, name, IMPORTS[name], files=FILES).visible == expected.visible


@pytest.mark.parametrize("order", [b"", b"\0\0", framed({"env": {}, "arguments": []})[:-1]])
def test_without_a_whole_order_node_ends_quietly(tmp_path: Path, node: str, order: bytes) -> None:
    assert warm(tmp_path, node, "a.js", "console.log('ran')", order=order).visible == (0, "", "")


def test_a_worker_and_a_forked_child_wait_for_nothing(tmp_path: Path, node: str) -> None:
    program = (
        "const w = require('worker_threads'), c = require('child_process');\n"
        "const seen = () => [process.env.CASEMATE_WAIT, process.env.ONLY_BEFORE];\n"
        "if (!w.isMainThread) w.parentPort.postMessage(seen());\n"
        "else if (process.argv[2] === 'c') process.send(seen());\n"
        "else new w.Worker(__filename).on('message', (m) => { console.log(m);\n"
        "  c.fork(__filename, ['c']).on('message', (n) => console.log(n)) })\n"
    )
    outcome = warm(tmp_path, node, "a.js", program)
    assert outcome.visible == (0, "[ undefined, undefined ]\n[ null, null ]\n", "")
