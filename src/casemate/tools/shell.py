"""The command ``tool`` of Shell cells, on the host's side: words in, text for people out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from casemate.tools.requests import Call, Search
from casemate.tools.words import USAGE, BadWords, answer_text, arguments_of, command_of

if TYPE_CHECKING:
    from casemate.tools.tools import Aside, Tools


async def wanted(words: Sequence[str], tools: Tools, aside: Aside) -> Call | Search | str:
    """The call or search that ``words`` ask for, or the text that they do. ``aside`` does a step in another thread.
    Raises :class:`BadWords`, and as ``tools`` does."""
    command = command_of(words)
    if command.verb == "help":
        return USAGE
    if command.verb in ("list", "search"):
        return Search(command.about)
    catalogue = await tools.catalogue()
    tool = catalogue.by_path(command.about)
    if tool is None:
        raise BadWords(f"there is no tool {command.about!r}; `tool list` names them")
    if command.verb == "describe":
        return await tools.describe(tool.server, tool.name, aside=aside)
    return Call(tool.server, tool.name, await aside(arguments_of, tool, command.words))


def text_of(answer: Mapping[str, Any]) -> str:
    """The line that says how it went, and the text after it."""
    if not answer["ok"]:
        return answer_text(answer["kind"], answer["message"])
    if "text" in answer:
        return answer_text("ok", answer["text"])
    if "structured" in answer:
        return answer_text("ok", json.dumps(answer["structured"], ensure_ascii=False, indent=2))
    return answer_text("ok", "\n".join(told(block) for block in answer["content"]))


def told(block: Mapping[str, Any]) -> str:
    """A part of what a tool gave, for people."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource_link", "uri": str(uri)}:
            return uri
        case {"type": "resource", "resource": {"text": str(text)}}:
            return text
        case {"type": str(kind), "data": str(data), "mimeType": str(media_type)}:
            return f"[{kind}, {media_type}, {len(data) * 3 // 4:,} bytes]"
    return json.dumps(block, ensure_ascii=False)
