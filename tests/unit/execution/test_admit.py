"""What a request may use: never more than the operator's limits."""

from __future__ import annotations

import pytest

from casemate import Limits
from casemate.errors import InvalidArgument
from casemate.execution.admit import admit
from casemate.execution.request import make_request
from casemate.model.plan import Request
from casemate.policy.hosts import HostRules


def request(timeout: float | None, limits: Limits | None) -> Request:
    return make_request(
        "x", "shell", timeout=timeout, limits=limits, env=None, files=None, stdin=None,
        namespace="n", metadata=None,
    )  # fmt: skip


@pytest.mark.parametrize(("timeout", "own", "operators", "deadline"), [
    (5, None, 60, 5), (None, None, 60, 60), (60, None, 3, 3), (5, 2, 60, 2), (None, 2, 60, 2), (None, 90, 3, 3),
    (300, 60, 600, 60)])  # fmt: skip
def test_the_deadline_is_the_shortest_of_all(
    timeout: float | None, own: float | None, operators: float, deadline: float
) -> None:
    limits = None if own is None else Limits(wall=own)
    admitted = admit(request(timeout, limits), Limits(wall=operators), HostRules(), can_ask=False)
    assert admitted.deadline == deadline


def test_wider_limits_than_the_operators_change_nothing() -> None:
    operators = Limits(processes=8, memory="64MiB")
    wider = request(1, Limits(processes=999, memory="1GiB"))
    assert admit(wider, operators, HostRules(), can_ask=False).limits == operators


def test_each_request_has_a_name_of_its_own_and_plain_bytes() -> None:
    one, other = request(1, None), request(1, None)
    assert one.id != other.id
    assert (one.code, one.stdin, one.program_name, one.language) == (b"x", b"", "main.sh", "shell")


@pytest.mark.parametrize(("timeout", "operators"), [(500, 60), (5, 3)])
def test_a_timeout_beyond_the_limit_is_an_error_that_names_it(timeout: float, operators: float) -> None:
    with pytest.raises(InvalidArgument, match=rf"{timeout} s is beyond limits\.wall, {operators} s"):
        admit(request(timeout, None), Limits(wall=operators), HostRules(), can_ask=False)
