"""Other programs that speak MCP: where each keeps its servers, and how casemate's is written there and taken out."""
