"""Which tools there are: a handful unless more are asked for, always in the same order."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

from casemate.errors import InvalidArgument

if TYPE_CHECKING:
    from casemate.surfaces.mcp.tool import Definition

Toolset = Literal["default", "sandboxmcp", "ipybox", "full"]


def check_toolset(name: str) -> None:
    """Raises ``InvalidArgument`` for one that there is not."""
    if name not in get_args(Toolset):
        raise InvalidArgument("toolset", f"{name!r} is not known; choose one of {', '.join(get_args(Toolset))}")


@cache
def tools_of(name: str) -> dict[str, Definition]:
    """The tools of a set, by name and in their order. Raises ``InvalidArgument``."""
    check_toolset(name)
    from casemate.surfaces.mcp import asked, files, programs, reports

    has_cells = name in ("ipybox", "full")
    chosen = [
        programs.EXECUTE_CODE, programs.READ_OUTPUT, programs.CANCEL_RUN, files.READ_FILE, files.WRITE_FILE,
        files.LIST_FILES, asked.INSTALL_PACKAGE_BY_EITHER if has_cells else asked.INSTALL_PACKAGE, reports.SEARCH_TOOLS,
    ]  # fmt: skip
    if name in ("sandboxmcp", "full"):
        chosen += [
            reports.VALIDATE_CODE, programs.CREATE_SESSION, programs.TERMINATE_SESSION, reports.BRIDGE_DATA,
            reports.LIST_RUNTIMES, reports.SET_RESOURCE_LIMITS, reports.SANDBOX_STATS, reports.INSPECT_STATE,
            files.GET_ARTIFACTS, asked.REQUEST_EGRESS, reports.AUDIT_EXECUTION,
        ]  # fmt: skip
    if has_cells:
        chosen += [programs.EXECUTE_IPYTHON_CELL, asked.REGISTER_MCP_SERVER, programs.RESET]
    return {one.name: one for one in chosen}
