"""A session in a container outlives its interpreter, and other sessions are not concerned."""

from __future__ import annotations

import pytest

from casemate import sync

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
