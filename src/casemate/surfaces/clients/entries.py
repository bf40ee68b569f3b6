"""Adds, replaces or removes one server's entry in a client's settings, and changes nothing else.

The text must be plain JSON, or TOML. A result is parsed again, and refused unless it has exactly the intended change.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

import tomlkit
from tomlkit.exceptions import TOMLKitError

_DECODER = json.JSONDecoder()


def read(text: str, *, is_toml: bool) -> dict[str, Any]:
    """Parse settings; an empty text has none. Raises ``ValueError``."""
    try:
        settings = tomllib.loads(text) if is_toml else json.loads(text) if text.strip() else {}
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(settings, dict):
        raise ValueError("an object is expected")
    return settings


def change(text: str, key: str, name: str, entry: Mapping[str, Any] | None, *, is_toml: bool) -> str:
    """Set the server ``name`` under ``key`` to ``entry``, or remove it for None. Raises ``ValueError``."""
    before = read(text, is_toml=is_toml)
    servers = before.get(key, {})
    if not isinstance(servers, dict):
        raise ValueError(f"{key} is expected to be {'a table' if is_toml else 'an object'}")
    if servers.get(name) == entry:
        return text
    meant = {other: value for other, value in servers.items() if other != name}
    if entry is not None:
        meant[name] = dict(entry)
    unsafe = ValueError(f"{key} is written in a way that cannot be changed safely")
    try:
        changed = (_change_toml if is_toml else _change_json)(text, key, name, entry)
        after = read(changed, is_toml=is_toml)
    except (LookupError, TOMLKitError, ValueError):
        raise unsafe from None
    if {**after, key: after.get(key, {})} != {**before, key: meant}:
        raise unsafe
    return changed


def _change_toml(text: str, key: str, name: str, entry: Mapping[str, Any] | None) -> str:
    document: Any = tomlkit.parse(text)
    if entry is not None:
        document.setdefault(key, tomlkit.table(is_super_table=True))[name] = dict(entry)
    else:
        del document[key][name]
        if not document[key]:
            del document[key]
    return tomlkit.dumps(document)


class _Member(NamedTuple):
    start: int
    value: int
    end: int  # of the value


def _change_json(text: str, key: str, name: str, entry: Mapping[str, Any] | None) -> str:
    text = text if text.strip() else "{\n}\n"
    root = _skip_space(text, 0)
    members = _members(text, root)
    if key not in members:
        return _add(text, root, members, key, {name: entry}, depth=1)
    holder = members[key].value
    servers = _members(text, holder)
    if entry is None:
        return _remove(text, holder, servers, name)
    if name in servers:
        return text[: servers[name].value] + _format(entry, text, depth=2) + text[servers[name].end :]
    return _add(text, holder, servers, name, entry, depth=2)


def _skip_space(text: str, place: int) -> int:
    while text[place] in " \t\r\n":
        place += 1
    return place


def _members(text: str, start: int) -> dict[str, _Member]:
    members = {}
    place = _skip_space(text, start + 1)
    while text[place] != "}":
        name, end = _DECODER.raw_decode(text, place)
        value = _skip_space(text, _skip_space(text, end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        members[name] = _Member(place, value, end)
        place = _skip_space(text, end)
        if text[place] == ",":
            place = _skip_space(text, place + 1)
    return members


def _add(text: str, start: int, members: dict[str, _Member], name: str, value: Any, *, depth: int) -> str:
    """Add a last member to the object at ``start``, on its own line unless the object is on one line."""
    end = max((member.end for member in members.values()), default=start + 1)
    if members and "\n" not in text[start:end]:
        return f"{text[:end]}, {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}{text[end:]}"
    indent = "\n" + _indent(text) * depth
    comma = "," if members else ""
    closing = "" if "\n" in text[end : _skip_space(text, end)] else "\n" + _indent(text) * (depth - 1)
    return f"{text[:end]}{comma}{indent}{json.dumps(name)}: {_format(value, text, depth=depth)}{closing}{text[end:]}"


def _remove(text: str, start: int, members: dict[str, _Member], name: str) -> str:
    names = list(members)
    number = names.index(name)
    if number:
        return text[: members[names[number - 1]].end] + text[members[name].end :]
    if len(names) > 1:
        return text[: members[name].start] + text[members[names[1]].start :]
    return text[: start + 1] + text[_skip_space(text, members[name].end) :]


def _format(value: Any, text: str, *, depth: int) -> str:
    indent = _indent(text)
    return json.dumps(value, indent=indent, ensure_ascii=False).replace("\n", "\n" + indent * depth)


def _indent(text: str) -> str:
    first = re.search(r'\n([ \t]+)"', text)
    return first[1] if first else "  "
