"""MCP servers as code: connections to them, their tools as functions, and the calls that programs in cells make."""
