"""Keys and their values for people: on one line, and as the tables of docs/reference/configuration.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from casemate.api.keys import ALIASES, KEYS, SECTIONS, Form, Key, aliases_of
from casemate.model.limits import format_size

_TITLES = {
    "policy": "What may cross the wall",
    "limits": "Limits",
    "sandbox": "Sandboxes",
    "service": "The service",
    "serve": "The MCP server",
}
_FORMS: dict[Form, str] = {
    "text": "text", "path": "path", "whole": "whole number", "number": "number", "seconds": "seconds",
    "size": "size", "flag": "`true` or `false`", "texts": "list", "ports": "list of ports",
    "in file": "see [policy.md](../how-to/policy.md)",
}  # fmt: skip


def format_value(key: Key, value: Any) -> str:
    """A value on one line for people, without secrets."""
    if value is None:
        return key.unset
    public = without_secrets(key.name, value)
    if key.form == "size" and isinstance(public, int):
        return format_size(public)
    if isinstance(public, bool):
        return str(public).lower()
    if isinstance(public, float):
        return f"{public:.10g}"
    if isinstance(public, list | tuple):
        return ", ".join(map(str, public)) or "none"
    return str(public)


def without_secrets(name: str, value: Any) -> Any:
    """``value`` of the key ``name``: addresses without passwords, commands without arguments, names in mappings."""
    if name in ("package_indexes", "audit_anchors") and value is not None:
        from casemate.audit.outside import public_name

        return public_name(value) if isinstance(value, str) else [public_name(one) for one in value]
    if isinstance(value, Mapping):
        inner = value.get("mcpServers", value)
        return list(inner) if isinstance(inner, Mapping) else "***"
    return list(value) if isinstance(value, tuple) else value


def tables() -> str:
    """All keys, by section."""
    return "\n".join(line for section in SECTIONS for line in _section(section))


def _section(name: str) -> Iterator[str]:
    yield f"### {_TITLES[name]}\n"
    yield "| key | value | unless given | variable | meaning |"
    yield "|---|---|---|---|---|"
    yield from map(_row, SECTIONS[name])
    yield ""


def _row(key: Key) -> str:
    variables = [*([key.variable] if key.variable else []), *aliases_of(key.name)]
    names = ", ".join(f"`{one}`" for one in variables) or "in a file only"
    return f"| `{key.name}` | {_value(key)} | {format_value(key, key.default)} | {names} | {key.says} |"


def _value(key: Key) -> str:
    if key.form == "choice":
        return ", ".join(f"`{one}`" for one in key.choices)
    if key.low is None or key.high is None:
        return _FORMS[key.form]
    return f"{_FORMS[key.form]}, {format_value(key, key.low)} to {format_value(key, key.high)}"


def other_words() -> str:
    """Variables of similar programs, and their meaning here."""
    rows = [f"| `{one.variable}` | `{KEYS[one.key].name}` | {_words(one.words, one.unit)} |" for one in ALIASES]
    return "\n".join(["| variable | key | value |", "|---|---|---|", *rows, ""])


def _words(words: object, unit: str) -> str:
    phrases = [f"a number of {unit}"] if unit else []
    if isinstance(words, dict):
        phrases += [f"`{one}` is {f'`{other}`' if other else 'the default'}" for one, other in words.items()]
    return "; ".join(phrases) or "as the key's"
