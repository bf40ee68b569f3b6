"""Requests to the host, each one line of JSON, and their errors.

A connection serves one call at a time, so calls from threads and tasks run in parallel. It is kept for the next call;
closing it cancels a call. A forked child uses its own connections.
"""

import _socket as sockets  # loading the socket module would take longer than a call
import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from asyncio import StreamReader
    from collections.abc import Callable
    from typing import Any

    Place = tuple[Any, ...]  # as from getaddrinfo
    Tell = Callable[[dict[str, Any]], object]

HOST, PORT = "tools.casemate.internal", 7
MOST_KEPT = 8
LONGEST = 64 * 2**20  # bytes of an answer
_kept: "dict[int, list[socket]]" = {}  # by process: a child must not use its parent's
_places: "dict[tuple[str, int], Place]" = {}  # the address of the last connection, by name and port


class ToolError(Exception):
    """A failed call. The message says why, ``kind`` is one word for it, and ``content`` is what the tool returned."""

    kind = "tool"

    def __init__(self, message: str = "", content: "tuple[Any, ...]" = ()) -> None:
        super().__init__(message)
        self.content = list(content)


class ToolDenied(ToolError):
    """The call was denied by a rule or an approver. The tool did not run."""

    kind = "denied"


class ToolUnavailable(ToolError):
    """There is no such tool, its server cannot be reached, or this run has no tools."""

    kind = "unavailable"


class ToolTimeout(ToolError):
    """The tool did not answer in time. It may have run."""

    kind = "timeout"


class InvalidArguments(ToolError, ValueError):
    """The arguments do not fit the tool. The tool did not run."""

    kind = "invalid"


def ask(request: "dict[str, Any]", timeout: "float | None" = None, tell: "Tell | None" = None) -> "dict[str, Any]":
    """Send ``request`` and return the host's answer. ``tell`` is called with each earlier line.

    Raises ``InvalidArguments`` for values that JSON cannot hold, and ``ToolUnavailable`` if there is no answer (within
    ``timeout`` seconds). Any other exception meanwhile (Ctrl-C, or from ``tell``) cancels the request.
    """
    line = _line(request)
    connection = _take_connection()
    try:
        connection.settimeout(timeout)
        connection.sendall(line)
        answer = _receive(connection, tell)
    except OSError as error:
        connection.close()
        raise ToolUnavailable(f"the connection to the host's tools broke: {error}") from None
    except BaseException:
        connection.close()
        raise
    idle = _kept.setdefault(os.getpid(), [])
    # After these errors the host closes the connection, because it cannot find the next request in it.
    if len(idle) < MOST_KEPT and answer.get("kind") not in ("invalid", "limit"):
        idle.append(connection)
    else:
        connection.close()
    return answer


async def ask_later(request: "dict[str, Any]", tell: "Tell | None" = None) -> "dict[str, Any]":
    """Like `ask`, in an event loop. Cancelling the task cancels the request."""
    import asyncio

    line = _line(request)
    try:
        reader, writer = await asyncio.open_connection(*_address(), limit=LONGEST)
    except OSError:
        raise _nobody() from None
    try:
        writer.write(line)
        await writer.drain()
        while True:
            line = await _line_from(reader)
            answer = _answer(line)
            if tell is None or "ok" in answer:
                return answer
            tell(answer)
    except OSError as error:
        raise ToolUnavailable(f"the connection to the host's tools broke: {error}") from None
    finally:
        writer.close()


async def _line_from(reader: "StreamReader") -> bytes:
    try:
        return await reader.readline()
    except ValueError:
        raise OSError("its answer is too long") from None


def _line(request: "dict[str, Any]") -> bytes:
    try:
        text = json.dumps(request, allow_nan=False, separators=(",", ":"), default=_as_json)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArguments(f"the arguments cannot be sent as JSON: {error}") from None
    return text.encode("ascii") + b"\n"


def _as_json(value: object) -> object:
    """Convert a few common types for JSON, as pydantic does: models, dataclasses, paths, dates, durations, enum
    members, UUIDs, decimals, bytes with text, sets; and numbers and arrays of numpy."""
    for method in ("__fspath__", "isoformat", "tolist"):
        function = getattr(value, method, None)
        if callable(function):
            return function()
    kind: "Any" = type(value)
    if callable(getattr(kind, "model_dump", None)):  # of pydantic
        return kind.model_dump(value, mode="json")
    if hasattr(kind, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in kind.__dataclass_fields__}
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode()
    known = {kind.__name__ for kind in kind.__mro__}
    if "Enum" in known:
        return value.value  # type: ignore[attr-defined]
    if known & {"UUID", "Decimal"}:
        return str(value)
    if "timedelta" in known:
        return _duration(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


def _duration(value: "Any") -> str:
    """Format a timedelta as ISO 8601."""
    sign, whole = ("-", -value) if value.days < 0 else ("", value)
    hours, rest = divmod(whole.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    fraction = f".{whole.microseconds:06}".rstrip("0") if whole.microseconds else ""
    parts = ((hours, f"{hours}H"), (minutes, f"{minutes}M"), (seconds or fraction, f"{seconds}{fraction}S"))
    time = "".join(text for amount, text in parts if amount)
    return f"{sign}P{f'{whole.days}D' if whole.days else ''}{f'T{time}' if time else '' if whole.days else 'T0S'}"


def _address() -> "tuple[str, int]":
    host, colon, port = os.environ.get("CASEMATE_TOOLS", "").rpartition(":")
    return (host, int(port)) if colon and port.isdigit() else (HOST, PORT)


def _take_connection() -> "socket":
    """Return a connection that is still open, or a new one."""
    for process in [process for process in _kept if process != os.getpid()]:
        for inherited in _kept.pop(process, ()):
            inherited.close()
    idle = _kept.setdefault(os.getpid(), [])
    while idle:
        try:
            connection = idle.pop()
        except IndexError:  # another thread was faster
            break
        try:
            connection.setblocking(False)
            connection.recv(1, sockets.MSG_PEEK)
        except BlockingIOError:
            return connection
        except OSError:
            pass
        connection.close()  # the host closed it, or sent something unexpected
    return _open_connection()


def _open_connection() -> "socket":
    """Connect to the last address while it answers, else resolve the name again."""
    host, port = name = _address()
    if name in _places:
        try:
            return _connect(_places[name])
        except (KeyError, OSError):  # another thread removed it, or it does not answer
            _places.pop(name, None)
    try:
        # As bytes: for a str the IDNA codec would be loaded, which takes longer than the answer.
        families = sockets.AF_INET if host == HOST else sockets.AF_UNSPEC  # one query instead of two
        for place in sockets.getaddrinfo(host.encode(), port, families, sockets.SOCK_STREAM):
            try:
                connection = _connect(place)
            except OSError:
                continue
            _places[name] = place
            return connection
    except OSError:
        pass
    raise _nobody()


def _connect(place: "Place") -> "socket":
    family, kind, protocol, _, address = place
    connection = sockets.socket(family, kind, protocol)
    try:
        connection.connect(address)
        connection.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)
    except BaseException:
        connection.close()
        raise
    return connection


def _receive(connection: "socket", tell: "Tell | None" = None) -> "dict[str, Any]":
    parts: "list[bytes]" = []
    size = 0
    while True:
        part = connection.recv(65536)
        size += len(part)
        if not part or size > LONGEST:
            raise OSError("it was closed" if not part else "its answer is too long")
        while (end := part.find(b"\n") + 1) > 0:
            answer = _answer(b"".join([*parts, part[:end]]))
            if tell is None or "ok" in answer:
                return answer
            tell(answer)
            parts, part = [], part[end:]
            size = len(part)
        parts.append(part)


def _answer(line: bytes) -> "dict[str, Any]":
    if not line.endswith(b"\n"):
        raise OSError("it was closed")
    try:
        answer = json.loads(line)
    except ValueError:
        raise OSError("its answer is not JSON") from None
    if not isinstance(answer, dict):
        raise OSError("its answer is not an object")
    return answer


def _nobody() -> ToolUnavailable:
    return ToolUnavailable(
        "this program has no tools: casemate run --tool-server NAME gives it some, casemate tools add does in a "
        "session, Sandbox(tools=...) in Python"
    )
