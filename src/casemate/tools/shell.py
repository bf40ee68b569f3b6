"""The command ``tool`` of Shell cells, on the host's side: words in, text for people out.

The command sends its words as they are; here they become a request. The answer is a line, ``ok`` or the kind of an
error, and then text for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from casemate.tools.requests import Read, Search, ToolCall
from casemate.tools.schemas.schema import Unreadable, read
from casemate.tools.schemas.types import Anything, Array, Choice, Exact, RecordType, Scalar, SchemaReader, Table, Type
from casemate.tools.tool import Json, Tool
from casemate.visible import plain

if TYPE_CHECKING:
    from casemate.tools.tools import Aside, Tools


USAGE = """\
tool list                                  every tool
tool search WORDS...                       tools for what the words say
tool describe SERVER.TOOL                  parameters and result
tool read SERVER URI                       what a link leads to
tool SERVER.TOOL [KEY=TEXT | KEY:=JSON | --json OBJECT]...
                                           call it: KEY=TEXT is read as the parameter's type says
"""
Verb = Literal["list", "search", "describe", "read", "call", "help"]
MOST_WORDS = 1_000


class BadWords(ValueError):
    """Words that ask for nothing, or arguments that cannot be read: the text says which and why."""


@dataclass(frozen=True, slots=True)
class ToolCommand:
    """What the words ask for. ``about``: the tool's path or the words to search for; ``words``: those of arguments."""

    verb: Verb
    about: str = ""
    words: tuple[str, ...] = ()


def command_of(words: Sequence[str]) -> ToolCommand:
    """What ``words`` ask for. Raises :class:`BadWords`."""
    if len(words) > MOST_WORDS:
        raise BadWords(f"more than {MOST_WORDS} words")
    if not words or words[0] in ("help", "--help", "-h"):
        return ToolCommand("help")
    first, *rest = words
    if first == "list" and not rest:
        return ToolCommand("list")
    if first == "search":
        return ToolCommand("search", " ".join(rest))
    if first == "describe":
        if len(rest) != 1:
            raise BadWords("describe takes one SERVER.TOOL")
        return ToolCommand("describe", rest[0])
    if first == "read":
        if len(rest) != 2:
            raise BadWords("read takes SERVER and URI")
        return ToolCommand("read", rest[0], (rest[1],))
    if "." not in first:
        raise BadWords(f"{first!r} is no SERVER.TOOL and no command\n{USAGE}")
    return ToolCommand("call", first, tuple(rest))


def arguments_of(tool: Tool, words: Sequence[str]) -> dict[str, Json]:
    """The arguments that ``words`` say; read as the schema says, and not checked. Raises :class:`BadWords`.

    ``key=text`` is text where the parameter is one, else JSON; ``key:=json`` is JSON; ``--json OBJECT`` gives several.
    A key may be that of the wire or the name that Python code has for it.
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
        raise BadWords(f"{word!r} is no KEY=TEXT; arguments are KEY=TEXT, KEY:=JSON or --json OBJECT")
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
    """JSON that is none of the texts that may be given is that JSON; anything else is text, where text may be."""
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


def _json(name: str, text: str, about: str = "") -> Json:
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadWords(f"{name} {about}and this is no JSON: {text[:80]!r} ({error})") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def _no_number(text: str) -> Json:
    raise ValueError(f"{text} is no number in JSON")


def _fields(tool: Tool) -> dict[str, tuple[str, Type]]:
    """Key and type of each parameter, by key and by Python's name."""
    try:
        record = SchemaReader().parameters(read(tool.input_schema), "Params")
    except Unreadable:
        return {}
    named = {field.keyword: (field.key, field.type) for field in record.fields}
    return named | {field.key: (field.key, field.type) for field in record.fields}


def answer_text(kind: str, text: str) -> str:
    """What the command reads: ``kind`` is ``ok`` or that of an error; control characters of the text are escaped."""
    shown = plain(text, keep="\n\t")
    return f"{kind}\n{shown}\n" if shown and not shown.endswith("\n") else f"{kind}\n{shown}"


async def resolve_words(words: Sequence[str], tools: Tools, aside: Aside) -> ToolCall | Search | Read | str:
    """The call or search that ``words`` ask for, or the text that they do. ``aside`` does a step in another thread.
    Raises :class:`BadWords`, and as ``tools`` does."""
    command = command_of(words)
    if command.verb == "help":
        return USAGE
    if command.verb in ("list", "search"):
        return Search(command.about)
    if command.verb == "read":
        return Read(command.about, command.words[0])
    catalogue = await tools.catalogue()
    tool = catalogue.by_path(command.about)
    if tool is None:
        raise BadWords(f"there is no tool {command.about!r}; `tool list` names them")
    if command.verb == "describe":
        return await tools.describe(tool.server, tool.name, aside=aside)
    return ToolCall(tool.server, tool.name, await aside(arguments_of, tool, command.words))


def text_of(answer: Mapping[str, Any]) -> str:
    """The line that says how it went, and the text after it."""
    if not answer["ok"]:
        return answer_text(answer["kind"], answer["message"])
    if "text" in answer:
        return answer_text("ok", answer["text"])
    if "structured" in answer:
        return answer_text("ok", json.dumps(answer["structured"], ensure_ascii=False, indent=2))
    return answer_text("ok", "\n".join(text_of_block(block) for block in answer["content"]))


def text_of_block(block: Mapping[str, Any]) -> str:
    """A part of what a tool gave, for people."""
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
