"""A folder whose changes are kept back: shown as they are, applied as they were shown or not at all, or given up."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.journeys import folders
from tests.support.approvers import answering

from casemate import ApprovalRequest, Change, InvalidArgument, Limits, allow_all, sync

Approve = Callable[[ApprovalRequest], bool]
Open = Callable[..., sync.Sandbox]


@pytest.fixture
def reviewed(audit: Path, folder: Path) -> Iterator[Open]:
    """Makes a sandbox whose workspace it is, and who is asked there."""
    made: list[sync.Sandbox] = []

    def make(approve: Approve | None = allow_all, **options: object) -> sync.Sandbox:
        made.append(sync.Sandbox(audit=audit, workspace=folder, workspace_mode="review", approve=approve, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def changes(session: sync.Session) -> dict[str, Change]:
    return {one.path: one for one in session.diff().changes}


def assert_nothing_is_beside(folder: Path) -> None:
    assert [name for name in os.listdir(folder) if name.startswith(".casemate")] == []


def test_a_session_shows_what_it_has_changed_and_the_folder_has_it_only_once_it_is_applied(
    reviewed: Open, folder: Path
) -> None:
    before, asked = folders.tree(folder), []

    def approve(request: ApprovalRequest) -> bool:
        assert folders.tree(folder) == before
        asked.append(request)
        return True

    with reviewed(approve).session() as session:
        session.run(folders.CHANGES).raise_for_status()
        assert folders.tree(folder) == before
        diff = session.diff()
        applied = session.apply()
        assert applied.ok, applied
        assert folders.tree(folder) == folders.changed(before)
        assert session.diff().changes == ()
        assert session.run("print(open('change.txt').read())").stdout == "after\n"
    found = {(one.kind, one.path) for one in diff.changes}
    assert found == {
        ("changed", "change.txt"), ("changed", "run.sh"), ("renamed", "renamed.txt"), ("removed", "remove.txt"),
        ("removed", "gone/"), ("removed", "gone/a.txt"), ("removed", "gone/b/"), ("removed", "gone/b/c.txt"),
        ("added", "inner"), ("added", "new/"), ("added", "new/folder/"), ("added", "new/folder/file"),
        ("added", "output/"), ("added", "output/chart.svg"), ("added", "sub/deep/more.txt"),
    }  # fmt: skip
    by_path = {one.path: one for one in diff.changes}
    assert (by_path["run.sh"].mode_before, by_path["run.sh"].mode_after) == (0o755, 0o700)
    assert (by_path["change.txt"].size_before, by_path["change.txt"].size_after) == (6, 5)
    assert by_path["change.txt"].diff.splitlines()[0::2] == [
        "@@ -1 +1 @@",
        "\\ No newline at end of file",
        "\\ No newline at end of file",
    ]
    assert by_path["renamed.txt"].source == "rename.txt"
    assert by_path["inner"].link_after == "change.txt"
    assert stat.S_IMODE((folder / "run.sh").stat().st_mode) == 0o700
    (request,) = asked
    assert (request.kind, request.arguments["sha256"]) == ("files", diff.hash)
    assert any("renamed rename.txt as renamed.txt" in line for line in request.arguments["changes"])
    assert "-before" in request.arguments["diff"]
    assert_nothing_is_beside(folder)


REPLACES = """
import os
os.remove('old.txt')
os.remove('changed.txt')
open('changed.txt', 'w').write('after!')
open('new', 'w').write('new')
"""


@pytest.mark.user_only
def test_what_its_owner_may_not_read_is_reviewed_without_its_text(reviewed: Open, folder: Path) -> None:
    for name in ("old.txt", "changed.txt"):
        (folder / name).write_text("before")
        (folder / name).chmod(0)
    with reviewed().session() as session:
        session.run(REPLACES).raise_for_status()
        found, applied = changes(session), session.apply()
    assert {path: one.left_out for path, one in found.items()} == {
        "old.txt": "what was there cannot be read", "changed.txt": "what was there cannot be read", "new": "",
    }  # fmt: skip
    assert (applied.ok, applied.removed, set(applied.written)) == (True, ("old.txt",), {"changed.txt", "new"})
    assert (folder / "new").exists()
    assert not (folder / "old.txt").exists()


@pytest.mark.user_only
def test_a_folder_that_is_closed_meanwhile_is_reported(reviewed: Open, folder: Path) -> None:
    (folder / "gone").mkdir(exist_ok=True)
    with reviewed().session() as session:
        session.run("import shutil; shutil.rmtree('gone'); open('new', 'w').write('new')").raise_for_status()
        (folder / "gone").chmod(0)
        try:
            assert changes(session)["gone"].refused == "it cannot be removed: Permission denied"
            assert session.apply(["new"]).written == ("new",)
        finally:
            (folder / "gone").chmod(0o700)


def test_without_anybody_to_ask_nothing_is_written_and_the_changes_stay_kept_back(reviewed: Open, folder: Path) -> None:
    before = folders.tree(folder)
    with reviewed(None).session() as session:
        session.run(folders.CHANGES).raise_for_status()
        applied = session.apply()
        assert (applied.status, applied.written) == ("denied", ())
        assert folders.tree(folder) == before
        assert "change.txt" in changes(session)


def test_a_later_diff_shows_only_what_is_new_and_what_the_owner_changes_then_is_no_change_of_the_sessions(
    reviewed: Open, folder: Path
) -> None:
    with reviewed().session() as session:
        session.run("open('new.txt', 'w').write('new'); open('change.txt', 'w').write('mine')")
        assert session.apply().ok
        (folder / "change.txt").write_text("the owner's")
        assert session.diff().changes == ()
        session.run("open('later.txt', 'w').write('later')")
        assert list(changes(session)) == ["later.txt"]
        assert session.apply().written == ("later.txt",)
        assert (folder / "change.txt").read_text() == "the owner's"


def test_what_was_applied_and_is_then_removed_in_the_cell_is_a_removal(reviewed: Open, folder: Path) -> None:
    with reviewed().session() as session:
        session.run("import os\nos.mkdir('made'); open('made/file', 'w').write('x')")
        assert session.apply().ok
        session.run("os.remove('made/file'); os.rmdir('made')")
        assert {one.kind for one in changes(session).values()} == {"removed"}
        assert session.apply().removed == ("made/",)
        assert not (folder / "made").exists()


def test_some_paths_are_applied_with_the_folders_that_they_need_and_the_rest_stays_kept_back(
    reviewed: Open, folder: Path
) -> None:
    with reviewed().session() as session:
        session.run(folders.CHANGES).raise_for_status()
        applied = session.apply(["new/folder", "gone/a.txt", "rename.txt"])
        assert applied.ok, applied
        assert set(applied.written) == {"new/", "new/folder/", "new/folder/file", "renamed.txt"}
        assert set(applied.removed) == {"gone/a.txt", "rename.txt"}
        assert (folder / "gone/b/c.txt").exists()
        assert (folder / "change.txt").read_text() == "before"
        left = changes(session)
        assert "change.txt" in left
        assert not {"new/", "renamed.txt", "gone/a.txt"} & {*left}
        with pytest.raises(InvalidArgument, match="nothing is changed at 'nowhere'"):
            session.apply(["nowhere"])
        assert session.apply().ok
        assert session.diff().changes == ()


@pytest.mark.parametrize("owner", ["changes", "removes", "adds", "changes a removed one"])
def test_what_the_owner_changed_meanwhile_is_a_conflict_and_nothing_is_written(
    reviewed: Open, folder: Path, owner: str
) -> None:
    with reviewed().session() as session:
        session.run("import os\nopen('change.txt', 'w').write('mine'); open('added.txt', 'w').write('mine')")
        session.run("os.remove('remove.txt'); open('other.txt', 'w').write('fine')")
        path = {"changes": "change.txt", "removes": "change.txt", "adds": "added.txt"}.get(owner, "remove.txt")
        if owner == "removes":
            (folder / path).unlink()
        else:
            (folder / path).write_text("the owner's")
        before = folders.tree(folder)
        assert changes(session)[path].conflict
        applied = session.apply()
        assert applied.status == "conflict"
        assert [one.name for one in applied.conflicts] == [path]
        assert folders.tree(folder) == before
        assert session.apply(["other.txt"]).ok


def test_a_conflict_that_comes_while_somebody_decides_keeps_everything_from_being_written(
    reviewed: Open, folder: Path
) -> None:
    def approve(_request: ApprovalRequest) -> bool:
        (folder / "change.txt").write_text("the owner's")
        return True

    with reviewed(approve).session() as session:
        session.run("open('change.txt', 'w').write('mine'); open('a.txt', 'w').write('a')")
        assert session.apply().status == "conflict"
        assert not (folder / "a.txt").exists()
        assert (folder / "change.txt").read_text() == "the owner's"


def test_a_cell_that_changes_what_was_shown_while_somebody_decides_has_nothing_of_it_applied(
    reviewed: Open, folder: Path
) -> None:
    code = """
import threading
open('a.txt', 'w').write('harmless'); open('b.txt', 'w').write('b')
def change():
    while not os.path.exists('go'): pass
    open('a.txt', 'w').write('hostile!'); open('done', 'w')
import os
threading.Thread(target=change, daemon=True).start()
"""
    changed = threading.Event()
    sessions: list[sync.Session] = []

    def approve(request: ApprovalRequest) -> bool:
        assert "+harmless" in request.arguments["diff"]
        sessions[0].files.write("go", "")
        while "done" not in [one.name for one in sessions[0].files.list()]:
            pass
        changed.set()
        return True

    with reviewed(approve).session() as session:
        sessions.append(session)
        session.run(code).raise_for_status()
        applied = session.apply(["a.txt", "b.txt"])
        assert changed.is_set()
        assert (applied.status, applied.written) == ("failed", ())
        assert not (folder / "a.txt").exists()
        assert not (folder / "b.txt").exists()
        assert_nothing_is_beside(folder)


def test_protected_names_and_what_is_no_file_are_shown_as_refused_and_never_applied(
    reviewed: Open, folder: Path
) -> None:
    code = """
import os
os.mkdir('.vscode'); open('.vscode/tasks.json', 'w').write('evil'); open('.bashrc', 'w').write('evil')
open('.git/hooks/pre-commit', 'w').write('evil'); open('.git/config', 'a').close()
os.mkfifo('pipe'); os.symlink('/etc/passwd', 'out'); os.symlink('../..', 'up')
open('bad\\nname', 'w').write('x'); open('fine.txt', 'w').write('fine')
"""
    with reviewed().session() as session:
        session.run(code).raise_for_status()
        found = changes(session)
        refused = {path for path, one in found.items() if one.refused}
        assert refused == {".vscode/", ".bashrc", ".git/hooks/", "pipe", "out", "up", "bad\\x0aname"}
        assert found[".git/hooks/"].refused.startswith("its name is protected")
        applied = session.apply()
        assert applied.written == ("fine.txt",)
        assert {one.name for one in applied.skipped} == refused
        assert (folder / ".git/hooks/pre-commit").read_text() == "mine"


def test_a_file_that_was_only_touched_or_opened_for_writing_is_no_change(reviewed: Open) -> None:
    with reviewed().session() as session:
        session.run(
            "import os\nos.utime('change.txt'); open('Makefile', 'r+').close(); open('.git/config', 'a').close()"
        )
        session.run("t = open('read.txt').read(); open('read.txt', 'w').write(t)")
        assert session.diff().changes == ()
        assert session.apply().status == "nothing"


def test_what_is_given_up_is_gone_and_the_next_step_sees_the_folder_in_a_fresh_interpreter(
    reviewed: Open, folder: Path
) -> None:
    before = folders.tree(folder)
    with reviewed().session() as session:
        session.run(folders.CHANGES + "\nx = 1").raise_for_status()
        (folder / "read.txt").write_text("newer")
        session.discard()
        step = session.run("print(open('change.txt').read(), open('read.txt').read(), os.path.exists('new'))")
        assert step.state == "lost"
        assert "x" in step.lost_names
        step = session.run(
            "import os; print(open('change.txt').read(), open('read.txt').read(), os.path.exists('new'))"
        )
        assert step.stdout == "before newer False\n"
        assert session.diff().changes == ()
        session.run("open('change.txt', 'w').write('again'); open('output/a', 'w').write('a')").raise_for_status()
        assert set(changes(session)) == {"change.txt", "output/", "output/a"}
        assert session.apply().ok
    assert folders.tree(folder) == {
        **before, "read.txt": "newer", "change.txt": "again", "output": "/", "output/a": "a",
    }  # fmt: skip


def test_huge_and_binary_files_are_told_and_not_read_as_text(reviewed: Open, folder: Path) -> None:
    code = """
with open('huge', 'wb') as file: file.truncate(10 * 2**30)
open('picture', 'wb').write(bytes(range(256)) * 10); open('long.txt', 'w').write('line\\n' * 100_000)
open('change.txt', 'w').write('after')
"""
    with reviewed().session() as session:
        session.run(code).raise_for_status()
        found = changes(session)
        assert "larger than 1 GiB" in found["huge"].refused
        assert found["huge"].size_after == 10 * 2**30
        assert found["picture"].is_binary
        assert not found["picture"].diff
        assert "larger than" in found["long.txt"].left_out
        assert session.apply().ok
        assert (folder / "long.txt").stat().st_size == 500_000
        assert not (folder / "huge").exists()


def test_nothing_is_removed_where_not_everything_can_be_written(reviewed: Open, folder: Path) -> None:
    with reviewed().session() as session:
        session.run("import os\nwith open('huge', 'wb') as file: file.truncate(2**31)\nos.remove('remove.txt')")
        assert "not all changes" in changes(session)["remove.txt"].refused
        session.apply()
        assert (folder / "remove.txt").exists()


def test_a_folder_and_a_file_take_each_others_place(reviewed: Open, folder: Path) -> None:
    code = """
import os, shutil
shutil.rmtree('sub'); open('sub', 'w').write('file')
os.remove('read.txt'); os.mkdir('read.txt'); open('read.txt/in', 'w').write('in')
"""
    with reviewed().session() as session:
        session.run(code).raise_for_status()
        assert session.apply().ok
    assert (folder / "sub").read_text() == "file"
    assert (folder / "read.txt/in").read_text() == "in"


def test_a_folder_that_was_made_anew_loses_what_was_in_it_and_keeps_what_its_owner_adds_later(
    reviewed: Open, folder: Path
) -> None:
    with reviewed().session() as session:
        session.run("import os, shutil\nshutil.rmtree('gone'); os.mkdir('gone'); open('gone/a.txt', 'w').write('new')")
        found = changes(session)
        assert {path: one.kind for path, one in found.items()} == {
            "gone/a.txt": "changed", "gone/b/": "removed", "gone/b/c.txt": "removed",
        }  # fmt: skip
        assert session.apply().ok
        (folder / "gone/owners.txt").write_text("the owner's")
        session.run("open('gone/a.txt', 'w').write('newer')")
        assert list(changes(session)) == ["gone/a.txt"]
        assert session.apply().ok
    assert (folder / "gone/owners.txt").exists()


def test_ten_thousand_changed_files_are_shown_and_applied(reviewed: Open, folder: Path) -> None:
    with reviewed(limits=Limits(inodes=30_000, disk="512MiB")).session() as session:
        session.run("import os\nfor n in range(100): os.mkdir(f'many{n}')")
        session.run("for n in range(10_000): open(f'many{n // 100}/{n}', 'w').write(f'{n}')").raise_for_status()
        diff = session.diff()
        assert len(diff.changes) == 10_100
        assert sum(len(one.diff) for one in diff.changes) < 300_000
        assert len(session.apply().written) == 10_100
    assert (folder / "many99/9999").read_text() == "9999"


def test_a_run_asks_once_when_its_cell_is_dead_and_is_applied_where_that_is_allowed(
    reviewed: Open, folder: Path
) -> None:
    before, asked = folders.tree(folder), []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request.kind)
        return True

    with reviewed(approve) as sandbox:
        execution = sandbox.run(folders.CHANGES)
        assert (execution.status, execution.skipped) == ("ok", ())
        assert sandbox.run("print(1)").skipped == ()
    assert asked == ["files"]
    assert folders.tree(folder) == folders.changed(before)


def test_a_run_whose_changes_nobody_allows_says_so_and_leaves_the_folder_alone(reviewed: Open, folder: Path) -> None:
    before = folders.tree(folder)
    with reviewed(lambda _request: False) as sandbox:
        execution = sandbox.run(folders.CHANGES)
    assert execution.ok
    assert [one.name for one in execution.skipped] == ["."]
    assert "not allowed" in execution.skipped[0].reason
    assert [artifact.name for artifact in execution.artifacts] == ["output/chart.svg"]
    assert folders.tree(folder) == before


def test_changes_are_kept_back_only_where_that_was_asked_for(audit: Path, folder: Path) -> None:
    with (
        sync.Sandbox(audit=audit, workspace=folder) as sandbox,
        pytest.raises(InvalidArgument, match="changes are not under review"),
    ):
        sandbox.session().diff()
    with pytest.raises(InvalidArgument, match="reviewed"):
        sync.Sandbox(audit=audit, workspace=folder, workspace_mode="review", output_dir=folder / "out").run("1")
    policy = {"workspace_mode": "review"}
    with pytest.raises(InvalidArgument, match="beyond the policy"):
        sync.Sandbox(audit=audit, workspace=folder, workspace_mode="overlay", policy=policy).run("1")


def test_what_the_owner_has_put_there_meanwhile_is_not_shown_to_whoever_reads_the_diff(
    reviewed: Open, folder: Path
) -> None:
    with reviewed().session() as session:
        session.run("open('notes.txt', 'w').write('mine'); open('change.txt', 'w').write('mine')")
        for name in ("notes.txt", "change.txt"):
            (folder / name).write_text("a secret of the owner's")
        found = changes(session)
    assert all("secret" not in found[name].diff for name in ("notes.txt", "change.txt"))
    assert found["notes.txt"].conflict


@pytest.mark.user_only  # root may write everywhere
def test_a_folder_that_cannot_be_written_has_nothing_of_it_and_says_why(reviewed: Open, folder: Path) -> None:
    with reviewed().session() as session:
        session.run("open('sub/new.txt', 'w').write('x'); open('change.txt', 'w').write('after')")
        folder.chmod(0o500)
        try:
            applied = session.apply()
        finally:
            folder.chmod(0o700)
        assert (applied.status, applied.written) == ("failed", ())
        assert "nothing was written: Permission denied" in applied.reason
        assert session.apply().ok


def test_a_session_whose_layer_cannot_be_read_says_so(reviewed: Open) -> None:
    with reviewed().session() as session:
        session.run("import os; os.mkdir('shut'); open('shut/x', 'w').write('x'); os.chmod('shut', 0)")
        session.run("open('fine', 'w').write('fine'); os.chmod('change.txt', 0)")
        found = changes(session)
        assert found["fine"].kind == "added"
        assert found["change.txt"].mode_after == 0
        assert session.apply(["fine", "change.txt"]).ok


def test_a_secret_of_the_session_is_in_nothing_that_is_shown(reviewed: Open, folder: Path) -> None:
    asked: list[ApprovalRequest] = []
    with reviewed(answering(asked)) as sandbox:
        sandbox.vault.set("TOKEN", "s3cret-value-of-the-vault")
        with sandbox.session(secrets=["TOKEN"]) as session:
            session.run("import os; open('token.txt', 'w').write(os.environ['TOKEN'] + '\\n')").raise_for_status()
            found = changes(session)
            assert session.apply().ok
    assert "s3cret" not in found["token.txt"].diff
    assert "s3cret" not in str(asked[0].arguments)
    assert (folder / "token.txt").read_text() == "s3cret-value-of-the-vault\n"


def test_a_session_that_is_closed_while_somebody_decides_writes_nothing(reviewed: Open, folder: Path) -> None:
    was_asked, is_closed = threading.Event(), threading.Event()

    def approve(_request: ApprovalRequest) -> bool:
        was_asked.set()
        is_closed.wait(30)
        return True

    session = reviewed(approve).session()
    session.run("open('a.txt', 'w').write('a')").raise_for_status()
    outcomes: list[object] = []
    applying = threading.Thread(target=lambda: outcomes.append(session.apply()))
    applying.start()
    was_asked.wait(30)
    session.close()
    is_closed.set()
    applying.join(30)
    assert [getattr(one, "status", one) for one in outcomes] == ["denied"]
    assert not (folder / "a.txt").exists()
