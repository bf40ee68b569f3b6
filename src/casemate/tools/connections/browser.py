"""Sign-in by a person: shows the page, and listens on the loopback for the browser's redirect (RFC 8252, 7.3)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import webbrowser
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

from casemate.errors import Unavailable
from casemate.tools.connections.context import SignInPrompt
from casemate.tools.connections.definition import check_url
from casemate.visible import visible


def show_sign_in(prompt: SignInPrompt) -> None:
    """Show the page in the user's browser, or its address and code at the terminal. Raises ``Unavailable`` without
    either."""
    url = check_url(prompt.url, "url")
    if not prompt.code and webbrowser.open(url, new=1):
        return
    if sys.stderr is None or not sys.stderr.isatty():
        raise Unavailable(
            f"nobody can be shown the sign-in for the server {prompt.server!r} here",
            remediation="For a server of `casemate tools add`, run `casemate tools search` at a terminal. Its sign-in "
            "is kept in the vault.",
        )
    code = f", and enter the code {prompt.code}" if prompt.code else ""
    sys.stderr.write(f"casemate: to sign in for the server {prompt.server!r}, open {visible(url)}{code}\n")


_PATH = "/callback"
_MOST_HEAD = 16 << 10  # bytes of a request
_MOST_CLIENTS = 8
_HEAD_SECONDS = 5.0
_PAGE = "<!doctype html><meta charset=utf-8><title>casemate</title><p>{}</p>"
_GOOD, _BAD = "You are signed in. This page can be closed.", "The sign-in did not work. This page can be closed."


class Loopback:
    """A port of 127.0.0.1, reserved from the start. It accepts connections during a sign-in."""

    def __init__(self, *ports: int) -> None:
        """Reserve the first free one of ``ports``; 0 is any. Raises ``OSError`` if none is free."""
        self._socket = socket.socket()
        for number, port in enumerate(ports, 1):
            try:
                self._socket.bind(("127.0.0.1", port))
                break
            except OSError:
                if number == len(ports):
                    self._socket.close()
                    raise
        self.port: int = self._socket.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{_PATH}"

    @asynccontextmanager
    async def listen(self, state: str) -> AsyncGenerator[asyncio.Future[dict[str, str]]]:
        """Listen for the redirect and set the future to its query (RFC 6749, 4.1.2; RFC 9207). Requests without this
        ``state`` are ignored: any page can make the browser send them."""
        returned: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        room = asyncio.Semaphore(_MOST_CLIENTS)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with room, asyncio.timeout(_HEAD_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    answer = _read_request(head, state)
                    writer.write(_response(answer))
                    await writer.drain()
                    if answer is not None and not returned.done():
                        returned.set_result(answer)
            writer.close()

        server = await asyncio.start_server(serve, sock=self._socket.dup(), limit=_MOST_HEAD)
        try:
            yield returned
        finally:
            server.close()

    def close(self) -> None:
        """Release the port."""
        self._socket.close()


def _read_request(head: bytes, state: str) -> dict[str, str] | None:
    line, _, _ = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    if len(words) != 3 or words[0] != "GET":
        return None
    parts = urlsplit(words[1])
    query = {name: values[0] for name, values in parse_qs(parts.query).items() if len(values) == 1}
    if parts.path != _PATH or query.get("state") != state or not ("code" in query or "error" in query):
        return None
    return query


def _response(answer: dict[str, str] | None) -> bytes:
    status = "404 Not Found" if answer is None else "200 OK"
    body = _PAGE.format("" if answer is None else _GOOD if answer.get("code") else _BAD).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
