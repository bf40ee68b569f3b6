"""An MCP server with the one tool of the reference server ``mcp-server-time`` that tests call, started in 30 ms."""

from __future__ import annotations

import json
import sys
from typing import Any

WORDS = {name: {"type": "string"} for name in ("source_timezone", "time", "target_timezone")}
ZONE = {"type": "object", "properties": {"timezone": {"type": "string"}}, "required": ["timezone"]}
TOOL = {
    "name": "convert_time",
    "description": "Convert time between timezones",
    "inputSchema": {"type": "object", "properties": WORDS, "required": [*WORDS]},
    "outputSchema": {"type": "object", "properties": {"target": ZONE}, "required": ["target"]},
}


def call(arguments: dict[str, str]) -> dict[str, Any]:
    zone = arguments["target_timezone"]
    if zone == "No/Where":
        return {"content": [{"type": "text", "text": f"no time zone {zone}"}], "isError": True}
    if zone == "picture":
        return {"content": [{"type": "image", "mimeType": "image/png", "data": "AAAA" * 1344 + "AA=="}]}
    structured = {"target": {"timezone": zone}}
    return {"content": [{"type": "text", "text": json.dumps(structured)}], "structuredContent": structured}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        version, name = params["protocolVersion"], {"name": "time", "version": "1"}
        return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": name}}
    if method == "tools/list":
        return {"result": {"tools": [TOOL]}}
    if method == "tools/call":
        return {"result": call(params["arguments"])}
    return {"error": {"code": -32601, "message": "Method not found"}}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        reply = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)
