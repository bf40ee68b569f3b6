"""MCP servers: how each is reached, a connection to each in a thread of their own, and what they say, bounded."""
