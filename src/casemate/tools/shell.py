"""The host's side of the command ``tool`` in Shell cells.

The command sends its words, which become a request here. The first line of the answer is ``ok`` or the kind of an
error. Text for people follows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from casemate.errors import InvalidArgument
from casemate.policy.canonical import parse
from casemate.tools.requests import Read, Search, ToolCall
from casemate.tools.schemas.schema import Unreadable, read
from casemate.tools.schemas.types import Anything, Array, Choice, Exact, RecordType, Scalar, SchemaReader, Table, Type
from casemate.tools.tool import Json, Tool
from casemate.visible import plain

if TYPE_CHECKING:
    from casemate.tools.tools import Aside, Tools


USAGE = """\
tool list                                  every tool
tool search WORDS...                       find tools
tool describe SERVER.TOOL                  parameters and result
tool read SERVER URI                       read a resource by its link
tool SERVER.TOOL [KEY=TEXT | KEY:=JSON | --json OBJECT]...
                                           call it; KEY=TEXT is read by the parameter's type
"""


class BadWords(ValueError):
    """An unknown command or bad arguments; the text says which and why."""


def arguments_of(tool: Tool, words: Sequence[str]) -> dict[str, Json]:
    """Parse arguments by the tool's schema, without validating them. Raises :class:`BadWords`.

    ``key=text`` is text if the parameter is a string, otherwise JSON; ``key:=json`` is JSON; ``--json OBJECT`` gives
    several. A key may be the one on the wire or the parameter's Python name.
    """
    fields = _fields(tool)
    arguments: dict[str, Json] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--json" or word.startswith("--json="):
            text = word.partition("=")[2] if "=" in word else rest.pop(0) if rest else ""
            value = _json("--json", text)
            if not isinstance(value, dict):
                raise BadWords("--json takes an object")
            new = value
        else:
            key, value = _pair(word, fields)
            new = {key: value}
        for key in new:
            if key in arguments:
                raise BadWords(f"{key!r} is given twice")
        arguments.update(new)
    return arguments


def _pair(word: str, fields: dict[str, tuple[str, Type]]) -> tuple[str, Json]:
    name, equals, text = word.partition("=")
    as_json = name.endswith(":") and name not in fields
    name = name[:-1] if as_json else name
    if not equals:
        raise BadWords(f"{word!r} is not an argument; give KEY=TEXT, KEY:=JSON or --json OBJECT")
    key, kind = fields.get(name, (name, Anything()))
    return key, _json(name, text) if as_json else _read(name, text, kind)


def _read(name: str, text: str, kind: Type) -> Json:
    match kind:
        case Scalar(kind="string") | Anything():
            return text
        case Exact(values=values):
            return next(
                (value for value in values if text == (value if isinstance(value, str) else json.dumps(value))), text
            )
        case Choice(options=options):
            return _read_any(name, text, options)
        case Scalar(kind=expected):
            return _json(name, text, f"is {expected}, ")
        case Array(item=item):
            return _json(name, text) if text.lstrip().startswith("[") else [_read(name, text, item)]
        case RecordType() | Table():
            return _json(name, text, "is an object, ")


def _read_any(name: str, text: str, options: tuple[Type, ...]) -> Json:
    """Read ``text`` as one of the exact values, otherwise as JSON, otherwise as a string if the schema allows one."""
    textual = any(isinstance(option, Scalar) and option.kind == "string" for option in options)
    for option in options:
        if isinstance(option, Exact):
            value = _read(name, text, option)
            if value is not text or text in option.values:
                return value
    try:
        value = _json(name, text)
    except BadWords:
        if textual or any(isinstance(option, Exact) for option in options):
            return text
        raise
    other = value is None or isinstance(value, dict | list | bool | int | float)
    return value if other and not (textual and isinstance(value, int | float) and not _numeric(options)) else text


def _numeric(options: tuple[Type, ...]) -> bool:
    return any(isinstance(option, Scalar) and option.kind in ("integer", "number", "boolean") for option in options)


def _json(name: str, text: str, about: str = "takes JSON, ") -> Json:
    try:
        return parse(text)
    except InvalidArgument as error:
        why = error.problem.removeprefix("is not JSON: ")
        raise BadWords(f"{name} {about}but this is not JSON: {text[:80]!r} ({why})") from None


def _fields(tool: Tool) -> dict[str, tuple[str, Type]]:
    try:
        record = SchemaReader().parameters(read(tool.input_schema), "Params")
    except Unreadable:
        return {}
    named = {field.keyword: (field.key, field.type) for field in record.fields}
    return named | {field.key: (field.key, field.type) for field in record.fields}


def answer_text(kind: str, text: str) -> str:
    """The answer as the command reads it. ``kind``: ``ok`` or an error kind. Control characters are escaped."""
    shown = plain(text, keep="\n\t")
    return f"{kind}\n{shown}\n" if shown and not shown.endswith("\n") else f"{kind}\n{shown}"


async def resolve_words(words: Sequence[str], tools: Tools, aside: Aside) -> ToolCall | Search | Read | str:
    """Turn a command line into a request, or answer it with a text. Raises :class:`BadWords`."""
    match words:
        case [] | ["help" | "--help" | "-h", *_]:
            return USAGE
        case ["list"]:
            return Search("")
        case ["search", *rest]:
            return Search(" ".join(rest))
        case ["read", server, uri]:
            return Read(server, uri)
        case ["read", *_]:
            raise BadWords("read takes SERVER and URI")
        case ["describe", path]:
            tool = await _find(path, tools)
            return await tools.describe_aside(tool.server, tool.name, aside)
        case ["describe", *_]:
            raise BadWords("describe takes one SERVER.TOOL")
        case [path, *rest] if "." in path:
            tool = await _find(path, tools)
            return ToolCall(tool.server, tool.name, await aside(arguments_of, tool, rest))
    raise BadWords(f"{words[0]!r} is neither SERVER.TOOL nor a command\n{USAGE}")


async def _find(path: str, tools: Tools) -> Tool:
    tool = (await tools.catalogue()).by_path(path)
    if tool is None:
        raise BadWords(f"there is no tool {path!r}; `tool list` names them")
    return tool


def text_of(answer: Mapping[str, Any]) -> str:
    """An answer as the command reads it."""
    if not answer["ok"]:
        return answer_text(answer["kind"], answer["message"])
    if "text" in answer:
        return answer_text("ok", answer["text"])
    if "structured" in answer:
        return answer_text("ok", json.dumps(answer["structured"], ensure_ascii=False, indent=2))
    return answer_text("ok", "\n".join(text_of_block(block) for block in answer["content"]))


def text_of_block(block: Mapping[str, Any]) -> str:
    """A content block as text for people."""
    match block:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "resource_link", "uri": str(uri)}:
            return uri
        case {"type": "resource", "resource": {"text": str(text)}} | {"uri": str(), "text": str(text)}:
            return text
        case {"type": str(kind), "data": str(data), "mimeType": str(media_type)}:
            size = len(data) * 3 // 4 - data[-2:].count("=")
            return f"[{kind}, {media_type}, {size:,} bytes]"
    return json.dumps(block, ensure_ascii=False)
