"""What a cell in a container makes of its files concerns the caller's folder, and nothing else on this machine."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from casemate import Limits, sync
from casemate.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("docker")
SECRET = "a key that nobody in a cell may read"
FOLDERS = ("a", "a/b", "a/b/c")
# `place` of the cell becomes a link to a folder of the machine, at once or by another link.
BECOME_LINK = """
import os, shutil
def become_link(place, target, by):
    if os.path.lexists(place):
        os.unlink(place) if os.path.islink(place) else shutil.rmtree(place)
    os.symlink(by or target, place)
    if by:
        os.symlink(target, os.path.join(os.path.dirname(place), by))
"""


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of the machine's with a secret beneath each of its levels."""
    made = tmp_path / "private"
    for path in ("key", "c/key", "b/c/key", "a/b/c/key"):
        (made / path).parent.mkdir(parents=True, exist_ok=True)
        (made / path).write_text(SECRET)
        (made / path).chmod(0o600)
    return made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A caller's folder."""
    made = tmp_path / "project"
    fill(made)
    return made


def fill(folder: Path) -> None:
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "a/b/c/key").write_text("the project's own")


def contents(folder: Path) -> dict[str, str]:
    """Each file in it, not by way of links."""
    found = [Path(top) / name for top, _, names in os.walk(folder) for name in names]
    return {str(path.relative_to(folder)): path.read_text() for path in found if not path.is_symlink()}


WAYS = [*itertools.product(FOLDERS, ("", "e"))]
READ = """
try:
    print(open("a/b/c/key").read())
except OSError:
    pass
"""


def test_a_folder_that_becomes_a_link_leads_nobody_out_of_the_project(project: Path, private: Path) -> None:
    before = contents(private)
    with sync.Sandbox(isolation="docker", workspace=project) as sandbox:
        for number, (place, by) in enumerate(WAYS):
            shutil.rmtree(project)
            fill(project)
            become = f"become_link({place!r}, {str(private)!r}, {by and by + str(number)!r})"
            assert sandbox.run(f"{BECOME_LINK}\n{become}").ok
            assert SECRET not in contents(project).values()
            assert SECRET not in sandbox.run(READ).text
    assert contents(private) == before


@pytest.mark.parametrize("has_folder", [True, pytest.param(False, marks=pytest.mark.full)])
def test_no_step_of_a_session_leads_out_by_a_link(project: Path, private: Path, has_folder: bool) -> None:
    before = contents(private)
    with (
        sync.Sandbox(isolation="docker", workspace=project if has_folder else None) as sandbox,
        sandbox.session() as session,
    ):
        session.run(BECOME_LINK)
        for number, (place, by) in enumerate(WAYS):
            session.run("shutil.rmtree('a', ignore_errors=True); os.makedirs('a/b/c'); open('a/b/c/key', 'w')")
            step = session.run(f"become_link({place!r}, {str(private)!r}, {by and by + str(number)!r})")
            assert step.ok
            assert step.state == "kept"
            with pytest.raises(InvalidArgument):
                session.files.read_bytes("a/b/c/key")
            with pytest.raises(InvalidArgument):
                session.files.write("a/b/c/new", b"x")
            assert SECRET not in session.run(READ).text
            assert SECRET.encode() not in [one.read_bytes() for one in step.artifacts]
            session.run(f"os.unlink({place!r}) if os.path.islink({place!r}) else 0")
    assert contents(private) == before
    assert SECRET not in contents(project).values()


@pytest.mark.parametrize("has_folder", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_given_file_whose_folder_becomes_a_link_is_no_way_to_a_file_of_that_name(
    project: Path, private: Path, has_folder: bool
) -> None:
    before = contents(private)
    code = f"{BECOME_LINK}\nbecome_link('q', {str(private)!r}, 'r'); become_link('output', {str(private)!r}, 's')"
    with sync.Sandbox(isolation="docker", workspace=project if has_folder else None) as sandbox:
        execution = sandbox.run(code, files={"q/key": b"x", "output/key": b"y"})
        assert execution.ok
        assert SECRET.encode() not in [one.read_bytes() for one in execution.artifacts]
    assert contents(private) == before
    assert SECRET not in contents(project).values()


def test_given_files_go_through_no_link_that_an_earlier_step_has_made(private: Path) -> None:
    before = contents(private)
    with sync.Sandbox(isolation="docker") as sandbox, sandbox.session() as session:
        session.run(f"import os; os.symlink({str(private)!r}, 'link')")
        with pytest.raises(InvalidArgument):
            session.files.write("link/key", b"x")
    assert contents(private) == before


def test_a_session_keeps_its_state_when_a_folder_of_an_earlier_step_becomes_a_link(project: Path) -> None:
    with sync.Sandbox(isolation="docker", workspace=project) as sandbox, sandbox.session() as session:
        assert session.run("import os, shutil; x = 1; os.mkdir('n'); open('n/f', 'w').write('1')").ok
        step = session.run("shutil.rmtree('n'); os.mkdir('m'); open('m/g', 'w').write('2'); os.symlink('m', 'n')")
        assert (step.status, step.state) == ("ok", "kept")
        assert session.run("print(x, os.listdir('n'))").text.strip() == "1 ['g']"
    assert (project / "n/g").read_text() == "2"
    assert os.readlink(project / "n") == "m"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def used(folder: Path) -> int:
    """Bytes that the files in it take."""
    return sum(os.lstat(f"{top}/{name}").st_blocks * 512 for top, _, names in os.walk(folder) for name in names)


HOLES = """
for name, size in {files!r}.items():
    with open(name, "w") as file:
        file.seek(size - 1)
        file.write("x")
"""


@pytest.mark.parametrize("has_folder", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_file_of_holes_takes_no_more_here_than_it_did_in_the_cell(
    project: Path, temporary: Path, has_folder: bool
) -> None:
    workspace = project if has_folder else None
    files = {"big": 100 << 20, "output/big": 100 << 20, "huge": 1400 << 20, "output/huge": 1400 << 20}
    with sync.Sandbox(isolation="docker", workspace=workspace, limits=Limits(disk="16MiB")) as sandbox:
        with sandbox.session() as session:
            step = session.run(HOLES.format(files=files))
            assert (step.status, step.state) == ("ok", "kept")
            assert used(temporary) + used(project) < 24 << 20
        execution = sandbox.run(HOLES.format(files=files))
        assert execution.ok
    assert used(project) < 24 << 20
    if has_folder:
        assert (project / "big").stat().st_size == 100 << 20
    too_large = {one.name for one in execution.skipped if "larger than" in one.reason}
    assert too_large == {*files} - {"big" if has_folder else None}


def test_a_file_in_a_thousand_pieces_is_collected_with_its_holes(temporary: Path) -> None:
    code = """
with open("output/pieces", "wb") as file:
    for number in range(2000):
        file.seek(number << 13)
        file.write(b"x")
open("output/last", "w").write("last")
"""
    with sync.Sandbox(isolation="docker", limits=Limits(disk="32MiB")) as sandbox:
        execution = sandbox.run(code)
        assert execution.ok
        assert {one.name: one.size for one in execution.artifacts} == {
            "output/last": 4,
            "output/pieces": (1999 << 13) + 1,
        }
