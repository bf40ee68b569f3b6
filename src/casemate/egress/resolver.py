"""The resolver that a cell has: it knows the names that may be reached, gives each an address in the cell's own
network, and asks nobody."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine

from casemate.egress import wire
from casemate.egress.accepting import accept, is_pair
from casemate.policy.hosts import canonical

_TTL = 5  # seconds: what may be reached can change with the next step of a session
_MOST_AT_ONCE = 32  # datagrams between two looks at everything else
_MOST_CLIENTS = 256  # sockets of one cell that may ask
_BURST = 2.0  # seconds' worth of queries that may come at once


class Resolver:
    """Answers at ``endpoint``, which is taken over. ``knows`` says whether a canonical name may be reached, ``reach``
    gives its address, or None where none can be had; ``denied`` is told of each name that may not be reached. Queries
    beyond ``rate`` a second are dropped: clients ask again."""

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
        self._clients: dict[socket.socket, None] = {}  # where each has a socket of its own, the oldest first
        endpoint.setblocking(False)
        if is_pair(endpoint):
            self._loop.add_reader(endpoint, self._accept)
        else:
            self._loop.add_reader(endpoint, self._read)

    def close(self) -> None:
        """Answer nothing more."""
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
            return  # it asks again
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
            if query.kind != wire.AAAA:  # it comes along with a question for A
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
            return  # it asks again
