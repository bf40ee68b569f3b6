"""Tools for commands and files of the host, as far as the operator opens them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from mcp_types import CallToolResult

from casemate.host.files import MOST_READ
from casemate.surfaces.mcp import answers
from casemate.surfaces.mcp.callers import Call
from casemate.surfaces.mcp.control import document_answer, report_of, tell_decision
from casemate.surfaces.mcp.programs import follow_job, is_about
from casemate.surfaces.mcp.tool import CHANGES, LOOKS, Definition, Handler, number, text, texts, whole
from casemate.surfaces.mcp.work import Answered, JobAnswer

_WORDS = (
    'The program\'s bare name and its words, such as ["git", "log", "-n", "3"]. No shell reads it: no pipes, no '
    "variables, no wildcards, one command at a time."
)
_EITHER = {"type": ["array", "string"]}
_PATH = text("An absolute path in a folder that is open; list_host_access names these.")


def _asks(operation: str, kind: str, answer: JobAnswer, **names: str) -> Handler:
    """Does what somebody may be asked about, with the tool's own arguments. ``kind``: of the question; ``names``: what
    the operation calls an argument that has another name there."""

    async def ask(call: Call) -> Answered:
        order = {names.get(name, name): value for name, value in call.arguments.items()}
        return await follow_job(call, operation, order, partial(is_about, kind), answer)

    return ask


async def _tell_result(_call: Call, result: Mapping[str, Any]) -> CallToolResult:
    head = f"exit code: {result['exit_code']}" if result["exit_code"] is not None else "it took too long and was ended"
    parts = [f"[{head}]", *(result[stream] for stream in ("stdout", "stderr") if result[stream])]
    return answers.text_answer("\n".join(parts), result, is_error=result["status"] != "ok")


async def _tell_file(_call: Call, file: Mapping[str, Any] | None) -> CallToolResult:
    told = f"{file['name']}: written, {file['size']:,} bytes" if file else "copied into the session"
    return answers.text_answer(told)


async def host_file_read(call: Call) -> CallToolResult:
    """Read a file of the host."""
    found = await call.caller.invoke("host.read", {"limit": answers.MOST_TEXT, **call.arguments})
    return answers.text_answer(found["text"] if found["text"] is not None else found["base64"], found)


async def host_file_list(call: Call) -> CallToolResult:
    """List a folder of the host."""
    return document_answer({"entries": await call.caller.invoke("host.list", call.arguments)})


HOST_TOOLS = (
    Definition(
        "host_exec", "Run a command of the host",
        "Run a command outside the sandbox, where the operator permits that. A rule or a person decides about exactly "
        "these words. Prefer execute_code: it needs no permission.",
        {"command": texts(_WORDS) | _EITHER, "timeout": number("Seconds that it may take.", exclusiveMinimum=0),
         "secrets": texts("Names of the operator's secrets that it gets as variables.")},
        _asks("host.exec", "host", _tell_result), required=("command",),
    ),
    Definition(
        "request_host_access", "Ask for a command of the host",
        "Ask whether a command may be run with host_exec later: a person decides, and for how long.",
        {"pattern": texts("As command of host_exec, exactly as it will be run.") | _EITHER,
         "reason": text("Shown to whoever decides.")},
        _asks("host.request_access", "host", tell_decision, pattern="command"), required=("pattern",),
    ),
    Definition(
        "list_host_access", "Show what of the host is open",
        "The folders that are open, and which commands are allowed, approved, blocked, or wait for an answer.",
        {}, report_of("host.access"), kind=LOOKS,
    ),
    Definition(
        "host_file_read", "Read a file of the host", "Read a file in a folder of the host that the operator opened.",
        {"path": _PATH, "offset": whole("Byte to begin at.", default=0),
         "limit": whole("Bytes at the most.", minimum=1, maximum=MOST_READ)},
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
        _asks("host.write", "files", _tell_file, content="text"), required=("path", "content"), kind=CHANGES,
    ),
    Definition(
        "host_file_copy", "Copy a file of the host",
        "Copy a file between folders of the host that are open, or into or out of a session of yours.",
        {"source": text("An absolute path, or SESSION:path with the handle of a session."),
         "destination": text("The same.")},
        _asks("host.copy", "files", _tell_file), required=("source", "destination"), kind=CHANGES,
    ),
)  # fmt: skip
