"""Tools for commands and files of the host, as far as the operator opens them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from mcp_types import CallToolResult, InputRequiredResult

from casemate.host.files import MOST_READ
from casemate.surfaces.mcp import answers
from casemate.surfaces.mcp.callers import Call
from casemate.surfaces.mcp.programs import follow_job, is_about
from casemate.surfaces.mcp.tool import CHANGES, LOOKS, Definition, number, text, texts, whole

_COMMAND = {
    "type": ["array", "string"],
    "items": {"type": "string"},
    "description": 'The program\'s bare name and its words, such as ["git", "log", "-n", "3"]. No shell reads it: no '
    "pipes, no variables, no wildcards, one command at a time.",
}
_PATH = text("An absolute path in a folder that is open; list_host_access names these.")


async def host_exec(call: Call) -> CallToolResult | InputRequiredResult:
    """Run a command of the host."""
    order = {name: call.arguments[name] for name in ("command", "timeout", "secrets") if name in call.arguments}
    return await follow_job(call, "host.exec", order, partial(is_about, "host"), _tell_result)


async def _tell_result(_call: Call, result: Mapping[str, Any]) -> CallToolResult:
    head = f"exit code: {result['exit_code']}" if result["exit_code"] is not None else "it took too long and was ended"
    parts = [f"[{head}]", *(result[stream] for stream in ("stdout", "stderr") if result[stream])]
    return answers.text_answer("\n".join(parts)[: answers.MOST_TEXT], dict(result), is_error=result["status"] != "ok")


async def request_host_access(call: Call) -> CallToolResult | InputRequiredResult:
    """Ask for a command ahead."""
    order = {"command": call.arguments["pattern"], "reason": call.arguments.get("reason", "")}
    return await follow_job(call, "host.request_access", order, partial(is_about, "host"), _tell_decision)


async def _tell_decision(_call: Call, result: Mapping[str, Any]) -> CallToolResult:
    return answers.text_answer(json.dumps(result, ensure_ascii=False), dict(result), is_error=not result["allowed"])


async def list_host_access(call: Call) -> CallToolResult:
    """What of the host is open."""
    return _document(await call.caller.invoke("host.access", {}))


async def host_file_read(call: Call) -> CallToolResult:
    """Read a file of the host."""
    given = call.arguments
    order = {"path": given["path"], "offset": given.get("offset", 0), "limit": given.get("limit", answers.MOST_TEXT)}
    found = await call.caller.invoke("host.read", order)
    return answers.text_answer(found["text"] if found["text"] is not None else found["base64"], dict(found))


async def host_file_list(call: Call) -> CallToolResult:
    """List a folder of the host."""
    return _document({"entries": await call.caller.invoke("host.list", {"path": call.arguments["path"]})})


async def host_file_write(call: Call) -> CallToolResult | InputRequiredResult:
    """Write a file of the host."""
    order = {"path": call.arguments["path"], "text": call.arguments["content"]}
    return await follow_job(call, "host.write", order, partial(is_about, "files"), _tell_file)


async def host_file_copy(call: Call) -> CallToolResult | InputRequiredResult:
    """Copy a file of the host."""
    order = {"source": call.arguments["source"], "destination": call.arguments["destination"]}
    return await follow_job(call, "host.copy", order, partial(is_about, "files"), _tell_file)


async def _tell_file(_call: Call, file: Mapping[str, Any] | None) -> CallToolResult:
    return answers.text_answer(
        f"{file['path']}: written, {file['size']:,} bytes" if file else "copied into the session"
    )


def _document(document: Mapping[str, Any]) -> CallToolResult:
    return answers.text_answer(json.dumps(document, ensure_ascii=False, indent=1), document)


HOST_TOOLS = (
    Definition(
        "host_exec", "Run a command of the host",
        "Run a command outside the sandbox, where the operator permits that. A rule or a person decides about exactly "
        "these words. Prefer execute_code: it needs no permission.",
        {"command": _COMMAND, "timeout": number("Seconds that it may take.", exclusiveMinimum=0),
         "secrets": texts("Names of the operator's secrets that it gets as variables.")},
        host_exec, required=("command",),
    ),
    Definition(
        "request_host_access", "Ask for a command of the host",
        "Ask whether a command may be run with host_exec later: a person decides, and for how long.",
        {"pattern": {**_COMMAND, "description": f"{_COMMAND['description']} Exactly as it will be run."},
         "reason": text("Shown to whoever decides.")},
        request_host_access, required=("pattern",),
    ),
    Definition(
        "list_host_access", "Show what of the host is open",
        "The folders that are open, and which commands are allowed, approved, blocked, or wait for an answer.",
        {}, list_host_access, kind=LOOKS,
    ),
    Definition(
        "host_file_read", "Read a file of the host", "Read a file in a folder of the host that the operator opened.",
        {"path": _PATH, "offset": whole("Byte to begin at.", default=0),
         "limit": {"type": "integer", "minimum": 1, "maximum": MOST_READ, "description": "Bytes at the most."}},
        host_file_read, required=("path",), kind=LOOKS,
    ),
    Definition(
        "host_file_list", "List a folder of the host", "List a folder of the host that the operator has opened.",
        {"path": _PATH}, host_file_list, required=("path",), kind=LOOKS,
    ),
    Definition(
        "host_file_write", "Write a file of the host",
        "Write a text file in a folder of the host that the operator has opened for writing. A person is shown the "
        "difference and decides.",
        {"path": _PATH, "content": text("All that it is to hold.")},
        host_file_write, required=("path", "content"), kind=CHANGES,
    ),
    Definition(
        "host_file_copy", "Copy a file of the host",
        "Copy a file between folders of the host that are open, or into or out of a session of yours.",
        {"source": text("An absolute path, or SESSION:path with the handle of a session."),
         "destination": text("The same.")},
        host_file_copy, required=("source", "destination"), kind=CHANGES,
    ),
)  # fmt: skip
