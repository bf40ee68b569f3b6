"""Tools that run programs and read their output, and tools for sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
from mcp_types import CallToolResult

from casemate.api.options import RunOptions, SessionOptions
from casemate.model.call_options import USUAL_CELL_SECONDS
from casemate.surfaces.mcp import answers
from casemate.surfaces.mcp.callers import Call, Document
from casemate.surfaces.mcp.tool import CHANGES, ENDS, LOOKS, Definition, number, option, text, texts, whole
from casemate.surfaces.mcp.work import Answered, OneOperation, Run, follow, follow_job, work_of

_FIRST = 1.0  # seconds in which a start cannot be cancelled, because its handle is not known yet
_MOST_TIMEOUT = 3600.0
_CELL_CHARACTERS = 5000


async def execute_code(call: Call) -> Answered:
    """Run code in a fresh cell or a session."""
    order = dict(call.arguments)
    order["timeout"] = order.pop("timeout_seconds", None)
    order["files"] = {name: {"text": content} for name, content in (order.get("files") or {}).items()} or None
    return await _run(call, order, answers.OUTPUT)


async def execute_ipython_cell(call: Call) -> Answered:
    """Run a step in the caller's own session, opened on first use."""
    order = {
        "code": call.arguments["code"],
        "session": None if call.resumed else await own_session(call),
        "timeout": call.arguments.get("timeout", USUAL_CELL_SECONDS),
    }
    return await _run(call, order, min(int(call.arguments.get("max_output_chars", _CELL_CHARACTERS)), answers.OUTPUT))


async def _run(call: Call, order: Mapping[str, Any], most: int) -> Answered:
    if call.resumed is not None:
        return await follow(call, work_of(call.caller, call.resumed.work, most=most))
    given = {name: value for name, value in order.items() if value is not None}
    if given.get("secrets"):
        return await follow_job(call, "runs.start", given, "secret", _follow_run)
    with anyio.CancelScope(shield=True):  # bounded; without its handle the run could not be cancelled
        wait = min(_FIRST, call.seconds_left)
        started = await call.caller.invoke("runs.start", {**given, "wait": wait})
    return await follow(call, Run(call.caller, started["run"], most=most), started)


async def _follow_run(call: Call, started: Document) -> Answered:
    return await follow(call, Run(call.caller, started["run"]), started)


async def read_output(call: Call) -> Answered:
    """A run's output from a cursor on, once it is done or the time is over."""
    work = work_of(call.caller, str(call.arguments["run"]), int(call.arguments.get("cursor", 0)))
    call.answer_within = min(call.answer_within, float(call.arguments.get("wait_seconds", call.answer_within)))
    state = await work.wait(0.0, frozenset())
    is_first = call.resumed is None and state["status"] != "done"
    if is_first and isinstance(work, Run) and not (await work.read_page()).is_whole:
        return await work.answer(call, state)
    return await follow(call, work, state, ends=False)


async def cancel_run(call: Call) -> Answered:
    """End a run or a job."""
    work = work_of(call.caller, str(call.arguments["run"]))
    await work.cancel()
    if not isinstance(work, Run):
        return await follow(call, work, ends=False)
    answer = await work.answer(call, await work.wait(call.seconds_left, frozenset()))
    return answer.model_copy(update={"is_error": False})  # the cancellation is what was asked for


async def reset(call: Call) -> CallToolResult:
    """Clear the state of the caller's own session; files, packages and tools stay."""
    if call.caller.session is None:
        return answers.text_answer("Nothing to reset: no cell has been executed yet.")
    await call.caller.invoke("sessions.reset", {"session": call.caller.session})
    return answers.text_answer("The session is reset: all names are gone, files and packages are kept.")


async def own_session(call: Call) -> str:
    """The handle of the session for tools without a session parameter; opens one if needed."""
    caller = call.caller
    async with caller.turn:
        if caller.session is not None:
            mine = await caller.invoke("sessions.list", {})
            if caller.session not in [one["session"] for one in mine]:
                caller.session = None
        if caller.session is None:
            opened = await caller.invoke("sessions.open", {"language": "python"})
            caller.session = str(opened["session"])
    return caller.session


async def close_session(call: Call) -> CallToolResult:
    """End a session and every process in it."""
    handle = str(call.arguments["session_id"])
    await call.caller.invoke("sessions.close", {"session": handle})
    if call.caller.session == handle:
        call.caller.session = None
    return answers.text_answer(f"Session {handle} is closed.")


async def _tell_session(_call: Call, opened: Document) -> CallToolResult:
    handle, language = opened["session"], opened["language"]
    return answers.text_answer(
        f'session: {handle}\nGive it as session="{handle}" to execute_code, in the language {language}.',
        {"session_id": handle, "language": language},
    )


_OUTCOME = answers.outcome_schema()
_ALWAYS = ("text", "run", "status", "cursor", "is_whole", "files")
_CODE = text("The program. It is not echoed; the answer has what it prints, displays and leaves as files.")
_LANGUAGE = option(RunOptions, "language", "Language of the session.")
_OF_PROGRAM = "Language of the program: by default that of the session, or python."
_HOSTS = (
    "Hosts that the program may reach, such as example.org or *.example.org. They only narrow what the operator "
    "permits; other hosts need an approval."
)
_SECONDS = "Seconds of running time; waiting for an approval does not count."
_SECRETS = "Names of the operator's secrets, which programs get as variables. May need an approval."

EXECUTE_CODE = Definition(
    "execute_code",
    "Run code",
    "Run a program in an isolated cell: no network but the hosts in allowed_domains, no files of this machine. Without "
    'session it is a fresh cell that keeps no state; session="new" opens one that keeps its state, and returns '
    "its handle. Files that the program writes into its working directory can be read afterwards with read_file. In "
    "Python, plots and display() give pictures, and tools of MCP servers are functions in mcptools (see search_tools).",
    {
        "code": _CODE,
        "language": option(RunOptions, "language", _OF_PROGRAM, default=None),
        "session": text('Handle of a session of yours, or "new". Default: a fresh cell.'),
        "files": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Files to put into the working directory first: name to content.",
        },
        "allowed_domains": option(RunOptions, "allowed_domains", _HOSTS),
        "timeout_seconds": option(
            RunOptions, "timeout", f"{_SECONDS} They only narrow what the operator permits.", maximum=_MOST_TIMEOUT
        ),
        "secrets": texts(_SECRETS),
    },
    execute_code,
    required=("code",),
    gives=_OUTCOME,
    given_always=_ALWAYS,
)  # fmt: skip

READ_OUTPUT = Definition(
    "read_output",
    "Read a run's output",
    "What a run has printed from a cursor on, and how it ended. Waits until it ends, until a page is full, or "
    "for wait_seconds. Use it after an answer that says running, waiting or more output.",
    {
        "run": text("Handle of a run of yours."),
        "cursor": whole("Where to continue: the cursor of the previous answer.", default=0),
        "wait_seconds": number("Seconds to wait at most.", minimum=0, maximum=45, default=45),
    },
    read_output,
    required=("run",),
    kind=LOOKS,
)

CANCEL_RUN = Definition(
    "cancel_run",
    "End a run",
    "End a run that is running or waiting. The answer has what it printed until then. A session stays open.",
    {"run": text("Handle of a run of yours.")},
    cancel_run,
    required=("run",),
    kind=ENDS,
)

CREATE_SESSION = Definition(
    "create_session",
    "Open a session",
    "Open an interpreter that keeps its state between calls of execute_code. Returns its handle.",
    {
        "language": _LANGUAGE,
        "timeout_seconds": option(
            SessionOptions,
            "idle_timeout",
            "Seconds without a step after which it ends; an hour unless the operator sets another default.",
        ),
        "secrets": texts(_SECRETS),
    },
    OneOperation("sessions.open", _tell_session, asks="secret", names={"timeout_seconds": "idle_timeout"}),
    gives={"session_id": {"type": "string"}, "language": {"type": "string"}},
    given_always=(),
    kind=CHANGES,
)

TERMINATE_SESSION = Definition(
    "terminate_session",
    "Close a session",
    "End a session and every process in it.",
    {"session_id": text("Handle of a session of yours.")},
    close_session,
    required=("session_id",),
    kind=ENDS,
)

EXECUTE_IPYTHON_CELL = Definition(
    "execute_ipython_cell",
    "Run an IPython cell",
    "Run code in your IPython session, which keeps its state: variables, imports and functions. Shell commands (!), "
    "magics (%) and top-level await work.",
    {
        "code": text("The code of the cell."),
        "timeout": option(RunOptions, "timeout", _SECONDS, maximum=_MOST_TIMEOUT, default=USUAL_CELL_SECONDS),
        "max_output_chars": {"type": "integer", "minimum": 1, "default": _CELL_CHARACTERS,
                             "description": "Characters of output in the answer; read_output gives the rest."},
    },
    execute_ipython_cell,
    required=("code",),
    gives=_OUTCOME,
    given_always=_ALWAYS,
)  # fmt: skip

RESET = Definition(
    "reset",
    "Reset the IPython session",
    "Clear the state of your IPython session: all names are gone. Files and packages are kept.",
    {},
    reset,
    kind=ENDS,
)
