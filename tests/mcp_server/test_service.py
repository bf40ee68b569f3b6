"""``casemate serve`` and ``/mcp`` with the user's service: what programs ask for reaches any terminal of the user's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult
from tests.mcp_server.conftest import ERAS, OWN_SERVER, output_of, structure_of, text_of
from tests.service.daemon import reserved_port

from casemate.remote.client import connect

SECONDS = 60.0
CALLS = "from mcptools.own.echo import run\nprint('came', run(word='hello'))"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a user of their own, whose service ends with the tests."""
    folder = tmp_path_factory.mktemp("home")
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
    servers = folder / "servers.json"
    servers.write_text(
        f'{{"mcpServers": {{"own": {{"command": "{sys.executable}", "args": ["-S", "{OWN_SERVER}", "good"]}}}}}}',
        encoding="utf-8",
    )
    environ = {**kept, "HOME": str(folder), "CASEMATE_TOOLS": str(servers)}
    try:
        yield environ
    finally:
        casemate(environ, "service", "stop")


def casemate(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "casemate", *arguments], env=environ, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("era", ERAS)
async def test_what_a_program_asks_for_can_be_answered_from_any_terminal(home: dict[str, str], era: str) -> None:
    command = StdioServerParameters(command=sys.executable, args=["-m", "casemate", "serve"], env=home)
    async with Client(stdio_client(command), mode=era) as client:
        operator = await connect(environ=home)
        try:

            async def decide() -> None:
                while not (waiting := await operator("approvals.pending", {})):
                    await asyncio.sleep(0.02)
                assert waiting[0]["caller"].startswith("agent:mcp:")
                assert await operator("approvals.decide", {"request": waiting[0]["id"], "allow": True})

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(decide())
                answer = await client.call_tool("execute_code", {"code": CALLS})
            assert "came" in text_of(answer)
        finally:
            await operator.close()


async def test_the_user_answers_in_the_client_for_its_agent_through_the_service(home: dict[str, str]) -> None:
    asked: list[Any] = []

    async def answer(context: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"answer": "allow once"})

    command = StdioServerParameters(command=sys.executable, args=["-m", "casemate", "serve"], env=home)
    async with Client(stdio_client(command), elicitation_callback=answer) as client:
        assert "came" in text_of(await client.call_tool("execute_code", {"code": CALLS}))
        assert len(asked) == 1


async def test_what_a_client_leaves_behind_ends_with_it(home: dict[str, str]) -> None:
    command = StdioServerParameters(command=sys.executable, args=["-m", "casemate", "serve"], env=home)
    operator = await connect(environ=home)
    try:
        async with Client(stdio_client(command)) as client:
            opened = await client.call_tool("execute_code", {"code": "x = 1", "session": "new"})
            session = structure_of(opened)["session"]
            assert session in [one["session"] for one in await operator("sessions.list", {})]
        async with asyncio.timeout(SECONDS):
            while session in [one["session"] for one in await operator("sessions.list", {})]:
                await asyncio.sleep(0.05)
    finally:
        await operator.close()


@pytest.fixture(scope="module")
def served(home: dict[str, str]) -> Iterator[tuple[str, str]]:
    """A service on TCP: its address and the token of an agent."""
    casemate(home, "service", "stop")
    made = casemate(home, "service", "token", "add", "an-agent")
    token = re.search(r"[A-Za-z0-9_.-]{20,}", made.stdout)
    assert token, made
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        serving = subprocess.Popen(
            [sys.executable, "-m", "casemate", "service", "--listen", address], env=home, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until_it_answers(f"http://{address}/v1/health")
            yield f"http://{address}/mcp", token[0]
        finally:
            serving.terminate()
            serving.wait(60)


def until_it_answers(address: str) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx2.TransportError):
            if httpx2.get(address).status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"nobody answers at {address}")


async def test_what_a_client_over_http_leaves_behind_ends_with_its_mcp_session(
    served: tuple[str, str], home: dict[str, str]
) -> None:
    address, token = served
    operator = await connect(environ=home)

    async def open_sessions() -> set[str]:
        return {one["session"] for one in await operator("sessions.list", {})}

    try:
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=SECONDS) as known,
            Client(streamable_http_client(address, http_client=known), mode="legacy") as stays,
        ):
            kept = structure_of(await stays.call_tool("execute_code", {"code": "x = 1", "session": "new"}))
            async with Client(streamable_http_client(address, http_client=known), mode="legacy") as leaves:
                left = structure_of(await leaves.call_tool("execute_code", {"code": "x = 1", "session": "new"}))
                assert {kept["session"], left["session"]} <= await open_sessions()
            async with asyncio.timeout(SECONDS):
                while await open_sessions() != {kept["session"]}:
                    await asyncio.sleep(0.05)
            again = await stays.call_tool("execute_code", {"code": "print(x)", "session": kept["session"]})
            assert output_of(again).startswith("1")
    finally:
        await operator.close()
