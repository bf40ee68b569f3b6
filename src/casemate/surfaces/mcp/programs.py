"""Tools that run programs, and those for what a run gives while it goes on and afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio
from mcp_types import CallToolResult

from casemate.api.options import RunOptions, SessionOptions
from casemate.model.call_options import USUAL_CELL_SECONDS
from casemate.surfaces.mcp import answers
from casemate.surfaces.mcp.answers import Page
from casemate.surfaces.mcp.callers import Call, Document, Refused, State
from casemate.surfaces.mcp.tool import CHANGES, ENDS, LOOKS, Definition, number, option, text, texts, whole
from casemate.surfaces.mcp.work import Answered, Concerns, Job, JobAnswer, Run, begin, follow, is_job, job_of, state_of

_FIRST = 1.0  # seconds in which a start cannot be cancelled: the handle is not known yet
_MOST_TIMEOUT = 3600.0
_CELL_CHARACTERS = 5000


async def execute_code(call: Call) -> Answered:
    """Run code in a fresh cell or a session."""
    order = dict(call.arguments)
    order["timeout"] = order.pop("timeout_seconds", None)
    order["files"] = {name: {"text": content} for name, content in (order.get("files") or {}).items()} or None
    return await _run(call, order, answers.OUTPUT)


async def execute_ipython_cell(call: Call) -> Answered:
    """Run a step in the caller's own session, which is opened when it is first needed."""
    order = {
        "code": call.arguments["code"],
        "session": None if call.resumed else await own_session(call),
        "timeout": call.arguments.get("timeout", USUAL_CELL_SECONDS),
    }
    return await _run(call, order, min(int(call.arguments.get("max_output_chars", _CELL_CHARACTERS)), answers.OUTPUT))


async def read_output(call: Call) -> Answered:
    """What a run has printed from a cursor on, when it is done or the time is over."""
    handle, cursor = str(call.arguments["run"]), int(call.arguments.get("cursor", 0))
    call.answer_within = min(call.answer_within, float(call.arguments.get("wait_seconds", call.answer_within)))
    if is_job(handle):
        job = job_of(call.caller, handle)
        return await follow(call, job, partial(job_answer, call, job), ends=False)
    run = Run(call.caller, handle)
    first = state_of(await call.caller.invoke("runs.wait", {"run": handle, "seconds": 0.0}))
    page = None if first.is_done else await _page(call, handle, cursor, answers.OUTPUT)
    if page is not None and not page.is_whole and call.resumed is None:
        return _tell_unfinished(call, first, handle, page, first.document.get("session"))
    return await follow(call, run, partial(_run_answer, call, cursor, answers.OUTPUT), first, ends=False)


async def cancel_run(call: Call) -> Answered:
    """End a run or a job."""
    handle = str(call.arguments["run"])
    if is_job(handle):
        job = job_of(call.caller, handle)
        await job.cancel()
        return await follow(call, job, partial(job_answer, call, job), ends=False)
    await call.caller.invoke("runs.cancel", {"run": handle})
    state = await Run(call.caller, handle).wait(call.seconds_left, frozenset())
    answer = await _run_answer(call, 0, answers.OUTPUT, state)
    return answer.model_copy(update={"is_error": False})  # that it was cancelled is what was asked for


async def reset(call: Call) -> CallToolResult:
    """Clear the state of the caller's own session; its files, packages and tools stay."""
    if call.caller.session is None:
        return answers.text_answer("There was nothing to reset: no cell has been executed yet.")
    await call.caller.invoke("sessions.reset", {"session": call.caller.session})
    return answers.text_answer("The session is reset: all names are gone, files and packages are kept.")


async def own_session(call: Call) -> str:
    """The handle of the session that tools without a session use; opened where there is none, or none any more."""
    caller = call.caller
    async with caller.turn:
        if caller.session is not None:
            mine = await caller.invoke("sessions.list", {})
            if caller.session not in [one["session"] for one in mine]:
                caller.session = None
        if caller.session is None:
            caller.session = await open_session(call, {"language": "python"})
    return caller.session


async def open_session(call: Call, terms: Mapping[str, Any]) -> str:
    """The handle of a new session."""
    state = await call.caller.invoke("sessions.open", terms)
    return str(state["session"])


async def follow_job(
    call: Call, operation: str, order: Mapping[str, Any], concerns: Concerns, answer: JobAnswer
) -> Answered:
    """A job from its beginning, or from where the call that comes back left it."""
    if call.resumed is None:
        job = begin(call.callers, call.caller, Job(call.caller, operation, order, concerns, answer))
    else:
        job = job_of(call.caller, call.resumed.work)
    return await follow(call, job, partial(job_answer, call, job))


def is_about(kind: str, question: Mapping[str, Any], name: str | None = None) -> bool:
    """Whether a question is of this kind, and about the server ``name`` where one is meant."""
    return question.get("kind") == kind and (name is None or question.get("server") == name)


def _tell_unfinished(call: Call, state: State, handle: str, page: Page, session: str | None) -> CallToolResult:
    can_answer, is_alone = call.can_ask(), call.callers.is_alone
    return answers.unfinished_answer(state, handle, page, session, can_answer=can_answer, is_alone=is_alone)


async def job_answer(call: Call, job: Job, state: State) -> Answered:
    """What came of a job, or what to call next."""
    if not state.is_done:
        return _tell_unfinished(call, state, job.handle, Page("", 0, True), None)
    if job.error is not None:
        return answers.failure(job.error)
    return await job.answer(call, job.result)


async def _run(call: Call, order: Mapping[str, Any], most: int) -> Answered:
    answer = partial(_run_answer, call, 0, most)
    if call.resumed is not None and not is_job(call.resumed.work):
        return await follow(call, Run(call.caller, call.resumed.work), answer)
    given = {name: value for name, value in order.items() if value is not None}
    if given.get("secrets"):
        return await follow_job(call, "runs.start", given, partial(is_about, "secret"), _follow_run)
    with anyio.CancelScope(shield=True):  # bounded; without the handle nobody could cancel what was begun
        wait = min(_FIRST, call.seconds_left)
        first = state_of(await call.caller.invoke("runs.start", {**given, "wait": wait}))
    return await follow(call, Run(call.caller, str(first.document["run"])), answer, first)


async def _follow_run(call: Call, started: Document) -> Answered:
    answer = partial(_run_answer, call, 0, answers.OUTPUT)
    return await follow(call, Run(call.caller, str(started["run"])), answer, state_of(started))


async def _run_answer(call: Call, cursor: int, most: int, state: State) -> CallToolResult:
    run, session = str(state.document["run"]), state.document.get("session")
    if not state.is_done:
        page = await _page(call, run, cursor, most)
        return _tell_unfinished(call, state, run, page, session)
    execution = state.document.get("execution")
    if execution is None:
        raise Refused(str((state.document.get("error") or {}).get("message") or f"nothing is known of run {run}"))
    whole = _whole_text(execution, is_step=session is not None)
    if cursor == 0 and len(whole) <= most and not execution.get("truncated"):
        page = Page(whole, len(whole), True)
    else:
        page = await _page(call, run, cursor, most)
    return answers.end_answer(state, page, session)


def _whole_text(execution: Mapping[str, Any], *, is_step: bool) -> str:
    """What a run has printed, and the traceback of a step, which nobody has printed: as ``runs.read`` gives it."""
    text = str(execution.get("text") or "")
    traceback = str((execution.get("error") or {}).get("traceback") or "") if is_step else ""
    if not traceback:
        return text
    text = text.removesuffix(traceback.strip()).rstrip()
    start = "\n" if text else ""
    return text + start + traceback + ("" if traceback.endswith("\n") else "\n")


async def _page(call: Call, run: str, cursor: int, most: int) -> Page:
    page = await call.caller.invoke("runs.read", {"run": run, "cursor": cursor, "limit": most})
    is_whole = len(page["text"]) < most or bool(page.get("is_done"))
    return Page(str(page["text"]), int(page["cursor"]), is_whole)


async def close_session(call: Call) -> CallToolResult:
    """End a session and every process in it."""
    handle = str(call.arguments["session_id"])
    await call.caller.invoke("sessions.close", {"session": handle})
    if call.caller.session == handle:
        call.caller.session = None
    return answers.text_answer(f"Session {handle} is closed.")


async def create_session(call: Call) -> Answered:
    """Open a session."""
    given, names = call.arguments, {"language": "language", "timeout_seconds": "idle_timeout", "secrets": "secrets"}
    terms = {name: given[key] for key, name in names.items() if key in given}
    return await follow_job(call, "sessions.open", terms, partial(is_about, "secret"), _tell_session)


async def _tell_session(_call: Call, opened: Document) -> CallToolResult:
    handle, language = opened["session"], opened["language"]
    return answers.text_answer(
        f'session: {handle}\nGive it as session="{handle}" to execute_code, in the language {language}.',
        {"session_id": handle, "language": language},
    )


_OUTCOME = answers.outcome_schema()
_ALWAYS = ("text", "run", "status", "cursor", "is_whole", "files")
_CODE = text("The program. Nothing of it is echoed; what it prints, displays and leaves as files is the answer.")
_LANGUAGE = option(RunOptions, "language", "Language of the session.")
_OF_PROGRAM = "Language of the program: unless given, that of the session, or python."
_HOSTS = (
    "Hosts that the program may reach, such as example.org or *.example.org. They only narrow what the operator "
    "permits; others are asked about."
)
_SECONDS = "Seconds of running; waiting for an approval does not count."
_SECRETS = "Names of the operator's secrets for its programs, which find them as variables. A person may be asked."

EXECUTE_CODE = Definition(
    "execute_code",
    "Run code",
    "Run a program in an isolated cell: no network but the hosts in allowed_domains, no files of this machine. Without "
    'session it is a fresh cell, without state afterwards; session="new" opens one that keeps its state, and says '
    "its handle. Files that the program writes into its working directory can be read afterwards with read_file. In "
    "Python, plots and display() give pictures, and tools of MCP servers are functions in mcptools (see search_tools).",
    {
        "code": _CODE,
        "language": option(RunOptions, "language", _OF_PROGRAM, default=None),
        "session": text('Handle of a session of yours, or "new". Left out: a fresh cell.'),
        "files": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Files to put into the working directory before: name to content.",
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
    "What a run has printed from a cursor on, and how it ended. Waits until it is over, until there is a full page, or "
    "for wait_seconds. Use it after an answer that says running, waiting or more output.",
    {
        "run": text("Handle of a run of yours."),
        "cursor": whole("Where to go on: the cursor of the answer before.", default=0),
        "wait_seconds": number("Seconds to wait at the most.", minimum=0, maximum=45, default=45),
    },
    read_output,
    required=("run",),
    kind=LOOKS,
)

CANCEL_RUN = Definition(
    "cancel_run",
    "End a run",
    "End a run that goes on or waits. What it has printed until then is in the answer. A session stays open.",
    {"run": text("Handle of a run of yours.")},
    cancel_run,
    required=("run",),
    kind=ENDS,
)

CREATE_SESSION = Definition(
    "create_session",
    "Open a session",
    "Open an interpreter that keeps its state between calls of execute_code, and give its handle.",
    {
        "language": _LANGUAGE,
        "timeout_seconds": option(
            SessionOptions,
            "idle_timeout",
            "Seconds without a step after which it ends; an hour unless the operator says otherwise.",
        ),
        "secrets": texts(_SECRETS),
    },
    create_session,
    gives={"session_id": {"type": "string"}, "language": {"type": "string"}},
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
