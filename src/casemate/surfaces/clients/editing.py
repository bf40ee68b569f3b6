"""One member put into a JSON text, or taken out of it, with every other character as it was. Pure.

What comes out is read again and compared with what was meant before it is given: a text that cannot be changed safely
is not changed.
"""

from __future__ import annotations

import json
import re
from typing import Any

from casemate.errors import Fault
from casemate.surfaces.clients.jsonc import Malformed, Node, after_space, read

_REST_OF_LINE = re.compile(r"(?:[ \t]+|//[^\r\n]*|/\*[^\r\n]*?\*/)*(?=\r?\n|\Z)")
_BLANK_LINE = re.compile(r"[ \t]*(?:\r?\n)?")


def with_member(text: str, key: str, name: str, value: Any) -> str:
    """``text`` with ``value`` at ``key``/``name``: in place of what is there, else behind the last.

    An empty text is an empty object. Raises ``Malformed`` where it is no JSON, or no object where one is needed.
    """
    text = text if text.strip("\ufeff \t\r\n") else "{\n}\n"
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    root = _object(body, read(body))
    holder = root.member(key)
    expected = {**root.value, key: {**(holder.node.value if holder else {}), name: value}} if _fits(holder) else {}
    if holder is None:
        changed = _put(body, root, key, {name: value})
    else:
        inner = _object(body, holder.node)
        present = inner.member(name)
        if present is not None and present.node.value == value:
            return mark + body
        if present is None:
            changed = _put(body, inner, name, value)
        else:
            at = present.node
            changed = body[: at.start] + _written(value, _indent_of(body, present.start), body) + body[at.end :]
    return mark + _checked(changed, expected)


def without_member(text: str, key: str, name: str) -> str:
    """``text`` without ``key``/``name``, and as it is where there is none. Raises ``Malformed``."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    if not body.strip():
        return text
    root = _object(body, read(body))
    holder = root.member(key)
    if holder is None or not isinstance(holder.node.value, dict) or holder.node.member(name) is None:
        return text
    kept = {other: value for other, value in holder.node.value.items() if other != name}
    return mark + _checked(_cut(body, holder.node, name), {**root.value, key: kept})


def _fits(holder: Any) -> bool:
    return holder is None or isinstance(holder.node.value, dict)


def _object(text: str, node: Node) -> Node:
    if not isinstance(node.value, dict):
        raise Malformed(text, node.start, "an object is expected here")
    return node


def _put(text: str, node: Node, name: str, value: Any) -> str:
    """``text`` with a further member of the object ``node``."""
    newline = "\r\n" if "\r\n" in text else "\n"
    if not node.members:
        outer = _indent_of(text, node.start)
        inner = outer + _step(text)
        member = f"{newline}{inner}{json.dumps(name)}: {_written(value, inner, text)}"
        rest = text[node.start + 1 : node.end]
        return (
            text[: node.start + 1]
            + member
            + (rest if "\n" in rest else f"{newline}{outer}{rest.lstrip()}")
            + text[node.end :]
        )
    last = node.members[-1]
    if "\n" not in text[node.start : node.end]:
        comma = "" if node.comma is not None else ","
        end = last.node.end if node.comma is None else node.comma + 1
        return text[:end] + f"{comma} {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" + text[end:]
    inner = _indent_of(text, last.start)
    member = f"{newline}{inner}{json.dumps(name)}: {_written(value, inner, text)}"
    if node.comma is not None:
        end = _line_end(text, node.comma + 1, node.end)
        return text[:end] + member + "," + text[end:]
    end = _line_end(text, last.node.end, node.end)
    return text[: last.node.end] + "," + text[last.node.end : end] + member + text[end:]


def _cut(text: str, node: Node, name: str) -> str:
    """``text`` without a member of the object ``node``; comments stay, but for those within it."""
    place = next(n for n, one in enumerate(node.members) if one.name == name)
    one, is_last = node.members[place], place == len(node.members) - 1
    start, end = one.start, one.node.end
    has_comma = not is_last or node.comma is not None
    if has_comma:
        end = after_space(text, end) + 1
    elif place:
        before = after_space(text, node.members[place - 1].node.end)
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


def _written(value: Any, indent: str, text: str) -> str:
    lines = json.dumps(value, indent=_step(text), ensure_ascii=False).split("\n")
    return ("\r\n" if "\r\n" in text else "\n").join([lines[0], *(indent + line for line in lines[1:])])


def _checked(changed: str, expected: Any) -> str:
    """``changed``, which says exactly what was meant, in the same order."""
    try:
        found = read(changed).value
    except Malformed as error:
        raise Fault(f"the file would have become no JSON: line {error.line}: {error.problem}") from None
    if found != expected or list(found) != list(expected):
        raise Fault("the file would have become another one than was meant")
    return changed
