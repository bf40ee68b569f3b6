"""HTTP on the loopback: an application of the tests' own, served for the length of a block."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from tests.support.waiting import until

App = Callable[..., Any]


@contextmanager
def serving(app: App, port: int = 0) -> Iterator[str]:
    """``app`` at the URL that is given, on ``port`` or any."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    config = uvicorn.Config(app, log_level="critical", lifespan="auto", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        until(lambda: server.started, "the web server is up")
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


class Rough:
    """An MCP server in raw HTTP. ``answer``: what it does with a tool's call, a status, headers and a body, or None for
    what is right; ``before``: the same with every request; ``forgotten``: of sessions it does not know."""

    def __init__(self, answer: Any = None, before: Any = None, forgotten: Any = (404, [], b"no such session")) -> None:
        self.answer = answer
        self.before = before
        self.forgotten = forgotten
        self.sessions: set[str] = set()
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.headers.append({**headers, "path": scope["path"]})
        message = json.loads(body) if body else {}
        self.seen.append(message)
        status, more, answer = (self.before and self.before(scope, message)) or self._answered(headers, message)
        plain = [(b"content-type", b"application/json")] if isinstance(answer, dict | list) else []
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        await send({"type": "http.response.start", "status": status, "headers": [*plain, *more]})
        await send({"type": "http.response.body", "body": data})

    def _answered(self, headers: dict[str, str], message: dict[str, Any]) -> tuple[int, list[tuple[bytes, bytes]], Any]:
        method, number = message.get("method", ""), message.get("id")
        if method == "initialize":
            session = f"session-{len(self.sessions)}"
            self.sessions.add(session)
            info = {"name": "rough", "version": "1"}
            result: Any = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            return 200, [(b"mcp-session-id", session.encode())], {"jsonrpc": "2.0", "id": number, "result": result}
        if number is None:
            return (202, [], b"") if message else (405, [], b"")
        if method == "server/discover":
            return 200, [], {"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no"}}
        if headers.get("mcp-session-id") not in self.sessions:
            return self.forgotten  # type: ignore[no-any-return]
        if method == "tools/list":
            result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
            return 200, [], {"jsonrpc": "2.0", "id": number, "result": result}
        special = self.answer(message) if self.answer and method == "tools/call" else None
        if special is not None:
            return special  # type: ignore[no-any-return]
        if method == "ping":
            return 200, [], {"jsonrpc": "2.0", "id": number, "result": {}}
        result = {"content": [{"type": "text", "text": json.dumps(message["params"]["arguments"])}]}
        return 200, [], {"jsonrpc": "2.0", "id": number, "result": result}
