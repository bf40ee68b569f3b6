"""What is asked before changes that were kept back are applied: bounded, and bound to exactly these changes."""

from __future__ import annotations

import json

from casemate.execution.review import question_of
from casemate.model.review import Change
from casemate.policy.canonical import MOST_BYTES
from casemate.workspace.looking import REMOVED, FoundChange
from casemate.workspace.review import choose, diff_of


def found(number: int, text: str = "") -> list[FoundChange]:
    return [
        FoundChange(Change(f"{n}.txt", "added", diff=text), {(f"{n}.txt".encode(),): ("file", 0o644, f"{n}")})
        for n in range(number)
    ]


def test_a_question_about_many_long_changes_is_bounded_and_says_what_it_does_not_show() -> None:
    question = question_of(diff_of(found(5000, "+" + "\x01" * 1000 + "\n")), "/folder")
    assert len(json.dumps(question.arguments)) < MOST_BYTES
    assert question.arguments["changes_not_listed"] == 4700
    assert question.arguments["diffs_not_shown"] > 4000
    assert question.summary == "apply 5000 changes to /folder"


def test_the_hash_is_of_names_modes_and_contents() -> None:
    hashes = {diff_of(one).hash for one in (found(1), found(2), [])}
    for token in (("file", 0o755, "0"), ("file", 0o644, "1"), ("link", "0"), REMOVED):
        hashes.add(diff_of([FoundChange(Change("0.txt", "added"), {(b"0.txt",): token})]).hash)
    assert len(hashes) == 7
    assert diff_of(found(1)).hash == diff_of(found(1, "+shown otherwise\n")).hash


def test_a_chosen_path_brings_the_folders_that_it_needs_and_not_what_only_begins_alike() -> None:
    def one(path: str) -> FoundChange:
        return FoundChange(Change(path, "added"), {tuple(path.strip("/").encode().split(b"/")): ("file", 0, "")})

    changes = [one("a/"), one("a/b/"), one("a/b/c"), one("a/bc"), one("a/x/")]
    assert [each.change.path for each in choose(changes, ["a/b/c"])] == ["a/", "a/b/", "a/b/c"]
    assert [each.change.path for each in choose(changes, ["./a/b"])] == ["a/", "a/b/", "a/b/c"]
