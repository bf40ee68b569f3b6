"""The options of ``casemate serve``, for help and for what is not simply ``--name value``."""

from __future__ import annotations

import os
from typing import Literal

from casemate.surfaces.cli.parameters import Flag
from casemate.surfaces.cli.processes.mcp_server import options_of
from casemate.surfaces.cli.processes.mcp_server import serve as serve_with


def serve(
    *,
    transport: Literal["stdio", "http", "sse"] | None = None,
    toolset: Literal["default", "sandboxmcp", "ipybox", "full"] | None = None,
    host: str | None = None,
    port: int | None = None,
    token_file: str | None = None,
    plain_http: Flag = False,
    may_approve: Flag = False,
    workspace: str | None = None,
    policy: str | None = None,
    settings: str | None = None,
    embedded: Flag = False,
    log_level: Literal["debug", "info", "warning", "error"] | None = None,
) -> int:
    """Serve agents over MCP: tools that run code in cells.

    It joins your casemate service, or starts it, so that casemate approvals shows what its programs ask for.

    casemate serve

    casemate serve --transport http --port 8417 --token-file ~/.config/casemate/token

    Parameters
    ----------
    transport
        stdio, for a client that starts this command; http (streamable HTTP) or sse, for clients that connect.
    toolset
        default is a handful; sandboxmcp and ipybox add the tools of these systems by their names; full has all.
    host
        The address to listen at.
    port
        The port to listen at; 0 for a free one, which is said.
    token_file
        A file with the token that clients must send. Unless given: CASEMATE_SERVE_TOKEN, else a new one that is said.
    plain_http
        Listen without TLS beyond this machine's loopback: whoever is on the way can read and take over everything.
    may_approve
        Whoever uses the client over HTTP may approve what its agent asks for. Over stdio the user may.
    workspace
        The folder that programs work in, with a sandbox of this command's own.
    policy
        A file of rules for programs, in casemate's keys, with a sandbox of this command's own.
    settings
        A file of rules for programs, in srt's keys, with a sandbox of this command's own.
    embedded
        Run programs in this process's own sandbox, without the service; only the client can then approve.
    log_level
        What is written to standard error.
    """
    given = {
        "transport": transport, "toolset": toolset, "host": host, "port": port, "token_file": token_file,
        "plain_http": plain_http or None, "may_approve": may_approve or None, "workspace": workspace,
        "policy": policy, "settings": settings, "embedded": embedded or None, "log_level": log_level,
    }  # fmt: skip
    return serve_with(options_of({name: one for name, one in given.items() if one is not None}, os.environ))
