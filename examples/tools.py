"""A program calls tools of an MCP server in a loop: a rule lets it read, and an approver decides about each order."""

import asyncio
import sys
from pathlib import Path

from casemate import ApprovalRequest, Sandbox

PROGRAM = """
from mcptools import ToolError
from mcptools.warehouse import order, stock

for item, count in stock.run().items():
    if count < 10:
        try:
            print(order.run(item=item, count=1000 // count).result)
        except ToolError as error:
            print(item, error.kind)
"""
SERVERS = {"warehouse": {"command": sys.executable, "args": [str(Path(__file__).with_name("warehouse_server.py"))]}}
POLICY = {"rules": [{"allow": "tool", "server": "warehouse", "tool": "stock", "arguments": {}}]}


async def approve(request: ApprovalRequest) -> bool:
    print("asked:", request.tool, dict(request.arguments))
    return request.kind == "tool" and int(request.arguments["count"]) <= 200


async def main() -> None:
    async with Sandbox(tools=SERVERS, policy=POLICY, approve=approve) as sandbox:
        execution = await sandbox.run(PROGRAM)
        print(execution.text)


asyncio.run(main())
