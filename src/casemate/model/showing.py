"""How objects are shown: as text, on a terminal with rich, and in a notebook.

Most of their content comes from a cell. In text, everything that a screen acts on or hides is escaped. In HTML all text
is escaped, too; pictures are data of verified types, and SVG is never inline. A program's HTML is in a sandboxed frame:
with an opaque origin, without scripts, and with no way to fetch, follow or send anything.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from casemate.model.pictures import Picture, picture_of
from casemate.visible import inert, visible

if TYPE_CHECKING:
    from rich.panel import Panel

_MOST_TEXT = 20_000  # characters of one text: some screens
_MOST_HTML = 2 << 20  # characters of HTML in a frame
_MOST_LISTED = 20
_MOST_PARTS = 50
_MOST_DRAWN = 32 << 20  # bytes of all pictures and HTML, which are stored in the notebook's file


class Part(NamedTuple):
    """A labeled piece: ``text``, a ``picture``, or a program's ``html``."""

    label: str
    text: str = ""
    picture: Picture | None = None
    html: str = ""

    def as_text(self) -> str:
        """The piece in lines."""
        if self.picture is not None:
            size = f", {self.picture.width} x {self.picture.height}" if self.picture.width else ""
            return f"[{self.picture.media_type}{size}]"
        return readable(self.text or f"[HTML of {len(self.html)} characters]")

    @property
    def size(self) -> int:
        return len(self.html) + (len(self.picture.data) if self.picture else 0)


@dataclass(frozen=True, slots=True)
class Summary:
    """What people see of an object. ``facts``: names and one-line texts, below the parts; empty ones are not shown."""

    title: str
    facts: Sequence[tuple[str, str]] = ()
    parts: Sequence[Part] = ()
    tone: Literal["plain", "good", "bad"] = "plain"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The lines below the title: labels, each with its text. A text never starts a line."""
        for part in self.first_parts():
            text = part.as_text().rstrip("\n").replace("\n", "\n    ")
            yield visible(part.label), f"\n    {text}\n"
        for name, text in self.facts:
            if text:
                yield name, f" {_in_line(text)}\n"

    def first_parts(self) -> Iterator[Part]:
        """The parts that are shown, and a note on how many more there are. Beyond the bound on drawn bytes, parts
        become text."""
        size = 0
        for part in self.parts[:_MOST_PARTS]:
            size += part.size
            yield part if size <= _MOST_DRAWN else Part(part.label, part.as_text())
        if (more := len(self.parts) - _MOST_PARTS) > 0:
            yield Part("more", f"{more} that are not shown here")

    def as_text(self) -> str:
        """The whole summary in lines."""
        below = (f"{label}:{text}" for label, text in self.lines())
        return "".join((visible(self.title), "\n", *below)).rstrip("\n")

    def as_panel(self) -> Panel:
        """The whole summary for a terminal."""
        from rich.panel import Panel
        from rich.text import Text

        body = Text()
        for label, text in self.lines():
            body.append(f"{label}:", style="bold").append(text)
        body.rstrip()
        style = {"plain": "none", "good": "green", "bad": "red"}[self.tone]
        return Panel(body, title=Text(visible(self.title), style="bold"), title_align="left", border_style=style)


_STYLED = re.compile(r"\x1b\[[0-9;:]{0,64}m")
_TURN = re.compile(r"\r\n?")


def readable(text: str, most: int = _MOST_TEXT) -> str:
    """``text``, or its beginning and end, without anything that a screen acts on or hides."""
    if (hidden := len(text) - most) > 0:
        half = most // 2
        text = f"{text[:half]}\n[{hidden} characters are not shown]\n{text[-half:]}"
    return inert(_TURN.sub("\n", _STYLED.sub("", text)))


def _in_line(text: str) -> str:
    return visible(text if len(text) <= _MOST_TEXT // 10 else f"{text[: _MOST_TEXT // 10]}…")


def list_first(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def part_of(bundle: Mapping[str, Any], label: str = "shown") -> Part:
    """The best part to show of a displayed object."""
    if (picture := picture_of(bundle)) is not None:
        return Part(label, picture=picture)
    svg, html = bundle.get("image/svg+xml"), bundle.get("text/html")
    texts = (bundle.get(media_type) for media_type in ("text/plain", "text/markdown", "text/latex"))
    text = next((one for one in texts if isinstance(one, str)), "")
    if isinstance(svg, str) and len(svg) <= _MOST_HTML and svg.lstrip()[:5] in ("<svg ", "<?xml", "<!DOC"):
        return Part(label, picture=Picture("image/svg+xml", svg.encode("utf-8", "replace")))
    if isinstance(html, str) and len(html) <= _MOST_HTML:
        return Part(label, text, html=html)
    if text:
        return Part(label, text)
    if "application/json" in bundle:
        import json

        return Part(label, json.dumps(bundle["application/json"], ensure_ascii=False, indent=1))
    return Part(label, f"[{', '.join(bundle)}, which cannot be shown]")


_COLOURS = {
    "plain": "inherit",
    "good": "var(--jp-success-color1,#1b7f3b)",
    "bad": "var(--jp-error-color1,#c62828)",
}
_BOX = "border:1px solid var(--jp-border-color2,#999);border-radius:4px;padding:.4em .8em;margin:.2em 0"
_PRE = "white-space:pre-wrap;overflow-wrap:anywhere;max-height:30em;overflow:auto;margin:0 0 .4em"
# Before the program's HTML, so that the policy applies to all of it.
_FRAME = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:; font-src data:\"><style>:root{color-scheme:light}body{margin:4px;"
    "font:13px sans-serif}table{border-collapse:collapse}td,th{padding:2px 8px;text-align:right}</style>"
)
# Elements that navigate, or cause DNS lookups. Their tags are renamed to elements without function: no other text is
# parsed as one of these tags (HTML, 13.2.5.8, tag name state).
_LEADING = re.compile(
    r"<(?=(?:a|area|base|embed|form|frame|frameset|iframe|link|meta|object|portal)[\t\n\f\r />])", re.IGNORECASE
)


def html_of(summary: Summary) -> str:
    """The summary as HTML that is inert anywhere."""
    pieces = [f'<div style="{_BOX}"><div style="font-weight:bold;color:{_COLOURS[summary.tone]}">']
    pieces.append(f"{escape(visible(summary.title))}</div>")
    pieces += (
        f'<div style="opacity:.7">{escape(visible(part.label))}:</div>{_part_html(part)}'
        for part in summary.first_parts()
    )
    pieces += (
        f'<div style="overflow-wrap:anywhere"><span style="opacity:.7">{escape(name)}:</span> '
        f'<span style="white-space:pre-wrap">{escape(_in_line(text))}</span></div>'
        for name, text in summary.facts
        if text
    )
    return without_formulas(f"{''.join(pieces)}</div>")


_FORMULA = re.compile(r'<(?:[^">]|"[^"]*")*>|[$\\]')  # a tag, or a sign that starts a formula


def without_formulas(html: str) -> str:
    """Well-formed HTML in which front ends find no LaTeX: MathJax only looks for it in text without elements."""
    return _FORMULA.sub(lambda found: found[0] if found[0][0] == "<" else f"<span>{found[0]}</span>", html)


def _part_html(part: Part) -> str:
    if part.picture is not None:
        encoded = base64.b64encode(part.picture.data).decode()
        return (
            f'<img alt="{escape(part.as_text())}" style="max-width:100%;background:#fff" '
            f'src="data:{part.picture.media_type};base64,{encoded}">'
        )
    if not part.html:
        return f'<pre style="{_PRE}">{escape(part.as_text())}</pre>'
    written = part.html.encode("utf-8", "replace").decode()
    height = min(max(2 * (written.count("<tr") or 8), 6), 30)
    return (
        f'<iframe sandbox="" referrerpolicy="no-referrer" title="what the program shows" style="width:100%;'
        f'height:{height}em;border:0;resize:vertical;background:#fff" '
        f'srcdoc="{escape(_FRAME + _LEADING.sub("<x-", written))}"></iframe>'
    )
