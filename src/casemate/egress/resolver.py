"""The cell's resolver: it gives each allowed name an address in the cell's own network, and queries no other server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine

from casemate.egress import wire
from casemate.egress.accepting import accept, is_pair
from casemate.policy.hosts import canonical

_TTL = 5  # seconds; the terms can change with the next step of a session
_MOST_AT_ONCE = 32  # datagrams in one turn of the event loop
_MOST_CLIENTS = 256  # client sockets of one cell
_BURST = 2.0  # seconds' worth of queries at once


class Resolver:
    """Answers at ``endpoint``, which it takes over. ``knows`` returns whether a canonical name may be reached.
    ``reach`` returns its address, or None. ``denied`` is called with each other name. Queries beyond ``rate`` per
    second are dropped; clients repeat them."""

    def __init__(
        self,
        endpoint: socket.socket,
        knows: Callable[[str], bool],
        reach: Callable[[str], Coroutine[None, None, str | None]],
        denied: Callable[[str], None],
        group: asyncio.TaskGroup,
        rate: int,
    ) -> None:
        self._socket, self._knows, self._reach, self._denied = endpoint, knows, reach, denied
        self._group, self._rate = group, rate
        self._loop = asyncio.get_running_loop()
        self._credit = rate * _BURST
        self._seen = self._loop.time()
        self._clients: dict[socket.socket, None] = {}  # used with a socket pair; oldest first
        endpoint.setblocking(False)
        self._loop.add_reader(endpoint, self._accept if is_pair(endpoint) else self._read)

    def close(self) -> None:
        """Stop answering."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for client in list(self._clients):
            self._leave(client)

    def _read(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                message, sender = self._socket.recvfrom(wire.MOST_MESSAGE + 1)
            except OSError:
                return
            if self._may_ask():
                self._hear(message, sender)

    def _accept(self) -> None:
        try:
            client = accept(self._socket)
        except EOFError:
            self._loop.remove_reader(self._socket)
            return
        except OSError:
            return  # the client repeats its query
        client.setblocking(False)
        self._clients[client] = None
        self._loop.add_reader(client, self._read_from, client)
        if len(self._clients) > _MOST_CLIENTS:
            self._leave(next(iter(self._clients)))

    def _read_from(self, client: socket.socket) -> None:
        try:
            message = client.recv(wire.MOST_MESSAGE + 1)
        except OSError:
            message = b""
        if not message:
            self._leave(client)
        elif self._may_ask():
            self._hear(message, client)

    def _leave(self, client: socket.socket) -> None:
        if client in self._clients:
            del self._clients[client]
            self._loop.remove_reader(client)
            client.close()

    def _may_ask(self) -> bool:
        now = self._loop.time()
        self._credit = min(self._credit + (now - self._seen) * self._rate, self._rate * _BURST)
        self._seen = now
        if self._credit < 1:
            return False
        self._credit -= 1
        return True

    def _hear(self, message: bytes, sender: object) -> None:
        try:
            query = wire.parse_query(message)
        except wire.MalformedQuery as error:
            if error.answer is not None:
                self._send(error.answer, sender)
            return
        name = canonical(query.name)
        if name is None or not self._knows(name):
            if query.kind != wire.AAAA:  # clients also send a query for A
                self._denied(name or query.name)
            self._send(wire.answer_query(query, wire.NO_SUCH_NAME), sender)
        elif query.kind in (wire.A, wire.ANY):
            self._group.create_task(self._answer(query, name, sender))
        else:
            self._send(wire.answer_query(query), sender)

    async def _answer(self, query: wire.Query, name: str, sender: object) -> None:
        address = await self._reach(name)
        code = wire.SERVER_FAILURE if address is None else wire.DNS_OK
        self._send(wire.answer_query(query, code, address, _TTL), sender)

    def _send(self, message: bytes, sender: object) -> None:
        try:
            if isinstance(sender, socket.socket):
                sender.send(message)
            else:
                self._socket.sendto(message, sender)  # type: ignore[call-overload]
        except OSError:
            return  # the client repeats its query
