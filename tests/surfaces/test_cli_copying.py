"""``casemate cp``: folders and files between here, sessions and runs, as docker cp has it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.surfaces.conftest import At, Cli, Done

HOSTILE = """
import os
os.makedirs('out/.git/hooks'); open('out/.git/hooks/post-checkout', 'w').close(); open('out/.envrc', 'w').close()
os.symlink('/etc', 'out/link'); os.mkfifo('out/fifo'); open('out/line\\x1b[2Jbreak', 'w').close()
open('out/plain', 'w').write('fine'); open('out/run', 'w').close(); os.chmod('out/run', 0o777)
"""


def fill(folder: Path) -> None:
    """Have a folder "src" there."""
    (folder / "src" / "sub").mkdir(parents=True)
    (folder / "src" / "a").write_text("A")
    (folder / "src" / "sub" / "b").write_text("B")


@pytest.fixture
def served(shared: Cli, tmp_path: Path) -> Iterator[Cli]:
    """The command with a session "s" that ends with the test; and a folder "src" here, which is the test's own."""
    fill(tmp_path / "here")
    at = replace(shared, folder=tmp_path / "here")
    assert at("sessions", "open", "s").code == 0
    yield at
    assert at("sessions", "close", "s").code == 0


def tree(folder: Path) -> list[str]:
    """All files beneath a folder."""
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if not one.is_dir())


def inside(served: Cli, folder: str) -> list[str]:
    """All files beneath a folder of the session."""
    listed = f"[p for p in pathlib.Path({folder!r}).rglob('*') if p.is_file()]"
    found = f"import pathlib; sorted(str(p.relative_to({folder!r})) for p in {listed})"
    return [str(one) for one in json.loads(served("exec", "s", found).stdout.decode().replace("'", '"'))]


def well(done: Done) -> Done:
    assert done.code == 0, done
    return done


INTO = (
    (("src", "s:"), ["src/a", "src/sub/b"]),
    (("src", "s:there"), ["there/src/a", "there/src/sub/b"]),
    (("src", "s:there/"), ["there/src/a", "there/src/sub/b"]),
    (("src", "s:new"), ["new/a", "new/sub/b"]),
    (("src", "s:/workspace/new"), ["new/a", "new/sub/b"]),
    (("src", "s:workspaces"), ["workspaces/a", "workspaces/sub/b"]),
    (("src/.", "s:there"), ["there/a", "there/sub/b"]),
    (("src/a", "s:there"), ["there/a"]),
    (("src/a", "s:new/c"), ["new/c"]),
)


def test_where_it_goes_into_a_session_is_as_docker_has_it(served: Cli) -> None:
    for (source, target), files in INTO:
        empty = "import os, shutil\nfor n in os.listdir('.'): shutil.rmtree(n)\nos.mkdir('there')"
        assert well(served("exec", "s", empty)).stderr == b""
        assert well(served("cp", source, target)) == Done(0, b"", b"")
        assert (source, target, inside(served, ".")) == (source, target, files)


HERE = (
    (("s:d", "new"), ["new/a", "new/sub/b"]),
    (("s:d", "there"), ["there/d/a", "there/d/sub/b"]),
    (("s:d/.", "there"), ["there/a", "there/sub/b"]),
    (("s:d/", "there/"), ["there/d/a", "there/d/sub/b"]),
    (("s:/workspace/d/a", "there"), ["there/a"]),
    (("s:d/a", "new"), ["new"]),
    (("s:.", "new"), ["new/d/a", "new/d/sub/b"]),
)


def test_where_it_goes_here_is_as_docker_has_it(served: Cli) -> None:
    well(served("cp", "src", "s:d"))
    for number, (words, files) in enumerate(HERE):
        at = replace(served, folder=served.folder / str(number))
        (at.folder / "there").mkdir(parents=True)
        assert well(at("cp", *words)) == Done(0, b"", b"")
        assert (words, tree(at.folder)) == (words, files)


def test_a_hostile_folder_leaves_behind_what_acts_by_itself_and_it_is_said(served: Cli) -> None:
    served("exec", "s", HOSTILE)
    done = well(served("cp", "s:out", "here"))
    assert tree(served.folder / "here") == ["plain", "run"]
    assert done.stdout == b""
    assert b"left out: .git/hooks/post-checkout: its name is protected" in done.stderr
    assert b"left out: link: it is a link" in done.stderr
    assert b"\x1b" not in done.stderr
    assert (served.folder / "here" / "run").stat().st_mode & 0o7022 == 0
    told = json.loads(well(served("cp", "s:out", "there", "--format", "json")).stdout)
    assert (told["files"], told["is_whole"], told["target"]) == (2, True, "there")
    assert {"link", "fifo", ".envrc"} < {one["name"] for one in told["left_out"]}


@pytest.mark.parametrize(("words", "here"), [(("s:r/.git", "."), ".git"), (("s:r/.git/.", ".git"), ".git")])
def test_the_name_that_a_folder_gets_here_counts_for_what_acts_by_itself(
    served: Cli, words: tuple[str, ...], here: str
) -> None:
    made = "import os; os.makedirs('r/.git/hooks'); [open('r/.git/' + n, 'w').close() for n in ('HEAD', 'hooks/x')]"
    served("exec", "s", made)
    done = well(served("cp", *words))
    assert tree(served.folder / here) == ["HEAD"]
    assert b"left out: hooks/x: its name is protected" in done.stderr


def test_nothing_is_written_outside_the_folder_that_was_named(served: Cli) -> None:
    outside, target = served.folder / "outside", served.folder / "target"
    outside.mkdir()
    target.mkdir()
    (outside / "a").write_text("as it was")
    (target / "a").symlink_to(outside / "a")
    (target / "sub").symlink_to(outside)
    well(served("cp", "src", "s:d"))
    done = served("cp", "s:d/.", "target")
    assert (done.code, b"left out: sub" in done.stderr) == (1, True)
    assert tree(outside) == ["a"]
    assert (outside / "a").read_text() == "as it was"
    assert (target / "a").read_text() == "A"


def test_links_of_a_folder_here_are_not_followed_into_a_session(served: Cli) -> None:
    (served.folder / "secret").write_text("not to be copied")
    (served.folder / "src" / "link").symlink_to(served.folder / "secret")
    assert b"left out: link: it is a link" in well(served("cp", "src", "s:d")).stderr
    assert inside(served, "d") == ["a", "sub/b"]


def test_an_archive_goes_to_standard_output_and_comes_from_standard_input(served: Cli) -> None:
    well(served("cp", "src", "s:d"))
    archive = well(served("cp", "s:d", "-")).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert sorted(tar.getnames()) == ["d", "d/a", "d/sub", "d/sub/b"]
    assert well(served("cp", "-", "s:", stdin=archive)).stderr == b""
    served("exec", "s", "import os; os.mkdir('e')")
    assert well(served("cp", "-", "s:e", stdin=archive)).code == 0
    assert inside(served, "e") == ["d/a", "d/sub/b"]
    assert served("cp", "-", "s:nothing", stdin=archive).code == 2
    assert served("cp", "-", "s:", stdin=b"no archive" * 200).code == 2


def test_files_of_runs_and_sessions_go_to_another_session(served: Cli) -> None:
    well(served("sessions", "open", "other"))
    well(served("cp", "src", "s:d"))
    well(served("cp", "s:d", "other:"))
    left = "import os; os.makedirs('o/p'); open('o/p/x', 'w').close(); open('top', 'w').close()"
    run = well(served("exec", "-", "--detach", left)).stdout.decode().strip()
    served("wait", run)
    well(served("cp", f"{run[:10]}:o", "other:"))
    well(served("cp", f"{run}:top", "other:d"))
    well(served("cp", "other:.", "here"))
    assert tree(served.folder / "here") == ["d/a", "d/sub/b", "d/top", "o/p/x"]
    assert served("cp", "src", f"{run}:o").code == 2


REFUSED = (
    (("src", "there"), "SOURCE: neither names a session or run"),
    (("s:nothing", "x"), "SOURCE: 'nothing': No such file or directory"),
    (("nobody:x", "x"), "SOURCE: there is no session or run 'nobody'"),
    (("s:d/a", "nowhere/"), "TARGET: there is no folder 'nowhere/'"),
    (("s:d", "src/a"), "TARGET: 'src/a' exists and is not a folder"),
    (("src", "s:d/a"), "TARGET: 'd/a' exists and is a file"),
    (("nothing", "s:"), "SOURCE: cannot read 'nothing': No such file or directory"),
    (("s:/etc/passwd", "x"), "SOURCE: '/etc/passwd' is not in the workspace"),
    (("s:/", "x"), "SOURCE: '/' is not in the workspace"),
    (("s:/workspaces/d", "x"), "SOURCE: '/workspaces/d' is not in the workspace"),
    (("src", "s:/tmp/x"), "TARGET: '/tmp/x' is not in the workspace"),
    (("s:/workspace/../etc/passwd", "x"), "SOURCE: '../etc/passwd' is not a plain relative path"),
    (("src", "s:../up"), "PATH: '../up' is not a plain relative path"),
)


def test_what_cannot_be_copied_is_told_and_changes_nothing(served: Cli) -> None:
    well(served("cp", "src", "s:d"))
    for words, said in REFUSED:
        done = served("cp", *words)
        assert (done.code, done.stderr.decode().startswith(f"casemate: {said}")) == (2, True), done
    assert tree(served.folder) == ["src/a", "src/sub/b"]
    assert inside(served, ".") == ["d/a", "d/sub/b"]


def test_at_a_terminal_what_was_copied_is_said_and_an_archive_is_refused(in_process: Cli, at_terminal: At) -> None:
    fill(in_process.folder)
    well(in_process("sessions", "open", "s"))
    assert b"copied 2 files and 1 folder, 2 bytes" in at_terminal("cp", "src", "s:d").done().stdout
    done = at_terminal("cp", "s:d", "-").done()
    assert (done.code, b"cannot go to a terminal" in done.stdout) == (2, True)
    in_process("service", "stop")
