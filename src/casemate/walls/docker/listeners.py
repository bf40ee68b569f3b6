"""What a cell in a container listens on for the link: connections to it, and its questions for names."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable

from casemate.supervisor import carriage
from casemate.walls.docker import addresses

_MOST_ASKING = 64  # sockets of one cell that wait for names


class CarriedListeners:
    """Those of one cell, by the number of their channel. ``send`` sends its container bytes; ``carry`` makes a channel
    of a number and a connection."""

    def __init__(
        self, send: Callable[[bytes], None], poller: carriage.Poller, carry: Callable[[int, int], None]
    ) -> None:
        self._send, self._poller, self._carry = send, poller, carry
        self._sockets: dict[int, socket.socket] = {}
        self._asking: dict[tuple[int, bytes], socket.socket] = {}
        self.most = 0  # that the link has asked for

    def __contains__(self, number: int) -> bool:
        return number in self._sockets

    def close(self) -> None:
        """Close all. Harmless when repeated."""
        for who in list(self._asking):
            self._stop_asking(who)
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    def listen(self, number: int) -> int:
        """One end of a pair for the link, over which each connection comes that the container has accepted."""
        if number in self._sockets or len(self._sockets) >= self.most:
            raise ValueError("a listener too many")
        self._sockets[number], theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return theirs.detach()

    def accept(self, number: int, payload: bytes) -> None:
        """The container has accepted a connection. Raises ``ValueError`` where it cannot have."""
        (accepted,) = carriage.NUMBER.unpack(payload) if len(payload) == carriage.NUMBER.size else (0,)
        if number not in self._sockets or not accepted:
            raise ValueError("a connection from nowhere")
        try:
            sock = self._hand_over(number, socket.SOCK_STREAM)
        except OSError:
            self._send(carriage.frame(carriage.DEAF, accepted) + carriage.frame(carriage.END, accepted))
            return
        self._carry(accepted, sock.detach())

    def _hand_over(self, number: int, kind: socket.SocketKind) -> socket.socket:
        """Our end of a new connection, whose other end the link gets. Raises ``OSError`` where nobody listens."""
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
        """Pass a question for a name on, which is from one of the cell's sockets."""
        who, question = (number, payload[: addresses.SENDER]), payload[addresses.SENDER :]
        sock = self._asking.pop(who, None)
        with contextlib.suppress(OSError):  # it asks again
            if sock is None:
                if len(self._asking) >= _MOST_ASKING:
                    self._stop_asking(next(iter(self._asking)))
                sock = self._hand_over(number, socket.SOCK_SEQPACKET)
                self._poller.set_interest(sock.fileno(), select.POLLIN, lambda: self._answer(who))
            self._asking[who] = sock
            sock.send(question, socket.MSG_NOSIGNAL)

    def _stop_asking(self, who: tuple[int, bytes]) -> None:
        sock = self._asking.pop(who)
        self._poller.set_interest(sock.fileno(), 0, lambda: None)
        sock.close()

    def _answer(self, who: tuple[int, bytes]) -> None:
        number, sender = who
        answer = b""
        with contextlib.suppress(OSError):
            answer = self._asking[who].recv(carriage.MAX_PIECE - addresses.SENDER)
        if not answer:  # nobody is there to answer
            self._stop_asking(who)
        else:
            self._send(carriage.frame(carriage.DATA, number, sender + addresses.answer_to_container(answer)))
