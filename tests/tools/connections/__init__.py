"""Connections to real MCP servers: the reference ones, and some that no one should have written."""
