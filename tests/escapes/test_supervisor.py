"""What a program leaves for the supervisor to trip over: its own run ends, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from casemate import sync

STARTS = ("warm",)
LEFT = {
    "a folder where a hidden file is": "os.mkdir('.env')\nopen('.env/x', 'w').write('1')",
    "40,000 names of one file": "open('a', 'w').close()\nfor n in range(40_000):\n    os.link('a', f'a{n}')",
    "a folder that may not be entered": "os.makedirs('a/b')\nopen('a/b/c', 'w').write('1')\nos.chmod('a', 0)",
    "a name that is no text": "open(b'\\xff\\x1b[2J', 'w').write('1')",
}


@pytest.mark.parametrize("left", LEFT)
def test_what_a_program_leaves_in_a_folder_ends_its_own_run_and_no_session_beside_it(scratch: Path, left: str) -> None:
    folder = scratch / "project"
    folder.mkdir(exist_ok=True)
    (folder / ".env").write_text("A=1\n")
    (folder / "kept").write_text("kept")
    with sync.Sandbox(audit=scratch / "audit.db", workspace=folder) as sandbox, sandbox.session() as victim:
        assert victim.run("x = 41").ok
        attack = sandbox.run(f"import os\n{LEFT[left]}")
        assert attack.status in ("ok", "failed", "killed")
        step = victim.run("print(x + 1)")
        if [one.name for one in step.skipped] == ["a"]:  # its user may not enter it: hidden from another interpreter
            step = victim.run("print(42)")
        assert step.stdout == "42\n"
        assert sandbox.run("print(open('kept').read())").stdout == "kept\n"
    assert (folder / ".env").read_text() == "A=1\n"
