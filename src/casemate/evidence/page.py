"""Evidence as one HTML page to read and print. Pure.

All of its text is untrusted. The page escapes it and makes invisible characters visible. Its content security policy
permits no script and no external resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from casemate.visible import inert

_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<title>Evidence</title><style>body { font: 11pt/1.4 sans-serif; margin: 2em auto; max-width: 60em }
table { border-collapse: collapse; width: 100% } th { text-align: left; vertical-align: top; width: 9em }
td, th { border: 1px solid #ccc; padding: .2em .5em } pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere }
</style><h1>Evidence</h1><p>Whether it is as it was signed, <code>casemate verify --bundle</code> says of the whole
pack: a page alone proves nothing.</p>"""


def page_of(known: Mapping[str, Any]) -> str:
    """The page for the content of a pack's ``evidence.json``."""
    return f"{_HEAD}{_rows_of(known)}</html>\n"


def _rows_of(value: object) -> str:
    match value:
        case Mapping():
            rows = (f"<tr><th>{_text(str(name))}</th><td>{_rows_of(one)}</td></tr>" for name, one in value.items())
            return f"<table>{''.join(rows)}</table>"
        case list():
            return "".join(map(_rows_of, value)) or "none"
    return f"<pre>{_text(str(value))}</pre>"


def _text(text: str) -> str:
    return escape(inert(text))
