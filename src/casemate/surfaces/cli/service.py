"""``casemate service``: run and manage the daemon that keeps sessions, runs and approvals."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter

from casemate.api.keys import ServeSettings, ServiceSettings
from casemate.errors import CasemateError, InvalidArgument, Unavailable
from casemate.model.options import defaults_of
from casemate.remote.client import attach
from casemate.remote.places import LOG, places_of
from casemate.surfaces.cli import interrupts
from casemate.surfaces.cli.answers import print_answer, print_json
from casemate.surfaces.cli.failures import say
from casemate.surfaces.cli.parameters import Output, takes
from casemate.surfaces.http.tokens import Token, Tokens

app = App(name="service", help="Keep sessions, runs and approvals alive for the user's commands and servers.")
tokens = App(name="token", help="Manage tokens for clients over TCP.")
app.command(tokens)
_PLAIN_HTTP = (
    "Listen without TLS beyond this machine's loopback: others on the network can read and take over everything."
)
_STOPS_WITHIN = 120.0  # seconds
_SAYS_AFTER = 1.0  # seconds after which the wait is explained
_IDLE_STOP = 900.0  # seconds without activity after which a service on demand ends, unless configured
_MOST_DESCRIPTORS = 65536
# Fields of a token that are shown; never its hash.
_SHOWN_FIELDS = (
    "name", "audience", "namespace", "may_approve", "may_run_commands", "secrets", "created", "expires",
)  # fmt: skip
_LOG_TAIL = 64 * 1024  # bytes
# See systemd.exec(5), systemd.service(5), user_namespaces(7).
_UNIT = """\
[Unit]
Description=casemate: sessions, runs and approvals of sandboxed programs
Documentation=man:systemd.exec(5)

[Service]
Type=exec
ExecStart={python} -P -m casemate service --drain 30
# The first signal drains, a second ends it at once; what still runs then is killed with the group.
KillMode=mixed
TimeoutStopSec=60
Restart=on-failure
RestartSec=2
UMask=0077
# Lets the service limit cells with cgroups below its own.
Delegate=cpu memory pids
# The service needs no new privileges. Cells get privileges only in their own user namespaces.
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
MemoryDenyWriteExecute=no
# Not set, because walls need namespaces, mounts, /proc and seccomp: RestrictNamespaces=, PrivateUsers=, ProtectProc=,
# ProtectKernelTunables=, PrivateMounts=, SystemCallFilter=.

[Install]
WantedBy=default.target
"""


@takes(
    "transport", "toolset", "host", "port", "token_file", "plain_http", "may_approve", "embedded", "log_level",
    of=ServeSettings, plain_http=_PLAIN_HTTP,
    port="The port to listen at; 0 for a free one, which is printed.",
    transport="stdio, for a client that starts this command; http (streamable HTTP) or sse, for clients that connect.",
    toolset="default has a few tools; sandboxmcp and ipybox add the tools of those systems; full has all.",
    token_file="A file with the token that clients must send. Unless given: CASEMATE_SERVE_TOKEN, or a new one.",  # noqa: S106
    embedded="Run programs in a sandbox of this process, without the service; then only the client can approve.",
)  # fmt: skip
def serve_mcp(
    *,
    workspace: str | None = None,
    policy: str | None = None,
    settings: str | None = None,
    answer_within: float | None = None,
    allow_origins: Annotated[tuple[str, ...], Parameter(name="--allow-origin")] = (),
    **options: Any,
) -> int:
    """Serve agents over MCP: tools that run code in cells.

    It uses your casemate service, and starts it if needed. To see its programs' requests: casemate approvals

    casemate serve

    casemate serve --transport http --port 8417 --token-file ~/.config/casemate/token

    Args:
        workspace: The folder that programs work in; implies --embedded.
        policy: A file of rules for programs, in casemate's keys; implies --embedded.
        settings: A file of rules for programs, in srt's keys; implies --embedded.
        answer_within: Seconds until an unfinished call is answered, such as one that waits for an approval; 45 by
            default. Give less than your client's timeout; many agent frameworks give up after 5.
        allow_origins: For http: the origin of a page that may use it in a browser, such as https://app.example.org.
            May be repeated.
    """
    from casemate.surfaces.cli import serve

    own = {"workspace": workspace, "policy": policy, "settings": settings, "answer_within": answer_within}
    chosen = {**options, **own, "allow_origins": allow_origins}
    return serve.serve(serve.options_of({name: one for name, one in chosen.items() if one is not None}, os.environ))


@app.default
@takes(*ServiceSettings.__annotations__, of=ServiceSettings, defaults=False, plain_http=_PLAIN_HTTP)
def serve(*, on_demand: Annotated[bool, Parameter(show=False)] = False, **settings: Any) -> int:
    """Serve until SIGTERM or Ctrl-C, on a Unix socket that only you can reach.

    Commands start it when they need it. A second signal ends it at once.
    """
    if on_demand:
        os.closerange(3, _MOST_DESCRIPTORS)  # inherited ones, such as a pipe whose reader waits for its end
    from casemate.surfaces.cli.daemon import run
    from casemate.surfaces.mcp.mounted import mounts

    chosen = {name: settings.get(name) for name in ServiceSettings.__annotations__}
    complete = {**defaults_of(ServiceSettings), **options(chosen, on_demand=on_demand)}
    return run(ServiceSettings(**complete), os.environ, mounts(), on_demand=on_demand)


def options(chosen: Mapping[str, Any], *, on_demand: bool) -> dict[str, Any]:
    """``chosen``, else the configured options, else those of a service ``on_demand``. Raises ``InvalidArgument``."""
    from casemate.api.settings import settings_of

    settings = settings_of(os.environ)
    for warning in settings.policy.warnings:
        say(warning)
    found = {name: settings.value(f"service.{name}") if one is None else one for name, one in chosen.items()}
    said = {name: tuple(one) if isinstance(one, list) else one for name, one in found.items() if one is not None}
    return {**({"idle_stop": _IDLE_STOP} if on_demand else {}), **said}


@app.command
def status(*, output: Output = "text") -> int:
    """Show whether your service runs, and its activity. The exit code is 0 if it runs, else 69."""
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
    """End your service: it takes no new work, gives runs some time to end, and keeps their results."""
    interrupts.run(_stop_service())
    return 0


@app.command
def logs() -> int:
    """Print the end of the service's log."""
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
    """Print a systemd unit: casemate service unit > ~/.config/systemd/user/casemate.service"""
    sys.stdout.write(_UNIT.format(python=sys.executable.replace("%", "%%").replace(" ", "\\x20")))
    return 0


@tokens.command
def add(
    name: str,
    /,
    *,
    operator: bool = False,
    metrics: bool = False,
    namespace: str = "default",
    may_approve: bool = False,
    may_run_commands: bool = False,
    expires: float | None = None,
    secret: list[str] | None = None,
    output: Output = "text",
) -> int:
    """Make a token and print it. It cannot be shown again: only its hash is kept.

    Args:
        name: Its holder; the record shows its actions under that name.
        operator: It gets an operator's rights in its namespace. By default it gets an agent's, for its own sessions
            and runs only.
        metrics: It may read the metrics (GET /metrics), and nothing else.
        namespace: The only namespace that it can use; "default" unless given.
        may_approve: It may answer approval requests; an agent's token only those of its own runs.
        may_run_commands: It may run commands on this machine outside every wall: with --operator it may add them as
            MCP servers, and with --may-approve allow requests for them. Its holder can do all that you can.
        expires: Days after which it expires.
        secret: The name of a secret that an agent's programs get without approval. May be repeated.
    """
    seconds = None if expires is None else expires * 86_400
    audience = "metrics" if metrics else "operator" if operator else "agent"
    text = _tokens().add(
        name, audience=audience, namespace=namespace, may_approve=may_approve, expires_in=seconds,
        secrets_for=secret or (), may_run_commands=may_run_commands,
    )  # fmt: skip
    return print_answer({"name": name, "token": text}, [text], is_json=output == "json")


@tokens.command(name="list")
def list_tokens(*, output: Output = "text") -> int:
    """Print the tokens' fields, one token per line; never the token itself. Times in JSON are Unix seconds."""
    found = _tokens().list()
    if output == "json":
        print_json([{name: getattr(one, name) for name in _SHOWN_FIELDS} for one in found])
        return 0
    for one in found:
        sys.stdout.write(f"{_line(one)}\n")
    return 0


@tokens.command
def remove(name: str, /) -> int:
    """Revoke a token. Requests and streams that use it end within a second."""
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
    may = f"{', may approve' if token.may_approve else ''}{', may run commands' if token.may_run_commands else ''}"
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
        await remote.health()  # raises for a service that does not answer, and says what to do
        await remote.request("POST", "/v1/service/stop", b"{}")
        begun, is_said = time.monotonic(), False
        while (taken := time.monotonic() - begun) < _STOPS_WITHIN:
            try:
                await remote.health()
            except CasemateError:
                return
            if taken > _SAYS_AFTER and not is_said:
                say("waiting for runs to end; their results are kept")
                is_said = True
            await asyncio.sleep(0.05)
    finally:
        await remote.close()
    raise Unavailable(f"the service did not end within {_STOPS_WITHIN:g} s", remediation="casemate service logs")
