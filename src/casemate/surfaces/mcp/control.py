"""Tools for reports, limits, packages, MCP servers and hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcp_types import CallToolResult

from casemate.api.options import RunOptions
from casemate.errors import InvalidArgument
from casemate.policy.rules import PACKAGE_LANGUAGES
from casemate.surfaces.mcp import answers
from casemate.surfaces.mcp.callers import Call
from casemate.surfaces.mcp.programs import own_session
from casemate.surfaces.mcp.tool import CHANGES, LOOKS, Definition, number, option, text, whole
from casemate.surfaces.mcp.work import Answered, OneOperation, follow_job, tell_document

_MOST_RECORDS = 500
_ROOM, _INDENTED = 200, 60  # characters around a list's records, and around each record


async def inspect_state(call: Call) -> CallToolResult:
    """The caller's sessions and their content."""
    sessions = await call.caller.invoke("sessions.list", {})
    held = [await call.caller.invoke("inspect", {"session": one["session"]}) for one in sessions]
    return await tell_document(call, {"sessions": held})


async def set_resource_limits(call: Call) -> CallToolResult:
    """Change the caller's limits."""
    given = call.arguments
    limits: dict[str, Any] = {}
    if "max_ram_mb" in given:
        limits["memory"] = f"{given['max_ram_mb']}MiB"
    if "max_cpu_cores" in given:
        limits["cpus"] = given["max_cpu_cores"]
    if "timeout_seconds" in given:
        limits["wall"] = given["timeout_seconds"]
    return await tell_document(call, await call.caller.invoke("set_limits", {"limits": limits}))


async def audit_execution(call: Call) -> CallToolResult:
    """The caller's rows of the record."""
    limit = min(int(call.arguments.get("limit", 50)), _MOST_RECORDS)
    rows = await call.caller.invoke("audit.tail", {"limit": limit})
    left, shown = answers.MOST_TEXT - _ROOM, list[Any]()
    for row in rows:  # as many as fit whole, so that the text stays JSON
        left -= len(json.dumps(row, ensure_ascii=False, indent=1)) + _INDENTED
        if left < 0 and shown:
            break
        shown.append(row)
    return await tell_document(call, shown)


async def bridge_data(call: Call) -> CallToolResult:
    """Bind values in a session: given ones, or another session's variables."""
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
            return answers.text_answer(
                "from_session: is needed if data names variables; or give data as an object of values.",
                is_error=True,
            )
        for name in names:
            order = {"name": name, "source": str(source), "target": target}
            await call.caller.invoke("sessions.bridge", order)
    return answers.text_answer(f"{', '.join(names)}: now in session {target}.", {"names": names, "to_session": target})


async def _tell_found(_call: Call, found: str) -> CallToolResult:
    return answers.text_answer(found or "No tool matches. Try other words.")


SEARCH_TOOLS = Definition(
    "search_tools",
    "Find tools for programs",
    "Find tools of MCP servers that programs can call as Python functions: from mcptools.<server>.<tool> import run, "
    "then run(name=value). Each call may need an approval.",
    {"query": text("Words about the task."),
     "detail": text("How much of each.", enum=["names", "brief", "full"], default="brief")},
    OneOperation("tools.search", _tell_found),
    required=("query",),
    kind=LOOKS,
)  # fmt: skip

VALIDATE_CODE = Definition(
    "validate_code",
    "Check code",
    "Whether code can be parsed as a program, with suggested fixes and doubtful places. It is never run.",
    {"code": text("The program."), "language": option(RunOptions, "language", "Language of the code.")},
    OneOperation("validate", defaults={"fix": True}),
    required=("code",),
    kind=LOOKS,
)

LIST_RUNTIMES = Definition(
    "list_runtimes",
    "List languages",
    "The installed languages, with versions, and the isolation in force.",
    {},
    OneOperation("runtimes"),
    kind=LOOKS,
)

SANDBOX_STATS = Definition(
    "sandbox_stats", "Show activity", "Runs, sessions, and what they use.", {}, OneOperation("stats"), kind=LOOKS
)

INSPECT_STATE = Definition(
    "inspect_state",
    "Look into sessions",
    "Your open sessions: their variables' names and types, and the names of their environment variables.",
    {"namespace": text("Kept for compatibility; ignored.")},
    inspect_state,
    kind=LOOKS,
)

SET_RESOURCE_LIMITS = Definition(
    "set_resource_limits",
    "Change the limits",
    "Change the limits of your runs from now on, up to what the operator permits. Returns the limits in force.",
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
    {"namespace": text("Kept for compatibility; ignored."), "limit": whole("Records.", default=50)},
    audit_execution,
    kind=LOOKS,
)

BRIDGE_DATA = Definition(
    "bridge_data",
    "Pass values to a session",
    "Bind values as names in a session of yours, of any language: an object of names and JSON values, or names of "
    "variables of from_session.",
    {"data": {"type": ["object", "array", "string"], "description": "Names and values, or names of variables."},
     "from_session": text("Handle of the session that has the variables."),
     "to_session": text("Handle of the session that gets them.")},
    bridge_data,
    required=("data", "to_session"),
    gives={"names": {"type": "array", "items": {"type": "string"}}, "to_session": {"type": "string"}},
)  # fmt: skip


_MOST_NAMED = 100  # packages in an answer


async def install_package(call: Call) -> Answered:
    """Install packages for a session, or for all later runs."""
    given = call.arguments
    name, names = given.get("package_name"), given.get("packages")
    if (name is None) == (names is None):
        raise InvalidArgument("packages", "give packages: a list of requirements", remediation=INSTALL_PACKAGE.usage)
    wanted = [name] if names is None else ([names] if isinstance(names, str) else list(names))
    order: dict[str, Any] = {"packages": wanted, "language": given.get("language", "python")}
    if name is not None and call.resumed is None:
        order["session"] = await own_session(call)
    elif given.get("session"):
        order["session"] = given["session"]
    return await follow_job(call, "packages.install", order, "package", _tell_installation)


async def _tell_installation(_call: Call, result: Mapping[str, Any]) -> CallToolResult:
    packages = [f"{one['name']} {one['version']}" for one in result.get("packages") or []]
    named = ", ".join(packages[:_MOST_NAMED])
    if result.get("status") == "installed" or result.get("ok"):
        return answers.text_answer(f"Installed: {named or 'all were installed already'}.")
    reason = str(result.get("reason") or "it could not be installed")
    return answers.text_answer(f"{result.get('status', 'failed')}: {reason}", is_error=True)


async def register_mcp_server(call: Call) -> Answered:
    """Add an MCP server, which always needs an approval."""
    name = str(call.arguments["server_name"])
    order = {"name": name, "definition": dict(call.arguments["server_params"])}

    async def name_tools(_call: Call, tools: Any) -> CallToolResult:
        names = ", ".join(str(one["module"]).rpartition(".")[2] for one in tools or ())
        return answers.text_answer(f"The server {json.dumps(name)} is registered, with the tools {names}.")

    return await follow_job(call, "tools.register", order, "server", name_tools, server=name)


async def request_egress(call: Call) -> Answered:
    """Ask for access to a host."""
    given = {name: value for name, value in call.arguments.items() if value and name != "namespace"}
    return await follow_job(call, "egress.request", given, "egress", tell_decision)


async def tell_decision(_call: Call, result: Mapping[str, Any]) -> CallToolResult:
    """The answer with a decision that was asked for in advance."""
    return answers.text_answer(json.dumps(result, ensure_ascii=False), result, is_error=not result["allowed"])


_SERVER = {
    "type": "object",
    "description": "How to reach it: command and args (and env) of a program, or url (and headers) of an address. "
    "${NAME} stands for a secret of the operator's.",
}

INSTALL_PACKAGE = Definition(
    "install_package",
    "Install packages",
    "Install packages from the operator's index, for a session at once or for all later runs. A person or a rule "
    "decides about the exact files. Plain requirements only, such as requests>=2; no options, addresses or files.",
    {"packages": {"type": ["array", "string"], "items": {"type": "string"}, "description": "Requirements."},
     "language": text("Language of the packages.", enum=list(PACKAGE_LANGUAGES), default="python"),
     "session": text("Handle of a session of yours; default: all later runs.")},
    install_package,
    required=("packages",),
)  # fmt: skip

INSTALL_PACKAGE_BY_EITHER = Definition(
    "install_package",
    "Install packages",
    f"{INSTALL_PACKAGE.description} Give packages, or package_name for your IPython session.",
    {**INSTALL_PACKAGE.properties, "package_name": text("One requirement, for your IPython session.")},
    install_package,
)

REGISTER_MCP_SERVER = Definition(
    "register_mcp_server",
    "Register an MCP server",
    "Make an MCP server's tools callable from programs, as functions of mcptools.<server_name>. A person is always "
    "asked.",
    {"server_name": text("Its name in programs: letters, digits, _ and -."), "server_params": _SERVER},
    register_mcp_server,
    required=("server_name", "server_params"),
)

REQUEST_EGRESS = Definition(
    "request_egress",
    "Ask for a host",
    "Ask for permission to reach a host from programs. A person or a rule decides, and for how long: once, for a "
    "session, or for all of yours.",
    {
        "domain": text("Such as example.org."),
        "port": {
            "type": "integer",
            "minimum": 1,
            "maximum": 65535,
            "default": 443,
            "description": "Of the connection.",
        },
        "reason": text("Shown to the approver."),
        "session": text("Handle of the only session that may reach it."),
        "namespace": text("Kept for compatibility; ignored."),
    },
    request_egress,
    required=("domain",),
)
