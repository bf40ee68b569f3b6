"""Tools of the MCP server by the names that other systems gave them, called by a real client."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import pytest
from mcp_types import ElicitResult
from tests.mcp_server.conftest import Connect, output_of, structure_of, text_of

from casemate.operations.invoke import Invoke

NETWORK = "import urllib.request\nurllib.request.urlopen('http://{}/')"


def says(answer: str) -> Any:
    """A user who always gives this answer."""
    return lambda _params: ElicitResult(action="accept", content={"answer": answer, "reason": "said the user"})


async def test_execute_code_takes_hosts_and_a_time_limit_of_its_own(connect: Connect) -> None:
    async with connect() as agent:
        late = await agent.call("execute_code", code="while True: pass", timeout_seconds=0.5)
        assert structure_of(late)["cause"]["code"] == "timeout"
    async with connect(answer_within=2.0) as agent:
        beyond = await agent.call("execute_code", code=NETWORK.format("a.test"), allowed_domains=["b.test"])
        while structure_of(beyond)["status"] == "running":  # it asks later on a busy machine
            beyond = await agent.call("read_output", run=structure_of(beyond)["run"])
        assert structure_of(beyond)["status"] == "waiting"
        assert "connect to a.test" in text_of(beyond)
        await agent.call("cancel_run", run=structure_of(beyond)["run"])
        wrong = await agent.call("execute_code", code="1", allowed_domains=["*"])
        assert wrong.is_error
        assert "allowed_domains" in text_of(wrong)


async def test_terminate_session_ends_a_session_and_a_second_time_is_an_error(connect: Connect) -> None:
    async with connect(toolset="sandboxmcp") as agent:
        session = structure_of(await agent.call("create_session", language="shell", timeout_seconds=60))["session_id"]
        code = "sleep 1000 & echo $!"
        assert not (await agent.call("execute_code", code=code, session=session, language="shell")).is_error
        before = structure_of(await agent.call("sandbox_stats"))
        assert not (await agent.call("terminate_session", session_id=session)).is_error
        after = structure_of(await agent.call("sandbox_stats"))
        assert after["sessions"] == before["sessions"] - 1
        assert after["cells"]["running"] == before["cells"]["running"] - 1
        again = await agent.call("terminate_session", session_id=session)
        assert again.is_error
        assert "there is no session" in text_of(again)


async def test_list_runtimes_tells_versions_and_the_wall_in_force(connect: Connect) -> None:
    async with connect(toolset="sandboxmcp") as agent:
        told = {one["language"]: one for one in structure_of(await agent.call("list_runtimes"))["items"]}
        ran = await agent.call("execute_code", code="import platform; print(platform.python_version())")
        assert set(told) == {"python", "node", "shell"}
        assert output_of(ran).strip() == told["python"]["version"]
        assert (told["python"]["wall"], told["shell"]["available"]) == ("native", True)


async def test_set_resource_limits_tells_what_is_in_force_and_holds_for_the_next_program(connect: Connect) -> None:
    eats = "held = bytearray(200 << 20); print(len(held))"
    async with connect(toolset="sandboxmcp") as agent:
        assert not (await agent.call("execute_code", code=eats)).is_error
        told = structure_of(
            await agent.call("set_resource_limits", max_ram_mb=128, max_cpu_cores=0.5, timeout_seconds=20)
        )
        assert (told["memory"], told["cpus"], told["wall"]) == (128 << 20, 0.5, 20)
        assert structure_of(await agent.call("execute_code", code=eats))["cause"]["code"] == "memory_limit"
        assert structure_of(await agent.call("set_resource_limits", max_ram_mb=256))["memory"] == 256 << 20
        beyond = await agent.call("set_resource_limits", max_ram_mb=900_000)
        assert beyond.is_error
        assert "beyond the most" in text_of(beyond)


async def test_sandbox_stats_tells_queue_cells_sessions_and_what_they_use(connect: Connect) -> None:
    async with connect(toolset="sandboxmcp") as agent:
        before = structure_of(await agent.call("sandbox_stats"))
        await agent.call("execute_code", code="x = 1", session="new")
        now = structure_of(await agent.call("sandbox_stats"))
        assert (now["running"], now["waiting"], now["concurrency"]) == (0, 0, 16)
        assert now["sessions"] == before["sessions"] + 1
        assert now["cells"]["memory"] > 1 << 20
        assert now["cells"]["cpu_seconds"] > 0


async def test_inspect_state_tells_names_and_no_value_of_a_secret(connect: Connect, operator: Invoke) -> None:
    await operator("vault.set", {"name": "API_TOKEN", "value": "correct horse battery"})
    async with connect(toolset="sandboxmcp") as agent, connect(toolset="sandboxmcp") as stranger:
        session = structure_of(await agent.call("create_session"))["session_id"]
        await agent.call("execute_code", code="total = 42", session=session)
        answer = await agent.call("inspect_state")
        (held,) = structure_of(answer)["sessions"]
        assert [one["name"] for one in held["variables"]] == ["total"]
        assert "correct horse" not in str(answer)
        assert structure_of(await stranger.call("inspect_state"))["sessions"] == []


async def test_get_artifacts_tells_files_with_their_hashes_and_how_to_read_them(connect: Connect) -> None:
    async with connect(toolset="sandboxmcp") as agent, connect(toolset="sandboxmcp") as stranger:
        code = "open('output/a.txt', 'w').write('first'); open('output/b.txt', 'w').write('second')"
        run = structure_of(await agent.call("execute_code", code=code))["run"]
        answer = await agent.call("get_artifacts", request_id=run)
        files = {one["name"]: one for one in structure_of(answer)["files"]}
        assert {name.rpartition("/")[2] for name in files} == {"a.txt", "b.txt"}
        for name, one in files.items():
            text = "first" if name.endswith("a.txt") else "second"
            assert (one["sha256"], one["size"]) == (hashlib.sha256(text.encode()).hexdigest(), len(text))
            assert output_of(await agent.call("read_file", run=run, path=name)) == text
        signed = json.loads(base64.b64decode(structure_of(answer)["statement"]["payload"]))
        named = {one["name"]: one["digest"]["sha256"] for one in signed["subject"]}
        assert {f"artifacts/{name}": one["sha256"] for name, one in files.items()}.items() <= named.items()
        assert (await stranger.call("get_artifacts", request_id=run)).is_error


@pytest.mark.parametrize(("answer", "allowed"), [("allow once", True), ("deny", False)])
async def test_request_egress_asks_the_user_and_tells_what_was_decided(
    connect: Connect, answer: str, allowed: bool
) -> None:
    async with connect(toolset="sandboxmcp", answer=says(answer)) as agent:
        told = await agent.call("request_egress", domain=f"{answer.split(maxsplit=1)[0]}.example.test")
        assert told.is_error is not allowed
        decided = json.loads(text_of(told).partition("\n\n[")[0])
        assert decided["allowed"] is allowed
        assert {"scope", "expires", "by", "reason"} <= set(decided)
        (asked,) = agent.asked
        assert "example.test" in asked.message


async def test_audit_execution_tells_own_rows_the_newest_first(connect: Connect) -> None:
    async with connect(toolset="sandboxmcp") as agent, connect(toolset="sandboxmcp") as stranger:
        mine = structure_of(await agent.call("execute_code", code="print('mine')"))["run"]
        theirs = structure_of(await stranger.call("execute_code", code="print('theirs')"))["run"]
        rows = structure_of(await agent.call("audit_execution", limit=10))["items"]
        assert [(row["kind"], row["run"]) for row in rows] == [("outcome", mine), ("intent", mine)]
        assert rows[0]["previous"] == rows[1]["hash"]
        assert theirs not in str(rows)
        assert len(structure_of(await agent.call("audit_execution", limit=1))["items"]) == 1


async def test_a_namespace_that_is_given_is_still_the_callers_own(connect: Connect) -> None:
    async with connect(toolset="sandboxmcp") as agent, connect(toolset="sandboxmcp") as stranger:
        await stranger.call("execute_code", code="theirs = 1", session="new")
        await agent.call("execute_code", code="print('mine')")
        for namespace in ("default", "other", "*"):
            rows = structure_of(await agent.call("audit_execution", namespace=namespace))["items"]
            assert "theirs" not in str(rows)
            assert {row["namespace"] for row in rows} == {"default"}
            assert structure_of(await agent.call("inspect_state", namespace=namespace))["sessions"] == []


async def test_execute_ipython_cell_keeps_to_its_timeout_and_its_most_characters(connect: Connect) -> None:
    async with connect(toolset="ipybox") as agent:
        await agent.call("execute_ipython_cell", code="kept = 7")
        late = await agent.call("execute_ipython_cell", code="while True: pass", timeout=1)
        assert structure_of(late)["cause"]["code"] == "timeout"
        assert output_of(await agent.call("execute_ipython_cell", code="kept")).strip() == "7"
        cut = await agent.call("execute_ipython_cell", code="print('x' * 9000)", max_output_chars=50)
        assert output_of(cut).strip() == "x" * 50
        usual = await agent.call("execute_ipython_cell", code="print('x' * 9000)")
        assert output_of(usual).strip() == "x" * 5000


async def test_install_package_takes_one_name_or_several(connect: Connect) -> None:
    async with connect(toolset="full") as agent:
        for given in ({"package_name": "alpha @ file:///etc"}, {"packages": ["alpha", "--index-url=http://a.test"]}):
            refused = await agent.call("install_package", **given)
            assert refused.is_error
            assert "file:" in text_of(refused) or "--index-url" in text_of(refused)
        both = await agent.call("install_package", package_name="alpha", packages=["alpha"])
        assert both.is_error
        assert "packages" in text_of(both)
