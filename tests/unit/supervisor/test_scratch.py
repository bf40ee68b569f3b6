"""What may lie where a file is to be mounted: an earlier cell of the same session had that place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casemate.supervisor import roots, scratch


def test_a_place_for_a_file_is_made_and_one_that_is_there_is_taken(tmp_path: Path) -> None:
    place = tmp_path / "place"
    scratch._mount_file(str(place))
    place.write_text("kept")
    scratch._mount_file(str(place))
    assert place.read_text() == "kept"


@pytest.mark.parametrize("what", ["fifo", "link", "folder"])
def test_nothing_else_is_opened_or_waited_for(tmp_path: Path, what: str) -> None:
    place = tmp_path / "place"
    match what:
        case "fifo":
            os.mkfifo(place)
        case "link":
            place.symlink_to(tmp_path / "elsewhere")
        case "folder":
            place.mkdir()
    with pytest.raises(roots.RootError, match="is no longer a file in the cell"):
        scratch._mount_file(str(place))
    assert not (tmp_path / "elsewhere").exists()
