"""The server on standard input and output, for one client, which has started it."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import anyio
from mcp.server.stdio import stdio_server

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

    from casemate.surfaces.mcp.callers import Callers


async def serve_stdio(server: Server[Callers]) -> None:
    """Serve until the client closes standard input. While this runs, whatever else is written to standard output goes
    to standard error. A signal to end ends what the client has left behind, and the process: the thread that reads
    standard input cannot be woken.
    """
    async with server.lifespan(server) as callers, anyio.create_task_group() as tasks:
        tasks.start_soon(_end_by_signal, callers)
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _end_by_signal(callers: Callers) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            await callers.end()
            sys.stderr.flush()
            os._exit(128 + number)
