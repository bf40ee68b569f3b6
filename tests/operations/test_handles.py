"""Handles by their beginnings, lists with filters, and limits that are narrowed and widened again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.operations.conftest import AGENT

from casemate.errors import Denied, InvalidArgument, NotFound
from casemate.operations import lookup
from casemate.operations.invoke import Invoke


async def opened(invoke: Invoke, **arguments: Any) -> str:
    return str((await invoke("sessions.open", arguments))["session"])


async def ran(invoke: Invoke, code: str = "1", **more: Any) -> str:
    return str((await invoke("runs.start", {"code": code, "wait": 60, **more}))["run"])


async def test_the_beginning_of_a_handle_is_enough_where_it_is_the_only_one(agent: Invoke) -> None:
    session = await opened(agent)
    run = await ran(agent, "x = 1", session=session[:8])
    assert (await agent("runs.get", {"run": run[:8]}))["run"] == run
    assert (await agent("sessions.get", {"session": session[:8], "name": "x"})) == 1
    assert {row["run"] for row in await agent("audit.tail", {"run": run[:8]})} == {run}
    await agent("sessions.close", {"session": session[:8]})
    assert await agent("sessions.list") == []


@pytest.mark.parametrize("given", ["", "a", "abc"])
def test_a_word_that_is_short_is_no_beginning_of_a_handle(given: str) -> None:
    assert lookup.match_handle(given, ["abcd1", "ffff2"], "run", "runs") is None


def test_the_beginning_of_several_is_an_error_that_names_them() -> None:
    known = [f"abcd{number}" for number in range(10)]
    with pytest.raises(InvalidArgument) as refused:
        lookup.match_handle("abcd", known, "run", "runs")
    assert refused.value.message == f"run: 10 runs begin with 'abcd': {', '.join(known[:8])}, ..."
    assert lookup.match_handle("abcd3", known, "run", "runs") == "abcd3"
    assert lookup.match_handle("abcd", [*known, "abcd"], "run", "runs") == "abcd"


async def test_of_several_that_begin_so_only_the_callers_own_count_and_are_named(
    agent: Invoke, other: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup, "SHORTEST", 1)
    for _ in range(3):
        await ran(agent)
    mine = [one["run"] for one in await agent("runs.list")]
    theirs = [await ran(other) for _ in range(30)]
    for first in "0123456789abcdef":
        found = [run for run in mine if run.startswith(first)]
        if len(found) == 1:
            assert (await agent("runs.get", {"run": first}))["run"] == found[0]
            continue
        with pytest.raises(NotFound if not found else InvalidArgument) as refused:
            await agent("runs.get", {"run": first})
        assert [run for run in theirs if run in str(refused.value)] == []
        assert all(run in str(refused.value) for run in found)


@pytest.mark.parametrize("operation", ["runs.get", "runs.cancel", "artifacts.list", "runs.read"])
async def test_anothers_run_is_not_found_by_its_beginning_either(agent: Invoke, other: Invoke, operation: str) -> None:
    run = await ran(agent)
    with pytest.raises(NotFound) as refused:
        await other(operation, {"run": run[:12]})
    assert refused.value.message == f"run: there is no run {run[:12]!r}, or it is no longer kept"


async def test_lists_give_what_fits_every_key_and_any_value_of_each(agent: Invoke) -> None:
    one, two = await opened(agent, name="one"), await opened(agent, language="node")
    failed = await ran(agent, "1 / 0", session=one)
    node = await ran(agent, "1", session=two)

    async def listed(kind: str, handle: str, **filters: list[str]) -> set[str]:
        return {row[handle] for row in await agent(kind, {"filters": filters})}

    assert await listed("sessions.list", "session", language=["node", "shell"]) == {two}
    assert await listed("sessions.list", "session", name=["one"], status=["busy"]) == set()
    assert await listed("runs.list", "run", session=[one[:6], two[:6]], status=["failed"]) == {failed}
    assert await listed("runs.list", "run", session=[two], status=["done"]) == {node}
    assert {failed, node} <= await listed("runs.list", "run", owner=[AGENT.name])
    assert await listed("runs.list", "run", session=[two], namespace=["default", "elsewhere"]) == {node}
    assert await listed("sessions.list", "session", namespace=["elsewhere"]) == set()
    for session in (one, two):
        await agent("sessions.close", {"session": session})


@pytest.mark.parametrize(
    ("operation", "filters", "said"),
    [
        ("runs.list", {"langauge": ["node"]}, "there is no key 'langauge'; did you mean 'language'?"),
        ("runs.list", {"status": ["runing"]}, "there is no value of status 'runing'; did you mean 'running'?"),
        ("sessions.list", {"zzz": []}, "there is no key 'zzz'"),
        ("sessions.list", {"namespce": []}, "there is no key 'namespce'; did you mean 'namespace'?"),
        ("approvals.pending", {"state": ["gone"]}, "there is no value of state 'gone'"),
        ("approvals.pending", {"kind": ["egres"]}, "there is no value of kind 'egres'; did you mean 'egress'?"),
    ],
)
async def test_an_unknown_key_or_value_is_an_error_that_names_the_nearest(
    operator: Invoke, operation: str, filters: dict[str, list[str]], said: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await operator(operation, {"filters": filters})
    assert (refused.value.problem, refused.value.argument) == (said, "filters")


async def test_what_was_narrowed_is_undone_by_an_operator_alone(agent: Invoke, operator: Invoke) -> None:
    most = (await operator("set_limits", {"limits": {}}))["memory"]
    for invoke in (agent, operator):
        assert (await invoke("set_limits", {"limits": {"memory": 64 << 20}}))["memory"] == 64 << 20
    with pytest.raises(Denied):
        await agent("reset_limits")
    assert (await operator("reset_limits"))["memory"] == most
    assert (await operator("set_limits", {"limits": {}}))["memory"] == most
    assert (await agent("set_limits", {"limits": {}}))["memory"] == 64 << 20
    await operator("reset_limits", {"caller": AGENT.name})
    assert (await agent("set_limits", {"limits": {}}))["memory"] == most


async def test_what_waits_and_what_was_answered_is_told_as_it_happens(agent: Invoke, operator: Invoke) -> None:
    asks = "import urllib.request\ntry: urllib.request.urlopen('http://told.test/')\nexcept OSError: pass"
    events = operator.stream("approvals.events")
    run = (await agent("runs.start", {"code": asks}))["run"]
    async with asyncio.timeout(60):
        first = await anext(events)
        assert (first["event"], first["request"]["run"], first["id"]) == ("asked", run, first["request"]["id"])
        assert (await operator("approvals.get", {"request": first["id"][:6]})) == first["request"]
        knows = operator.stream("approvals.events", {"told": [first["id"], "gone"]})
        assert await anext(knows) == {"event": "over", "id": "gone", "request": None}
        waiting = asyncio.ensure_future(anext(knows))
        await operator("approvals.decide", {"request": first["id"], "allow": False})
        over = {"event": "over", "id": first["id"], "request": None}
        assert [await anext(events), await waiting] == [over, over]
    for one in (events, knows):
        await one.aclose()
    with pytest.raises(NotFound):
        await operator("approvals.get", {"request": first["id"]})


async def test_requests_are_told_to_nobody_who_may_not_answer_them(agent: Invoke) -> None:
    with pytest.raises(Denied):
        await anext(agent.stream("approvals.events"))
