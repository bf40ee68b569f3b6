"""The sockets and messages of a kernel: https://jupyter-client.readthedocs.io/en/stable/messaging.html.

Sockets listen on loopback. Each message is signed with the key in the connection file, which only the user can read.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import zmq
import zmq.asyncio

from casemate.errors import InvalidArgument

VERSION = "5.3"  # of the protocol
_DELIMITER = b"<IDS|MSG>"
_MOST_PART = 64 << 20  # bytes of one part of a message: a program of 8 MiB, all escaped in JSON, and more
_LINGER = 1000  # milliseconds for the last messages to leave
_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Message:
    header: Mapping[str, Any]
    content: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    parent: Mapping[str, Any] = field(default_factory=dict)
    identities: Sequence[bytes] = ()  # where its answer goes
    buffers: Sequence[bytes] = ()

    @property
    def type(self) -> str:
        return str(self.header.get("msg_type", ""))

    @property
    def id(self) -> str:
        return str(self.header.get("msg_id", ""))


class Wire:
    """The kernel's end of a connection: takes messages on ``shell``, ``control``, ``stdin``; publishes on ``iopub``."""

    def __init__(self, connection: Mapping[str, Any]) -> None:
        """Raises ``InvalidArgument`` if other users could use the connection."""
        self._key = str(connection.get("key", "")).encode()
        transport, address = str(connection.get("transport", "tcp")), str(connection.get("ip", "127.0.0.1"))
        if not self._key or connection.get("signature_scheme", "hmac-sha256") != "hmac-sha256":
            raise InvalidArgument("connection", "has no key for HMAC-SHA256: messages could be forged")
        if transport == "tcp" and address not in _LOCAL:
            raise InvalidArgument("connection", f"{address!r} is not on loopback: other machines could reach it")
        self.ports = {name: port for name, port in connection.items() if name.endswith("_port")}
        self._session, self._user = uuid.uuid4().hex, "casemate"
        self._context = zmq.asyncio.Context()
        separator = "-" if transport == "ipc" else ":"

        def listen(kind: int, name: str) -> zmq.asyncio.Socket:
            socket: zmq.asyncio.Socket = self._context.socket(kind)
            socket.linger = _LINGER
            socket.maxmsgsize = _MOST_PART
            socket.bind(f"{transport}://{address}{separator}{connection[f'{name}_port']}")
            return socket

        self.shell, self.control = listen(zmq.ROUTER, "shell"), listen(zmq.ROUTER, "control")
        self.stdin, self.iopub = listen(zmq.ROUTER, "stdin"), listen(zmq.PUB, "iopub")
        self._heartbeat = listen(zmq.REP, "hb")

    async def beat(self) -> None:
        """Answer heartbeats."""
        while True:
            await self._heartbeat.send(await self._heartbeat.recv())

    async def receive(self, socket: zmq.asyncio.Socket) -> Message:
        """The next message with a valid signature and form."""
        while True:
            message = self._read(await socket.recv_multipart())
            if message is not None:
                return message

    async def send(
        self,
        socket: zmq.asyncio.Socket,
        kind: str,
        content: Mapping[str, Any],
        parent: Message | None,
        *,
        identities: Sequence[bytes] = (),
        metadata: Mapping[str, Any] | None = None,
        buffers: Sequence[bytes] = (),
    ) -> str:
        """Send a message in answer to ``parent``. Returns its id. A front end that does not read loses messages."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": kind,
            "username": self._user,
            "session": self._session,
            "date": datetime.now(UTC).isoformat(),
            "version": VERSION,
        }
        parts = [header, parent.header if parent else {}, metadata or {}, content]
        frames = [json.dumps(part, allow_nan=False).encode() for part in parts]
        head = [*identities, _DELIMITER, self._sign(frames)]
        await socket.send_multipart([*head, *frames, *buffers])
        return str(header["msg_id"])

    def close(self) -> None:
        self._context.destroy(_LINGER)

    def _sign(self, frames: Sequence[bytes]) -> bytes:
        return hmac.new(self._key, b"".join(frames), hashlib.sha256).hexdigest().encode()

    def _read(self, parts: list[bytes]) -> Message | None:
        if _DELIMITER not in parts:
            return None
        at = parts.index(_DELIMITER)
        signature, frames, buffers = parts[at + 1 : at + 2], parts[at + 2 : at + 6], parts[at + 6 :]
        if not signature or len(frames) != 4 or not hmac.compare_digest(signature[0], self._sign(frames)):
            return None
        try:
            header, parent, metadata, content = map(json.loads, frames)
        except ValueError:
            return None
        if not all(isinstance(part, dict) for part in (header, parent, metadata, content)):
            return None
        return Message(header, content, metadata, parent, parts[:at], buffers)


def read_connection(path: str) -> dict[str, Any]:
    """The content of a connection file. Raises ``InvalidArgument``."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(1 << 16))
    except (OSError, ValueError) as error:
        raise InvalidArgument("connection", f"{os.fspath(path)!r} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument("connection", f"{os.fspath(path)!r} holds no connection")
    return found
