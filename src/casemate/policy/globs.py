"""srt's path patterns: ``*`` and ``?`` match within one name, ``**`` across names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MARKS = "*?["


def is_pattern(text: str) -> bool:
    """Whether ``text`` contains a wildcard."""
    return any(mark in text for mark in _MARKS)


def literal_folder(text: str) -> str:
    """Return the folders of an absolute path or pattern before its first wildcard, without the last name."""
    parts = text.split("/")
    first = next((place for place, part in enumerate(parts) if is_pattern(part)), len(parts) - 1)
    return "/".join(parts[:first]) or "/"


def compile_globs(patterns: Iterable[str]) -> re.Pattern[str]:
    """Compile an expression for the absolute paths that any of ``patterns`` matches."""
    return re.compile("|".join(f"(?:{_regex(pattern)})" for pattern in patterns) or "(?!)", re.DOTALL)


def _regex(pattern: str) -> str:
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^\]/]+\])", pattern.rstrip("/") or "/")
    return "".join(map(_part, parts)) + r"\Z"


def _part(part: str) -> str:
    known = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if part in known:
        return known[part]
    if part.startswith("[") and part.endswith("]"):
        inner = part[1:-1].replace("\\", r"\\").replace("[", r"\[")
        return f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
    return re.escape(part)
