"""The files of the console's pages, with their response headers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_PAGES = (  # frames: the one that shows a program's HTML, and previews, each at its own host name
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-src 'self' http://*.localhost:*; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# For the frame that shows a program's HTML: an opaque origin, only the script that inserts the HTML, and no network.
_FRAME = (
    "sandbox allow-scripts; default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_FRAME_FILES = ("frame.html", "frame.js")
_ALL = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "x-dns-prefetch-control": "off",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    content: bytes
    headers: Mapping[str, str]  # of its answer, with an ``etag``


@cache
def page_files() -> Mapping[str, PageFile]:
    """All files by their paths beneath ``/console/``; the index page also by the empty path."""
    files: dict[str, PageFile] = {}
    for path in sorted(_FOLDER.rglob("*")):
        if path.suffix in _TYPES:
            name, content = str(path.relative_to(_FOLDER)), path.read_bytes()
            headers = {
                **_ALL,
                "content-type": _TYPES[path.suffix],
                "content-security-policy": _FRAME if name in _FRAME_FILES else _PAGES,
                # The frame has an opaque origin, so even its own script is cross-origin.
                "cross-origin-resource-policy": "cross-origin" if name == "frame.js" else "same-origin",
                "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            }
            files[name] = PageFile(content, headers)
    return {**files, "": files["index.html"]}
