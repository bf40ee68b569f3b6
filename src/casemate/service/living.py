"""The service from its first breath to its last: signals, places, and the order in which it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from casemate.service.service import Service

if TYPE_CHECKING:
    from casemate.service.serving import Server

_log = logging.getLogger("casemate.service")


async def live(service: Service, make_servers: Callable[[], Sequence[Server]], ready: Callable[[], None]) -> None:
    """Serve until told to end, or idle for long enough: SIGTERM and SIGINT drain it, a second one ends it at once.

    ``ready`` is called when all places are listened at. What it raises ends the service.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _told, service, number)
    servers = make_servers()
    async with asyncio.TaskGroup() as serving:
        tasks = [serving.create_task(server.until_ended()) for server in servers]
        try:
            ready()
            why = await service.until_stopped()
            _log.info("ending", extra={"event": "ending", "kind": why, "runs": service.activity()["runs"]})
            await service.drain()
        finally:
            await service.close()
            for server in servers:
                server.end()
            await asyncio.wait(tasks)
    _log.info("ended", extra={"event": "ended"})


def _told(service: Service, number: int) -> None:
    _log.info("signal", extra={"event": "signal", "signal": signal.Signals(number).name})
    service.stop()
