"""A client of casemate's MCP server: runs programs, keeps a session, reads a file, and answers what is asked."""

import asyncio
import os
import sys
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import ElicitRequestParams, ElicitResult, TextContent

SERVER = StdioServerParameters(
    command=sys.executable, args=["-m", "casemate", "serve", "--embedded"], env=dict(os.environ)
)


async def ask(context: Any, params: ElicitRequestParams) -> ElicitResult:  # noqa: ARG001
    print(params.message)
    return ElicitResult(action="accept", content={"answer": "deny", "reason": "only an example"})


async def call(client: Client, tool: str, **arguments: str) -> Any:
    answer = await client.call_tool(tool, arguments)
    print(*(block.text for block in answer.content if isinstance(block, TextContent)))
    return answer.structured_content


async def main() -> None:
    async with Client(stdio_client(SERVER), elicitation_callback=ask) as client:
        await call(client, "execute_code", code="print(6 * 7)")

        opened = await call(client, "execute_code", code="x = 20", session="new")
        await call(client, "execute_code", code="x + 1", session=opened["session"])

        left = await call(client, "execute_code", code="open('note.txt', 'w').write('read me')")
        await call(client, "read_file", run=left["run"], path="note.txt")


asyncio.run(main())
