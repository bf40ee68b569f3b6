"""What a server says of its tools, judged tool by tool: one that is malformed is left out, with a reason. Pure.

The lists are a stranger's: bounded in pages, tools, bytes and depth. A tool's hash binds an approval to what was shown:
it is of the server's name and of all that describes the tool, so that it changes with any of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from casemate.tools.tool import Hints, Json, Problem, Tool

MOST_PAGES = 100
MOST_TOOLS = 2000
MOST_BYTES = 16 << 20  # of all descriptions of one server's tools
_MOST_TOOL_BYTES = 1 << 20
_MOST_DEPTH = 64
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


class Listing:
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
        if not cursor or not isinstance(cursor, str):
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

    def done(self, protocol: str, instructions: str) -> ServerTools:
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
                self._tools[shown] = _made(self._server, item)
                return self._tools[shown]
        self._leave_out(shown, *wrong)
        return None


def _wrong_with(item: Json) -> tuple[str, str] | None:
    """Why it cannot be used: a code and a sentence."""
    if not isinstance(item, dict):
        return "malformed", f"it is a {type(item).__name__}, not an object"
    name = item.get("name")
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
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


def _made(server: str, item: dict[str, Any]) -> Tool:
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
