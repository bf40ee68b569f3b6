"""Errors that cross to another process: the same class there, with the same words and all that it names."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from casemate import Sandbox, errors
from casemate.errors import CasemateError, ExecutionFailed, Fault, QueueFull, Unavailable, WallUnavailable
from casemate.operations.documents import document, error_document, error_from

PUBLIC = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, CasemateError)]
AWKWARD = 'two\nlines, "quotes", ü and \x1b[31m'


def made(kind: type[CasemateError]) -> CasemateError:
    """One of its kind, with another text for each thing that it names."""
    given: dict[str, Any] = {}
    for name in list(inspect.signature(kind).parameters):
        given[name] = 7.25 if name == "retry_after" else f"{name}: {AWKWARD}"
    return kind(**given)


def crossed(error: CasemateError) -> CasemateError:
    return error_from(json.loads(json.dumps(error_document(error))))


def test_these_are_all_that_there_are() -> None:
    assert {CasemateError, WallUnavailable, ExecutionFailed, Fault} < set(PUBLIC)
    assert len(PUBLIC) >= 15


async def test_a_failed_execution_comes_along_with_its_error(sandbox: Sandbox) -> None:
    execution = await sandbox.run("open('left.txt', 'w').write('x'); print('said'); raise SystemExit(3)")
    before = ExecutionFailed(execution)
    after = crossed(before)
    assert type(after) is ExecutionFailed
    assert vars(after).keys() == vars(before).keys()
    assert (str(after), after.message) == (str(before), before.message)
    assert document(after.execution) == document(execution)
    with pytest.raises(Unavailable, match=r"left\.txt"):
        after.execution.artifacts[0].read_bytes()


def test_a_class_that_is_not_known_here_is_one_of_its_kind() -> None:
    told = error_document(made(WallUnavailable))
    after = error_from({**told, "type": "NewerUnavailable"})
    assert (type(after), after.message) == (Unavailable, told["message"])
    assert type(error_from({**told, "type": "TYPE_CHECKING"})) is Unavailable
    assert type(error_from({"kind": "newer", "message": "x"})) is Fault


@pytest.mark.parametrize("seconds", [None, "soon", True, -1, 1e999])
def test_a_time_that_is_none_is_a_second(seconds: object) -> None:
    after = error_from({"kind": "busy", "type": "QueueFull", "message": "full", "retry_after": seconds})
    assert isinstance(after, QueueFull)
    assert after.retry_after == 1.0
