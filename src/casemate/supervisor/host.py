"""The socket to the host: one message at a time, descriptors beside it."""

from __future__ import annotations

import _socket
import array
import os

from casemate.supervisor import wire

TYPE_CHECKING = False  # typing itself is not imported: it would take half of the start
if TYPE_CHECKING:
    from typing import Any


class Host:
    """Whom the supervisor serves."""

    def __init__(self, socket: _socket.socket) -> None:
        self._socket = socket
        self._buffer = memoryview(bytearray(wire.MAX_MESSAGE))

    def fileno(self) -> int:
        """To wait for its messages by."""
        return self._socket.fileno()

    def receive(self) -> tuple[dict[str, Any], dict[str, int], bool] | None:
        """Its message, the descriptors that came with it by their names, and whether all came; None when it is gone."""
        numbers = array.array("i")
        size, ancillary, flags, _ = self._socket.recvmsg_into(
            [self._buffer], _socket.CMSG_SPACE(wire.MAX_DESCRIPTORS * numbers.itemsize)
        )
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
        if not size:
            return None
        for fd in numbers:
            os.set_inheritable(fd, False)
        message = wire.decode(bytes(self._buffer[:size]))
        is_whole = not flags & _socket.MSG_CTRUNC
        return message, dict(zip(message.get("fds", ()), numbers, strict=is_whole)), is_whole

    def say(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send it a message; ``fds`` stay ours."""
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
        try:
            self._socket.sendmsg([wire.encode(message)], rights)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is gone; the next receive ends us

    def refuse(self, cell_id: str, where: str, number: int, detail: str) -> None:
        """Tell it that there will be no such cell."""
        self.say({"op": "unlaunched", "id": cell_id, "stage": where, "errno": number, "detail": detail[:2000]})
