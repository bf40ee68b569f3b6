"""Packages that an agent asks for by MCP: from a real index, once somebody has allowed them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from mcp_types import ElicitResult
from tests.mcp_server.conftest import ERAS, Connect, operations_of, output_of, structure_of, text_of
from tests.packages.index import Index, wheel

from casemate import Sandbox
from casemate.operations.invoke import Invoke
from casemate.operations.operations import Operations

SHOW = "import alpha, beta; print(alpha.VERSION, beta.VERSION)"


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    """An index on loopback with two packages, one of which needs the other."""
    one = Index()
    one.add(wheel("alpha", "1.5", requires=("beta",)))
    one.add(wheel("beta", "2.0"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def operations(runner: asyncio.Runner, index: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operations]:
    """One that installs from ``index``, into a cache that nobody else has."""
    folder = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        with operations_of(Sandbox(audit=folder / "audit.db", package_indexes=[index.url]), runner) as one:
            yield one


async def answered(operator: Invoke, *, allow: bool) -> dict[str, object]:
    """Wait for the one question there is, and answer it as the operator; what was asked."""
    while not (waiting := await operator("approvals.pending", {})):
        await asyncio.sleep(0.02)
    (request,) = waiting
    assert await operator("approvals.decide", {"request": request["id"], "allow": allow, "reason": "as I say"})
    asked: dict[str, object] = request
    return asked


@pytest.mark.full
@pytest.mark.parametrize("era", ERAS)
async def test_what_the_operator_allows_can_be_imported_in_the_next_cell_of_that_session_alone(
    connect: Connect, operator: Invoke, era: str
) -> None:
    async with connect(era, answer_within=60.0) as agent:
        before = await agent.call("execute_code", code="x = 41\nimport alpha", session="new")
        assert "ModuleNotFoundError" in text_of(before)
        session = structure_of(before)["session"]
        asking = asyncio.ensure_future(agent.call("install_package", packages=["alpha>=1"], session=session))
        await answered(operator, allow=True)  # that the index hears the name
        asked = await answered(operator, allow=True)
        assert asked["kind"] == "package"
        assert asked["arguments"]["packages"] == ["alpha==1.5", "beta==2.0"]  # type: ignore[index]
        told = await asking
        assert not told.is_error, told
        assert "alpha 1.5, beta 2.0" in text_of(told)
        after = await agent.call("execute_code", code=f"{SHOW}\nprint(x + 1)", session=session)
        assert output_of(after).startswith("1.5 2.0\n42")
        assert "ModuleNotFoundError" in text_of(await agent.call("execute_code", code=SHOW))


@pytest.mark.full
@pytest.mark.parametrize("era", ERAS)
async def test_the_user_of_the_client_can_allow_it_as_well(connect: Connect, era: str) -> None:
    def yes(_params: object) -> ElicitResult:
        return ElicitResult(action="accept", content={"answer": "allow once"})

    async with connect(era, yes) as agent:
        session = structure_of(await agent.call("execute_code", code="1", session="new"))["session"]
        told = await agent.call("install_package", packages=["alpha"], session=session)
        assert not told.is_error, told
        assert len(agent.asked) == 2  # that the index hears the name, and the files
        assert "alpha" in agent.asked[0].message
        assert output_of(await agent.call("execute_code", code=SHOW, session=session)).startswith("1.5 2.0")


async def test_what_the_operator_denies_is_not_there_and_the_agent_is_told_why(
    connect: Connect, operator: Invoke
) -> None:
    async with connect(answer_within=60.0) as agent:
        session = structure_of(await agent.call("execute_code", code="1", session="new"))["session"]
        asking = asyncio.ensure_future(agent.call("install_package", packages=["alpha"], session=session))
        await answered(operator, allow=False)
        told = await asking
        assert told.is_error
        assert "denied: " in text_of(told)
        assert "as I say" in text_of(told)
        after = await agent.call("execute_code", code=SHOW, session=session)
        assert "ModuleNotFoundError" in text_of(after)


async def test_what_the_index_does_not_have_is_said_once_it_may_hear_the_name(
    connect: Connect, operator: Invoke
) -> None:
    async with connect(answer_within=60.0) as agent:
        asking = asyncio.ensure_future(agent.call("install_package", packages=["gamma"]))
        await answered(operator, allow=True)
        told = await asking
        assert told.is_error
        assert "gamma" in text_of(told)
        assert await operator("approvals.pending", {}) == []
