"""Requests that block: for contents of artifacts, and for methods that are no coroutines on a local sandbox."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

from casemate.errors import CasemateError, Unavailable
from casemate.operations.documents import error_from
from casemate.remote.address import Address, connect
from casemate.remote.http import MOST_BODY, connection_lost

_WITHIN = 60.0  # seconds for each step of a request


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, address: Address) -> None:
        super().__init__("localhost", timeout=_WITHIN)
        self._address = address

    def connect(self) -> None:
        self.sock = connect(self._address, _WITHIN)


@dataclass(frozen=True, slots=True)
class BlockingHttp:
    """A connection for each request, from any thread. ``headers`` say who asks."""

    address: Address
    headers: Mapping[str, str] = field(repr=False)

    def call(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        """The result of an operation. Raises what the service says, and ``Unavailable``."""
        body = json.dumps(dict(arguments), allow_nan=False).encode()
        path = "/v1/" + quote(operation.replace(".", "/"))
        with closing(self._connection()) as connection:
            answer = self._send(connection, "POST", path, body)
            return json.loads(self._whole(answer))

    def upload(self, content: bytes) -> str:
        """A handle for ``content``, which arguments may name for a short while. Raises as :meth:`call`."""
        with closing(self._connection()) as connection:
            answer = self._send(connection, "PUT", "/v1/uploads", content)
            handle: str = json.loads(self._whole(answer))["handle"]
            return handle

    def download(self, parts: tuple[str, ...]) -> bytes:
        """All bytes of a file. Raises as :meth:`call`."""
        with closing(self._connection()) as connection:
            return self._whole(self._send(connection, "GET", _path(parts)))

    def save(self, parts: tuple[str, ...], path: str | PathLike[str]) -> None:
        """Copy a file to ``path``, replacing what is there. Raises as :meth:`call`, and ``OSError``."""
        with closing(self._connection()) as connection:
            answer = self._send(connection, "GET", _path(parts))
            target = Path(path)
            made = target.with_name(f".{target.name}.{id(answer):x}")
            try:
                with made.open("xb") as file:
                    shutil.copyfileobj(answer, file)
                if not answer.isclosed() and answer.length:
                    raise connection_lost(self.address, ConnectionResetError("closed within its answer"))
                made.replace(target)
            finally:
                made.unlink(missing_ok=True)

    def _connection(self) -> http.client.HTTPConnection:
        address = self.address
        if address.folder is not None:
            return _UnixConnection(address)
        kind = http.client.HTTPSConnection if address.tls else http.client.HTTPConnection
        return kind(address.host, address.port, timeout=_WITHIN)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes = b""
    ) -> http.client.HTTPResponse:
        headers = {**self.headers, "host": self.address.host_header, "content-type": "application/json"}
        try:
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
        except (TimeoutError, OSError, http.client.HTTPException) as error:
            raise connection_lost(self.address, error) from error
        if answer.status != 200:
            raise _failure(answer)
        return answer

    def _whole(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            found = answer.read(MOST_BODY + 1)
        except (OSError, http.client.HTTPException) as error:
            raise connection_lost(self.address, error) from error
        if len(found) > MOST_BODY:
            raise Unavailable(
                f"the answer of {self.address} is larger than {MOST_BODY} bytes", remediation="Save it to a file."
            )
        return found


@dataclass(frozen=True, slots=True)
class RemoteContent:
    """Bytes that the service keeps, fetched when they are wanted. Implements
    :class:`casemate.model.execution.Content`; blocks, and raises as :class:`BlockingHttp`."""

    blocking: BlockingHttp
    parts: tuple[str, ...]

    def read_bytes(self) -> bytes:
        """All of it."""
        return self.blocking.download(self.parts)

    def save(self, path: str | PathLike[str]) -> None:
        """Copy it to ``path``."""
        self.blocking.save(self.parts, path)


def _path(parts: tuple[str, ...]) -> str:
    return "/v1/" + "/".join(quote(part) for part in parts)


def _failure(answer: http.client.HTTPResponse) -> CasemateError:
    try:
        return error_from(json.loads(answer.read(65536))["error"])
    except (ValueError, KeyError, TypeError, OSError):
        return Unavailable(f"the service answered with status {answer.status}, and without saying why")
