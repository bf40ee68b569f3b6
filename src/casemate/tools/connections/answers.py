"""Parses a server's lists of tools and its answers to calls.

Lists are untrusted: their pages, tools, bytes and depth are bounded. A malformed tool is left out, with a reason. A
tool's hash binds an approval to the description that was shown. It covers the server's name and the whole description.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from casemate.tools.tool import Hints, Json, Problem, Tool, parts_of
from casemate.visible import is_plain

MOST_PAGES = 100
MOST_TOOLS = 2000
MOST_BYTES = 16 << 20  # of all descriptions of one server's tools
_MOST_TOOL_BYTES = 1 << 20
_MOST_DEPTH = 128  # of a whole description; `schemas.schema` allows 100 for a schema in it
_LONGEST_NAME = 256
_LONGEST_DESCRIPTION = 64 << 10
_LONGEST_TITLE = 256
_DESCRIBED_BY = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")


@dataclass(frozen=True, slots=True)
class ServerTools:
    server: str
    tools: Mapping[str, Tool] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)  # of each tool's description, by name
    problems: tuple[Problem, ...] = ()  # tools that were left out, and why
    protocol: str = ""  # the revision of MCP in use


class ToolListing:
    """Takes the pages of one list of tools, in order."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._tools: dict[str, Tool] = {}
        self._hashes: dict[str, str] = {}
        self._problems: list[Problem] = []
        self._bytes = 0
        self._seen = 0
        self._cursors: set[str] = set()

    def page(self, tools: Json) -> list[dict[str, Any]]:
        """Add the ``tools`` of one page. Returns the good ones, with only what the SDK needs of them."""
        if not isinstance(tools, list):
            self._leave_out("", "malformed", f"a list of tools is a {type(tools).__name__}")
            return []
        good = []
        for item in tools:
            self._seen += 1
            if self._seen > MOST_TOOLS or self._bytes > MOST_BYTES:
                self._leave_out("", "limit", f"more than {MOST_TOOLS} tools, or {MOST_BYTES >> 20} MiB of descriptions")
                break
            tool = self._tool(item)
            if tool is not None:
                good.append({"name": tool.name, "inputSchema": _harmless(tool.input_schema)})
        return good

    def goes_on(self, cursor: object) -> bool:
        """Whether to request the page at ``cursor``: it exists, it is new, and there were not too many."""
        if not isinstance(cursor, str):
            return False
        if cursor in self._cursors:
            self._leave_out("", "pages", "the list of tools comes back to a page that was read before")
            return False
        if len(self._cursors) + 1 >= MOST_PAGES or self._seen > MOST_TOOLS or self._bytes > MOST_BYTES:
            self._leave_out("", "pages", f"the list of tools has more than {MOST_PAGES} pages, or too much on them")
            return False
        self._cursors.add(cursor)
        return True

    def keep_only(self, names: set[str]) -> None:
        """Leave out the tools that the SDK did not accept."""
        for name in [name for name in self._tools if name not in names]:
            del self._tools[name]
            self._leave_out(name, "headers", "its schema has invalid headers (x-mcp-header)")

    def finish(self, protocol: str) -> ServerTools:
        """The complete list."""
        hashes = MappingProxyType({name: self._hashes[name] for name in self._tools})
        return ServerTools(self._server, MappingProxyType(self._tools), hashes, tuple(self._problems), protocol)

    def _leave_out(self, name: str, code: str, why: str) -> None:
        if len(self._problems) < MOST_TOOLS:
            self._problems.append(Problem(name[:_LONGEST_NAME], code, why))

    def _tool(self, item: Json) -> Tool | None:
        name = item.get("name") if isinstance(item, dict) else None
        shown = name if isinstance(name, str) else f"number {self._seen}"
        wrong = _wrong_with(item)
        if not wrong:
            text = _text_of({key: item[key] for key in _DESCRIBED_BY if key in item})
            self._bytes += len(text)
            if len(text) > _MOST_TOOL_BYTES:
                wrong = "limit", f"its description has more than {_MOST_TOOL_BYTES >> 20} MiB"
            elif shown in self._tools:
                wrong = "duplicate", "a tool of this name came before"
            else:
                self._hashes[shown] = hashlib.sha256(_text_of(self._server) + b"\n" + text).hexdigest()
                self._tools[shown] = _make_tool(self._server, item)
                return self._tools[shown]
        self._leave_out(shown, *wrong)
        return None


def _wrong_with(item: Json) -> tuple[str, str] | None:
    """Why a tool cannot be used, as a code and a sentence; None if it can."""
    if not isinstance(item, dict):
        return "malformed", f"it is a {type(item).__name__}, not an object"
    name = item.get("name")
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not is_plain(name):
        return "name", f"its name is not a printable string of 1 to {_LONGEST_NAME} characters"
    if any(depth >= _MOST_DEPTH for _, depth in parts_of(item)):
        return "limit", f"its description is nested more than {_MOST_DEPTH} levels deep"
    for key in ("inputSchema", "outputSchema"):
        schema = item.get(key)
        if schema is not None and not isinstance(schema, dict | bool):
            return "schema", f"its {key} is a {type(schema).__name__}, which is not a schema"
    if item.get("inputSchema") is False:
        return "schema", "its inputSchema is false, so no call can be valid"
    execution = item.get("execution")
    if isinstance(execution, dict) and execution.get("taskSupport") == "required":
        return "task", "it can only be called as a task, an extension that is not supported"
    return None


def _make_tool(server: str, item: dict[str, Any]) -> Tool:
    """The tool. Optional fields that are malformed are left empty."""
    annotations = item.get("annotations")
    hints = annotations if isinstance(annotations, dict) else {}
    title = _text(item.get("title"), _LONGEST_TITLE) or _text(hints.get("title"), _LONGEST_TITLE)
    return Tool(
        server=server,
        name=item["name"],
        description=_text(item.get("description"), _LONGEST_DESCRIPTION),
        input_schema=item.get("inputSchema") or {"type": "object"},
        output_schema=item.get("outputSchema"),
        title=title,
        hints=Hints(*(_flag(hints.get(f"{hint}Hint")) for hint in ("readOnly", "destructive", "idempotent"))),
    )


def _flag(given: Json) -> bool | None:
    return given if isinstance(given, bool) else None


def _text(given: Json, most: int) -> str:
    return given[:most] if isinstance(given, str) else ""


def _harmless(schema: Json) -> dict[str, Any]:
    """The part of a schema that says which arguments are also sent as headers (MCP 2026-07-28, x-mcp-header)."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {"type": "object"}
    return {"type": "object", "properties": {name: of for name, of in properties.items() if isinstance(of, dict)}}


def _text_of(value: Json) -> bytes:
    """Canonical JSON: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


MOST_ANSWER = 64 << 20  # bytes of one answer as JSON
STRUCTURED = "structuredContent"
ANY_STRUCTURED = "casemate/structuredContent"  # a key under which the SDK accepts values that are not objects
_LONGEST_MESSAGE = 16 << 10  # characters of a message to people
_MOST_FIELDS = 100


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Any = _Absent()
"""No structured content. Since MCP 2026-07-28 None is content."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A tool's answer. It is untrusted and unchecked.

    Attributes:
        content: MCP's content blocks as received.
        structured: The structured content, any JSON value, or ``ABSENT``.
        is_error: The tool says that it failed.
    """

    content: list[dict[str, Any]] = field(default_factory=list)
    structured: Json = ABSENT
    is_error: bool = False

    @property
    def has_structured(self) -> bool:
        return self.structured is not ABSENT


@dataclass(frozen=True, slots=True)
class CallProgress:
    """A call's progress out of ``total`` (None if unknown), in the server's units."""

    progress: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Elicitation:
    """A server's question to the user during a call, with either a ``schema`` or a ``url``."""

    server: str
    tool: str
    message: str
    schema: Mapping[str, Any] | None = None  # of the requested object, flat and with plain values
    url: str = ""  # a page to open, instead of an answer


@dataclass(frozen=True, slots=True)
class Elicited:
    action: Literal["accept", "decline", "cancel"] = "cancel"
    content: Mapping[str, Any] | None = None  # the values that were filled in


_HTTP = "casemate/http"  # in the data of an error
Outcome = Literal["answered", "not sent", "broken off"]


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """The outcome of a failed HTTP request, without the server's message."""

    status: int  # HTTP's
    outcome: Outcome  # whether there was an answer; if not, whether the server may have received the request
    had_session: bool  # the request named an MCP session
    retry_after: str  # the header

    def as_data(self) -> dict[str, Any]:
        """The form in the data of a JSON-RPC error."""
        return {_HTTP: [self.status, self.outcome, self.had_session, self.retry_after]}

    @classmethod
    def of(cls, error: object) -> ServerAnswer | None:
        """The one in an error of the SDK; None if it was not an HTTP error."""
        data = getattr(error, "data", None)
        held = data.get(_HTTP) if isinstance(data, dict) else None
        if not isinstance(held, list) or [type(one) for one in held] != [int, str, bool, str]:
            return None
        return cls(*held)


Elicit = Callable[[Elicitation], "Future[Elicited]"]


class MalformedAnswer(Exception):
    """A server's answer is malformed; the message says why."""


def answer_of(raw: Mapping[str, Any]) -> Answer:
    """Parse a result of ``tools/call``. Raises ``MalformedAnswer`` if it is malformed or larger than 64 MiB."""
    content = raw.get("content", [])
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise MalformedAnswer("its content is not a list of content blocks")
    structured = raw.get(STRUCTURED, raw.get(ANY_STRUCTURED, ABSENT))
    is_error = raw.get("isError", False)
    check_json([content, None if structured is ABSENT else structured])
    return Answer(content, structured, is_error is True)


def check_json(value: Json) -> None:
    """Raise ``MalformedAnswer`` for numbers that JSON does not have, and beyond 64 MiB."""
    try:
        size = len(json.dumps(value, allow_nan=False, check_circular=False))
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(f"it is not JSON: {error}") from None
    if size > MOST_ANSWER:
        raise MalformedAnswer(f"it has more than {MOST_ANSWER >> 20} MiB")


def failure(text: str) -> Answer:
    """The answer for a tool's failure that a server reports as a protocol error."""
    return Answer([{"type": "text", "text": text}], is_error=True)


def elicitation_of(server: str, tool: str, params: Any) -> Elicitation | None:
    """Parse a server's question, in either of the SDK's forms. None for one that must not be shown."""
    from casemate.errors import InvalidArgument
    from casemate.tools.connections.definition import check_url

    message = str(getattr(params, "message", ""))[:_LONGEST_MESSAGE]
    url = getattr(params, "url", None)
    if url is not None:
        try:
            return Elicitation(server, tool, message, url=check_url(str(url)[:_LONGEST_MESSAGE], "url"))
        except InvalidArgument:
            return None
    schema = getattr(params, "requested_schema", None)
    if not isinstance(schema, Mapping):
        return None
    properties = schema.get("properties", {})
    is_flat = isinstance(properties, Mapping) and all(isinstance(of, Mapping) for of in properties.values())
    if schema.get("type", "object") != "object" or not is_flat or len(properties) > _MOST_FIELDS:
        return None
    return Elicitation(server, tool, message, schema=dict(schema))


def elicited_content(asked: Elicitation, content: Mapping[str, Any] | None) -> dict[str, Any]:
    """The requested values that are plain or lists of strings; the server's defaults for the others (SEP-1034)."""
    properties = (asked.schema or {}).get("properties", {})
    filled_in = {name: of["default"] for name, of in properties.items() if "default" in of}
    filled_in |= {name: value for name, value in (content or {}).items() if name in properties}
    return {name: value for name, value in filled_in.items() if _is_plain(value)}


def _is_plain(value: Json) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return value is None or isinstance(value, str | int | float | bool)
