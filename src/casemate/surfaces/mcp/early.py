"""Answers the first request over stdio while the SDK is still loading.

A client begins with ``initialize`` or ``server/discover``, whose answer depends only on the revision that it names.
Loading the SDK takes most of a second, so a thread answers that one request meanwhile. The SDK then gets the request
too, and its identical answer is dropped. The thread leaves any unexpected request to the SDK.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import stat
import threading
from collections.abc import AsyncIterator
from typing import IO, Any

from casemate import __version__
from casemate.surfaces.mcp.toolsets import CAPABILITIES, INSTRUCTIONS, NAME

_HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_STATELESS = "2026-07-28"
_MOST_LINE = 64 * 2**20  # bytes of one request, such as a file for write_file
_PIECE = 2**16
_META = "io.modelcontextprotocol/"
_SERVER = {"name": NAME, "title": NAME, "version": __version__}
Json = dict[str, Any]


class Early:
    """Takes over standard input and output, which the SDK gets as lines of text, and answers the first request. From
    then on, other parts of the process read nothing from standard input, and their standard output goes to standard
    error."""

    def __init__(self) -> None:
        self._input = os.fdopen(_take_descriptor(0, os.open(os.devnull, os.O_RDONLY)), "rb")
        self._output = os.fdopen(_take_descriptor(1, os.dup(2)), "wb")
        self._is_pipe = stat.S_ISFIFO(os.fstat(self._output.fileno()).st_mode)
        self._room = select.poll()
        self._room.register(self._output, select.POLLOUT)
        self._line = b""
        self._answered: str | int | None = None
        self._has_answered = False
        self._thread = threading.Thread(target=self._answer, name="casemate-first-answer", daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        try:
            self._line = line_of(self._input)
            reply = reply_to(self._line)
            if reply is not None:
                self._output.write(json.dumps(reply, separators=(",", ":")).encode() + b"\n")
                self._output.flush()
                self._answered, self._has_answered = reply["id"], True
        except (OSError, ValueError):  # the SDK gets the same error
            return

    async def __aiter__(self) -> AsyncIterator[str]:
        """The lines of standard input. Reads in threads, as the SDK does."""
        from anyio import to_thread

        await to_thread.run_sync(self._thread.join)
        line = self._line
        while line:
            text = line.decode("utf-8", "replace")
            if (refusal := await to_thread.run_sync(refusal_of, text)) is None:
                yield text
            else:  # the SDK would ignore the line
                await self.write(json.dumps(refusal) + "\n")
            line = await to_thread.run_sync(line_of, self._input)

    async def write(self, line: str) -> None:
        """Write a line, unless it is the answer that was sent early. It blocks in a thread, never in the event loop, if
        the client does not read."""
        if self._is_known(line):
            return
        data = line.encode()
        try:
            if self._fits(data):
                self._write(data)
            else:
                from anyio import to_thread

                await to_thread.run_sync(self._write, data)
        except BrokenPipeError:  # the client is gone: end its runs and sessions
            signal.raise_signal(signal.SIGTERM)

    async def flush(self) -> None:
        """Do nothing: each line is flushed when written."""

    def _fits(self, data: bytes) -> bool:
        """Whether a write cannot block: a writable pipe takes PIPE_BUF bytes at once (pipe(7))."""
        return self._is_pipe and len(data) <= select.PIPE_BUF and bool(self._room.poll(0))

    def _write(self, data: bytes) -> None:
        self._output.write(data)
        self._output.flush()

    def _is_known(self, line: str) -> bool:
        """Whether this is the SDK's answer to the request answered early."""
        if not self._has_answered:
            return False
        message = json.loads(line)
        if message.get("id") != self._answered or "method" in message:
            return False
        self._has_answered = False
        return True


def line_of(file: IO[bytes]) -> bytes:
    """The next line; empty at the end. A line longer than any request becomes invalid JSON."""
    line = file.readline(_MOST_LINE)
    if len(line) < _MOST_LINE or line.endswith(b"\n"):
        return line
    while (rest := file.readline(_PIECE)) and not rest.endswith(b"\n"):
        pass
    return b"{\n"


def refusal_of(line: str) -> Json | None:
    """The error for a line that is not a JSON-RPC message, which the SDK sends over HTTP only; None for a message."""
    from mcp_types import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, jsonrpc_message_adapter
    from pydantic_core import ValidationError, from_json

    if not line.strip():
        return None
    try:
        message = from_json(line)
    except ValueError as error:
        return _refusal(_parse(line), PARSE_ERROR, f"this is not JSON: {error}")
    try:
        jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError:
        return _refusal(message, INVALID_PARAMS, "this is not a request, notification or response of JSON-RPC 2.0")
    is_odd = "method" in message and "id" in message and _identity(message) is None
    return _refusal(message, INVALID_REQUEST, "an id must be a string or an integer") if is_odd else None


def _refusal(message: object, code: int, why: str) -> Json:
    return {"jsonrpc": "2.0", "id": _identity(message), "error": {"code": code, "message": why}}


def _identity(message: object) -> str | int | None:
    """The id of a request; None for a response, whose id this server chose."""
    identity = message.get("id") if isinstance(message, dict) and "method" in message else None
    return identity if isinstance(identity, str | int) and not isinstance(identity, bool) else None


def _parse(line: str | bytes) -> object:
    """The JSON of a line, by a parser that is more lenient than the SDK; None if it fails."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def reply_to(line: bytes) -> Json | None:
    """The answer to a first request; None unless it is exactly one of the two."""
    message = _parse(line)
    if not isinstance(message, dict) or set(message) != {"jsonrpc", "id", "method", "params"}:
        return None
    identity, params = message["id"], message["params"]
    is_plain = isinstance(identity, str | int) and not isinstance(identity, bool) and isinstance(params, dict)
    if message["jsonrpc"] != "2.0" or not is_plain:
        return None
    answers = {"initialize": _answer_initialize, "server/discover": _answer_discover}
    result = answers[message["method"]](params) if message["method"] in answers else None
    return None if result is None else {"jsonrpc": "2.0", "id": identity, "result": result}


def _answer_initialize(params: Json) -> Json | None:
    info = params.get("clientInfo")
    is_named = isinstance(info, dict) and all(isinstance(info.get(name), str) for name in ("name", "version"))
    if params.get("protocolVersion") not in _HANDSHAKES or not is_named or not _can(params.get("capabilities")):
        return None
    return {**_SAID, "protocolVersion": params["protocolVersion"], "serverInfo": _SERVER}


def _answer_discover(params: Json) -> Json | None:
    meta = params.get("_meta")
    if set(params) != {"_meta"} or not isinstance(meta, dict):
        return None
    if meta.get(f"{_META}protocolVersion") != _STATELESS or not _can(meta.get(f"{_META}clientCapabilities")):
        return None
    return {
        **_SAID, "cacheScope": "private", "resultType": "complete", "supportedVersions": [_STATELESS], "ttlMs": 0,
        "_meta": {f"{_META}serverInfo": _SERVER},
    }  # fmt: skip


def _can(capabilities: Any) -> bool:
    return isinstance(capabilities, dict) and all(isinstance(one, dict) for one in capabilities.values())


_SAID = {"capabilities": CAPABILITIES, "instructions": INSTRUCTIONS}


def _take_descriptor(fd: int, instead: int) -> int:
    """Move ``fd`` to a private descriptor, and put ``instead`` in its place."""
    private = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.dup2(instead, fd)
    os.close(instead)
    return private
