"""The server on standard input and output, for one client, which has started it."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, cast

import anyio
from mcp.server.stdio import stdio_server

if TYPE_CHECKING:
    from anyio import AsyncFile
    from mcp.server.lowlevel import Server

    from casemate.surfaces.mcp.callers import Callers
    from casemate.surfaces.mcp.early import Early


async def serve_stdio(server: Server[Callers], early: Early) -> None:
    """Serve until the client closes standard input. ``early``: has standard input and output, and has answered the
    first request. A signal to end ends what the client has left behind, and the process: the thread that reads standard
    input cannot be woken.
    """
    incoming_lines, outgoing_lines = cast("AsyncFile[str]", early.incoming()), cast("AsyncFile[str]", early.outgoing())
    async with server.lifespan(server) as callers, anyio.create_task_group() as tasks:
        tasks.start_soon(_end_by_signal, callers)
        async with stdio_server(incoming_lines, outgoing_lines) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _end_by_signal(callers: Callers) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            await callers.end()
            sys.stderr.flush()
            os._exit(128 + number)
