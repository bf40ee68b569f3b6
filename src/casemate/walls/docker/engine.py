"""Calls a container engine through its HTTP API (Docker Engine API reference, 1.40 and newer)."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from casemate.errors import WallUnavailable

_WITHIN = 60.0  # seconds for one answer; a busy machine is slow to start a container
_MAX_ANSWER = 8 << 20
_MAX_HEAD = 16384
_SOCKETS = ("/var/run/docker.sock", "{runtime}/podman/podman.sock", "/run/podman/podman.sock")


class EngineError(Exception):
    """An error response of an engine."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("docker", timeout=_WITHIN)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_WITHIN)
        self.sock.connect(self._path)


class Engine:
    """The engine at ``address``, in the form of DOCKER_HOST. Every method may block. Raises ``OSError`` if the engine
    is unreachable and :class:`EngineError` if it refuses."""

    def __init__(self, address: str, certificates: str = "") -> None:
        """``certificates``: the folder of a TLS client's certificates. Raises ``WallUnavailable``."""
        self.address = address
        self._parts = urlsplit(address)
        self._certificates = certificates
        if self._parts.scheme not in ("unix", "tcp", "http", "https"):
            raise WallUnavailable(
                f"A container engine at {address!r} is not supported.",
                reason="engine_address",
                remediation="Set DOCKER_HOST to unix:///path or tcp://host:port; for ssh, forward its socket: "
                "ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock HOST",
            )

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Call the engine. Returns the decoded answer, or None if it is empty."""
        connection = self._connect()
        try:
            text = "&".join(f"{name}={quote(value)}" for name, value in query.items())
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"} if data else {}
            connection.request(method, f"{path}?{text}" if text else path, data, headers)
            with connection.getresponse() as response:
                answer = response.read(_MAX_ANSWER)
        except http.client.HTTPException as error:
            raise EngineError(0, f"it did not answer: {error}") from None
        finally:
            connection.close()
        try:
            value = json.loads(answer) if answer.strip() else None
        except ValueError:
            value = None
        if response.status >= 400:
            message = value.get("message") if isinstance(value, dict) else None
            raise EngineError(response.status, str(message or response.reason)[:1000])
        return value

    def attach(self, container: str) -> tuple[socket.socket, bytes]:
        """Attach to a container's standard streams. Returns the connection and the bytes already received from it."""
        connection = self._connect()
        path = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
        )
        try:
            connection.connect()
            sock = connection.sock
            assert isinstance(sock, socket.socket)
            sock.sendall(head.encode())
            answer = b""
            while b"\r\n\r\n" not in answer:
                piece = sock.recv(4096)
                if not piece or len(answer) > _MAX_HEAD:
                    raise EngineError(0, "it did not attach")
                answer += piece
            first, _, rest = answer.partition(b"\r\n\r\n")
            status = first.split(b" ", 2)[1:2]
            if status not in ([b"101"], [b"200"]):
                number = int(status[0]) if status and status[0].isdigit() else 0
                raise EngineError(number, f"it did not attach: {rest.decode('utf-8', 'replace').strip()[:1000]}")
        except BaseException:
            connection.close()
            raise
        sock.settimeout(None)
        return sock, rest

    def _connect(self) -> http.client.HTTPConnection:
        if self._parts.scheme == "unix":
            return _UnixConnection(self._parts.path)
        host, port = self._parts.hostname or "localhost", self._parts.port
        if self._parts.scheme == "https" or self._certificates:
            return http.client.HTTPSConnection(host, port or 2376, timeout=_WITHIN, context=self._context())
        return http.client.HTTPConnection(host, port or 2375, timeout=_WITHIN)

    def _context(self) -> ssl.SSLContext:
        if not self._certificates:
            return ssl.create_default_context()
        folder = Path(self._certificates)
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        context.load_cert_chain(str(folder / "cert.pem"), str(folder / "key.pem"))
        return context


def find(environment: Mapping[str, str]) -> Engine:
    """Return the engine named by the environment, or the first whose socket exists. Raises ``WallUnavailable``."""
    address = environment.get("DOCKER_HOST", "")
    verifies = environment.get("DOCKER_TLS_VERIFY", "") not in ("", "0")
    certificates = environment.get("DOCKER_CERT_PATH", "") if verifies else ""
    if address:
        return Engine(address, certificates)
    runtime = environment.get("XDG_RUNTIME_DIR", "/run")
    for place in _SOCKETS:
        path = place.format(runtime=runtime)
        if os.path.exists(path):
            return Engine(f"unix://{path}")
    raise WallUnavailable(
        "There is no container engine here: no Docker socket exists and DOCKER_HOST is not set.",
        reason="no_engine",
        remediation="Install one: apt-get install docker.io, and join the group docker. Or set DOCKER_HOST to another "
        "machine's engine.",
    )
