"""Tools that look, and small ones that change what is the caller's own: limits, and values between sessions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcp_types import CallToolResult

from casemate.surfaces.mcp import answers
from casemate.surfaces.mcp.call import Call
from casemate.surfaces.mcp.programs import LANGUAGES
from casemate.surfaces.mcp.tool import CHANGES, LOOKS, RUNS, Definition, number, text, whole

_MOST_RECORDS = 500


async def search_tools(call: Call) -> CallToolResult:
    """Find tools of MCP servers that programs can call."""
    order = {"query": str(call.arguments["query"]), "detail": call.arguments.get("detail", "brief")}
    found = await call.caller.invoke("tools.search", order)
    return answers.told(str(found) or "No tool fits. Other words may find one.")


async def validate_code(call: Call) -> CallToolResult:
    """Whether code is a program; it is never run."""
    order = {"code": str(call.arguments["code"]), "language": call.arguments.get("language", "python"), "fix": True}
    return _whole(await call.caller.invoke("validate", order))


async def list_runtimes(call: Call) -> CallToolResult:
    """The languages that are there."""
    return _whole(await call.caller.invoke("runtimes", {}))


async def sandbox_stats(call: Call) -> CallToolResult:
    """What goes on."""
    return _whole(await call.caller.invoke("stats", {}))


async def inspect_state(call: Call) -> CallToolResult:
    """The caller's own sessions, and what each holds."""
    sessions = await call.caller.invoke("sessions.list", {})
    held = [await call.caller.invoke("inspect", {"session": one["session"]}) for one in sessions]
    return _whole({"sessions": held})


async def set_resource_limits(call: Call) -> CallToolResult:
    """Narrow the caller's limits."""
    given = call.arguments
    limits: dict[str, Any] = {}
    if "max_ram_mb" in given:
        limits["memory"] = f"{given['max_ram_mb']}MiB"
    if "max_cpu_cores" in given:
        limits["cpus"] = given["max_cpu_cores"]
    if "timeout_seconds" in given:
        limits["wall"] = given["timeout_seconds"]
    return _whole(await call.caller.invoke("set_limits", {"limits": limits}))


async def audit_execution(call: Call) -> CallToolResult:
    """The caller's records."""
    limit = min(int(call.arguments.get("limit", 50)), _MOST_RECORDS)
    return _whole(await call.caller.invoke("audit.tail", {"limit": limit}))


async def bridge_data(call: Call) -> CallToolResult:
    """Bind values in another session: given ones, or the names of another."""
    given = call.arguments
    target, data = str(given["to_session"]), given["data"]
    source = given.get("from_session")
    if isinstance(data, Mapping):
        for name, value in data.items():
            await call.caller.invoke("sessions.set", {"session": target, "name": name, "value": value})
        names = sorted(data)
    else:
        names = [data] if isinstance(data, str) else [str(one) for one in data]
        if source is None:
            return answers.told(
                "from_session: is needed where data names variables; or give data as an object of values.",
                is_error=True,
            )
        for name in names:
            order = {"name": name, "source": str(source), "target": target}
            await call.caller.invoke("sessions.bridge", order)
    return answers.told(f"{', '.join(names)}: now in session {target}.", {"names": names, "to_session": target})


def _whole(document: Any) -> CallToolResult:
    """A report as JSON for a reader, with the same as structure where it is an object."""
    structured = document if isinstance(document, Mapping) else {"items": document}
    return answers.told(json.dumps(document, ensure_ascii=False, indent=1), structured)


_LANGUAGE = text("Language of the code.", enum=LANGUAGES, default="python")

SEARCH_TOOLS = Definition(
    "search_tools",
    "Find tools for programs",
    "Find tools of MCP servers that programs can call as Python functions: from mcptools.<server>.<tool> import run, "
    "then run(name=value). Each call may be asked about.",
    {"query": text("Words about what is to be done."),
     "detail": text("How much of each.", enum=["names", "brief", "full"], default="brief")},
    search_tools,
    required=("query",),
    kind=LOOKS,
)  # fmt: skip

VALIDATE_CODE = Definition(
    "validate_code",
    "Check code",
    "Whether code can be read as a program, with suggested fixes and doubtful places. It is never run.",
    {"code": text("The program."), "language": _LANGUAGE},
    validate_code,
    required=("code",),
    kind=LOOKS,
)

LIST_RUNTIMES = Definition(
    "list_runtimes",
    "List languages",
    "The languages whose interpreters are there, with versions, and the isolation in force.",
    {},
    list_runtimes,
    kind=LOOKS,
)

SANDBOX_STATS = Definition(
    "sandbox_stats", "Show what goes on", "Runs, sessions, and what they use.", {}, sandbox_stats, kind=LOOKS
)

INSPECT_STATE = Definition(
    "inspect_state",
    "Look into sessions",
    "Your open sessions: their variables' names and types, and the names of their environment variables.",
    {"namespace": text("Kept for compatibility: it is always your own.")},
    inspect_state,
    kind=LOOKS,
)

SET_RESOURCE_LIMITS = Definition(
    "set_resource_limits",
    "Narrow the limits",
    "Narrow the limits of what you run from now on; nothing widens them. Says what is in force.",
    {"max_ram_mb": {"type": "integer", "minimum": 1, "description": "MiB of memory."},
     "max_cpu_cores": number("Processors.", exclusiveMinimum=0),
     "timeout_seconds": number("Seconds of running.", exclusiveMinimum=0)},
    set_resource_limits,
    kind=CHANGES,
)  # fmt: skip

AUDIT_EXECUTION = Definition(
    "audit_execution",
    "Read the record",
    "Your latest records, the newest first, each with its hash and that of the record before it.",
    {"namespace": text("Kept for compatibility: it is always your own."), "limit": whole("Records.", default=50)},
    audit_execution,
    kind=LOOKS,
)

BRIDGE_DATA = Definition(
    "bridge_data",
    "Pass values to a session",
    "Bind values as names in a session of yours, of any language: an object of names and JSON values; or names of "
    "variables of from_session.",
    {"data": {"type": ["object", "array", "string"], "description": "Names and values, or names of variables."},
     "from_session": text("Handle of the session that has the variables."),
     "to_session": text("Handle of the session that is to have them.")},
    bridge_data,
    required=("data", "to_session"),
    gives={"names": {"type": "array", "items": {"type": "string"}}, "to_session": {"type": "string"}},
    given_always=("names", "to_session"),
    kind=RUNS,
)  # fmt: skip
