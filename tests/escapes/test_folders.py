"""A caller's folder behind every wall: what a program does to hidden files, to files of other users, and with links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casemate import InvalidArgument, Limits, sync
from casemate.model import isolation

STARTS = ("exec",)
WALLS = (*isolation.WALLS,)
ANY_ENGINE = True  # docker's may be a stand-in
NOBODY = 65534
CANARY = "a private file of the host's"
WAYS = {
    "written": "open('.env', 'w').write('EVIL=1')",
    "written in a folder": "open('sub/.env', 'w').write('EVIL=1')",
    "made a folder": "os.mkdir('.env'); open('.env/x', 'w').write('1')",
    "made a link": "os.symlink('x', '.env')",
    "removed with its folder": "shutil.rmtree('sub', ignore_errors=True)",
    "moved with its folder": "os.rename('sub', 'moved')",
    "its folder made a link": "shutil.rmtree('sub', ignore_errors=True); os.symlink('other', 'sub')",
    "its folder made a file": "shutil.rmtree('sub', ignore_errors=True); open('sub', 'w').write('x')",
    "its folder exchanged": "os.rename('sub', 'moved'); os.rename('other', 'sub')",
}
# As the program names them, folders that become links one after the other, so that each leads to the next.
STEAL = """
import os, shutil
shutil.rmtree("a/b/c")
os.symlink({target!r}, "last")
for link, place in {links!r}:
    os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
    os.symlink(link, place)
"""
LINKS = {
    "the folder itself": [("../../last", "a/b/c")],
    "the folder above": [("../last2", "a/b"), ("last", "last2")],
    "a chain": [("../../x", "a/b/c"), ("y", "x"), ("last", "y")],
}
OTHERS = """
import os, shutil
for name in ("theirs", "closed/inner"):
    try:
        print(name, open(name).read())
    except OSError as error:
        print(name, error.strerror)
for name in ("theirs", "shared", "group"):
    try:
        open(name, "w").write("changed by the cell")
    except OSError as error:
        print(name, "written", error.strerror)
open("own", "w").write("changed by the cell")
shutil.rmtree("closed", ignore_errors=True)
"""


@pytest.fixture
def project(scratch: Path, request: pytest.FixtureRequest) -> Path:
    folder = scratch / str(abs(hash(request.node.nodeid)))
    for name in ("sub", "other", "a/b/c"):
        (folder / name).mkdir(parents=True)
    for name, text in ((".env", "KEY=mine"), ("sub/.env", "KEY=sub"), ("sub/a", "a"), ("a/b/c/key", "the project's")):
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_a_hidden_file_stays_as_it_is_and_so_does_the_folder_that_holds_it(project: Path, way: str, wall: str) -> None:
    with sync.Sandbox(workspace=project) as sandbox:
        execution = sandbox.run(f"import os, shutil\n{WAYS[way]}")
    assert {name: (project / name).read_text() for name in (".env", "sub/.env")} == {
        ".env": "KEY=mine", "sub/.env": "KEY=sub",
    }  # fmt: skip
    is_noticed = wall != "native" and way != "its folder exchanged"  # there all is as if each file had been changed
    assert not is_noticed or any("hidden" in one.reason for one in execution.skipped)


def test_a_hidden_file_stays_as_it_is_when_a_session_removes_its_folder_in_steps(project: Path) -> None:
    with sync.Sandbox(workspace=project) as sandbox, sandbox.session() as session:
        session.run("import os, shutil; shutil.rmtree('sub', ignore_errors=True)")
        session.run("os.path.exists('sub') or os.symlink('other', 'sub')")
        step = session.run("print(40 + 2)")
    assert (step.stdout, step.state) == ("42\n", "kept")
    assert (project / "sub/.env").read_text() == "KEY=sub"


def test_what_a_policy_hides_stays_as_it_is_when_a_program_moves_its_folder(project: Path, scratch: Path) -> None:
    (project / "secret").mkdir()
    (project / "secret/key").write_text("mine")
    policy = {"filesystem": {"denyRead": [str(project / "secret/key")]}}
    with sync.Sandbox(workspace=project, policy=policy) as sandbox:
        sandbox.run("import os\nos.rename('secret', 'public')")
    assert (project / "secret/key").read_text() == "mine"
    assert not (project / "public/key").exists()


def test_what_a_short_step_writes_is_in_the_folder_when_the_step_is_over(project: Path) -> None:
    with sync.Sandbox(workspace=project) as sandbox, sandbox.session() as session:
        for number in range(8):
            session.run(f"open('f{number}', 'w').write('{number}')")
            assert (project / f"f{number}").read_text() == str(number)


@pytest.mark.parametrize("case", LINKS)
@pytest.mark.parametrize("in_steps", [False, True])
def test_a_folder_that_becomes_a_link_leads_nobody_to_a_file_of_the_hosts(
    project: Path, scratch: Path, case: str, in_steps: bool
) -> None:
    private = scratch / f"private-{abs(hash((case, in_steps)))}"
    private.mkdir(mode=0o700)
    (private / "key").write_text(CANARY)
    program = STEAL.format(target=str(private), links=LINKS[case]).replace('"a/b/c")', '"a")', 1)
    with sync.Sandbox(workspace=project) as sandbox:
        if in_steps:
            with sandbox.session() as session:
                for step in (program, "open('a/n', 'w') if os.path.isdir('a') else None", "shutil.rmtree('a')"):
                    session.run(step)
        else:
            sandbox.run(program)
        said = sandbox.run(
            "import os\nfor top, _, names in os.walk('.', followlinks=True):\n"
            "    for name in names: print(open(os.path.join(top, name)).read() if not name.startswith('.') else '')"
        )
    assert CANARY not in said.text
    assert (private / "key").read_text() == CANARY
    assert not any(
        CANARY in path.read_text() for path in project.rglob("*") if path.is_file() and not path.is_symlink()
    )


def test_an_input_file_goes_through_no_link_of_the_folder(project: Path, scratch: Path) -> None:
    outside = scratch / "outside"
    outside.mkdir(exist_ok=True)
    with sync.Sandbox(workspace=project) as sandbox, pytest.raises(InvalidArgument, match="is not a folder"):
        (project / "link").symlink_to(outside)
        sandbox.run("pass", files={"link/id": b"x"})
    assert os.listdir(outside) == []


def test_a_file_of_holes_takes_no_more_room_in_the_folder_than_in_the_cell(project: Path, wall: str) -> None:
    program = "import os\nopen('holes', 'w').close()\nos.truncate('holes', 200 << 20)\n"
    program += "file = open('holes', 'r+b')\nfor at in range(0, 200 << 20, 1 << 20): file.seek(at); file.write(b'x')"
    with sync.Sandbox(workspace=project, limits=Limits(disk="16MiB")) as sandbox:
        execution = sandbox.run(program)
    is_refused = wall == "landlock"  # where the kernel bounds the size of each file
    assert (execution.status, execution.skipped) == ("failed" if is_refused else "ok", ())
    status = (project / "holes").stat()
    assert (status.st_size, status.st_blocks * 512 < 16 << 20) == (0 if is_refused else 200 << 20, True)


def test_a_file_that_its_owner_cannot_read_stays_when_its_folder_is_moved(project: Path) -> None:
    (project / "sub/closed").write_text("mine")
    (project / "sub/closed").chmod(0)
    with sync.Sandbox(workspace=project, allow_read=[str(project / "sub/.env")]) as sandbox:
        sandbox.run("import os\nos.rename('sub', 'moved')")
    (project / "sub/closed").chmod(0o600)
    assert (project / "sub/closed").read_text() == "mine"


@pytest.mark.root_only
@pytest.mark.parametrize("owner", [0, 1000])
def test_files_of_other_users_are_read_and_written_as_the_folders_owner_would(project: Path, owner: int) -> None:
    (project / "own").touch()
    for name, mode in (("theirs", 0o600), ("shared", 0o644), ("group", 0o664), ("closed/inner", 0o644)):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(name)
        (project / name).chmod(mode)
        os.chown(project / name, NOBODY, owner if name == "group" else NOBODY)
    (project / "closed").chmod(0o700)
    os.chown(project / "closed", NOBODY, NOBODY)
    for own in (project, project / "own"):
        os.chown(own, owner, owner)
    project.chmod(0o755)
    with sync.Sandbox(workspace=project) as sandbox:
        execution = sandbox.run(OTHERS)
    assert execution.stdout.splitlines()[:2] == ["theirs Permission denied", "closed/inner Permission denied"]
    assert [line.rpartition(" written ")[0] for line in execution.stdout.splitlines()[2:]] == [
        "theirs", "shared", "group",
    ]  # fmt: skip
    theirs = ("theirs", "shared", "group", "closed/inner")
    assert [(project / name).read_text() for name in theirs] == [*theirs]
    assert {(project / name).stat().st_uid for name in theirs[:3]} == {NOBODY}
    assert ((project / "own").read_text(), (project / "own").stat().st_uid) == ("changed by the cell", owner)
