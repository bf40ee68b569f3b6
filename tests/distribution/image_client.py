"""What somebody does with the service in a container, from outside: a program, with the tokens of a person and of an
agent. Prints what came of it."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from casemate import Sandbox

ADDRESS = "http://127.0.0.1:8321"
MCP_SECONDS = 60.0


async def main(token: str, agents_token: str) -> dict[str, Any]:
    async with (
        await Sandbox.connect(ADDRESS, token=token) as sandbox,
        await Sandbox.connect(ADDRESS, token=agents_token) as agent,
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {agents_token}"}, timeout=MCP_SECONDS) as http,
        Client(streamable_http_client(f"{ADDRESS}/mcp", http_client=http)) as client,
    ):
        async with sandbox.session() as session:
            await session.run("x = 20")
            text = (await session.run("x + 1")).text
        asking = asyncio.ensure_future(agent.egress.request("example.test"))
        while not (waiting := await asyncio.to_thread(sandbox.approvals.pending)):
            await asyncio.sleep(0.01)
        (request,) = waiting
        await request.deny("not today")
        answer = await client.call_tool("execute_code", {"code": "print(6 * 7)"})
        said = "".join(one.text for one in answer.content if isinstance(one, TextContent))
        return {
            "session": text,
            "asked": request.arguments["host"],
            "denied": not (await asking).allowed,
            "mcp": said.partition("[all below is the program's output]\n")[2],
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
