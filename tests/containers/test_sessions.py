"""A session in a container outlives its interpreter, and other sessions are not concerned."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import MAX_WAIT

from casemate import sync
from casemate.walls.docker.mirrors import Mirror

pytestmark = pytest.mark.usefixtures("docker")
MUCH = "print('x' * 300_000)"  # more than a channel carries ahead


def test_a_session_goes_on_when_its_interpreter_has_ended_itself() -> None:
    with sync.Sandbox(isolation="docker") as sandbox, sandbox.session() as other, sandbox.session() as session:
        other.run("x = 41")
        for _ in range(8):
            assert session.run("import os; os._exit(1)").state == "lost"
            assert session.run(MUCH).ok
            assert session.run("print('there')").text.strip() == "there"
        assert other.run("print(x + 1)").text.strip() == "42"


@pytest.mark.parametrize("slow", ["take", "copy_folder"])
def test_files_of_one_cell_that_take_long_hold_up_no_other(
    slow: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, go_on, honest = threading.Event(), threading.Event(), getattr(Mirror, slow)

    def wait_once(*arguments: Any) -> Any:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(MAX_WAIT)
        return honest(*arguments)

    with sync.Sandbox(isolation="docker", workspace=tmp_path) as sandbox, sandbox.session() as other:
        other.run("x = 41")
        with ThreadPoolExecutor() as threads:
            monkeypatch.setattr(Mirror, slow, wait_once)
            held = threads.submit(sandbox.run, "open('made', 'w').write('whole')")
            try:
                assert begun.wait(MAX_WAIT)
                assert other.run("print(x + 1)", timeout=MAX_WAIT / 2).text.strip() == "42"
            finally:
                go_on.set()
            assert held.result().ok
    assert (tmp_path / "made").read_text() == "whole"


def test_a_step_finds_every_file_that_the_host_has_put_there(tmp_path: Path) -> None:
    code = "import os; print(os.path.exists('given'), os.path.exists('again'))"
    with sync.Sandbox(isolation="docker", workspace=tmp_path) as sandbox:
        for _ in range(8):
            with sandbox.session() as session:
                session.files.write("given", b"x")
                assert session.run(code).stdout == "True False\n"
                session.files.write("again", b"x")
                assert session.run(code).stdout == "True True\n"
                session.files.remove("given")
                session.files.remove("again")
                assert session.run(code).stdout == "False False\n"
