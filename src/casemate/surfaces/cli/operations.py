"""Commands that ask one operation of the service: sessions, the record, files of runs, states, limits."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from casemate.errors import InvalidArgument
from casemate.model.limits import parse_size
from casemate.surfaces.cli.answers import format_age, print_answer, print_document, print_done, print_json, print_rows
from casemate.surfaces.cli.connection import (
    PLAIN,
    Filter,
    Quiet,
    ServiceOptions,
    ask,
    ask_each,
    ask_patiently,
    list_rows,
    with_service,
)
from casemate.surfaces.cli.failures import DENIED
from casemate.surfaces.cli.inputs import given_limits, read_file, sent_options
from casemate.surfaces.cli.parameters import LIMITS, OUTPUT_LIMITS, Name, RunHandle, takes

if TYPE_CHECKING:
    from casemate.remote.client import RemoteOperations

Command = Callable[..., int]
_BROKEN = 1  # the exit code where the record is not what it was
_MOST_ANCHORS = 4 << 20  # bytes of a copy that one request takes: the newest lines say most
_MOST_DETAIL = 120  # characters in a table; --format json has all


# -- commands that are one operation: its arguments, its answer


def _parse_value(text: str) -> Any:
    """``text`` as the JSON value that it is, else as the text."""
    try:
        return json.loads(text, parse_constant=lambda _name: text)
    except (ValueError, RecursionError):
        return text


_READS: dict[str, Callable[[str], Any]] = {"value": _parse_value}  # what is no text for the operation
_ARGUMENTS = {
    "session": "Its handle or name.",
    "name": "The variable's name.",
    "value": "Its value; what is no JSON is taken for a text.",
    "source": "Handle or name of the session that has it.",
    "target": "Handle or name of the session that is to have it.",
    "path": "Its absolute path.",
    "run": "Its handle, or a session's handle or name.",
}


def _asks(operation: str, arguments: str, show: Callable[..., int], about: str) -> Command:
    """The command that asks ``operation``; ``show`` prints the answer, and gives the exit code."""
    names = arguments.split()

    def command(*values: str, service: ServiceOptions = PLAIN) -> int:
        named = zip(names, values, strict=True)
        answer = ask(service, operation, **{name: _READS.get(name, str)(value) for name, value in named})
        return show(answer, is_json=service.is_json)

    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_ONLY,
            annotation=Annotated[Name, Parameter(help=_ARGUMENTS[name])],
        )
        for name in names
    ]
    service = inspect.Parameter("service", inspect.Parameter.KEYWORD_ONLY, default=PLAIN, annotation=ServiceOptions)
    setattr(command, "__signature__", inspect.Signature([*parameters, service]))  # noqa: B010 - no attribute mypy knows
    command.__doc__ = about
    return command


def _show_done(_answer: object, *, is_json: bool) -> int:
    return print_done(is_json=is_json)


def _show_value(answer: Any, *, is_json: bool) -> int:  # noqa: ARG001 - JSON for people, too
    print_json(answer)
    return 0


def _show_rows(columns: tuple[str, ...] = (), row: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Command:
    """Prints a list: of the rows' own columns where none are named."""

    def show(answer: list[dict[str, Any]], *, is_json: bool) -> int:
        named = columns or tuple(answer[0] if answer else ())
        return print_rows(answer, named, "Nothing is there.", is_json=is_json, row=row)

    return show


def _show_verdict(verdict: dict[str, Any], *, is_json: bool) -> int:
    line = f"BROKEN at row {verdict['first_bad']}: {verdict['reason']}"
    if verdict["ok"]:
        line = f"whole: {verdict['head']['count']} rows, the last {verdict['head']['last']}; "
        line += f"signed up to row {verdict['signed']}" + (f", since {verdict['reason']}" if verdict["reason"] else "")
        line += f"; the first {verdict['dropped']} were dropped" if verdict["dropped"] else ""
    print_answer(verdict, [line], is_json=is_json)
    return 0 if verdict["ok"] else _BROKEN


def _show_proposal(proposal: dict[str, Any], *, is_json: bool) -> int:
    return print_answer(proposal, proposal["yaml"].splitlines(), is_json=is_json)


def _show_crossings(programs: list[dict[str, Any]], *, is_json: bool) -> int:
    rows = [{**one, **use} for one in programs for use in one["uses"]]
    columns = ("program", "kind", "name", "decision", "times", "run", "reason")
    return print_rows(programs if is_json else rows, columns, "Nothing crossed.", is_json=is_json)


_show_runtimes = _show_rows(
    ("language", "available", "version", "executable", "source", "wall"),
    row=lambda one: {**one, "version": one["version"] or one["problem"]},
)
# Each operation with its arguments, what shows its answer, and its help. They stand here as well as in the catalogue,
# which takes several times as long to load as such a command takes to run; a test compares the two.
SINGLE_OPERATIONS: dict[str, tuple[str, Callable[..., int], str]] = {
    "inspect": ("session", print_document, "Show what is known of a session: limits, variables' names, what it used."),
    "stats": ("", print_document, "Show what goes on in the service: queue, cells, sessions, memory and cpu."),
    "runtimes": ("", _show_runtimes, "List the languages that there are, and the wall that is in force."),
    "sessions.reset": ("session", _show_done, "Forget everything of a session but its files."),
    "sessions.interrupt": ("session", _show_done, "Interrupt what runs in a session; its state is kept."),
    "sessions.variables": ("session", _show_rows(), "List the names that programs of a session have bound."),
    "sessions.get": ("session name", _show_value, "Print the value of a session's variable, as JSON."),
    "sessions.set": ("session name value", _show_done, "Bind a name in a session to a JSON value."),
    "sessions.bridge": ("name source target", _show_value, "Copy a variable to another session, and print it."),
    "audit.crossings": ("", _show_crossings, "List the hosts, tools and packages that programs used or were refused."),
    "audit.propose": ("run", _show_proposal, "Print rules for a policy file that allow what a run or session did."),
    "audit.chart": ("", _show_rows(), "Print how much went on in each minute of the last hour."),
    "host.access": ("", print_document, "Show the folders that are open, which commands are allowed, and what waits."),
    "host.list": ("path", _show_rows(("name", "kind", "size")), "List a folder that the policy names, or one in it."),
}
COMMANDS = {operation: _asks(operation, *described) for operation, described in SINGLE_OPERATIONS.items()}
inspect_session, stats, runtimes = COMMANDS["inspect"], COMMANDS["stats"], COMMANDS["runtimes"]
bridge = _asks("sessions.set", "session name value", _show_done, """\
Bind a name in a session to a JSON value: casemate bridge SESSION NAME VALUE

casemate sessions bridge NAME SOURCE TARGET copies one from another session.""")  # fmt: skip

sessions = App(name="sessions", help="Keep interpreters with their state, and look into them.")
audit = App(name="audit", help="Read the record of what happened, and check that it is whole.")


# -- sessions


@sessions.command(name="open")
@takes(
    "language", "env", "secrets", "allowed_domains", *LIMITS, *OUTPUT_LIMITS, "wall", "idle_timeout", "lifetime",
    defaults=False, language="python (unless given), node or shell.",
    allowed_domains="A host that it may reach, of those that the service permits.",
    secrets="A secret that its programs get as a variable.",
)  # fmt: skip
def open_session(name: str | None = None, *, service: ServiceOptions = PLAIN, **options: Any) -> int:
    """Open a session, and print its handle.

    casemate sessions open analysis --memory 2GiB --cpus 4

    casemate exec analysis 'x = 20'

    Args:
        name: What it can be called besides its handle.
    """
    sent = sent_options(options, name=name)
    state = with_service(lambda remote: remote("sessions.open", sent), service, runs=True)
    return print_answer(state, [state["session"]], is_json=service.is_json)


@sessions.default
@sessions.command(name="list")
def list_sessions(*, filters: Filter = (), quiet: Quiet = False, service: ServiceOptions = PLAIN) -> int:
    """List the sessions that are open.

    casemate sessions list --filter language=python --filter status=idle

    casemate sessions close $(casemate sessions list -q --filter status=idle)

    Args:
        filters: Only those with KEY=VALUE: status (busy or idle), language, name, owner, session (the beginning of its
            handle) or namespace. May be repeated: of one key any of the values, of several keys all.
        quiet: Only their handles.
    """
    now = time.time()
    return list_rows(
        "sessions.list", filters, service, quiet=quiet, empty="No session is open.",
        columns=("session", "name", "language", "steps", "busy", "age", "owner"),
        row=lambda one: {**one, "busy": one["is_busy"], "age": format_age(now - one["created"])},
    )  # fmt: skip


@sessions.command(name=("close", "kill"))
def close(
    *names: Name,
    id: Annotated[tuple[Name, ...], Parameter(name="--id")] = (),  # noqa: A002 - the option's name
    service: ServiceOptions = PLAIN,
) -> int:
    """End sessions and everything in them.

    Args:
        names: Their handles or names.
        id: The same, as an option.
    """
    ask_each(service, "sessions.close", "session", (*names, *id))
    return print_done(is_json=service.is_json)


# -- what the service has, and may do


def queue(action: Annotated[str | None, Parameter(show=False)] = None, /, *, service: ServiceOptions = PLAIN) -> int:  # noqa: ARG001 - "queue status" is what people type
    """Show how many programs run, how many wait for their turn, and how many may run at once."""
    found = ask(service, "stats")
    return print_document(
        {name: found[name] for name in ("running", "waiting", "concurrency")}, is_json=service.is_json
    )


@takes(*LIMITS, *OUTPUT_LIMITS, "wall", defaults=False)
def limits(*, reset: bool = False, caller: str | None = None, service: ServiceOptions = PLAIN, **options: Any) -> int:
    """Show the limits of what you run in the service; with options, change them from now on, up to the service's.

    casemate limits --memory 256MiB --processes 16

    casemate limits --reset

    Args:
        reset: Undo what was changed before, and then change what the other options say.
        caller: With --reset: undo what another has changed for itself, by the name that ps shows as its owner.
    """
    narrowed = given_limits(options)
    if caller is not None and (not reset or narrowed):
        raise InvalidArgument("caller", "is for --reset alone: others change their limits themselves")

    async def ask_limits(remote: RemoteOperations) -> dict[str, Any]:
        in_force = await remote("reset_limits", {} if caller is None else {"caller": caller}) if reset else {}
        return dict(in_force if caller is not None else await remote("set_limits", {"limits": narrowed}))

    in_force = with_service(ask_limits, service)
    return print_document(in_force, is_json=service.is_json)


def egress(domain: Name, /, *, port: int = 443, reason: str = "", service: ServiceOptions = PLAIN) -> int:
    """Ask whether a host may be reached, and wait for the answer; the exit code is 77 where it may not.

    casemate egress pypi.org --reason 'for pandas'

    Args:
        domain: The host's name.
        port: The port; 443 unless given.
        reason: Shown to whoever decides.
    """
    answer = ask_patiently(service, "egress.request", domain=domain, port=port, reason=reason)
    print_document(answer, is_json=service.is_json)
    return 0 if answer.get("allowed") else DENIED


# -- the record


@audit.default
@audit.command(name="tail")
def tail(*, limit: int = 50, kind: str | None = None, run: str | None = None, service: ServiceOptions = PLAIN) -> int:
    """Print the last rows of the record, the newest first.

    Args:
        limit: How many; 50 unless given.
        kind: Only rows of this kind, such as intent, outcome, decision or crossing.
        run: Only rows of this run.
    """
    rows = ask(service, "audit.tail", limit=limit, kind=kind, run=run)
    columns = ("sequence", "when", "kind", "run", "detail")
    return print_rows(rows, columns, "The record has no such row.", is_json=service.is_json, row=_for_people)


@audit.command(name="verify")
def verify_record(*, head: str | None = None, anchor: str | None = None, service: ServiceOptions = PLAIN) -> int:
    """Check the chain of hashes of the record, and what was signed of it; exit code 1 where it is broken.

    Args:
        head: The hash of a last row, as this prints it, that was noted elsewhere: it must be there still.
        anchor: A file of anchors that was kept elsewhere: the record must agree with its last 4 MiB.
    """
    lines = None if anchor is None else read_file("anchor", anchor, _MOST_ANCHORS, is_log=True)
    text = None if lines is None else lines.decode("utf-8", "replace")
    return _show_verdict(ask(service, "audit.verify", head=head, anchor=text), is_json=service.is_json)


@audit.command(name="export")
def export_record(
    *,
    form: Annotated[Literal["jsonl", "ocsf"], Parameter(name="--format")] = "jsonl",
    after: int = 0,
    namespace: str | None = None,
) -> int:
    """Print the rows of the record, the oldest first, a line of JSON for each.

    casemate audit export --format ocsf > events.jsonl

    Args:
        form: jsonl, the rows with their hashes, unless given; or ocsf, events that security programs read.
        after: The number of the last row that was had: only those after it.
        namespace: Whose rows; those of the default one unless given.
    """
    while rows := ask(ServiceOptions(namespace=namespace), "audit.export", after=after, format=form):
        for row in rows:
            print_json(row, indent=None)
        after = rows[-1]["sequence"] if form == "jsonl" else rows[-1]["metadata"]["sequence"]
    return 0


@audit.command(name="prune")
def prune_record(*, max_age: float | None = None, max_size: str | None = None, service: ServiceOptions = PLAIN) -> int:
    """Drop the oldest rows of the record; a signed checkpoint takes their place, so that the rest stays provable.

    Args:
        max_age: Seconds after which rows are dropped.
        max_size: What the rest may take, such as 1GiB.
    """
    try:
        size = None if max_size is None else parse_size(max_size)
    except ValueError as error:
        raise InvalidArgument("max_size", str(error)) from None
    dropped = ask(service, "audit.prune", max_age=max_age, max_size=size)
    return print_answer({"dropped": dropped}, [f"{dropped} rows were dropped"], is_json=service.is_json)


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    when = datetime.fromtimestamp(row["time"]).astimezone().isoformat(sep=" ", timespec="seconds")
    detail = json.dumps(row["detail"])
    more = "..." if len(detail) > _MOST_DETAIL else ""
    return {**row, "when": when, "detail": detail[:_MOST_DETAIL] + more}


for _operation, _command in COMMANDS.items():
    for _app in (sessions, audit):
        if _operation.startswith(f"{_app.name[0]}."):
            _app.command(_command, name=_operation.partition(".")[2])
sessions.command(inspect_session, name="inspect")


# -- files of runs


def artifacts(run: RunHandle, /, *, save: str | None = None, service: ServiceOptions = PLAIN) -> int:
    """List the files that a run has left, with their hashes.

    casemate artifacts 803d94 --save results

    Args:
        save: A folder to copy them into.
    """
    found = ask(service, "artifacts.list", run=run)
    if save is not None:
        with_service(lambda remote: _save_artifacts(remote, run, found, Path(save)), service)
    columns = ("name", "size", "media_type", "sha256")
    return print_rows(found, columns, "The run has left no file.", is_json=service.is_json)


async def _save_artifacts(remote: RemoteOperations, run: str, found: list[dict[str, Any]], folder: Path) -> None:
    from casemate.surfaces.cli.cp import write_target

    for artifact in found:
        relative = Path(artifact["name"])
        if relative.is_absolute() or ".." in relative.parts:
            raise InvalidArgument("save", f"{artifact['name']!r} is no name of a file below a folder")
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        write_target(target, await remote.download("artifacts", run, *artifact["name"].split("/")))
