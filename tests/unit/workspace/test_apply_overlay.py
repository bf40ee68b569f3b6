"""What a run changed through a real overlay arrives in the caller's folder, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.workspace.overlay import changed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print(1)\n")
    (folder / "src" / "old.py").write_text("old\n")
    (folder / "README").write_text("read me\n")
    return folder


def tree(folder: Path) -> dict[str, str]:
    """Every file, link and empty folder with what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_text()
        elif not any(path.iterdir()):
            found[name + "/"] = ""
    return found


def test_a_renamed_folder_arrives_under_its_new_name_alone(folder: Path) -> None:
    outcome = changed(folder, "mv src lib; echo more >lib/more.py")
    assert tree(folder) == {
        "README": "read me\n",
        "lib/main.py": "print(1)\n",
        "lib/more.py": "more\n",
        "lib/old.py": "old\n",
    }
    assert outcome.removed == ["src/"]
    assert outcome.skipped == {}


def test_a_replaced_folder_holds_only_what_the_run_put_there(folder: Path) -> None:
    (folder / "src" / "deep").mkdir()
    (folder / "src" / "deep" / "x").write_text("x\n")
    outcome = changed(folder, "rm -r src; mkdir -p src/deep; echo new >src/new.py; echo y >src/deep/y")
    assert tree(folder) == {"README": "read me\n", "src/deep/y": "y\n", "src/new.py": "new\n"}
    assert sorted(outcome.removed) == ["src/deep/x", "src/main.py", "src/old.py"]


def test_files_folders_and_links_replace_each_other(folder: Path) -> None:
    (folder / "link").symlink_to("README")
    outcome = changed(
        folder,
        """
        rm -r src; echo file >src
        rm README; mkdir README; echo x >README/x
        rm link; mkdir link; echo y >link/y
        """,
    )
    assert tree(folder) == {"README/x": "x\n", "link/y": "y\n", "src": "file\n"}
    assert outcome.skipped == {}


def test_permission_bits_arrive_without_the_dangerous_ones(folder: Path) -> None:
    """AR-13."""
    (folder / "README").chmod(0o640)
    (folder / "src" / "main.py").chmod(0o600)
    changed(
        folder,
        """
        umask 0
        echo '#!/bin/sh' >tool; chmod 06777 tool
        mkdir sticky; chmod 03777 sticky
        chmod 0755 src/old.py; chmod 0666 src/main.py
        echo more >>README
        """,
    )
    modes = {path.name: oct(path.stat().st_mode & 0o7777) for path in folder.rglob("*")}
    assert modes["tool"] == "0o755"
    assert modes["sticky"] == "0o755"
    assert modes["old.py"] == "0o755"
    assert modes["main.py"] == "0o600"
    assert modes["README"] == "0o640"


def test_a_folder_that_people_share_stays_as_its_owner_set_it(folder: Path) -> None:
    (folder / "src").chmod(0o3770)
    changed(folder, "echo more >>src/main.py; chmod 0777 src")
    assert (folder / "src").stat().st_mode & 0o7777 == 0o3770


@pytest.mark.root_only
def test_a_setuid_program_of_the_callers_loses_its_bit_when_changed(folder: Path) -> None:
    """AR-13."""
    (folder / "README").chmod(0o4755)
    changed(folder, "echo evil >README; chmod 4755 README")
    assert (folder / "README").stat().st_mode & 0o7777 == 0o755


@pytest.mark.root_only
def test_new_files_belong_to_the_owner_of_the_folder(folder: Path) -> None:
    os.chown(folder, 1234, 5678)
    changed(folder, "mkdir new; echo 1 >new/file; ln -s file new/link")
    for name in ("new", "new/file", "new/link"):
        status = (folder / name).lstat()
        assert (status.st_uid, status.st_gid) == (1234, 5678)


def test_xattrs_are_dropped_and_times_are_kept(folder: Path) -> None:
    """AR-13."""
    changed(folder, "echo 1 >file; touch -d @1000000000 file; setfattr -n user.evil -v 1 file || true")
    assert os.listxattr(folder / "file") == []
    assert (folder / "file").stat().st_mtime == 1_000_000_000


def test_links_out_of_the_folder_are_refused_and_inner_ones_arrive(folder: Path) -> None:
    """AR-01."""
    outcome = changed(
        folder,
        """
        ln -s /etc/passwd absolute; ln -s /workspace/README rooted; ln -s ../../outside up; ln -s src/../../x over
        ln -s .. src/top; ln -s ../README src/readme; ln -s ../.. src/out; ln -s . dot; ln -s nowhere dangling
        """,
    )
    links = {path.name: str(path.readlink()) for path in folder.rglob("*") if path.is_symlink()}
    assert links == {"top": "..", "readme": "../README", "dot": ".", "dangling": "nowhere"}
    assert sorted(outcome.skipped) == ["absolute", "over", "rooted", "src/out", "up"]


def test_fifos_and_sockets_are_refused(folder: Path) -> None:
    """AR-03."""
    outcome = changed(folder, "mkfifo src/fifo; rm README; mkfifo README")
    assert outcome.skipped == {"README": "it is a fifo", "src/fifo": "it is a fifo"}
    assert tree(folder)["README"] == "read me\n"


def test_protected_names_are_neither_made_nor_changed_nor_removed(folder: Path) -> None:
    (folder / ".git" / "hooks").mkdir(parents=True)
    (folder / ".git" / "hooks" / "pre-commit").write_text("honest\n")
    (folder / ".git" / "config").write_text("[core]\n")
    (folder / ".git" / "packed-refs").write_text("1\n")
    (folder / ".envrc").write_text("honest\n")
    before = tree(folder)
    outcome = changed(
        folder,
        """
        echo evil >.git/hooks/pre-commit; echo evil >.git/hooks/post-checkout; echo evil >.git/config
        rm .envrc; mkdir -p .vscode src/.Idea; echo evil >.vscode/tasks.json; echo evil >src/.Idea/x
        echo evil >src/SiteCustomize.py; echo evil >x.pth; echo 2 >.git/packed-refs; echo ok >src/ok.py
        mkdir -p bare/refs bare/objects; echo ref >bare/HEAD; echo evil >bare/config
        """,
    )
    after = tree(folder)
    assert {name: after.get(name) for name in before} == before | {".git/packed-refs": "2\n"}
    assert set(after) - set(before) == {"src/ok.py", "bare/config", "bare/objects/", "bare/refs/"}
    assert set(outcome.skipped) == {
        ".git/hooks",
        ".git/config",
        ".envrc",
        ".vscode",
        "src/.Idea",
        "src/SiteCustomize.py",
        "x.pth",
        "bare/HEAD",
    }
    assert all("protected" in reason for reason in outcome.skipped.values())


def test_a_repository_without_a_working_tree_keeps_its_configuration(folder: Path) -> None:
    for name in ("HEAD", "config", "refs/x", "objects/x"):
        (folder / "mirror" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "mirror" / name).write_text("honest\n")
    changed(folder, "cd mirror; echo evil >config; mkdir hooks; echo evil >hooks/update; echo 2 >refs/x")
    assert (folder / "mirror" / "config").read_text() == "honest\n"
    assert not (folder / "mirror" / "hooks").exists()
    assert (folder / "mirror" / "refs" / "x").read_text() == "2\n"


def test_moving_the_folder_above_does_not_move_a_protected_name(folder: Path) -> None:
    (folder / "sub" / ".git" / "hooks").mkdir(parents=True)
    (folder / "sub" / ".git" / "hooks" / "pre-commit").write_text("honest\n")
    (folder / "sub" / "file").write_text("1\n")
    outcome = changed(
        folder,
        "mv sub moved; echo evil >moved/.git/hooks/pre-commit; mkdir -p sub/.git/hooks; echo evil >sub/.git/hooks/x",
    )
    assert tree(folder / "sub") == {".git/hooks/pre-commit": "honest\n"}
    assert tree(folder / "moved") == {"file": "1\n"}
    assert "moved/.git/hooks" in outcome.skipped


def test_removing_a_folder_leaves_the_protected_names_in_it(folder: Path) -> None:
    (folder / "sub" / "deep" / ".vscode").mkdir(parents=True)
    (folder / "sub" / "deep" / "file").write_text("1\n")
    (folder / "sub" / ".envrc").write_text("honest\n")
    outcome = changed(folder, "rm -r sub")
    assert tree(folder / "sub") == {".envrc": "honest\n", "deep/.vscode/": ""}
    assert set(outcome.skipped) == {"sub/.envrc", "sub/deep/.vscode"}
    assert outcome.removed == []


def test_a_file_does_not_replace_a_folder_that_holds_a_protected_name(folder: Path) -> None:
    (folder / "sub" / ".vscode").mkdir(parents=True)
    (folder / "sub" / ".vscode" / "tasks.json").write_text("honest\n")
    (folder / "sub" / "file").write_text("1\n")
    before = tree(folder)
    outcome = changed(folder, "rm -r sub; ln -s src sub")
    assert tree(folder) == before
    assert "must stay" in outcome.skipped["sub"]


def test_a_git_file_or_link_is_not_replaced_by_a_folder(folder: Path) -> None:
    (folder / ".git").write_text("gitdir: /elsewhere\n")
    (folder / "src" / ".git").symlink_to("../other")
    before = tree(folder)
    outcome = changed(folder, "rm .git src/.git; mkdir -p .git/objects src/.git; echo x >.git/objects/x")
    assert tree(folder) == before
    assert set(outcome.skipped) == {".git", "src/.git"}


def test_links_in_the_folder_are_replaced_and_never_followed(folder: Path, tmp_path: Path) -> None:
    """AR-01: links from earlier runs, or the caller's own."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("victim\n")
    (folder / "file").symlink_to("../outside/victim")
    (folder / "sub").symlink_to("../outside")
    changed(folder, "rm file sub; echo new >file; mkdir sub; echo new >sub/victim")
    assert tree(outside) == {"victim": "victim\n"}
    assert tree(folder)["file"] == "new\n"
    assert tree(folder)["sub/victim"] == "new\n"


def test_names_that_are_not_safe_are_neither_written_nor_removed(folder: Path) -> None:
    """AR-06."""
    existing = Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9"))
    existing.write_text("legacy\n")
    outcome = changed(
        folder, r"""rm caf*; printf x >"$(printf 'a\033[2Kb')"; mkdir 'bad\dir'; echo 1 >'bad\dir/file'"""
    )
    assert existing.read_text() == "legacy\n"
    assert set(outcome.skipped) == {"caf\\xe9", "a\\x1b[2Kb", "bad\\\\dir"}
    assert outcome.written == []


def test_whatever_exceeds_the_bounds_is_said_and_then_nothing_is_removed(folder: Path) -> None:
    """AR-04, AR-05."""
    script = """
        rm src/old.py; mkdir deep; cd deep; echo 1 >1; echo 2 >2; truncate -s 1T 0
        mkdir -p a/b/c/d/e; echo x >a/b/c/d/e/x
    """
    outcome = changed(folder, script, bounds={"files": 1, "file_bytes": 1000, "depth": 4})
    assert outcome.written == ["deep/", "deep/1", "deep/a/", "deep/a/b/", "deep/a/b/c/"]
    assert "more than 1 files" in outcome.skipped["deep/2"]
    assert outcome.skipped["deep/0"] == "it cannot be written: it is larger than 1000 bytes"
    assert "deeper than 4" in outcome.skipped["deep/a/b/c/d"]
    assert "not removed" in outcome.skipped["src/old.py"]
    assert (folder / "src" / "old.py").exists()


def test_closed_folders_and_files_arrive_closed(folder: Path) -> None:
    """AR-13."""
    changed(folder, "mkdir closed; echo 1 >closed/file; chmod 0 closed/file; chmod 0 closed")
    assert (folder / "closed").stat().st_mode & 0o777 == 0
    (folder / "closed").chmod(0o700)
    assert (folder / "closed" / "file").stat().st_mode & 0o777 == 0
    (folder / "closed" / "file").chmod(0o600)
    assert (folder / "closed" / "file").read_text() == "1\n"


def test_what_is_mounted_in_the_folder_is_neither_written_nor_removed(folder: Path) -> None:
    """The run saw the folder beneath the mount, so what it did there is not meant for what is mounted."""
    for name in ("data", "more", "src/deep"):
        (folder / name).mkdir()
    outcome = changed(
        folder,
        "echo new >data/new; rm -r more src",
        before="for name in data more src/deep; do mount -t tmpfs tmpfs $name; echo precious >$name/file; done",
        after="for name in data more src/deep; do test $(ls $name) = file; test $(cat $name/file) = precious; done",
    )
    assert "mounted there" in outcome.skipped["data"]
    assert outcome.written == []


def test_nothing_is_removed_from_what_is_mounted_in_the_folder(folder: Path) -> None:
    for name in ("more", "src/deep"):
        (folder / name).mkdir()
    outcome = changed(
        folder,
        "rm -r more src",
        before="for name in more src/deep; do mount -t tmpfs tmpfs $name; echo precious >$name/file; done",
        after="for name in more src/deep; do test $(cat $name/file) = precious; done",
    )
    assert set(outcome.skipped) == {"more", "src/deep"}
    assert tree(folder) == {"README": "read me\n", "more/": "", "src/deep/": ""}


@pytest.mark.root_only
@pytest.mark.parametrize("mount", ["redirect_dir=off,metacopy=off", "redirect_dir=on,metacopy=on"])
def test_trusted_marks_are_understood_and_references_cost_nothing(folder: Path, mount: str) -> None:
    outcome = changed(folder, "mv src lib; chmod 700 README; mkdir -p src; echo new >src/new.py", mount=mount)
    if mount.endswith("off"):
        assert tree(folder) == {
            "README": "read me\n",
            "lib/main.py": "print(1)\n",
            "lib/old.py": "old\n",
            "src/new.py": "new\n",
        }
        assert outcome.skipped == {}
    else:
        assert tree(folder) == {
            "README": "read me\n",
            "src/main.py": "print(1)\n",
            "src/new.py": "new\n",
            "src/old.py": "old\n",
        }
        assert "redirect_dir=off" in outcome.skipped["lib"]
        assert "redirect_dir=off" in outcome.skipped["README"]
