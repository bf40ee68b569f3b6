"""The store of runs in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from casemate.operations.stores import FolderStore

RUN = "a" * 32


@pytest.mark.parametrize("text", ["short", "long" * 10_000])
def test_a_line_that_was_cut_short_leaves_what_was_known_before_and_takes_nothing_from_the_next(
    tmp_path: Path, text: str
) -> None:
    store = FolderStore(tmp_path)
    head = {"run": RUN, "started": 1.0, "is_done": False}
    folder = store.begin(RUN, head)
    with (folder / "run.json").open("ab") as file:
        file.write(b'\n{"run": "' + RUN[:5].encode())
    assert store.list() == [head]
    store.end(RUN, {**head, "is_done": True}, {"stdout": text})
    assert store.list() == [{**head, "is_done": True}]
    assert store.execution(RUN) == {"stdout": text}
