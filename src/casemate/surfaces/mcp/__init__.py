"""casemate as an MCP server: tools for agents, a thin layer over the operations marked for them."""
