"""MCP servers: their definitions, connections to them in one separate thread, and their bounded answers."""
