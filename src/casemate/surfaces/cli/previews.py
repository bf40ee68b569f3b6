"""``casemate expose`` and ``unexpose``: servers of sessions, shown on the service's machine."""

from __future__ import annotations

import time
from typing import Any

from casemate.errors import InvalidArgument
from casemate.surfaces.cli.answers import format_age, print_answer, print_done, print_rows
from casemate.surfaces.cli.connection import PLAIN, ServiceOptions, ask
from casemate.surfaces.cli.parameters import Name


def expose(
    session: Name | None = None,
    port: int | None = None,
    /,
    *,
    expires: float | None = None,
    unix: bool = False,
    third_parties: bool = False,
    service: ServiceOptions = PLAIN,
) -> int:
    """Show the server that listens at a port in a session, and print a link to it; without a port, list what is shown.

    casemate expose analysis 8000

    casemate expose analysis 8000 --expires 600

    Whoever has the link may look until it ends. Its pages reach nothing but their own server.

    Args:
        session: Its handle or name.
        port: At which a program of the session listens, at its loopback.
        expires: Seconds after which the link ends; 3600 unless given, at most 30 days.
        unix: Show it at a Unix socket that you alone can use, and print its path.
        third_parties: Let its pages load from other hosts, and send to them, with the browser of whoever looks.
    """
    if session is None or port is None:
        return _print_previews(ask(service, "sessions.previews", session=session), service)
    preview = _ask(
        service, "sessions.expose", session=session, port=port, expires=expires, unix=unix, third_parties=third_parties
    )
    return print_answer(preview, [preview["url"] or preview["socket"]], is_json=service.is_json)


def unexpose(session: Name, port: int, /, *, service: ServiceOptions = PLAIN) -> int:
    """Show what listens at a port in a session no more: its links end, and so do connections to it.

    casemate unexpose analysis 8000

    Args:
        session: Its handle or name.
        port: As it was shown.
    """
    _ask(service, "sessions.unexpose", session=session, port=port)
    return print_done(is_json=service.is_json)


def _ask(service: ServiceOptions, operation: str, **arguments: Any) -> Any:
    """Ask, and name the port as these commands do where it is wrong: others have it as an option."""
    try:
        return ask(service, operation, **arguments)
    except InvalidArgument as error:
        if error.argument != "port":
            raise
        raise InvalidArgument("PORT", error.problem, remediation=error.remediation) from None


def _print_previews(previews: list[dict[str, Any]], service: ServiceOptions) -> int:
    now = time.time()
    return print_rows(
        previews, ("session", "port", "where", "ends"), "Nothing is shown.", is_json=service.is_json,
        row=lambda one: {
            **one, "where": one["url"] or one["socket"],
            "ends": "" if one["expires"] is None else f"in {format_age(one['expires'] - now)}",
        },
    )  # fmt: skip
