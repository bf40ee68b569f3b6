"""Commands that ask one operation of the service: sessions, the record, files of runs, states, limits."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from casemate.errors import InvalidArgument
from casemate.model.limits import format_size, parse_size
from casemate.surfaces.cli.answers import (
    format_age,
    format_moment,
    print_answer,
    print_document,
    print_done,
    print_json,
    print_value,
    table_of,
)
from casemate.surfaces.cli.commands import asks, lists, row
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, ask, ask_each, with_service
from casemate.surfaces.cli.inputs import given_limits, read_file, sent_options
from casemate.surfaces.cli.parameters import PROGRAM_LIMITS, Name, takes

if TYPE_CHECKING:
    from casemate.remote.client import RemoteOperations

_BROKEN = 1  # the exit code for a record that does not verify
_MOST_ANCHORS = 4 << 20  # bytes of a copy in one request: its newest lines
_MOST_DETAIL = 120  # characters in a table; --format json has all


# -- what the service has, and may do


def _runtime_row(runtime: dict[str, Any]) -> dict[str, Any]:
    return {**runtime, "version": runtime["version"] or runtime["problem"]}


stats = row("stats", "", print_document)
runtimes = row("runtimes", "", table_of("language available version executable source wall", row=_runtime_row))


def queue(action: Annotated[str | None, Parameter(show=False)] = None, /, *, service: ServiceOptions = PLAIN) -> int:  # noqa: ARG001 - for "queue status"
    """Show how many programs run, how many wait, and how many may run at once."""
    found = ask(service, "stats")
    return print_document(
        {name: found[name] for name in ("running", "waiting", "concurrency")}, is_json=service.is_json
    )


@takes(*PROGRAM_LIMITS, "wall", defaults=False)
def limits(*, reset: bool = False, caller: str | None = None, service: ServiceOptions = PLAIN, **options: Any) -> int:
    """Show the limits of your runs in the service. Options change them from now on, up to the service's own.

    casemate limits --memory 256MiB --processes 16

    casemate limits --reset

    Args:
        reset: Undo earlier changes first, then apply the other options.
        caller: With --reset: undo the changes of another caller, named as ps shows its owner.
    """
    narrowed = given_limits(options)
    if caller is not None and (not reset or narrowed):
        raise InvalidArgument("caller", "is for --reset alone: callers change their own limits")

    async def ask_limits(remote: RemoteOperations) -> dict[str, Any]:
        in_force = await remote("reset_limits", {} if caller is None else {"caller": caller}) if reset else {}
        return dict(in_force if caller is not None else await remote("set_limits", {"limits": narrowed}))

    in_force = with_service(ask_limits, service)
    return print_document(in_force, is_json=service.is_json)


# -- sessions

sessions = App(name="sessions", help="Keep interpreters with their state, and look into them.")


@sessions.command(name="open")
@takes(
    "language", "env", "secrets", "allowed_domains", *PROGRAM_LIMITS, "wall", "idle_timeout", "lifetime",
    defaults=False, allowed_domains="A host that it may reach, of those that the service permits.",
    language="python (unless given), node or shell.", secrets="A secret that its programs get as a variable.",
)  # fmt: skip
def open_session(name: str | None = None, *, service: ServiceOptions = PLAIN, **options: Any) -> int:
    """Open a session, and print its handle.

    casemate sessions open analysis --memory 2GiB --cpus 4

    casemate exec analysis 'x = 20'

    Args:
        name: A name for it, in addition to its handle.
    """
    sent = sent_options(options, name=name)
    state = with_service(lambda remote: remote("sessions.open", sent), service, runs=True)
    return print_answer(state, [state["session"]], is_json=service.is_json)


@sessions.command(name=("close", "kill"))
@asks("sessions.close", "*names=session")
def close(
    given: dict[str, Any],
    *,
    id: Annotated[tuple[Name, ...], Parameter(name="--id", help="A session, given as an option.")] = (),  # noqa: A002 - the option's name
    service: ServiceOptions = PLAIN,
) -> int:
    """End sessions and everything in them."""
    ask_each(service, "sessions.close", "session", (*given["session"], *id))
    return print_done(is_json=service.is_json)


@asks("sessions.expose", "session? port? --expires? --unix --third-parties")
def expose(given: dict[str, Any], *, service: ServiceOptions = PLAIN) -> int:
    """Show the server that listens at a port in a session, and print a link to it. Without a port, list such links.

    casemate expose analysis 8000 --expires 600

    Anyone who has the link may open it until it ends. Its pages reach nothing but their own server.
    """
    if "port" not in given:
        shown = ask(service, "sessions.previews", session=given.get("session"))
        return _print_previews(shown, is_json=service.is_json)
    preview = ask(service, "sessions.expose", **given)
    return print_answer(preview, [preview["url"] or preview["socket"]], is_json=service.is_json)


def _preview_row(preview: dict[str, Any]) -> dict[str, Any]:
    ends = "" if preview["expires"] is None else f"in {format_age(preview['expires'] - time.time())}"
    return {**preview, "where": preview["url"] or preview["socket"], "ends": ends}


_print_previews = table_of("session port where ends", "No port is exposed.", _preview_row)
unexpose = row("sessions.unexpose", "session port", print_done, "casemate unexpose analysis 8000")


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda _name: text)
    except (ValueError, RecursionError):
        return text


def _session_row(session: dict[str, Any]) -> dict[str, Any]:
    return {**session, "busy": session["is_busy"], "age": format_age(time.time() - session["created"])}


inspect_session = row("inspect", "session", print_document)
bridge = row(
    "sessions.set", "session name value", print_done,
    "casemate sessions bridge NAME SOURCE TARGET copies one from another session.", value=_parse_value,
)  # fmt: skip
list_sessions = lists(
    "sessions.list", "session name language steps busy age owner", "No session is open.", _session_row,
    "casemate sessions close $(casemate sessions list -q --filter status=idle)",
)  # fmt: skip
sessions.default(list_sessions)
for _name, _command in {
    "list": list_sessions,
    "inspect": inspect_session,
    "variables": row("sessions.variables", "session", table_of()),
    "get": row("sessions.get", "session name", print_value),
    "set": row("sessions.set", "session name value", print_done, value=_parse_value),
    "bridge": row("sessions.bridge", "name source target", print_value),
    "interrupt": row("sessions.interrupt", "session", print_done),
    "reset": row("sessions.reset", "session", print_done),
}.items():
    sessions.command(_command, name=_name)


# -- the record

audit = App(name="audit", help="Read the record of what happened, and verify it.")


def _print_verdict(verdict: dict[str, Any], *, is_json: bool) -> int:
    line = f"BROKEN at row {verdict['first_bad']}: {verdict['reason']}"
    if verdict["ok"]:
        line = f"whole: {verdict['head']['count']} rows, the last {verdict['head']['last']}; "
        line += f"signed up to row {verdict['signed']}" + (f", since {verdict['reason']}" if verdict["reason"] else "")
        line += f"; the first {verdict['dropped']} were dropped" if verdict["dropped"] else ""
    print_answer(verdict, [line], is_json=is_json)
    return 0 if verdict["ok"] else _BROKEN


def _print_proposal(proposal: dict[str, Any], *, is_json: bool) -> int:
    return print_answer(proposal, proposal["yaml"].splitlines(), is_json=is_json)


def _print_crossings(programs: list[dict[str, Any]], *, is_json: bool) -> int:
    rows = [{**one, **use} for one in programs for use in one["uses"]]
    show = table_of("program kind name decision times run reason", "Nothing crossed.")
    return show(programs if is_json else rows, is_json=is_json)


def _print_dropped(dropped: int, *, is_json: bool) -> int:
    return print_answer({"dropped": dropped}, [f"{dropped} rows were dropped"], is_json=is_json)


def _record_row(row: dict[str, Any]) -> dict[str, Any]:
    detail = json.dumps(row["detail"])
    more = "..." if len(detail) > _MOST_DETAIL else ""
    return {**row, "when": format_moment(row["time"]), "detail": detail[:_MOST_DETAIL] + more}


_CHART = "when ended seconds slowest peak_memory allowed denied asked"


def _minute(minute: dict[str, Any]) -> dict[str, Any]:
    ended = ", ".join(f"{count} {status}" for status, count in minute["by_status"].items())
    peak = format_size(minute["peak_memory"])
    return {**minute, "when": format_moment(minute["time"]), "ended": ended, "peak_memory": peak}


def _anchors_in(path: str) -> str:
    return read_file("anchor", path, _MOST_ANCHORS, is_log=True).decode("utf-8", "replace")


def _size_of(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidArgument("max_size", str(error)) from None


@audit.command(name="export")
@asks("audit.export", "--format --after")
def export_record(given: dict[str, Any], *, namespace: str | None = None) -> int:
    """Print the rows of the record, the oldest first, a line of JSON for each.

    casemate audit export --format ocsf > events.jsonl

    Args:
        namespace: The namespace of the rows; without it, the namespace "default".
    """
    while rows := ask(ServiceOptions(namespace=namespace), "audit.export", **given):
        for one in rows:
            print_json(one, indent=None)
        given["after"] = rows[-1]["sequence"] if given["format"] == "jsonl" else rows[-1]["metadata"]["sequence"]
    return 0


tail = row(
    "audit.tail", "--limit --kind --run",
    table_of("sequence when kind run detail", "The record has no such row.", _record_row),
)  # fmt: skip
verify_record = row(
    "audit.verify", "--head --anchor", _print_verdict,
    "--anchor names that file, whose last 4 MiB count. The exit code is 1 if the record is broken.",
    anchor=_anchors_in,
)  # fmt: skip
audit.default(tail)
for _name, _command in {
    "tail": tail,
    "verify": verify_record,
    "prune": row("audit.prune", "--max-age --max-size", _print_dropped, max_size=_size_of),
    "crossings": row("audit.crossings", "", _print_crossings),
    "propose": row("audit.propose", "run", _print_proposal),
    "chart": row("audit.chart", "", table_of(_CHART, row=_minute)),
}.items():
    audit.command(_command, name=_name)


# -- files of runs


@asks("artifacts.list", "run")
def artifacts(given: dict[str, Any], *, save: str | None = None, service: ServiceOptions = PLAIN) -> int:
    """List the files that a run left, with their hashes.

    casemate artifacts 803d94 --save results

    Args:
        save: A folder to copy them into.
    """
    found = ask(service, "artifacts.list", **given)
    if save is not None:
        with_service(lambda remote: _save_artifacts(remote, given["run"], found, Path(save)), service)
    show = table_of("name size media_type sha256", "The run left no file.")
    return show(found, is_json=service.is_json)


async def _save_artifacts(remote: RemoteOperations, run: str, found: list[dict[str, Any]], folder: Path) -> None:
    from casemate.surfaces.cli.cp import write_target

    for artifact in found:
        relative = Path(artifact["name"])
        if relative.is_absolute() or ".." in relative.parts:
            raise InvalidArgument("save", f"{artifact['name']!r} is not a file name below a folder")
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        write_target(target, await remote.download("artifacts", run, *artifact["name"].split("/")))
