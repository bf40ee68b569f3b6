"""``casemate service``: the daemon that keeps sessions, runs and approvals, and what a user asks of it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter

from casemate.errors import CasemateError, InvalidArgument, Unavailable
from casemate.remote.client import attach
from casemate.remote.places import LOG, places_of
from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.answers import print_json, print_lines
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.parameters import Output
from casemate.surfaces.http.tokens import Token, Tokens
from casemate.surfaces.http.unit import container, unit

app = App(name="service", help="Keep sessions, runs and approvals alive for the user's commands and servers.")
tokens = App(name="token", help="Tokens for those who come over TCP.")
app.command(tokens)
_STOPS_WITHIN = 120.0  # seconds
_SAYS_AFTER = 1.0  # seconds, after which somebody at a terminal wonders
_IDLE_STOP = 900.0  # seconds without anything that lives, after which a service on demand ends, unless it is configured
_MOST_DESCRIPTORS = 65536
_TOLD = ("name", "audience", "namespace", "may_approve", "created", "expires")  # of a token; never its hash
_LOG_TAIL = 64 * 1024  # bytes


@app.default
def serve(
    *,
    idle_stop: float | None = None,
    drain: float | None = None,
    listen: tuple[str, ...] = (),
    tls_cert: str | None = None,
    tls_key: str | None = None,
    plain_http: bool = False,
    host_name: tuple[str, ...] = (),
    allow_origin: tuple[str, ...] = (),
    on_demand: Annotated[bool, Parameter(show=False)] = False,
) -> int:
    """Serve until SIGTERM or Ctrl-C: on a Unix socket that only you can reach.

    Commands start it by themselves when they need it. A second signal ends it at once.

    Parameters
    ----------
    idle_stop
        End after so many seconds without sessions, runs and requests; never unless given.
    drain
        Seconds that running runs have when the service is told to end; then they end with what there is.
    listen
        An address of this machine besides, as HOST:PORT. Only those with a token are let in. May be repeated.
    tls_cert
        The file of a certificate, and those above it: what listens on TCP then speaks TLS.
    tls_key
        The file of its key.
    plain_http
        Listen without TLS beyond this machine's loopback: whoever is on the way can read and take over everything.
    host_name
        Another name by which requests may call the service. May be repeated.
    allow_origin
        A page's origin, as https://example.org, from which browsers may ask. May be repeated.
    """
    if on_demand:
        os.closerange(3, _MOST_DESCRIPTORS)  # what whoever started it had open, such as a pipe that somebody waits on
    from casemate.surfaces.cli.daemon import Options, run
    from casemate.surfaces.mcp.mounted import mounts

    given = {
        "idle_stop": idle_stop, "drain": drain, "listen": [*listen] or None, "tls_cert": tls_cert, "tls_key": tls_key,
        "plain_http": plain_http or None, "host_names": [*host_name] or None, "origins": [*allow_origin] or None,
    }  # fmt: skip
    return run(Options(**options(given, on_demand=on_demand), on_demand=on_demand), os.environ, mounts=mounts())


def options(given: Mapping[str, Any], *, on_demand: bool) -> dict[str, Any]:
    """The options as they are given, else as they are configured, else those of a service that was started
    ``on_demand``. Raises ``InvalidArgument`` for what is configured wrongly."""
    from casemate.api.settings import settings_of

    settings = settings_of(os.environ)
    found = {
        name: one
        if one is not None
        else settings.value("service.allow_origins" if name == "origins" else f"service.{name}")
        for name, one in given.items()
    }
    said = {name: tuple(one) if isinstance(one, list) else one for name, one in found.items() if one is not None}
    return {**({"idle_stop": _IDLE_STOP} if on_demand else {}), **said}


@app.command
def status(*, output: Output = "text") -> int:
    """Say whether your service runs, and what lives in it. The exit code is 0 when it runs, else 69.

    Parameters
    ----------
    output
        text (unless given), or json.
    """
    said = interrupts.run(_health())
    if output == "json":
        print_json(said)
        return 0
    activity = ", ".join(
        f"{count} {name if count != 1 else name.removesuffix('s')}" for name, count in said["activity"].items()
    )
    sys.stdout.write(f"{said['address']}: casemate {said['version']}, {said['status']}; {activity}\n")
    return 0


@app.command
def stop() -> int:
    """End your service: it takes no new work, runs have some time to end, and what they came to is kept."""
    interrupts.run(_stop_service())
    return 0


@app.command
def logs() -> int:
    """Print the end of the service's own log."""
    path = places_of(os.environ).state / LOG
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL))
            sys.stdout.write(file.read(_LOG_TAIL).decode("utf-8", "backslashreplace"))
    except FileNotFoundError:
        raise Unavailable(f"there is no log at {path}", remediation="The service has not run yet.") from None
    return 0


@app.command(name="unit")
def print_unit() -> int:
    """Print a unit for systemd: casemate service unit > ~/.config/systemd/user/casemate.service"""
    sys.stdout.write(unit(sys.executable))
    return 0


@app.command(name="containerfile")
def print_containerfile() -> int:
    """Print a description of a container with the service, and what its walls need of the engine."""
    sys.stdout.write(container())
    return 0


@tokens.command
def add(
    name: str,
    /,
    *,
    operator: bool = False,
    namespace: str = "default",
    may_approve: bool = False,
    expires: float | None = None,
    output: Output = "text",
) -> int:
    """Make a token and print it, this once: only a hash of it is kept.

    Parameters
    ----------
    name
        For whom it is; what is done with it is on record under that name.
    operator
        It may do all that the user may in its namespace; unless given, what agents may, with what is their own.
    namespace
        The only namespace that it opens; default unless given.
    may_approve
        It may answer what waits to be approved; that of an agent only what its own runs ask for.
    expires
        Days after which it opens nothing.
    output
        text (unless given), or json: an object with the token.
    """
    seconds = None if expires is None else expires * 86_400
    audience = "operator" if operator else "agent"
    text = _tokens().add(name, audience=audience, namespace=namespace, may_approve=may_approve, expires_in=seconds)
    if output == "json":
        print_json({"name": name, "token": text})
    else:
        print_lines([text])
    return 0


@tokens.command(name="list")
def list_tokens(*, output: Output = "text") -> int:
    """Print what is known of each token, one in a line; never the token.

    Parameters
    ----------
    output
        text (unless given), or json: name, audience, namespace, may_approve, and created and expires in Unix seconds.
    """
    found = _tokens().list()
    if output == "json":
        print_json([{name: getattr(one, name) for name in _TOLD} for one in found])
        return 0
    for one in found:
        sys.stdout.write(f"{_line(one)}\n")
    return 0


@tokens.command
def remove(name: str, /) -> int:
    """Let in nobody with this token any more; what is open with it ends within a second.

    Parameters
    ----------
    name
        That it was made for.
    """
    if not _tokens().remove(name):
        raise InvalidArgument("name", f"there is no token {name!r}", remediation="casemate service token list")
    return 0


def _tokens() -> Tokens:
    return Tokens(places_of(os.environ).state)


def _line(token: Token) -> str:
    from casemate.surfaces.cli.inert import inert

    until = "never expires"
    if token.expires is not None:
        word = "expired" if token.expires <= time.time() else "expires"
        until = f"{word} {time.strftime('%Y-%m-%d %H:%M', time.gmtime(token.expires))} UTC"
    may = ", may approve" if token.may_approve else ""
    return f"{inert(token.name)}\t{token.audience} of {inert(token.namespace)}{may}\t{until}"


async def _health() -> dict[str, Any]:
    remote = await attach(os.environ)
    try:
        return {"address": str(remote.address), **await remote.health()}
    finally:
        await remote.close()


async def _stop_service() -> None:
    try:
        remote = await attach(os.environ)
    except Unavailable:
        return  # it does not run
    try:
        await remote.request("POST", "/v1/service/stop", b"{}")
        begun, is_told = time.monotonic(), False
        while (taken := time.monotonic() - begun) < _STOPS_WITHIN:
            try:
                await remote.health()
            except CasemateError:
                return
            if taken > _SAYS_AFTER and not is_told:
                say("waits for runs to end, or ends them; what they came to is kept")
                is_told = True
            await asyncio.sleep(0.05)
    finally:
        await remote.close()
    raise Unavailable(f"the service has not ended within {_STOPS_WITHIN:g} s", remediation="casemate service logs")
