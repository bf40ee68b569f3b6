"""MCP servers as code: connections to servers, their tools as functions, and calls from cells."""
