"""JSON with comments and trailing commas (JSONC), read with the place of every member. Pure.

The grammar is RFC 8259's, with ``//`` and ``/* */`` where white space may stand, and a comma before ``}`` and ``]``, as
editors write their settings. A file is read to be changed at one place, so nothing else in it is ever written anew.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_MOST_DEPTH = 100


class Malformed(ValueError):
    """What is no JSON; ``line`` and ``column`` from 1."""

    def __init__(self, text: str, place: int, problem: str) -> None:
        self.line = text.count("\n", 0, place) + 1
        self.column = place - (text.rfind("\n", 0, place) + 1) + 1
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Member:
    """One of an object: ``start`` of its name, and its value."""

    name: str
    start: int
    node: Node


@dataclass(frozen=True, slots=True)
class Node:
    """A value, and where it stands: ``text[start:end]``. ``members``: of an object; ``comma``: where a comma follows
    the last of them, or None."""

    value: Any
    start: int
    end: int
    members: list[Member] = field(default_factory=list)
    comma: int | None = None

    def member(self, name: str) -> Member | None:
        """The member of that name, or None."""
        return next((one for one in self.members if one.name == name), None)


def read(text: str) -> Node:
    """The value that ``text`` is. Raises ``Malformed``."""
    reader = _Reader(text)
    node, place = reader.value(reader.space(0), 0)
    place = reader.space(place)
    if place != len(text):
        reader.refuse(place, "something follows after the end")
    return node


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text

    def space(self, place: int) -> int:
        found = _SPACE.match(self.text, place)
        return found.end() if found else place

    def refuse(self, place: int, problem: str) -> NoReturn:
        raise Malformed(self.text, place, problem)

    def value(self, place: int, depth: int) -> tuple[Node, int]:
        if depth > _MOST_DEPTH:
            self.refuse(place, "is nested too deeply")
        first = self.text[place : place + 1]
        if first == "{":
            node = self._object(place, depth)
        elif first == "[":
            node = self._array(place, depth)
        elif first == '"':
            text, end = self._string(place)
            node = Node(text, place, end)
        else:
            node = self._plain(place)
        return node, node.end

    def _string(self, place: int) -> tuple[str, int]:
        found = _STRING.match(self.text, place)
        if found is None:
            self.refuse(place, "a text in double quotes is expected")
        return json.loads(found[0]), found.end()

    def _plain(self, place: int) -> Node:
        for word, meaning in _WORDS.items():
            if self.text.startswith(word, place):
                return Node(meaning, place, place + len(word))
        found = _NUMBER.match(self.text, place)
        if found is None:
            self.refuse(place, "a value is expected" if place < len(self.text) else "it ends in the middle")
        return Node(json.loads(found[0]), place, found.end())

    def _object(self, start: int, depth: int) -> Node:
        members: list[Member] = []
        comma: int | None = None
        place = self.space(start + 1)
        while self.text[place : place + 1] != "}":
            if members and comma is None:
                self.refuse(place, "a comma or } is expected")
            name, end = self._string(place)
            if any(one.name == name for one in members):
                self.refuse(place, f"{name[:100]!r} stands twice in one object")
            colon = self.space(end)
            if self.text[colon : colon + 1] != ":":
                self.refuse(colon, "a colon is expected")
            node, end = self.value(self.space(colon + 1), depth + 1)
            members.append(Member(name, place, node))
            comma, place = self._comma(end)
        return Node({one.name: one.node.value for one in members}, start, place + 1, members, comma)

    def _array(self, start: int, depth: int) -> Node:
        values: list[Any] = []
        comma: int | None = None
        place = self.space(start + 1)
        while self.text[place : place + 1] != "]":
            if values and comma is None:
                self.refuse(place, "a comma or ] is expected")
            node, end = self.value(place, depth + 1)
            values.append(node.value)
            comma, place = self._comma(end)
        return Node(values, start, place + 1)

    def _comma(self, end: int) -> tuple[int | None, int]:
        """Where a comma follows what ends at ``end``, and where the next thing stands."""
        place = self.space(end)
        if self.text[place : place + 1] == ",":
            return place, self.space(place + 1)
        return None, place


def after_space(text: str, place: int) -> int:
    """The first place from ``place`` on that is neither white space nor a comment."""
    return _Reader(text).space(place)
