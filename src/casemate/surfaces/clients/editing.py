"""Settings of other programs: one member of JSON with comments, or one table of TOML, put in or taken out. Pure.

The grammar of JSON is RFC 8259's, with ``//`` and ``/* */`` where white space is allowed, and a comma before ``}`` and
``]``, as editors write their settings. Nothing else in a file is written anew; tomlkit keeps the rest of TOML.

What comes out is read again and compared with what was meant before it is given: a text that cannot be changed safely
is not changed.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import tomlkit
from tomlkit.exceptions import TOMLKitError

from casemate.errors import Fault

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_MOST_DEPTH = 100


class MalformedSettings(ValueError):
    """What is no JSON; ``line`` and ``column`` from 1."""

    def __init__(self, text: str, place: int, problem: str) -> None:
        self.line = text.count("\n", 0, place) + 1
        self.column = place - (text.rfind("\n", 0, place) + 1) + 1
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class JsonNode:
    """A value, and where it stands: ``text[start:end]``. ``members``: of an object, by name; ``name_start``: where the
    name of one begins; ``comma``: where a comma follows the last of them, or None."""

    value: Any
    start: int
    end: int
    members: dict[str, JsonNode] = field(default_factory=dict)
    comma: int | None = None
    name_start: int = 0


def read(text: str) -> JsonNode:
    """The value that ``text`` is. Raises ``MalformedSettings``."""
    reader = _Reader(text)
    node, place = reader.value(reader.space(0), 0)
    place = reader.space(place)
    if place != len(text):
        reader.refuse(place, "something follows after the end")
    return node


def _skip_space(text: str, place: int) -> int:
    """The first place from ``place`` on that is neither white space nor a comment."""
    found = _SPACE.match(text, place)
    return found.end() if found else place


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text

    def space(self, place: int) -> int:
        return _skip_space(self.text, place)

    def refuse(self, place: int, problem: str) -> NoReturn:
        raise MalformedSettings(self.text, place, problem)

    def value(self, place: int, depth: int) -> tuple[JsonNode, int]:
        if depth > _MOST_DEPTH:
            self.refuse(place, "is nested too deeply")
        first = self.text[place : place + 1]
        if first == "{":
            node = self._object(place, depth)
        elif first == "[":
            node = self._array(place, depth)
        elif first == '"':
            text, end = self._string(place)
            node = JsonNode(text, place, end)
        else:
            node = self._plain(place)
        return node, node.end

    def _string(self, place: int) -> tuple[str, int]:
        found = _STRING.match(self.text, place)
        if found is None:
            self.refuse(place, "a text in double quotes is expected")
        return json.loads(found[0]), found.end()

    def _plain(self, place: int) -> JsonNode:
        for word, meaning in _WORDS.items():
            if self.text.startswith(word, place):
                return JsonNode(meaning, place, place + len(word))
        found = _NUMBER.match(self.text, place)
        if found is None:
            self.refuse(place, "a value is expected" if place < len(self.text) else "it ends in the middle")
        return JsonNode(json.loads(found[0]), place, found.end())

    def _object(self, start: int, depth: int) -> JsonNode:
        members: dict[str, JsonNode] = {}
        comma: int | None = None
        place = self.space(start + 1)
        while self.text[place : place + 1] != "}":
            if members and comma is None:
                self.refuse(place, "a comma or } is expected")
            name, end = self._string(place)
            if name in members:
                self.refuse(place, f"{name[:100]!r} stands twice in one object")
            colon = self.space(end)
            if self.text[colon : colon + 1] != ":":
                self.refuse(colon, "a colon is expected")
            node, end = self.value(self.space(colon + 1), depth + 1)
            members[name] = replace(node, name_start=place)
            comma, place = self._comma(end)
        return JsonNode({name: node.value for name, node in members.items()}, start, place + 1, members, comma)

    def _array(self, start: int, depth: int) -> JsonNode:
        values: list[Any] = []
        comma: int | None = None
        place = self.space(start + 1)
        while self.text[place : place + 1] != "]":
            if values and comma is None:
                self.refuse(place, "a comma or ] is expected")
            node, end = self.value(place, depth + 1)
            values.append(node.value)
            comma, place = self._comma(end)
        return JsonNode(values, start, place + 1)

    def _comma(self, end: int) -> tuple[int | None, int]:
        """Where a comma follows what ends at ``end``, and where the next thing stands."""
        place = self.space(end)
        if self.text[place : place + 1] == ",":
            return place, self.space(place + 1)
        return None, place


_REST_OF_LINE = re.compile(r"(?:[ \t]+|//[^\r\n]*|/\*[^\r\n]*?\*/)*(?=\r?\n|\Z)")
_BLANK_LINE = re.compile(r"[ \t]*(?:\r?\n)?")


def with_member(text: str, key: str, name: str, value: Any) -> str:
    """``text`` with ``value`` at ``key``/``name``: in place of what is there, else behind the last.

    An empty text is an empty object. Raises ``MalformedSettings`` where it is no JSON, or no object where one is due.
    """
    text = text if text.strip("\ufeff \t\r\n") else "{\n}\n"
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    root = _object(body, read(body))
    holder = root.members.get(key)
    if holder is None:
        servers, changed = {}, _insert_member(body, root, key, {name: value})
    else:
        inner = _object(body, holder)
        servers = inner.value
        present = inner.members.get(name)
        if present is not None and present.value == value:
            return mark + body
        if present is None:
            changed = _insert_member(body, inner, name, value)
        else:
            written = _format_value(value, _indent_of(body, present.name_start), body)
            changed = body[: present.start] + written + body[present.end :]
    return mark + _check_result(changed, {**root.value, key: {**servers, name: value}})


def without_member(text: str, key: str, name: str) -> str:
    """``text`` without ``key``/``name``, and as it is where there is none. Raises ``MalformedSettings``."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    if not body.strip():
        return text
    root = _object(body, read(body))
    holder = root.members.get(key)
    if holder is None or not isinstance(holder.value, dict) or holder.members.get(name) is None:
        return text
    kept = {other: value for other, value in holder.value.items() if other != name}
    return mark + _check_result(_cut(body, holder, name), {**root.value, key: kept})


def _object(text: str, node: JsonNode) -> JsonNode:
    if not isinstance(node.value, dict):
        raise MalformedSettings(text, node.start, "an object is expected here")
    return node


def _insert_member(text: str, node: JsonNode, name: str, value: Any) -> str:
    """``text`` with a further member of the object ``node``."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if not node.members:
        outer = _indent_of(text, node.start)
        inner = outer + _step(text)
        member = f"{newline}{inner}{json.dumps(name)}: {_format_value(value, inner, text)}"
        rest = text[node.start + 1 : node.end]
        rest = rest if "\n" in rest else f"{newline}{outer}{rest.lstrip()}"
        return text[: node.start + 1] + member + rest + text[node.end :]
    last = list(node.members.values())[-1]
    if "\n" not in text[node.start : node.end]:
        comma = "" if node.comma is not None else ","
        end = last.end if node.comma is None else node.comma + 1
        return text[:end] + f"{comma} {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" + text[end:]
    inner = _indent_of(text, last.name_start)
    member = f"{newline}{inner}{json.dumps(name)}: {_format_value(value, inner, text)}"
    if node.comma is not None:
        end = _line_end(text, node.comma + 1, node.end)
        return text[:end] + member + "," + text[end:]
    end = _line_end(text, last.end, node.end)
    return text[: last.end] + "," + text[last.end : end] + member + text[end:]


def _cut(text: str, node: JsonNode, name: str) -> str:
    """``text`` without a member of the object ``node``; comments stay, but for those within it."""
    members = list(node.members.values())
    place = list(node.members).index(name)
    start, end = members[place].name_start, members[place].end
    has_comma = place < len(members) - 1 or node.comma is not None
    if has_comma:
        end = _skip_space(text, end) + 1
    elif place:
        before = _skip_space(text, members[place - 1].end)
        text = text[:before] + text[before + 1 :]
        start, end = start - 1, end - 1
    line = text.rfind("\n", 0, start) + 1
    rest = _BLANK_LINE.match(text, end)
    if text[line:start].strip(" \t") == "" and rest and rest[0].endswith("\n"):
        return text[:line] + text[rest.end() :]  # it had its lines to itself
    if has_comma:
        return text[:start] + text[end:].lstrip(" ")
    return text[:start].rstrip(" ") + text[end:]


def _line_end(text: str, place: int, most: int) -> int:
    """The end of the line where nothing but comments follow on it, else ``place`` itself."""
    rest = _REST_OF_LINE.match(text, place)
    return rest.end() if rest and rest.end() < most else place


def _indent_of(text: str, place: int) -> str:
    """The white space with which the line of ``place`` begins."""
    line = text[text.rfind("\n", 0, place) + 1 : place]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _step(text: str) -> str:
    """By what the file indents."""
    found = re.search(r'\n([ \t]+)"', text)
    return "\t" if found and found[1].startswith("\t") else " " * min(len(found[1]), 8) if found else "  "


def _format_value(value: Any, indent: str, text: str) -> str:
    lines = json.dumps(value, indent=_step(text), ensure_ascii=False).split("\n")
    return ("\r\n" if "\r\n" in text else "\n").join([lines[0], *(indent + line for line in lines[1:])])


def _check_result(changed: str, expected: Any) -> str:
    """``changed``, which says exactly what was meant, in the same order."""
    try:
        found = read(changed).value
    except MalformedSettings as error:
        raise Fault(f"the file would have become no JSON: line {error.line}: {error.problem}") from None
    if found != expected or list(found) != list(expected):
        raise Fault("the file would have become another one than was meant")
    return changed


_POSITION = re.compile(r"at line ([0-9]+), column ([0-9]+)")


def with_table(text: str, key: str, name: str, entry: Mapping[str, Any]) -> str:
    """``text`` with the table ``[key.name]`` at its end, in place of one there. Raises ``MalformedSettings``."""
    before = _read_toml(text)
    servers = before.get(key, {})
    if not isinstance(servers, dict):
        raise MalformedSettings(text, 0, f"{key} is expected to be a table")
    if servers.get(name) == dict(entry):
        return text
    rest = without_table(text, key, name)
    table = tomlkit.dumps({key: {name: dict(entry)}})
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not rest.strip() else "\n" if rest.endswith("\n") else "\n\n"
    changed = rest + (gap + table).replace("\n", newline)
    return _check_table(text, changed, {**before, key: {**servers, name: dict(entry)}})


def without_table(text: str, key: str, name: str) -> str:
    """``text`` without the table ``[key.name]`` and those below it. Raises ``MalformedSettings``."""
    before = _read_toml(text)
    servers = before.get(key, {})
    if not isinstance(servers, dict) or name not in servers:
        return text
    others = {other: value for other, value in servers.items() if other != name}
    expected = {**before, key: others}
    try:
        document: Any = tomlkit.parse(text)
        del document[key][name]
        if not others:
            del document[key], expected[key]
        changed = tomlkit.dumps(document)
    except (TOMLKitError, KeyError) as error:
        raise MalformedSettings(text, 0, f"{key}.{name} cannot be taken out ({error}); take it out by hand") from None
    return _check_table(text, changed, expected)


def _read_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        lines = text.splitlines(keepends=True)
        place = sum(map(len, lines[: int(position[1]) - 1])) + int(position[2]) - 1 if position else len(text)
        raise MalformedSettings(text, place, str(error).partition(" (at ")[0]) from None


def _check_table(text: str, changed: str, expected: Any) -> str:
    """``changed``, where it says what was meant: a table may be written inline, where another cannot be added."""
    try:
        if tomllib.loads(changed) == expected:
            return changed
    except tomllib.TOMLDecodeError:
        pass
    raise MalformedSettings(text, 0, "its tables are written in a way that cannot be changed safely; change it by hand")
