"""What a run is given is in no memory that later cells inherit: the supervisor passes it on and does not read it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any, cast

import pytest
from tests.contract import witness
from tests.contract.programs_with_secrets import WAIT
from tests.support.waiting import until

from casemate import Event, Output, sync

COMMENT = {"python": "#", "node": "//", "shell": "#"}


@contextlib.contextmanager
def running(sandbox: sync.Sandbox, language: str, code: str, **options: Any) -> Iterator[list[int]]:
    """``code`` runs and waits: everything in its cell, init first."""
    stream = sandbox.stream(code, language=language, **options)
    with contextlib.closing(cast("Generator[Event]", stream)) as events:
        first = next(events)
        assert isinstance(first, Output)
        assert first.text == "here\n"
        yield witness.in_cells()


def made() -> list[tuple[str, bytes]]:
    """Values that nobody has seen before: of a secret, in a program's text, and on its standard input."""
    return [(kind, os.urandom(20).hex().encode()) for kind in ("secret", "program", "input")]


@pytest.fixture
def given(sandbox: sync.Sandbox, language: str, wall: str) -> Iterator[list[tuple[str, bytes]]]:
    """What a run was given that has been; it had its secret, and that could be seen from here."""
    if wall == "docker":
        pytest.skip("its supervisors are in containers, one for each cell, which end with it")
    values = made()
    told = {kind: value.decode() for kind, value in values}
    sandbox.vault.set("UNREAD", told["secret"])
    code = f"{COMMENT[language]} {told['program']}\n{WAIT[language]}"
    with running(sandbox, language, code, secrets=["UNREAD"], stdin=told["input"]) as inside:
        assert any(witness.holds(pid, values[0][1]) for pid in inside[1:]), "the control"
    yield values
    sandbox.vault.delete("UNREAD")


def test_va_11_the_supervisor_has_nothing_of_what_a_run_was_given(given: list[tuple[str, bytes]]) -> None:
    found = {
        (kind, witness.holds(pid, value)) for kind, value in given for pid in witness.serving() + witness.supervisors()
    }
    assert found == {(kind, False) for kind, _ in given}


def _descendants() -> set[int]:
    return {pid for server in witness.serving() for pid in witness.descendants(server)}


@pytest.mark.root_only
def test_va_11_a_later_cell_inherits_nothing_of_what_a_run_was_given(
    sandbox: sync.Sandbox, language: str, given: list[tuple[str, bytes]]
) -> None:
    with running(sandbox, language, WAIT[language]) as inside:
        everything = until(lambda: _descendants() - set(inside), "another cell") | set(inside)
        found = {(kind, witness.holds(pid, value)) for kind, value in given for pid in everything}
    assert found <= {(kind, told) for kind, _ in given for told in (False, None)}
    assert (given[0][0], False) in found
