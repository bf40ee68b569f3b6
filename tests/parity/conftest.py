"""An event loop and a sandbox for each file; clients of the MCP server, and the command line."""

from tests.mcp_server.conftest import connect, operations, operator
from tests.oversight.conftest import runner, sandbox
from tests.surfaces.conftest import cache, cli, make_cli

__all__ = ["cache", "cli", "connect", "make_cli", "operations", "operator", "runner", "sandbox"]
