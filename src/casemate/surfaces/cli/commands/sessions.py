"""``casemate sessions``: interpreters that keep their state in the service."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

from cyclopts import App, Parameter

from casemate.errors import InvalidArgument
from casemate.surfaces.cli.answers import ago, print_document, print_done, print_json, print_lines, print_table
from casemate.surfaces.cli.given import env_of
from casemate.surfaces.cli.over_service.connection import PLAIN, Asked, ask, served
from casemate.surfaces.cli.over_service.limit_options import NO_LIMITS, LimitOptions
from casemate.surfaces.cli.over_service.lists import Filter, Quiet, print_listed, wanted
from casemate.surfaces.cli.parameters import Name

app = App(name="sessions", help="Keep interpreters with their state, and look into them.")
_COLUMNS = ("session", "name", "language", "steps", "busy", "age", "owner")


@app.command(name="open")
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


@app.default
@app.command(name="list")
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
    sessions = ask(asked, "sessions.list", filters=chosen)
    if quiet or asked.is_json:
        print_listed(sessions, "session", quiet=quiet)
        return 0
    now = time.time()
    rows = [{**one, "busy": one["is_busy"], "age": ago(now - one["created"])} for one in sessions]
    print_table(_COLUMNS, rows, "No session is open.")
    return 0


@app.command(name=("close", "kill"))
def close(*sessions: Name, asked: Asked = PLAIN) -> int:
    """End sessions and everything in them.

    Parameters
    ----------
    sessions
        Their handles or names.
    """
    if not sessions:
        raise InvalidArgument("session", "name one or more")

    async def closed(remote: Any) -> None:
        for session in sessions:
            await remote("sessions.close", {"session": session})

    served(closed, asked)
    return print_done(is_json=asked.is_json)


@app.command
def reset(session: Name, /, *, asked: Asked = PLAIN) -> int:
    """Forget everything of a session but its files.

    Parameters
    ----------
    session
        Its handle or name.
    """
    ask(asked, "sessions.reset", session=session)
    return print_done(is_json=asked.is_json)


@app.command
def interrupt(session: Name, /, *, asked: Asked = PLAIN) -> int:
    """Interrupt what runs in a session; its state is kept.

    Parameters
    ----------
    session
        Its handle or name.
    """
    ask(asked, "sessions.interrupt", session=session)
    return print_done(is_json=asked.is_json)


@app.command
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


@app.command(name="get")
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


@app.command(name="set")
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


@app.command(name="bridge")
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


@app.command(name="inspect")
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
