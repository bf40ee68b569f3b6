"""One table put into a TOML text, or taken out of it, with every other line as it was. Pure.

As for JSON, what comes out is read again and compared with what was meant.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from casemate.errors import Fault
from casemate.surfaces.clients.jsonc import Malformed

_HEADER = re.compile(r"[ \t]*\[")
_POSITION = re.compile(r"at line ([0-9]+), column ([0-9]+)")


def with_table(text: str, key: str, name: str, entry: Mapping[str, Any]) -> str:
    """``text`` with the table ``[key.name]`` at its end, in place of one that is there.

    Raises ``Malformed`` where it is no TOML, or has that table in another form.
    """
    before = _read(text)
    servers = before.get(key, {})
    if not isinstance(servers, dict):
        raise Malformed(text, 0, f"{key} is expected to be a table")
    if servers.get(name) == dict(entry):
        return text
    rest = without_table(text, key, name)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"[{key}.{name}]", *(f"{one} = {_written(value)}" for one, value in entry.items()), ""]
    gap = "" if not rest.strip() else newline if rest.endswith("\n") else newline * 2
    changed = rest + gap + newline.join(lines)
    return _checked(changed, {**before, key: {**servers, name: dict(entry)}})


def without_table(text: str, key: str, name: str) -> str:
    """``text`` without the table ``[key.name]`` and those below it. Raises ``Malformed``."""
    before = _read(text)
    servers = before.get(key, {})
    if not isinstance(servers, dict) or name not in servers:
        return text
    own = re.compile(rf"[ \t]*\[[ \t]*{re.escape(key)}[ \t]*\.[ \t]*\"?{re.escape(name)}\"?[ \t]*[.\]]")
    kept: list[str] = []
    is_own = False
    for line in text.splitlines(keepends=True):
        if _HEADER.match(line):
            is_own = own.match(line) is not None
        if not is_own:
            kept.append(line)
    changed = "".join(kept)
    others = {one: value for one, value in servers.items() if one != name}
    try:
        return _checked(
            changed, {**before, key: others} if others else {one: v for one, v in before.items() if one != key}
        )
    except Fault:
        raise Malformed(
            text, 0, f"{key}.{name} is written in another way than as a table; take it out by hand"
        ) from None


def _read(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        lines = text.splitlines(keepends=True)
        place = sum(map(len, lines[: int(position[1]) - 1])) + int(position[2]) - 1 if position else len(text)
        raise Malformed(text, place, str(error).partition(" (at ")[0]) from None


def _written(value: Any) -> str:
    """A text or a list of texts; JSON's escapes are TOML's, too, for what is escaped here."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _checked(changed: str, expected: Any) -> str:
    try:
        found = tomllib.loads(changed)
    except tomllib.TOMLDecodeError as error:
        raise Fault(f"the file would have become no TOML: {error}") from None
    if found != expected:
        raise Fault("the file would have become another one than was meant")
    return changed
