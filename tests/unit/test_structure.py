"""The figures of the structure of the code stay within their bounds, which are tightened as they fall."""

from __future__ import annotations

from tests import structure

BOUNDS = {
    "lines of Python in src": 92_103,
    "without docstrings, imports, comments and blanks": 58_662,
    "files": 518,
    "files of 40 lines or fewer": 61,
    "functions whose name is a participle or an adverb": 0,
    "class names in more than one file": 32,
    "import circles": 0,
    "host files with the text node or shell, outside languages": 9,
    "lines of tests": 85_312,
}


def test_every_figure_is_within_its_bound() -> None:
    assert {name: value for name, value, _ in structure.figures() if value > BOUNDS[name]} == {}
