"""Carries a cell's connections and name queries from its container to the link."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable

from casemate.supervisor import carriage
from casemate.supervisor.readiness import Poller
from casemate.walls.docker import addresses

_MOST_ASKING = 64  # sockets of one cell with a name query


class CarriedListeners:
    """The listeners of one cell, by channel number. ``send`` sends bytes to its container; ``carry`` makes a channel
    from a number and a connection."""

    def __init__(self, send: Callable[[bytes], None], poller: Poller, carry: Callable[[int, int], None]) -> None:
        self._send, self._poller, self._carry = send, poller, carry
        self._sockets: dict[int, socket.socket] = {}
        self._asking: dict[tuple[int, bytes], socket.socket] = {}
        self.most = 0  # listeners that the link asked for

    def __contains__(self, number: int) -> bool:
        return number in self._sockets

    def close(self) -> None:
        """Close all listeners and queries. May be called more than once."""
        for who in list(self._asking):
            self._stop_asking(who)
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    def listen(self, number: int) -> int:
        """Return the link's end of a socket pair that passes on each connection the container accepts."""
        if number in self._sockets or len(self._sockets) >= self.most:
            raise ValueError("too many listeners")
        self._sockets[number], theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return theirs.detach()

    def accept(self, number: int, payload: bytes) -> None:
        """Take a connection that the container accepted. Raises ``ValueError`` if there is no such listener."""
        (accepted,) = carriage.NUMBER.unpack(payload) if len(payload) == carriage.NUMBER.size else (0,)
        if number not in self._sockets or not accepted:
            raise ValueError("a connection to an unknown listener")
        try:
            sock = self._hand_over(number, socket.SOCK_STREAM)
        except OSError:
            self._send(carriage.frame(carriage.DEAF, accepted) + carriage.frame(carriage.END, accepted))
            return
        self._carry(accepted, sock.detach())

    def _hand_over(self, number: int, kind: socket.SocketKind) -> socket.socket:
        """Send the link one end of a new connection and return ours. Raises ``OSError`` if it does not take it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            socket.send_fds(self._sockets[number], [b"c"], [theirs.fileno()], flags)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return ours

    def ask(self, number: int, payload: bytes) -> None:
        """Pass on a name query from one of the cell's sockets."""
        who, question = (number, payload[: addresses.SENDER]), payload[addresses.SENDER :]
        sock = self._asking.pop(who, None)
        with contextlib.suppress(OSError):  # the program repeats its query
            if sock is None:
                if len(self._asking) >= _MOST_ASKING:
                    self._stop_asking(next(iter(self._asking)))
                sock = self._hand_over(number, socket.SOCK_SEQPACKET)
                self._poller.set_interest(sock.fileno(), select.POLLIN, lambda: self._answer(who))
            self._asking[who] = sock
            sock.send(question, socket.MSG_NOSIGNAL)

    def _stop_asking(self, who: tuple[int, bytes]) -> None:
        sock = self._asking.pop(who)
        self._poller.set_interest(sock.fileno(), 0)
        sock.close()

    def _answer(self, who: tuple[int, bytes]) -> None:
        number, sender = who
        answer = b""
        with contextlib.suppress(OSError):
            answer = self._asking[who].recv(carriage.MAX_PIECE - addresses.SENDER)
        if not answer:  # the resolver closed it
            self._stop_asking(who)
        else:
            self._send(carriage.frame(carriage.DATA, number, sender + addresses.answer_to_container(answer)))
