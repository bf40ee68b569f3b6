"""``casemate run`` and ``validate`` as parsed by cyclopts, and the commands for runs in the service."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from casemate.errors import InvalidArgument
from casemate.model.foreign import option_hint
from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.answers import format_age, print_answer, print_json, print_lines, table_of
from casemate.surfaces.cli.commands import asks
from casemate.surfaces.cli.connection import PLAIN, Quiet, ServiceOptions, ask_each, list_rows, with_service
from casemate.surfaces.cli.failures import exit_code_of_error, say
from casemate.surfaces.cli.parameters import PROGRAM_LIMITS, Name, Output, Raw, RunHandle, takes

if TYPE_CHECKING:
    from casemate.remote.client import RemoteOperations


@takes(
    "language", "timeout", *PROGRAM_LIMITS, "files", "env", "secrets", "namespace", "stdin", "output_dir",
    "workspace", "workspace_mode", "allow_read", "environment", "isolation", "image", "runtime", "policy",
    "allowed_domains", "allow_local", "tools",
    language="python, node or shell, if the file's name does not tell. Standard input is python.",
)  # fmt: skip
def run(
    script: Name,
    /,
    *args: str,
    explain: bool = False,
    raw: bool = False,
    review: bool = False,
    format: Literal["text", "json"] = "text",  # noqa: A002 - the option's name
    with_: Annotated[tuple[str, ...], Parameter(name="--with")] = (),
    with_requirements: tuple[str, ...] = (),
    **options: Any,
) -> int:
    """Run a program in a cell.

    casemate run --with pandas script.py

    casemate run script.py --file data.csv --output out --allow pypi.org

    stdout, stderr and the exit code are the program's. casemate's own lines go to stderr and begin with "casemate:".
    Sizes are numbers of bytes, or e.g. 512MiB.

    Args:
        script: The program: a file (.py, .js, .mjs, .cjs, .ts, .mts, .sh), or - for standard input.
        args: The program's own arguments. Put -- before them when one begins with a hyphen.
        explain: Print what would be done and with which limits, and run nothing.
        raw: Send the program's bytes to the terminal unchanged. They can do to it anything that it obeys.
        review: At its end show what it changed in the folder, and ask before anything is written: as --workspace-mode
            review.
        format: text (default), or json: one JSON object with the whole outcome on stdout, without the program's output.
        with_: A package from the operator's index that it needs, such as pandas or pandas==2.3.0. May be repeated.
        with_requirements: The same, from a requirements.txt, a pyproject.toml, or a dependency group of one:
            pyproject.toml:test. May be repeated. You are asked about what a script declares itself (# /// script).
    """
    from casemate.surfaces.cli.run import RunRequest
    from casemate.surfaces.cli.run import run as run_program

    if script.startswith("-") and script != "-":
        hint = option_hint(script) or f"a file of that name is ./{script}"
        raise InvalidArgument("code", f"there is no option {script}; {hint}")
    if review:
        if options.get("workspace_mode") not in (None, "review"):
            raise InvalidArgument("workspace_mode", "must be review with --review")
        options["workspace_mode"] = "review"
    packages = with_
    if with_requirements:
        from casemate.packages.requirement_files import read_file

        packages = (*with_, *chain.from_iterable(map(read_file, with_requirements)))
    return run_program(RunRequest(script, args, options, packages=packages, explain=explain, raw=raw, format=format))


def validate(
    script: Name,
    /,
    *,
    language: str | None = None,
    fix: bool = False,
    output: Output = "text",
) -> int:
    """Check a program in a cell without running it. The exit code is 1 if it cannot run.

    casemate validate script.py

    casemate validate script.py --fix > fixed.py

    Args:
        script: The program's file, or - for standard input.
        language: python, node or shell, if the file's name does not tell.
        fix: Print the program with safe fixes; its file is not changed.
    """
    from casemate.api.sandbox import Sandbox
    from casemate.surfaces.cli.inputs import configured_arguments, language_of, program_in

    code, language = program_in(script), language or language_of(script)
    found = interrupts.run_in(
        Sandbox(**configured_arguments()), lambda sandbox: sandbox.validate(code, language, fix=fix)
    )
    if output == "json":
        from casemate.operations.documents import document

        print_json(document(found))
        return 0 if found.valid else 1
    for note in found.notes:
        say(note)
    issues = [f"{script}:{issue.line}:{issue.column}: {issue.severity}: {issue.message}" for issue in found.issues]
    if fix:
        whole = code.decode(errors="replace") if found.fixed_code is None else found.fixed_code
        print(whole, end="")  # noqa: T201 - the caller's own program
        if found.fixed_code is None:
            for issue in issues:
                say(issue)
    else:
        print_lines(issues)
    return 0 if found.valid else 1


_PAGE = 200_000  # characters of output in one answer
_LONGEST_WAIT = 600.0  # seconds of one request that waits


@takes(
    "language", "timeout", "priority", "start_within", "env", "secrets", "allowed_domains", *PROGRAM_LIMITS,
    defaults=False,
    language="For a new session or a fresh cell, as all options below: python (default), node or shell.",
    allowed_domains="A host that it may reach.", secrets="A secret that it gets as a variable.",
)  # fmt: skip
def execute(
    session: Name,
    code: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    file: Annotated[str | None, Parameter(name=("--file", "-f"))] = None,
    detach: Annotated[bool, Parameter(name=("--detach", "-d"))] = False,
    raw: Raw = False,
    service: ServiceOptions = PLAIN,
    **options: Any,
) -> int:
    """Run a program as the next step of a session: casemate exec SESSION CODE

    Its output and exit code become casemate's. Ctrl-C interrupts it; the session keeps its state.

    casemate exec analysis 'import math; math.pi'

    casemate exec new --language shell 'echo hello'

    casemate exec analysis --file step.py --detach

    casemate exec new --memory 2GiB 'import pandas'

    Args:
        session: Its handle or name. "new" opens one and prints its handle; "-" uses a fresh cell.
        code: The program; "-", or nothing, reads it from standard input.
        file: The program's file, in place of CODE.
        detach: Print the run's handle and return; casemate attach follows it. Without --timeout, the limit is that of
            its namespace.
    """
    from casemate.surfaces.cli.inputs import sent_options  # not needed by the other commands

    _check_no_option("SESSION", session)
    sent: dict[str, Any] = {}

    async def start_run(remote: RemoteOperations) -> int:
        state = await remote("runs.start", sent)
        if session == "new":
            say(f"session {state['session']}")
        if detach:
            seconds = sent["timeout"] or (await remote("explain", {"code": "", "timeout": None}))["deadline"]
            say(f"it ends after {seconds:g} s at the latest; --timeout gives it another limit")
            return print_answer(state, [state["run"]], is_json=service.is_json)
        try:
            return await _follow(remote, state["run"], service, raw=raw)
        except (asyncio.CancelledError, BrokenPipeError):  # Ctrl-C, or the reader of its output is gone
            await remote("runs.cancel", {"run": state["run"]})
            raise

    try:
        sent = sent_options(options, code=_program(code, file), session=None if session == "-" else session)
        if detach:
            sent.setdefault("timeout", None)  # the namespace's limit, which is longer than a run's default
        return with_service(start_run, service, runs=True)
    except InvalidArgument as error:
        if error.argument == "limits":
            error.argument = f"limits.{next(iter(sent.get('limits', ())), '')}"
        elif error.argument == "code":
            error.argument = "CODE" if file is None else "file"
        raise


async def _follow(remote: RemoteOperations, run: str, service: ServiceOptions, *, raw: bool) -> int:
    if service.is_json:
        return _outcome(await _over(remote, run), service)
    from casemate.surfaces.cli.following import follow

    return await follow(remote, run, raw=raw)


@asks("runs.list", "--filter=filters")
def ps(
    given: dict[str, Any],
    *,
    all: Annotated[bool, Parameter(name=("--all", "-a"))] = False,  # noqa: A002 - the option's name
    quiet: Quiet = False,
    limit: int = 20,
    service: ServiceOptions = PLAIN,
) -> int:
    """List unfinished runs, the newest last.

    casemate ps --filter status=waiting

    casemate kill $(casemate ps -q --filter session=38d7)

    Args:
        all: Also list finished runs that are kept, as a filter for a status does.
        limit: At most so many finished runs, the newest; 0 for all.
    """
    are_over = all or any(one.partition("=")[0] == "status" for one in given["filters"])
    now = time.time()

    def row(run: dict[str, Any]) -> dict[str, Any]:
        took = format_age((run["ended"] or now) - run["started"])
        whose = f"{run['owner']} of {run['installation']}" if run.get("installation") else run["owner"]
        status, age = run["outcome"] or run["status"], format_age(now - run["started"])
        return {**run, "status": status, "age": age, "took": took, "owner": whose}

    def choose(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        over = sorted((run for run in runs if run["status"] == "done" and are_over), key=lambda run: run["started"])
        chosen = [*(over[-limit:] if limit else over), *(run for run in runs if run["status"] != "done")]
        return sorted(chosen, key=lambda run: run["started"])

    return list_rows(
        "runs.list", **given, service=service, quiet=quiet, row=row, empty="No run is unfinished.",
        columns="run session language status age took owner", choose=choose,
    )  # fmt: skip


def logs(
    run: RunHandle,
    /,
    *,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"))] = False,
    raw: Raw = False,
    service: ServiceOptions = PLAIN,
) -> int:
    """Print a run's stdout, stderr and displayed text, in order.

    casemate logs 803d94 --follow

    The output is text even with --format json; casemate wait has the whole outcome.

    Args:
        follow: Continue until the run ends.
    """
    return with_service(lambda remote: _print_log(remote, run, follows=follow, raw=raw), service)


async def _print_log(remote: RemoteOperations, run: str, *, follows: bool, raw: bool) -> int:
    from casemate.model.events import Output
    from casemate.surfaces.cli.terminal import Streams

    streams, cursor, known = Streams(raw=raw), 0, await remote("runs.get", {"run": run})
    while True:
        page = await remote("runs.read", {"run": run, "cursor": cursor, "limit": _PAGE})
        await streams.output(Output("stdout", page["text"], data=page["text"].encode()))
        if page["is_done"] or (not page["text"] and not follows):
            break
        if not page["text"]:
            asked_for = [one["id"] for one in known["approvals"]]
            known = await remote("runs.wait", {"run": run, "seconds": 1.0, "told": asked_for})
        cursor = page["cursor"]
    await streams.end()
    return 0


def attach(run: RunHandle, /, *, raw: Raw = False, service: ServiceOptions = PLAIN) -> int:
    """Follow a run from its beginning until it ends. Its exit code becomes casemate's.

    Its approval requests are asked here. Ctrl-C leaves the run alone. With --format json it acts as wait.
    """

    async def follow_run(remote: RemoteOperations) -> int:
        try:
            return await _follow(remote, run, service, raw=raw)
        except asyncio.CancelledError:
            say(f"the run continues; casemate attach {run} follows it again, casemate kill {run} ends it")
            raise

    return with_service(follow_run, service)


def wait(run: RunHandle, /, *, service: ServiceOptions = PLAIN) -> int:
    """Wait until a run ends. Its exit code becomes casemate's."""

    async def wait_for_run(remote: RemoteOperations) -> int:
        return _outcome(await _over(remote, run), service)

    return with_service(wait_for_run, service)


@asks("runs.cancel", "*runs=run")
def kill(given: dict[str, Any], *, service: ServiceOptions = PLAIN) -> int:
    """End runs. A step of a session is interrupted, and the session stays open; a fresh cell is ended.

    casemate kill $(casemate ps -q)
    """
    states = ask_each(service, "runs.cancel", "run", given["run"])
    show = table_of("run ended", row=lambda one: {**one, "ended": one["outcome"] or one["status"]})
    return show(states, is_json=service.is_json)


async def _over(remote: RemoteOperations, run: str) -> dict[str, Any]:
    state: dict[str, Any] = await remote("runs.get", {"run": run})
    while state["status"] != "done":
        known = [one["id"] for one in state["approvals"]]
        for one in known:
            say(f"waits for an approval: casemate approvals show {one}")
        state = await remote("runs.wait", {"run": run, "seconds": _LONGEST_WAIT, "told": known})
    return state


def _outcome(state: dict[str, Any], service: ServiceOptions) -> int:
    from casemate.operations.documents import UnsentContent, error_from, execution_of

    if service.is_json:
        print_json(state)
    if (error := state["error"]) is not None:
        say(error["message"])
        return exit_code_of_error(error_from(error))
    from casemate.surfaces.cli.following import report_outcome

    return report_outcome(execution_of(state["execution"], UnsentContent), state["run"])


_OPTIONS = "casemate exec --help lists the options. A program that begins like one can come from --file or stdin."


def _check_no_option(name: str, value: str) -> None:
    if re.fullmatch(r"--[a-z][a-z-]*(=\S*)?", value):
        raise InvalidArgument(name, f"{value} is not an option of exec", remediation=_OPTIONS)


def _program(code: str | None, file: str | None) -> str:
    if file is not None and code is not None:
        raise InvalidArgument("CODE", "is given twice: as CODE and as --file")
    if file is None and code is not None and code != "-":
        _check_no_option("CODE", code)
        return code
    if file is None and code is None and sys.stdin.isatty():
        raise InvalidArgument("CODE", "give a program, --file FILE, or - for standard input")
    from casemate.surfaces.cli.inputs import program_in

    try:
        return program_in(file or "-").decode()
    except UnicodeDecodeError:
        raise InvalidArgument("code", "is not UTF-8 text") from None
