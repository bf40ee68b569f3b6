"""A small MCP server for `tools.py`: what lies in a warehouse, and orders of more of it."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("warehouse")
STOCK = {"bolts": 120, "nuts": 8, "washers": 3}


@server.tool()
def stock() -> dict[str, int]:
    """How many there are of each item."""
    return STOCK


@server.tool()
def order(item: str, count: int) -> str:
    """Order more of an item."""
    return f"{count} {item} ordered"


server.run()
