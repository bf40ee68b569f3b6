"""Serves previews: one loopback port for all previews of a sandbox, and Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from casemate.errors import Unavailable
from casemate.files.temporary import TemporaryFolder, sweep
from casemate.previews.relay import AT_ONCE, relay, serve_client

if TYPE_CHECKING:
    from casemate.previews.exposed import ExposedServer

_MOST = 512  # connections to the port, of all clients
_TRIES = 8  # ports to try: one that is free with IPv4 may not be with IPv6


class PreviewGateway:
    """Listens from the first preview on. Used in one event loop."""

    def __init__(self) -> None:
        self._exposed: dict[str, ExposedServer] = {}  # by host name
        self._port = 0
        self._servers: list[asyncio.Server] = []  # at the port
        self._sockets: dict[ExposedServer, asyncio.Server] = {}
        self._folder: TemporaryFolder | None = None
        self._clients: set[asyncio.Task[object]] = set()
        self._starting = asyncio.Lock()

    async def open_port(self, exposed: ExposedServer) -> None:
        """Show a server under its host name. Raises ``Unavailable``."""
        async with self._starting:
            if not self._servers:
                try:
                    self._servers = await self._listen()
                except OSError as error:
                    raise Unavailable(f"no port of the loopback can be listened at: {error.strerror}") from None
                self._port = self._servers[0].sockets[0].getsockname()[1]
        self._exposed[exposed.host] = exposed
        exposed.preview = replace(exposed.preview, url=f"http://{exposed.host}:{self._port}/")

    async def open_socket(self, exposed: ExposedServer) -> None:
        """Show a server at a Unix socket in a folder that only this user can enter. Raises ``Unavailable``."""
        serve = partial(_serve_socket, exposed)
        try:
            if self._folder is None:
                sweep()
                self._folder = TemporaryFolder("previews")
            path = str(self._folder.path / f"{exposed.host}.sock")
            self._sockets[exposed] = await asyncio.start_unix_server(serve, path, limit=AT_ONCE)
        except OSError as error:
            raise Unavailable(f"the preview's socket cannot be made: {error.strerror or error}") from None
        exposed.preview = replace(exposed.preview, socket=path)

    def withdraw(self, exposed: ExposedServer) -> None:
        """Stop exposing the port. A second call does nothing."""
        if self._exposed.get(exposed.host) is exposed:
            del self._exposed[exposed.host]
        if (server := self._sockets.pop(exposed, None)) is not None:
            server.close()
        exposed.withdraw()

    async def close(self) -> None:
        """Withdraw all previews and stop listening."""
        for exposed in (*self._exposed.values(), *self._sockets):
            self.withdraw(exposed)
        for server in self._servers:
            server.close()
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)
        if self._folder is not None:
            self._folder.remove()

    async def _listen(self) -> list[asyncio.Server]:
        """Listen at the same port with IPv4 and IPv6: a browser may try either, so no other program may have one."""
        for _ in range(_TRIES):
            first = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=AT_ONCE)
            port = first.sockets[0].getsockname()[1]
            try:
                return [first, await asyncio.start_server(self._serve, "::1", port, limit=AT_ONCE)]
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    return [first]  # there is no IPv6
                first.close()
        raise OSError(errno.EADDRINUSE, "no port is free with IPv4 and IPv6")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._clients) >= _MOST:
            writer.transport.abort()
            return
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)
        with contextlib.suppress(asyncio.CancelledError):  # only by `withdraw` and `close`
            await serve_client(reader, writer, self._exposed.get)


async def _serve_socket(exposed: ExposedServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Relay bytes unchanged, without a check: only the user can connect."""
    try:
        with contextlib.suppress(asyncio.CancelledError, OSError), exposed.count_client():
            there = await asyncio.open_connection(sock=await exposed.connect(), limit=AT_ONCE)
            try:
                await relay(exposed, (reader, writer), there)
            finally:
                there[1].transport.abort()
    finally:
        writer.close()
