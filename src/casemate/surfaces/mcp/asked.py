"""Tools whose wish is put to a person: packages, servers of tools, and hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from mcp_types import CallToolResult, InputRequiredResult

from casemate.errors import InvalidArgument
from casemate.surfaces.mcp.call import Call
from casemate.surfaces.mcp.jobs import Job, begin
from casemate.surfaces.mcp.programs import follow_job, own_session
from casemate.surfaces.mcp.tool import Definition, text

_LANGUAGES = ["python", "node"]
_MOST_NAMED = 100  # packages in an answer


async def install_package(call: Call) -> CallToolResult | InputRequiredResult:
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
    return await follow_job(
        call, partial(_job, call, "packages.install", order, partial(_is_of, "package"), _installed)
    )


async def register_mcp_server(call: Call) -> CallToolResult | InputRequiredResult:
    """Add a server of tools, which is always asked about."""
    name = str(call.arguments["server_name"])
    order = {"name": name, "definition": dict(call.arguments["server_params"])}
    concerns = partial(_is_of, "server", name=name)
    told = partial(_said, f"The server {json.dumps(name)} is registered: search_tools finds its tools.")
    return await follow_job(call, partial(_job, call, "tools.register", order, concerns, told))


async def request_egress(call: Call) -> CallToolResult | InputRequiredResult:
    """Ask for a host."""
    domain = str(call.arguments["domain"])
    return await follow_job(
        call, partial(_job, call, "egress.request", {"domain": domain}, partial(_is_of, "egress"), _decided)
    )


def _job(call: Call, operation: str, order: Mapping[str, Any], concerns: Any, told: Any) -> Job:
    return begin(call.callers, call.caller, Job(call.caller, operation, order, concerns, told))


def _is_of(kind: str, question: Mapping[str, Any], name: str | None = None) -> bool:
    """Whether a question is of this kind, and of no program's."""
    return question.get("kind") == kind and (name is None or question.get("server") == name)


def _installed(result: Mapping[str, Any]) -> tuple[str, bool]:
    packages = [f"{one['name']} {one['version']}" for one in result.get("packages") or []]
    named = ", ".join(packages[:_MOST_NAMED])
    if result.get("status") == "installed" or result.get("ok"):
        return f"Installed: {named or 'everything was there already'}.", False
    reason = str(result.get("reason") or "it could not be installed")
    return f"{result.get('status', 'failed')}: {reason}", True


def _said(words: str, _result: Any) -> tuple[str, bool]:
    return words, False


def _decided(result: Any) -> tuple[str, bool]:
    if isinstance(result, Mapping):
        allowed = bool(result.get("allow", result.get("allowed")))
        return json.dumps(result, ensure_ascii=False), not allowed
    return json.dumps(result), not result


_SERVER = {
    "type": "object",
    "description": "How it is reached: command and args (and env) of a program, or url (and headers) of an address. "
    "${NAME} stands for a secret of the operator's.",
}

INSTALL_PACKAGE = Definition(
    "install_package",
    "Install packages",
    "Install packages from the operator's index, for a session at once or for all later runs. A person or a rule "
    "decides about the exact files. Plain requirements only, such as requests>=2; no options, addresses or files.",
    {"packages": {"type": ["array", "string"], "items": {"type": "string"}, "description": "Requirements."},
     "language": text("Language of the packages.", enum=_LANGUAGES, default="python"),
     "session": text("Handle of a session of yours; left out, for all later runs.")},
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
    {"server_name": text("What programs call it: letters, digits, _ and -."), "server_params": _SERVER},
    register_mcp_server,
    required=("server_name", "server_params"),
)

REQUEST_EGRESS = Definition(
    "request_egress",
    "Ask for a host",
    "Ask for permission to reach a host from programs. A person or a rule decides.",
    {"domain": text("Such as example.org."), "namespace": text("Kept for compatibility: it is always your own.")},
    request_egress,
    required=("domain",),
)
