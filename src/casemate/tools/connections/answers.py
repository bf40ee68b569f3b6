"""What a server says, as plain values: its list of tools, and the answers to calls. Pure.

The lists are a stranger's: bounded in pages, tools, bytes and depth. A malformed tool is left out, with a reason. A
tool's hash binds an approval to what was shown: it covers the server's name and all that describes the tool, so it
changes with any of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from casemate.tools.tool import Hints, Json, Problem, Tool
from casemate.visible import is_plain

MOST_PAGES = 100
MOST_TOOLS = 2000
MOST_BYTES = 16 << 20  # of all descriptions of one server's tools
_MOST_TOOL_BYTES = 1 << 20
_MOST_DEPTH = 128  # of a whole description; of a schema in it 100, as it is read
_LONGEST_NAME = 256
_LONGEST_DESCRIPTION = 64 << 10
_LONGEST_TITLE = 256
_DESCRIBED_BY = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")


@dataclass(frozen=True, slots=True)
class ServerTools:
    """The tools of one server. ``hashes``: of each tool's description, by name; ``problems``: what was left out, and
    why; ``protocol``: the revision of MCP that is spoken; ``instructions``: the server's own, for a model."""

    server: str
    tools: Mapping[str, Tool] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    protocol: str = ""
    instructions: str = ""


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
        """Take the ``tools`` of one page; gives the good ones as little as the SDK needs of them."""
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
        """Whether to ask for the page after ``cursor``: there is one, it is new, and there were not too many."""
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

    def drop(self, name: str, code: str, why: str) -> None:
        """Leave out a tool after all."""
        if self._tools.pop(name, None) is not None:
            self._leave_out(name, code, why)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def finish(self, protocol: str, instructions: str) -> ServerTools:
        """All of it."""
        hashes = {name: self._hashes[name] for name in self._tools}
        return ServerTools(
            self._server, MappingProxyType(self._tools), MappingProxyType(hashes), tuple(self._problems), protocol,
            instructions[:_LONGEST_DESCRIPTION],
        )  # fmt: skip

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
    """Why it cannot be used: a code and a sentence."""
    if not isinstance(item, dict):
        return "malformed", f"it is a {type(item).__name__}, not an object"
    name = item.get("name")
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not is_plain(name):
        return "name", f"its name is no printable text of 1 to {_LONGEST_NAME} characters"
    if not _is_shallow(item, _MOST_DEPTH):
        return "limit", f"its description is nested more than {_MOST_DEPTH} levels deep"
    for key in ("inputSchema", "outputSchema"):
        schema = item.get(key)
        if schema is not None and not isinstance(schema, dict | bool):
            return "schema", f"its {key} is a {type(schema).__name__}, which is no schema"
    if item.get("inputSchema") is False:
        return "schema", "its inputSchema allows no arguments at all, not even none"
    execution = item.get("execution")
    if isinstance(execution, dict) and execution.get("taskSupport") == "required":
        return "task", "it can only be called as a task, an extension that is not supported"
    return None


def _make_tool(server: str, item: dict[str, Any]) -> Tool:
    """The tool, with what is wrong but not needed left empty."""
    annotations = item.get("annotations")
    hints = annotations if isinstance(annotations, dict) else {}
    title = _text(item.get("title"), _LONGEST_TITLE) or _text(hints.get("title"), _LONGEST_TITLE)
    meta = item.get("_meta")
    return Tool(
        server=server,
        name=item["name"],
        description=_text(item.get("description"), _LONGEST_DESCRIPTION),
        input_schema=item.get("inputSchema") or {"type": "object"},
        output_schema=item.get("outputSchema"),
        title=title,
        hints=Hints(
            *(_flag(hints.get(f"{hint}Hint")) for hint in ("readOnly", "destructive", "idempotent", "openWorld"))
        ),
        meta=meta if isinstance(meta, dict) else {},
    )


def _flag(given: Json) -> bool | None:
    return given if isinstance(given, bool) else None


def _text(given: Json, most: int) -> str:
    return given[:most] if isinstance(given, str) else ""


def _harmless(schema: Json) -> dict[str, Any]:
    """As much of a schema as tells the SDK which arguments are sent as headers too (MCP 2026-07-28, x-mcp-header)."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return {"type": "object"}
    return {"type": "object", "properties": {name: of for name, of in properties.items() if isinstance(of, dict)}}


def _is_shallow(value: Json, levels: int) -> bool:
    """Whether nothing in it is nested deeper; without recursion, for it may be."""
    layer = [value]
    for _ in range(levels):
        layer = [inner for outer in layer for inner in _within(outer)]
        if not layer:
            return True
    return False


def _within(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _text_of(value: Json) -> bytes:
    """One text for each value of JSON: sorted names, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


MOST_ANSWER = 64 << 20  # bytes of one answer as JSON
STRUCTURED = "structuredContent"
ANY_STRUCTURED = "casemate/structuredContent"  # under which the SDK lets values pass that are no objects
_LONGEST_MESSAGE = 16 << 10  # characters of a message to people
_MOST_FIELDS = 100


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Any = _Absent()
"""There is no structured content; None is content, since MCP 2026-07-28."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool answered.

    It comes from a stranger, and is not checked.

    Attributes:
        content: MCP's content blocks as they came.
        structured: Its structured content, any value of JSON, or ``ABSENT``.
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
    """How far a call is: ``progress`` of ``total``, in units of the server's own; None is unknown."""

    progress: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Elicitation:
    """A server asks the user for something in the middle of a call. ``schema``: of the object that is asked for, flat
    and of plain values; ``url``: where the user is to go instead, and nothing is filled in. One of the two is there."""

    server: str
    tool: str
    message: str
    schema: Mapping[str, Any] | None = None
    url: str = ""


@dataclass(frozen=True, slots=True)
class Elicited:
    """What the user did about it; ``content``: what was filled in."""

    action: Literal["accept", "decline", "cancel"] = "cancel"
    content: Mapping[str, Any] | None = None


_HTTP = "casemate/http"  # in the data of an error
Outcome = Literal["answered", "not sent", "broken off"]


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What is known of a request that HTTP brought no result for, besides the server's words.

    Attributes:
        status: Of the answer.
        outcome: Whether there was one; else whether the server may have had the request.
        had_session: The request named an MCP session.
        retry_after: The header of that name.
    """

    status: int
    outcome: Outcome
    had_session: bool
    retry_after: str

    def as_data(self) -> dict[str, Any]:
        """In the data of an error of JSON-RPC."""
        return {_HTTP: [self.status, self.outcome, self.had_session, self.retry_after]}

    @classmethod
    def of(cls, error: object) -> ServerAnswer | None:
        """The one in an error of the SDK's; None where it was no HTTP error."""
        data = getattr(error, "data", None)
        held = data.get(_HTTP) if isinstance(data, dict) else None
        if not isinstance(held, list) or [type(one) for one in held] != [int, str, bool, str]:
            return None
        return cls(*held)


Elicit = Callable[[Elicitation], "Future[Elicited]"]


class MalformedAnswer(Exception):
    """A server's answer is none; the message says why."""


def answer_of(raw: Mapping[str, Any]) -> Answer:
    """The result of ``tools/call``. Raises ``MalformedAnswer`` for what is none, and beyond 64 MiB."""
    content = raw.get("content", [])
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise MalformedAnswer("its content is no list of content blocks")
    structured = raw.get(STRUCTURED, raw.get(ANY_STRUCTURED, ABSENT))
    is_error = raw.get("isError", False)
    check_json([content, None if structured is ABSENT else structured])
    return Answer(content, structured, is_error is True)


def check_json(value: Json) -> None:
    """Raises ``MalformedAnswer`` for numbers that JSON does not know, and beyond 64 MiB."""
    try:
        size = len(json.dumps(value, allow_nan=False, check_circular=False))
    except (ValueError, RecursionError) as error:
        raise MalformedAnswer(f"it is not JSON: {error}") from None
    if size > MOST_ANSWER:
        raise MalformedAnswer(f"it has more than {MOST_ANSWER >> 20} MiB")


def failure(text: str) -> Answer:
    """A tool's failure that a server reports as an error of the protocol."""
    return Answer([{"type": "text", "text": text}], is_error=True)


def elicitation_of(server: str, tool: str, params: Any) -> Elicitation | None:
    """What a server asks for; None for what nobody should be asked. ``params``: the SDK's, of either form."""
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
    """Of what was filled in, what was asked for and is of a kind that may be sent: plain values and lists of texts; and
    of what was left as it is the server's defaults (SEP-1034)."""
    properties = (asked.schema or {}).get("properties", {})
    filled_in = {name: of["default"] for name, of in properties.items() if "default" in of}
    filled_in |= {name: value for name, value in (content or {}).items() if name in properties}
    return {name: value for name, value in filled_in.items() if _is_plain(value)}


def _is_plain(value: Json) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return value is None or isinstance(value, str | int | float | bool)
