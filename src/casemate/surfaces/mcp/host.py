"""Tools for commands and files of the host that the operator opens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcp_types import CallToolResult

from casemate.host.files import MOST_READ
from casemate.surfaces.mcp import answers
from casemate.surfaces.mcp.callers import Call
from casemate.surfaces.mcp.control import tell_decision
from casemate.surfaces.mcp.tool import CHANGES, LOOKS, Definition, number, text, texts, whole
from casemate.surfaces.mcp.work import OneOperation, tell_document

_WORDS = (
    'The program\'s bare name and its words, such as ["git", "log", "-n", "3"]. No shell reads it: no pipes, no '
    "variables, no wildcards, one command at a time."
)
_EITHER = {"type": ["array", "string"]}
_PATH = text("An absolute path in an open folder; list_host_access lists these.")


async def _tell_result(_call: Call, result: Mapping[str, Any]) -> CallToolResult:
    head = f"exit code: {result['exit_code']}" if result["exit_code"] is not None else "it took too long and was ended"
    parts = [f"[{head}]", *(result[stream] for stream in ("stdout", "stderr") if result[stream])]
    return answers.text_answer("\n".join(parts), result, is_error=result["status"] != "ok")


async def _tell_file(_call: Call, file: Mapping[str, Any] | None) -> CallToolResult:
    told = f"{file['name']}: written, {file['size']:,} bytes" if file else "copied into the session"
    return answers.text_answer(told)


async def _tell_content(_call: Call, found: Mapping[str, Any]) -> CallToolResult:
    return answers.text_answer(found["text"] if found["text"] is not None else found["base64"], found)


async def _tell_entries(call: Call, entries: Any) -> CallToolResult:
    return await tell_document(call, {"entries": entries})


HOST_TOOLS = (
    Definition(
        "host_exec", "Run a command of the host",
        "Run a command outside the sandbox, where the operator permits it. A rule or a person decides about exactly "
        "these words. Prefer execute_code: it needs no permission.",
        {"command": texts(_WORDS) | _EITHER, "timeout": number("Seconds that it may take.", exclusiveMinimum=0),
         "secrets": texts("Names of the operator's secrets that it gets as variables.")},
        OneOperation("host.exec", _tell_result, asks="host"), required=("command",),
    ),
    Definition(
        "request_host_access", "Ask for a command of the host",
        "Ask whether a command may be run with host_exec later: a person decides, and for how long.",
        {"pattern": texts("As command of host_exec, exactly as it will be run.") | _EITHER,
         "reason": text("Shown to the approver.")},
        OneOperation("host.request_access", tell_decision, asks="host", names={"pattern": "command"}),
        required=("pattern",),
    ),
    Definition(
        "list_host_access", "Show what of the host is open",
        "The open folders, and which commands are allowed, approved, blocked, or wait for an answer.",
        {}, OneOperation("host.access"), kind=LOOKS,
    ),
    Definition(
        "host_file_read", "Read a file of the host", "Read a file in a folder of the host that the operator opened.",
        {"path": _PATH, "offset": whole("Byte to begin at.", default=0),
         "limit": whole("Bytes at the most.", minimum=1, maximum=MOST_READ)},
        OneOperation("host.read", _tell_content, defaults={"limit": answers.MOST_TEXT}), required=("path",), kind=LOOKS,
    ),
    Definition(
        "host_file_list", "List a folder of the host", "List a folder of the host that the operator has opened.",
        {"path": _PATH}, OneOperation("host.list", _tell_entries), required=("path",), kind=LOOKS,
    ),
    Definition(
        "host_file_write", "Write a file of the host",
        "Write a text file in a folder of the host that the operator has opened for writing. A person is shown the "
        "difference and decides.",
        {"path": _PATH, "content": text("The new content.")},
        OneOperation("host.write", _tell_file, asks="files", names={"content": "text"}),
        required=("path", "content"), kind=CHANGES,
    ),
    Definition(
        "host_file_copy", "Copy a file of the host",
        "Copy a file between open folders of the host, or into or out of a session of yours.",
        {"source": text("An absolute path, or SESSION:path with the handle of a session."),
         "destination": text("The same.")},
        OneOperation("host.copy", _tell_file, asks="files"), required=("source", "destination"), kind=CHANGES,
    ),
)  # fmt: skip
