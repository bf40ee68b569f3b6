"""A caller's folder with something of everything, and what it looks like before and after."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The caller's."""
    path = tmp_path / "folder"
    path.mkdir()
    fill(path)
    return path


def fill(folder: Path) -> None:
    """Files to read, change, remove and rename, folders, links, and names that are protected."""
    for name, text in {"read.txt": "read", "change.txt": "before", "remove.txt": "x", "rename.txt": "renamed",
                       "Makefile": "all:",
                       "sub/deep/file.txt": "deep", "gone/a.txt": "a", "gone/b/c.txt": "c",
                       ".git/config": "[core]", ".git/hooks/pre-commit": "mine"}.items():  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "link").symlink_to("read.txt")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)


def tree(folder: Path) -> dict[str, str]:
    """Every name with its content, what a link says, or ``/`` for a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_dir():
            found[name] = "/"
        else:
            found[name] = path.read_text() if stat.S_ISREG(path.lstat().st_mode) else "special"
    return found


CHANGES = """
import os, shutil
assert open("read.txt").read() == "read" and open("link").read() == "read"
open("change.txt", "w").write("after")
os.remove("remove.txt")
os.rename("rename.txt", "renamed.txt")
os.makedirs("new/folder"); open("new/folder/file", "w").write("new")
open("sub/deep/more.txt", "w").write("more")
shutil.rmtree("gone")
os.symlink("change.txt", "inner")
os.chmod("run.sh", 0o700)
open("output/chart.svg", "w").write("<svg/>")
"""


def changed(before: dict[str, str]) -> dict[str, str]:
    """What a folder that was like ``before`` is after CHANGES."""
    after = {name: text for name, text in before.items() if not name.startswith(("gone", "remove", "rename"))}
    return dict(sorted({**after, "change.txt": "after", "renamed.txt": "renamed", "new": "/", "new/folder": "/",
                        "new/folder/file": "new", "sub/deep/more.txt": "more", "inner": "-> change.txt",
                        "output": "/", "output/chart.svg": "<svg/>"}.items()))  # fmt: skip
