"""The table of keys as Markdown, for docs/reference/configuration.md. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from casemate.api.settings.table import ALIASES, KEYS, SECTIONS, Form, Key
from casemate.api.settings.values import shown
from casemate.api.settings.variables import aliases_of

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


def tables() -> str:
    """All keys, section by section."""
    return "\n".join(line for section in SECTIONS for line in _section(section))


def _section(name: str) -> Iterator[str]:
    yield f"### {_TITLES[name]}\n"
    yield "| key | value | unless given | variable | meaning |"
    yield "|---|---|---|---|---|"
    yield from map(_row, SECTIONS[name])
    yield ""


def _row(key: Key) -> str:
    variables = [*([key.variable] if key.variable else []), *aliases_of(key.name)]
    named = ", ".join(f"`{one}`" for one in variables) or "in a file only"
    return f"| `{key.name}` | {_value(key)} | {shown(key, key.default)} | {named} | {key.says} |"


def _value(key: Key) -> str:
    if key.form == "choice":
        return ", ".join(f"`{one}`" for one in key.choices)
    if key.low is None or key.high is None:
        return _FORMS[key.form]
    return f"{_FORMS[key.form]}, {shown(key, key.low)} to {shown(key, key.high)}"


def other_words() -> str:
    """Variables under which other programs of this kind are configured, and what they stand for here."""
    rows = [f"| `{one.variable}` | `{KEYS[one.key].name}` | {_words(one.words, one.unit)} |" for one in ALIASES]
    return "\n".join(["| variable | key | value |", "|---|---|---|", *rows, ""])


def _words(words: object, unit: str) -> str:
    told = [f"a number of {unit}"] if unit else []
    if isinstance(words, dict):
        told += [f"`{one}` is {f'`{other}`' if other else 'the default'}" for one, other in words.items()]
    return "; ".join(told) or "as the key's"
