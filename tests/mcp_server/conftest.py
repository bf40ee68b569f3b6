"""What every test of the MCP server has: an event loop and operations per file, clients of both eras."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult, ElicitResult
from tests.coroutines import pytest_pyfunc_call, runner

from casemate import Limits, Sandbox
from casemate.model.operation import Audience, Principal
from casemate.operations.invoke import Invoke, local
from casemate.operations.operations import Operations
from casemate.surfaces.mcp.callers import LocalBackend
from casemate.surfaces.mcp.server import make_server

__all__ = ["pytest_pyfunc_call", "runner"]

OWN_SERVER = Path(__file__).parents[1] / "tools" / "connections" / "own_server.py"
ERAS = ("legacy", "2026-07-28")
OPERATOR = Principal("user", Audience.OPERATOR, may_run_commands=True)  # as over the Unix socket


@contextlib.contextmanager
def operations_of(sandbox: Sandbox, runner: asyncio.Runner) -> Iterator[Operations]:
    """Those of ``sandbox``, which is closed with them."""

    async def opened() -> Operations:
        return await Operations(sandbox).load()

    async def closed() -> None:
        await one.close()
        await sandbox.close()

    one = runner.run(opened())
    try:
        yield one
    finally:
        runner.run(closed())


@pytest.fixture(scope="module")
def operations(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operations]:
    """One for all tests of a file, whose programs can call the tools of a server of the tests' own."""
    own = {"command": sys.executable, "args": ["-S", str(OWN_SERVER), "good"]}
    audit = tmp_path_factory.mktemp("audit") / "audit.db"
    with operations_of(Sandbox(audit=audit, limits=Limits(wall=300, memory="1GiB"), tools={"own": own}), runner) as one:
        yield one


@pytest.fixture
def operator(operations: Operations) -> Invoke:
    return local(operations, OPERATOR)


Answer = Callable[[Any], ElicitResult]


@dataclass(slots=True)
class Connected:
    """A client, what its user was asked, and what it was told of progress."""

    client: Client
    asked: list[Any]
    progress: list[float]

    async def call(self, tool: str, **arguments: Any) -> CallToolResult:
        """Call a tool; its answer."""

        async def told(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append(progress)

        return await self.client.call_tool(tool, arguments, progress_callback=told)


Connect = Callable[..., contextlib.AbstractAsyncContextManager[Connected]]


@pytest.fixture
def connect(operations: Operations) -> Connect:
    """Connects a client to a server over ``operations``: ``answer`` is its user's; without one it cannot ask."""

    @contextlib.asynccontextmanager
    async def connecting(
        era: str = "2026-07-28", answer: Answer | None = None, *, may_approve: bool = True,
        is_alone: bool = False, over: Operations = operations, **terms: Any,
    ) -> AsyncGenerator[Connected]:  # fmt: skip
        async def made() -> Operations:
            return over

        server = make_server(LocalBackend(made, may_approve=may_approve, is_alone=is_alone), **terms)
        asked: list[Any] = []

        async def ask(context: Any, params: Any) -> ElicitResult:
            asked.append(params)
            assert answer is not None
            return answer(params)

        async with Client(server, mode=era, elicitation_callback=ask if answer else None) as client:
            yield Connected(client, asked, [])

    return connecting


def text_of(result: CallToolResult) -> str:
    """The text of an answer; there is one."""
    texts = [block.text for block in result.content if block.type == "text"]
    assert len(texts) == 1, result
    return texts[0]


def output_of(result: CallToolResult) -> str:
    """What of an answer is the program's, or a file's: all that is below the first line that says so."""
    return text_of(result).partition("\n[all below is ")[2].partition("]\n")[2]


def structure_of(result: CallToolResult) -> dict[str, Any]:
    """The structured answer."""
    assert isinstance(result.structured_content, dict), result
    return result.structured_content
