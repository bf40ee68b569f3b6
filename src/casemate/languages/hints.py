"""What in a program's text may do harm. Only a hint for a reader: it is not looked for well, and nothing depends on it.

Python programs are looked at as trees, where they are parsed (guest/check_python.py). Pure.
"""

from __future__ import annotations

import re

from casemate.model.overview import Issue

_LONGEST = 1 << 18  # characters that are looked at
_LONGEST_LINE = 1000
_MOST = 100

_SHELL = (
    (r"\brm\s+(?:-[\w-]+\s+){1,5}(?:--\s+)?(?:/|~|\*|\"?\$HOME\"?)(?:[\s;&|*]|$)", "dangerous-remove",
     "this removes everything that it can"),
    (r"\b(?:curl|wget)\b[^|;]{0,300}\|\s*(?:sudo\s+)?(?:ba|z|da)?sh\b", "dangerous-shell",
     "a shell runs what comes from the network"),
    (r"\beval\b", "dangerous-eval", "eval runs whatever text it is given"),
    (r"\b(?:mkfs|fdisk|wipefs)\b|\bdd\b[^;|]{0,300}\bof=/dev/", "dangerous-device", "this overwrites a device"),
    (r":\s*\(\s*\)\s*\{[^}]{0,50}:\s*\|\s*:", "dangerous-fork", "this starts processes without end"),
)  # fmt: skip
_NODE = (
    (r"(?<![\w.])eval\s*\(", "dangerous-eval", "eval() runs whatever text it is given"),
    (r"\bnew\s+Function\s*\(", "dangerous-eval", "new Function() runs whatever text it is given"),
    (r"\bexec(?:Sync)?\s*\(\s*[`'\"]", "dangerous-shell", "exec() has a shell read its text"),
    (r"\bshell\s*:\s*true\b", "dangerous-shell", "a shell reads what it is given"),
    (r"\brm(?:Sync)?\s*\(\s*['\"`](?:/|~)['\"`]", "dangerous-remove", "this removes everything that it can"),
)
_KNOWN = {
    language: tuple((re.compile(pattern, re.ASCII), code, why) for pattern, code, why in patterns)
    for language, patterns in (("shell", _SHELL), ("node", _NODE))
}


def hints_of(text: str, language: str) -> tuple[Issue, ...]:
    """At most a hundred, in order, of a program in Shell or Node: from its lines alone, comments and texts included."""
    found = []
    for number, line in enumerate(text[:_LONGEST].split("\n"), 1):
        for pattern, code, why in _KNOWN.get(language, ()):
            if told := pattern.search(line[:_LONGEST_LINE]):
                found.append(Issue(number, told.start() + 1, f"Hint: {why}.", "hint", code))
        if len(found) >= _MOST:
            break
    return tuple(found[:_MOST])
