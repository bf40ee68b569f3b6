"""``casemate serve``: the MCP server's options, and its fast first answer.

A client waits for the first answer, and most of that time goes into loading the SDK. So nothing else is loaded before
it, and the service starts in parallel.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from casemate.errors import CasemateError, InvalidArgument
from casemate.surfaces.cli.failures import say

if TYPE_CHECKING:
    from casemate.operations.operations import Operations
    from casemate.surfaces.mcp.callers import LocalBackend


TRANSPORTS = ("stdio", "http", "sse")
LEVELS = ("debug", "info", "warning", "error")
TOKEN_VARIABLE = "CASEMATE_SERVE_TOKEN"  # noqa: S105 - its name
_LAST_PORT = 65535
_LONGEST_ANSWER = 3600.0  # seconds
_FLAGS = ("embedded", "may_approve", "plain_http")
_OWN = ("workspace", "policy", "settings")  # a shared service cannot take these from one client


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The command's options; ``token_file``, ``host`` and ``port`` are for HTTP."""

    transport: str = "stdio"
    toolset: str = "default"
    host: str = "127.0.0.1"
    port: int = 8417
    token_file: str | None = None
    plain_http: bool = False
    may_approve: bool = False
    workspace: str | None = None
    policy: str | None = None
    settings: str | None = None
    embedded: bool = False
    log_level: str = "warning"
    answer_within: float | None = None
    allow_origins: tuple[str, ...] = ()

    @property
    def is_embedded(self) -> bool:
        return self.embedded or any(getattr(self, name) is not None for name in _OWN)


def options_of(chosen: Mapping[str, Any], environ: Mapping[str, str]) -> ServeOptions:
    """The given options over the configured ones. Raises ``InvalidArgument``."""
    from casemate.api.config_files import is_configured

    if not is_configured(environ):
        return ServeOptions(**chosen)
    from casemate.api.keys import SERVE
    from casemate.api.settings import settings_of

    settings = settings_of(environ)
    configured = {key.name.removeprefix("serve."): settings.value(key.name) for key in SERVE}
    transport = chosen.get("transport", configured["transport"])
    if transport == "stdio":  # these configured values are for HTTP
        configured |= {"token_file": None, "may_approve": False, "plain_http": False}
    return ServeOptions(**{**{name: one for name, one in configured.items() if one is not None}, **chosen})


def plain(arguments: Sequence[str]) -> ServeOptions | None:
    """The options if they are just ``--name value``, ``--name=value`` and flags; None for those that need a parser."""
    chosen: dict[str, Any] = {}
    known = {field.name for field in fields(ServeOptions)}
    rest = list(arguments)
    while rest:
        word, _, value = rest.pop(0).partition("=")
        name = word.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in known or name in chosen:
            return None
        if name in _FLAGS:
            if value:
                return None
            chosen[name] = True
            continue
        if not value:
            if not rest or rest[0].startswith("-"):
                return None
            value = rest.pop(0)
        chosen[name] = value
    if not str(chosen.get("port", 0)).isdecimal() or {"answer_within", "allow_origins"} & chosen.keys():
        return None
    return options_of({**chosen, **({"port": int(chosen["port"])} if "port" in chosen else {})}, os.environ)


def serve(options: ServeOptions) -> int:
    """Serve until the client leaves or a signal comes. Returns the exit code. Raises ``CasemateError``."""
    _check(options)
    early = None
    if options.transport == "stdio":
        from casemate.surfaces.mcp.early import Early

        early = Early()
    if options.is_embedded:
        from casemate.walls.registry import start_early

        start_early()
    else:
        threading.Thread(target=_start_service, name="casemate-service-start", daemon=True).start()
    _log_to_stderr(options.log_level)

    import asyncio

    from casemate.surfaces.mcp.callers import RemoteBackend
    from casemate.surfaces.mcp.server import ANSWER_WITHIN, make_server

    may_approve = options.may_approve or options.transport == "stdio"
    backend = _embedded_backend(options, may_approve) if options.is_embedded else RemoteBackend(may_approve=may_approve)
    within = ANSWER_WITHIN if options.answer_within is None else options.answer_within
    server = make_server(backend, toolset=options.toolset, answer_within=within)
    gc.freeze()  # all loaded objects live to the end
    gc.enable()
    if early is not None:
        from casemate.event_loop import run_in_loop
        from casemate.surfaces.mcp.server import serve_stdio

        run_in_loop(serve_stdio(server, early))
        return 0
    from casemate.surfaces.http.server import new_loop
    from casemate.surfaces.mcp.web import serve_http

    where = (options.transport, options.host, options.port)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve_http(server, *where, _token(options), say, options.allow_origins))
    return 0


def _check(options: ServeOptions) -> None:
    from casemate.model.addresses import is_loopback
    from casemate.surfaces.mcp.toolsets import check_toolset

    check_toolset(options.toolset)
    for name, known in (("transport", TRANSPORTS), ("log_level", LEVELS)):
        if (chosen := getattr(options, name)) not in known:
            raise InvalidArgument(name, f"{chosen!r} is not known; choose one of {', '.join(known)}")
    if options.answer_within is not None and not 0 < options.answer_within <= _LONGEST_ANSWER:
        raise InvalidArgument("answer_within", f"{options.answer_within:g} is not a number of seconds up to an hour")
    if not 0 <= options.port <= _LAST_PORT:
        raise InvalidArgument("port", f"{options.port} is not a port; give 0 (any free one) to {_LAST_PORT}")
    if options.policy is not None and options.settings is not None:
        raise InvalidArgument("settings", "give either --policy or --settings")
    _check_named(options)
    if options.transport == "stdio" and (options.token_file is not None or options.may_approve):
        raise InvalidArgument(
            "transport", "stdio has no tokens, and its user may approve; --token-file and --may-approve are for http"
        )
    if options.transport != "stdio" and not options.plain_http and not is_loopback(options.host):
        raise InvalidArgument(
            "host",
            f"{options.host!r} is not loopback, and there is no TLS: the token could be read in transit",
            remediation="Put a TLS proxy before it, or use casemate service --tls-cert; or give --plain-http.",
        )


def _check_named(options: ServeOptions) -> None:
    """Check the named folder and file now, so that a client sees an error at the start, not at its first call."""
    if options.workspace is not None and not os.path.isdir(options.workspace):
        raise InvalidArgument("workspace", f"{options.workspace!r} is not a folder")
    name = "policy" if options.policy is not None else "settings"
    if (rules := getattr(options, name)) is not None:
        from casemate.api.policy_options import policy_from

        try:
            for warning in policy_from(rules).warnings:
                say(warning)
        except InvalidArgument as error:
            error.argument = name
            raise


def _log_to_stderr(level: str) -> None:
    """Configure logging before the SDK is loaded: only the protocol may use standard output."""
    import logging

    logging.basicConfig(stream=sys.stderr, level=level.upper(), format="casemate: %(levelname)s %(name)s: %(message)s")


def _start_service() -> None:
    """Start the user's service unless it runs. Errors are reported by later calls of tools."""
    import contextlib

    from casemate.event_loop import run_in_loop
    from casemate.remote.places import places_of
    from casemate.remote.starting import start_service

    with contextlib.suppress(CasemateError, OSError):
        run_in_loop(start_service(places_of(os.environ), os.environ))


def _embedded_backend(options: ServeOptions, may_approve: bool) -> LocalBackend:
    from casemate.surfaces.mcp.callers import LocalBackend

    async def make_operations() -> Operations:  # at the first call of a tool
        from casemate.operations.operations import Operations
        from casemate.surfaces.cli.daemon import sandbox_of

        chosen = {"workspace": options.workspace, "policy": options.policy or options.settings}
        wanted = {name: value for name, value in chosen.items() if value is not None}
        return await Operations(sandbox_of(os.environ, "default", **wanted)).load()

    return LocalBackend(make_operations, may_approve=may_approve, is_alone=True)


def _token(options: ServeOptions) -> str:
    """The clients' token: from a file, from the environment, or a new one, which is printed once."""
    if options.token_file is not None:
        try:
            with open(options.token_file, encoding="utf-8") as file:
                token = file.read(4096).strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise InvalidArgument(
                "token_file",
                f"cannot read {options.token_file!r}: {why}",
                remediation="Write a token of at least 16 characters into it, or leave it out to have one made.",
            ) from None
    else:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token and (len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token):
        raise InvalidArgument("token_file", "a token must have at least 16 printable characters, and no spaces")
    if not token:
        import secrets

        token = secrets.token_urlsafe(32)
        say(f"token, for Authorization: Bearer: {token}")
    return token
