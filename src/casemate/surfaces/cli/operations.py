"""Commands that ask one operation of the service: sessions, the record, files of runs, states, limits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import secrets
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from casemate.errors import InvalidArgument
from casemate.model.limits import parse_size
from casemate.surfaces.cli.answers import ago, print_document, print_done, print_json, print_lines, print_table
from casemate.surfaces.cli.connection import PLAIN, Asked, Filter, Quiet, ask, print_listed, served, wanted
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.inputs import env_of
from casemate.surfaces.cli.parameters import NO_LIMITS, Flag, LimitOptions, Name

if TYPE_CHECKING:
    from casemate.remote.client import RemoteOperations


sessions = App(name="sessions", help="Keep interpreters with their state, and look into them.")
_SESSION_COLUMNS = ("session", "name", "language", "steps", "busy", "age", "owner")


@sessions.command(name="open")
def open_session(
    name: str | None = None,
    *,
    language: str | None = None,
    env: Annotated[tuple[str, ...], Parameter(name=("--env", "-e"))] = (),
    secret: tuple[str, ...] = (),
    allow: tuple[str, ...] = (),
    within: LimitOptions = NO_LIMITS,
    timeout: float | None = None,
    idle_timeout: float | None = None,
    lifetime: float | None = None,
    asked: Asked = PLAIN,
) -> int:
    """Open a session, and print its handle.

    casemate sessions open analysis --memory 2GiB --cpus 4

    casemate exec analysis 'x = 20'

    Parameters
    ----------
    name
        What it can be called besides its handle.
    language
        python (unless given), node or shell.
    env
        A variable, as NAME=VALUE, or NAME with the value that it has here. May be repeated.
    secret
        A secret that its programs get as a variable. May be repeated.
    allow
        A host that it may reach, of those that the service permits. May be repeated.
    timeout
        The most seconds that a step may take.
    idle_timeout
        Seconds without use after which it ends.
    lifetime
        Seconds after which it ends in any case.
    """
    state = ask(
        asked, "sessions.open", name=name, language=language, env=env_of(env) or None, secrets=list(secret) or None,
        allowed_domains=list(allow) or None, limits=within.given(wall=timeout) or None,
        idle_timeout=idle_timeout, lifetime=lifetime,
    )  # fmt: skip
    if asked.is_json:
        print_json(state)
    else:
        print_lines([state["session"]])
    return 0


@sessions.default
@sessions.command(name="list")
def list_sessions(*, filters: Filter = (), quiet: Quiet = False, asked: Asked = PLAIN) -> int:
    """List the sessions that are open.

    casemate sessions list --filter language=python --filter status=idle

    casemate sessions close $(casemate sessions list -q --filter status=idle)

    Parameters
    ----------
    filters
        Only those with KEY=VALUE: status (busy or idle), language, name, owner, session (the beginning of its handle)
        or namespace. May be repeated: of one key any of the values, of several keys all.
    quiet
        Only their handles.
    """
    asked, chosen = wanted(filters, asked)
    rows = ask(asked, "sessions.list", filters=chosen)
    if quiet or asked.is_json:
        print_listed(rows, "session", quiet=quiet)
        return 0
    now = time.time()
    rows = [{**one, "busy": one["is_busy"], "age": ago(now - one["created"])} for one in rows]
    print_table(_SESSION_COLUMNS, rows, "No session is open.")
    return 0


@sessions.command(name=("close", "kill"))
def close(*names: Name, asked: Asked = PLAIN) -> int:
    """End sessions and everything in them.

    Parameters
    ----------
    names
        Their handles or names.
    """
    if not names:
        raise InvalidArgument("session", "name one or more")

    async def closed(remote: Any) -> None:
        for session in names:
            await remote("sessions.close", {"session": session})

    served(closed, asked)
    return print_done(is_json=asked.is_json)


@sessions.command
def reset(session: Name, /, *, asked: Asked = PLAIN) -> int:
    """Forget everything of a session but its files.

    Parameters
    ----------
    session
        Its handle or name.
    """
    ask(asked, "sessions.reset", session=session)
    return print_done(is_json=asked.is_json)


@sessions.command
def interrupt(session: Name, /, *, asked: Asked = PLAIN) -> int:
    """Interrupt what runs in a session; its state is kept.

    Parameters
    ----------
    session
        Its handle or name.
    """
    ask(asked, "sessions.interrupt", session=session)
    return print_done(is_json=asked.is_json)


@sessions.command
def variables(session: Name, /, *, asked: Asked = PLAIN) -> int:
    """List the names that programs of a session have bound.

    Parameters
    ----------
    session
        Its handle or name.
    """
    found = ask(asked, "sessions.variables", session=session)
    if asked.is_json:
        print_json(found)
    else:
        print_table(tuple(found[0]) if found else (), found, "Nothing is bound.")
    return 0


@sessions.command(name="get")
def get_value(session: Name, name: Name, /, *, asked: Asked = PLAIN) -> int:
    """Print the value of a session's variable, as JSON.

    Parameters
    ----------
    session
        Its handle or name.
    name
        The variable's name.
    """
    print_json(ask(asked, "sessions.get", session=session, name=name))
    return 0


@sessions.command(name="set")
def set_value(session: Name, name: Name, value: Name, /, *, asked: Asked = PLAIN) -> int:
    """Bind a name in a session to a JSON value; what is no JSON is taken for a text.

    Parameters
    ----------
    session
        Its handle or name.
    name
        The variable's name.
    value
        Its value.
    """
    served(lambda remote: remote("sessions.set", {"session": session, "name": name, "value": value_of(value)}), asked)
    return print_done(is_json=asked.is_json)


@sessions.command(name="bridge")
def bridge_value(name: Name, source: Name, target: Name, /, *, asked: Asked = PLAIN) -> int:
    """Copy the value of a variable from one session to another, and print it.

    Parameters
    ----------
    name
        The variable's name.
    source
        Handle or name of the session that has it.
    target
        Handle or name of the session that is to have it.
    """
    print_json(ask(asked, "sessions.bridge", name=name, source=source, target=target))
    return 0


@sessions.command(name="inspect")
def inspect_one(session: Name, /, *, asked: Asked = PLAIN) -> int:
    """Show what is known of a session: its limits, its variables' names, what it used.

    Parameters
    ----------
    session
        Its handle or name.
    """
    return inspect(session, asked=asked)


def inspect(session: Name, /, *, asked: Asked = PLAIN) -> int:
    """Show what is known of a session: its limits, its variables' names, what it used. Values of secrets are masked.

    Parameters
    ----------
    session
        Its handle or name.
    """
    found = ask(asked, "inspect", session=session)
    return print_document(found, is_json=asked.is_json)


def bridge(session: Name, name: Name, value: Name, /, *, asked: Asked = PLAIN) -> int:
    """Bind a name in a session to a JSON value: casemate bridge SESSION NAME VALUE

    casemate sessions bridge NAME SOURCE TARGET copies one from another session.

    Parameters
    ----------
    session
        Its handle or name.
    name
        The variable's name.
    value
        Its value; what is no JSON is taken for a text.
    """
    return set_value(session, name, value, asked=asked)


def value_of(text: str) -> Any:
    """``text`` as the JSON value that it is, else as the text."""
    try:
        return json.loads(text, parse_constant=lambda _name: text)
    except (ValueError, RecursionError):
        return text


_PATIENCE = 1.0  # seconds after which whoever asks is told where the answer is given
_DENIED = 77  # the exit code of what was refused (surfaces/cli/failures.py)


def stats(*, asked: Asked = PLAIN) -> int:
    """Show what the service has going on: queue, cells, sessions, memory and cpu."""
    return print_document(ask(asked, "stats"), is_json=asked.is_json)


def queue(action: Annotated[str | None, Parameter(show=False)] = None, /, *, asked: Asked = PLAIN) -> int:  # noqa: ARG001 - "queue status" is what people type
    """Show how many programs run, how many wait for their turn, and how many may run at once."""
    found = ask(asked, "stats")
    return print_document({name: found[name] for name in ("running", "waiting", "concurrency")}, is_json=asked.is_json)


def limits(
    *,
    within: LimitOptions = NO_LIMITS,
    timeout: float | None = None,
    reset: Flag = False,
    caller: str | None = None,
    asked: Asked = PLAIN,
) -> int:
    """Show the limits of what you run in the service; with options, narrow them from now on.

    casemate limits --memory 256MiB --processes 16

    casemate limits --reset

    Parameters
    ----------
    timeout
        The most seconds of a run.
    reset
        Undo what was narrowed before, and then narrow what the other options say.
    caller
        With --reset: undo what another has narrowed for itself, by the name that ps shows as its owner.
    """
    narrowed = within.given(wall=timeout)
    if caller is not None and (not reset or narrowed):
        raise InvalidArgument("caller", "is for --reset alone: others narrow their limits themselves")

    async def told(remote: RemoteOperations) -> dict[str, Any]:
        in_force = await remote("reset_limits", {} if caller is None else {"caller": caller}) if reset else {}
        return dict(in_force if caller is not None else await remote("set_limits", {"limits": narrowed}))

    in_force = served(told, asked)
    for name, value in narrowed.items():
        if in_force[name] is not None and _number(value) > in_force[name]:
            named = {"wall": "timeout", "output": "output-limit"}.get(name, name.replace("_", "-"))
            say(f"{named} stays as it is: limits are only narrowed; casemate limits --reset undoes that")
    return print_document(in_force, is_json=asked.is_json)


def _number(value: str | float) -> float:
    return parse_size(value) if isinstance(value, str) else value


def runtimes(*, asked: Asked = PLAIN) -> int:
    """List the languages that there are, with their versions, and the wall that is in force."""
    found = ask(asked, "runtimes")
    if asked.is_json:
        print_json(found)
        return 0
    rows = [{**one, "version": one["version"] or one["problem"]} for one in found]
    print_table(("language", "available", "version", "executable", "source", "wall"), rows, "")
    return 0


def egress(domain: Name, /, *, port: int = 443, reason: str = "", asked: Asked = PLAIN) -> int:
    """Ask whether a host may be reached, and wait for the answer; the exit code is 77 where it may not.

    Parameters
    ----------
    domain
        The host's name.
    port
        The port; 443 unless given.
    reason
        Shown to whoever decides.
    """
    arguments = {"domain": domain, "port": port, "reason": reason}

    async def answered(remote: RemoteOperations) -> dict[str, Any]:
        asking = asyncio.ensure_future(remote("egress.request", arguments))  # noqa: TID251 - ended here in every case
        try:
            if not (await asyncio.wait([asking], timeout=_PATIENCE))[0]:
                say("waits for an answer: casemate approvals, in another terminal")
            return dict(await asking)
        finally:
            asking.cancel()

    answer = served(answered, asked)
    print_document(answer, is_json=asked.is_json)
    return 0 if answer.get("allowed") else _DENIED


audit = App(name="audit", help="Read the record of what happened, and check that it is whole.")
_ROW_COLUMNS = ("sequence", "when", "kind", "run", "detail")
_MOST_DETAIL = 120  # characters in a table; --output json has all
_BROKEN = 1  # the exit code where the record is not what it was


@audit.default
@audit.command(name="tail")
def tail(*, limit: int = 50, kind: str | None = None, run: str | None = None, asked: Asked = PLAIN) -> int:
    """Print the last rows of the record, the newest first.

    Parameters
    ----------
    limit
        How many; 50 unless given.
    kind
        Only rows of this kind, such as intent, outcome, decision or crossing.
    run
        Only rows of this run.
    """
    rows = ask(asked, "audit.tail", limit=limit, kind=kind, run=run)
    if asked.is_json:
        print_json(rows)
        return 0
    print_table(_ROW_COLUMNS, [_for_people(row) for row in rows], "The record has no such row.")
    return 0


@audit.command(name="verify")
def verify_record(*, asked: Asked = PLAIN) -> int:
    """Check the chain of hashes of the whole record; the exit code is 1 where it is broken."""
    verdict = ask(asked, "audit.verify")
    if asked.is_json:
        print_json(verdict)
    elif verdict["ok"]:
        print_lines([f"whole: {verdict['head']['count']} rows, the last {verdict['head']['last']}"])
    else:
        print_lines([f"BROKEN at row {verdict['first_bad']}: {verdict['reason']}"])
    return 0 if verdict["ok"] else _BROKEN


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    when = datetime.fromtimestamp(row["time"]).astimezone().isoformat(sep=" ", timespec="seconds")
    detail = json.dumps(row["detail"])
    more = "..." if len(detail) > _MOST_DETAIL else ""
    return {**row, "when": when, "detail": detail[:_MOST_DETAIL] + more}


_DIFFERS = 1  # the exit code where a file is not what it should be


def artifacts(run: Name, /, *, save: str | None = None, asked: Asked = PLAIN) -> int:
    """List the files that a run has left, with their hashes.

    Parameters
    ----------
    run
        Its handle.
    save
        A folder to copy them into.
    """
    found = ask(asked, "artifacts.list", run=run)
    if save is not None:
        served(lambda remote: _saved(remote, run, found, Path(save)), asked)
    if asked.is_json:
        print_json(found)
    else:
        print_table(("name", "size", "media_type", "sha256"), found, "The run has left no file.")
    return 0


def verify(file: Name, sha256: Name, /, *, asked: Asked = PLAIN) -> int:
    """Say whether a file is exactly what a hash was made of: casemate verify FILE SHA256

    The exit code is 0 when it is, and 1 when a byte of it differs.

    Parameters
    ----------
    file
        The file.
    sha256
        As casemate artifacts shows it.
    """
    wanted = sha256.lower().removeprefix("sha256:")
    if len(wanted) != 64 or not set(wanted) <= set("0123456789abcdef"):
        raise InvalidArgument("sha256", f"{sha256[:80]!r} is no SHA-256, which is 64 hexadecimal digits")
    try:
        with open(file, "rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InvalidArgument("file", f"cannot read {file!r}: {error.strerror}") from None
    matches = hmac.compare_digest(found, wanted)
    if asked.is_json:
        print_json({"file": file, "sha256": found, "matches": matches})
    else:
        print_lines([f"{file}: {'matches' if matches else 'DIFFERS: it is ' + found}"])
    return 0 if matches else _DIFFERS


async def _saved(remote: RemoteOperations, run: str, found: list[dict[str, Any]], folder: Path) -> None:
    for artifact in found:
        relative = Path(artifact["name"])
        if relative.is_absolute() or ".." in relative.parts:
            raise InvalidArgument("save", f"{artifact['name']!r} is no name of a file below a folder")
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, await remote.download("artifacts", run, *artifact["name"].split("/")))


def _write(target: Path, data: bytes) -> None:
    """Put ``data`` at ``target``; a link that was there is replaced, not followed."""
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        fresh.write_bytes(data)
        os.replace(fresh, target)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise InvalidArgument("target", f"cannot write {str(target)!r}: {error.strerror}") from None
