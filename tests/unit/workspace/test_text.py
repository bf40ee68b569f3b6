"""Differences of texts as unified diffs, bounded whatever the texts are."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casemate.workspace.text import TextDiffs, unified_lines

LINES = st.lists(st.sampled_from(["a", "b", "", "c d"]), max_size=30)


def patched(old: list[str], lines: list[str]) -> list[str]:
    """``old`` as a unified diff changes it."""
    new, at = [], 0
    for line in lines:
        if line.startswith("@@"):
            first, _, count = line.split()[1].removeprefix("-").partition(",")
            start = int(first) - (count != "0")
            new += old[at:start]
            at = start
        elif line[0] == "+":
            new.append(line[1:])
        else:
            assert old[at] == line[1:]
            new += [line[1:]] if line[0] == " " else []
            at += 1
    return new + old[at:]


@given(LINES, LINES)
def test_a_diff_turns_the_one_text_into_the_other(old: list[str], new: list[str]) -> None:
    assert patched(old, list(unified_lines(old, new))) == new


def test_a_diff_is_what_diff_says(tmp_path: Path) -> None:
    old, new = [f"line {number}\n" for number in range(60)], [f"line {number}\n" for number in range(60)]
    new[3], new[40:42] = "other\n", []
    (tmp_path / "old").write_text("".join(old))
    (tmp_path / "new").write_text("".join(new))
    said = subprocess.run(
        ["diff", "-u", tmp_path / "old", tmp_path / "new"], capture_output=True, text=True, check=False
    )
    ours = TextDiffs().compare("".join(old).encode(), "".join(new).encode()).text
    assert ours == "".join(said.stdout.splitlines(keepends=True)[2:])


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\0b", bytes(range(256))])
def test_what_is_no_text_is_binary(content: bytes) -> None:
    diff = TextDiffs().compare(b"text\n", content)
    assert (diff.is_binary, diff.text) == (True, "")


def test_a_line_without_an_end_says_so() -> None:
    assert TextDiffs().compare(b"a", b"a\n").text == "@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"


def test_texts_made_to_be_hard_to_compare_end_and_say_what_is_left_out() -> None:
    diffs = TextDiffs()
    hostile = [("\n".join("ab"[(n * k) % 7 % 2] for n in range(999)) + "\n").encode() for k in range(1, 400)]
    found = [diffs.compare(one, other) for one, other in itertools.pairwise(hostile)]
    assert diffs.is_over
    assert found[-1].left_out
    assert sum(len(one.text) for one in found) <= 256 * 1024


def test_a_long_diff_is_cut_between_lines_and_the_rest_is_counted() -> None:
    diff = TextDiffs().compare(b"", b"x" * 99 + b"\n" + b"0123456789\n" * 20_000)
    assert len(diff.text) <= 64 * 1024
    shown = diff.text.count("\n")
    assert diff.left_out == f"{20_002 - shown} more lines are not shown"
