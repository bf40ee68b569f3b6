"""What goes to a server's tool and what comes of it, as plain values. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal

from casemate.tools.tool import Json

MOST_ANSWER = 64 << 20  # bytes of one answer as JSON
_LONGEST_TEXT = 16 << 10  # characters of a message to people
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
    """What a tool answered. ``content``: MCP's content blocks as they came; ``structured``: its structured content, any
    value of JSON, or ``ABSENT``; ``is_error``: the tool says that it failed. A stranger's, and unchecked."""

    content: list[dict[str, Any]] = field(default_factory=list)
    structured: Json = ABSENT
    is_error: bool = False

    @property
    def has_structured(self) -> bool:
        return self.structured is not ABSENT


@dataclass(frozen=True, slots=True)
class Progress:
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


Elicit = Callable[[Elicitation], "Future[Elicited]"]


class Malformed(Exception):
    """A server's answer is none; the message says why."""


def answer_of(raw: Mapping[str, Any]) -> Answer:
    """The result of ``tools/call``. Raises ``Malformed`` for what is none, and beyond 64 MiB."""
    content = raw.get("content", [])
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise Malformed("its content is no list of content blocks")
    structured = raw.get("structuredContent", ABSENT)
    is_error = raw.get("isError", False)
    check_json([content, None if structured is ABSENT else structured])
    return Answer(content, structured, is_error is True)


def check_json(value: Json) -> None:
    """Raises ``Malformed`` for numbers that JSON does not know, and beyond 64 MiB."""
    try:
        size = len(json.dumps(value, allow_nan=False, check_circular=False))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"it is not JSON: {error}") from None
    if size > MOST_ANSWER:
        raise Malformed(f"it has more than {MOST_ANSWER >> 20} MiB")


def failure(text: str) -> Answer:
    """A tool's failure that a server reports as an error of the protocol."""
    return Answer([{"type": "text", "text": text}], is_error=True)


def elicitation_of(server: str, tool: str, params: Any) -> Elicitation | None:
    """What a server asks for; None for what nobody should be asked. ``params``: the SDK's, of either form."""
    from casemate.errors import InvalidArgument
    from casemate.tools.connections.definition import check_url

    message = str(getattr(params, "message", ""))[:_LONGEST_TEXT]
    url = getattr(params, "url", None)
    if url is not None:
        try:
            return Elicitation(server, tool, message, url=check_url(str(url)[:_LONGEST_TEXT], "url"))
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
