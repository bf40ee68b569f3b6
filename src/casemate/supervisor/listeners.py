"""Listening sockets inside a cell's own network, made from outside: whoever holds one answers there."""

from __future__ import annotations

import _socket
import array
import os

from casemate.supervisor import kernel, wire

_BACKLOG = 128  # connections that wait for the host


def make(network: int, addresses: list[list[object]]) -> list[int]:
    """Listen at each IPv4 address and port of ``addresses`` in the network namespace ``network``.

    An ordinary user's supervisor could not come back from another network namespace, so that a
    child goes there. Raises ``OSError``.
    """
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        _listen(network, addresses, theirs)
    theirs.close()
    fds = array.array("i")
    data, ancillary, _, _ = ours.recvmsg(wire.MAX_MESSAGE, _socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * fds.itemsize))
    for _, _, payload in ancillary:
        fds.frombytes(payload)
    ours.close()
    os.waitpid(pid, 0)
    if not fds:
        number = wire.decode(data) if data else 0
        raise OSError(number, os.strerror(number), "listeners")
    return list(fds)


def _listen(network: int, addresses: list[list[object]], told: _socket.socket) -> None:
    try:
        kernel.setns(network, kernel.CLONE_NEWNET)
        made = []
        for address, port in addresses:
            listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC, 0)
            listener.bind((address, port))
            listener.listen(_BACKLOG)
            made.append(listener)
        numbers = array.array("i", [listener.fileno() for listener in made])
        told.sendmsg([b"n"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
    except BaseException as error:  # noqa: BLE001 - this process must end here, whatever happened
        told.send(wire.encode(getattr(error, "errno", None) or 22))
    finally:
        os._exit(0)
