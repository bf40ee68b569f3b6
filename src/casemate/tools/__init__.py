"""MCP servers as code: tools described, generated as functions, called by programs in cells."""
