"""What a review finds in a layer, where the folder below has what its owner may not read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from casemate.supervisor.trees.walk import open_folder
from casemate.workspace.review import Review


@pytest.mark.user_only
def test_files_that_may_not_be_read_are_changed_and_removed_without_their_text(tmp_path: Path) -> None:
    upper, folder = tmp_path / "upper", tmp_path / "folder"
    for place in (upper, folder):
        place.mkdir()
    for name in ("removed", "alike", "longer"):
        (folder / name).write_text("before")
        (folder / name).chmod(0)
    review = Review()
    os.mknod(upper / "removed", stat.S_IFCHR, os.makedev(0, 0))  # a whiteout, which needs no right
    (upper / "alike").write_text("after!")
    (upper / "longer").write_text("afterwards")
    above, below = open_folder(-1, os.fsencode(upper)), open_folder(-1, os.fsencode(folder))
    try:
        found = review.look(above, below).found
        applied = review.write(above, below, found)
    finally:
        os.close(above)
        os.close(below)
    assert {one.change.path: (one.change.kind, one.change.left_out) for one in found} == {
        "alike": ("changed", "what was there cannot be read"), "longer": ("changed", "what was there cannot be read"),
        "removed": ("removed", "what was there cannot be read"),
    }  # fmt: skip
    assert (applied.status, set(applied.written), applied.removed) == ("applied", {"alike", "longer"}, ("removed",))
