"""Other MCP clients: where each keeps its servers, and how casemate's entry is added and removed."""
