"""One table put into a TOML text, or taken out of it; tomlkit keeps the rest as it was. Pure.

As for JSON, what comes out is read again and compared with what was meant.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from casemate.surfaces.clients.jsonc import Malformed

_POSITION = re.compile(r"at line ([0-9]+), column ([0-9]+)")


def with_table(text: str, key: str, name: str, entry: Mapping[str, Any]) -> str:
    """``text`` with the table ``[key.name]`` at its end, in place of one that is there. Raises ``Malformed``."""
    before = _read(text)
    servers = before.get(key, {})
    if not isinstance(servers, dict):
        raise Malformed(text, 0, f"{key} is expected to be a table")
    if servers.get(name) == dict(entry):
        return text
    rest = without_table(text, key, name)
    table = tomlkit.dumps({key: {name: dict(entry)}})
    newline = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not rest.strip() else "\n" if rest.endswith("\n") else "\n\n"
    changed = rest + (gap + table).replace("\n", newline)
    return _check_result(text, changed, {**before, key: {**servers, name: dict(entry)}})


def without_table(text: str, key: str, name: str) -> str:
    """``text`` without the table ``[key.name]`` and those below it. Raises ``Malformed``."""
    before = _read(text)
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
        raise Malformed(text, 0, f"{key}.{name} cannot be taken out ({error}); take it out by hand") from None
    return _check_result(text, changed, expected)


def _read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        lines = text.splitlines(keepends=True)
        place = sum(map(len, lines[: int(position[1]) - 1])) + int(position[2]) - 1 if position else len(text)
        raise Malformed(text, place, str(error).partition(" (at ")[0]) from None


def _check_result(text: str, changed: str, expected: Any) -> str:
    """``changed``, where it says what was meant: a table may be written inline, where another cannot be added."""
    try:
        if tomllib.loads(changed) == expected:
            return changed
    except tomllib.TOMLDecodeError:
        pass
    raise Malformed(text, 0, "its tables are written in a way that cannot be changed safely; change it by hand")
