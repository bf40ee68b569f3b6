"""What a session in a container has changed and is kept back."""

from __future__ import annotations

from pathlib import Path

import pytest

from casemate import sync


@pytest.mark.full
@pytest.mark.usefixtures("docker")
def test_what_is_given_up_is_gone_in_the_container_too(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "gone").mkdir(parents=True)
    (folder / "changed").write_text("before")
    with (
        sync.Sandbox(isolation="docker", workspace=folder, workspace_mode="review") as one,
        one.session() as session,
    ):
        session.run("import os; open('changed', 'w').write('after'); os.rmdir('gone'); open('new', 'w').close()")
        assert len(session.diff().changes) == 3
        session.discard()
        step = session.run("import os; print(open('changed').read(), sorted(os.listdir()))")
        assert (step.state, step.stdout) == ("lost", "before ['changed', 'gone', 'output']\n")
        assert session.diff().changes == ()
