"""The files of the console's pages, with the headers that they are served with."""

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
_PAGES = (  # frames: that of what a program gave as HTML, and previews, each at a host name of its own
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-src 'self' http://*.localhost:*; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# Of the frame that shows what a program gave as HTML: an origin of its own, no script but the one that puts it there,
# and nothing of any network.
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
    """``etag``: says whether a browser has it already."""

    name: str
    content: bytes
    etag: str

    @property
    def headers(self) -> Mapping[str, str]:
        """What it is served with."""
        is_framed = self.name in _FRAME_FILES
        return {
            **_ALL,
            "content-type": _TYPES[Path(self.name).suffix],
            "content-security-policy": _FRAME if is_framed else _PAGES,
            # The frame's origin is opaque, so to it the script beside it is another's.
            "cross-origin-resource-policy": "cross-origin" if self.name == "frame.js" else "same-origin",
            "etag": self.etag,
        }


@cache
def page_files() -> Mapping[str, PageFile]:
    """All of them by their paths beneath ``/console/``; the page itself also by nothing."""
    files: dict[str, PageFile] = {}
    for path in sorted(_FOLDER.rglob("*")):
        if path.suffix in _TYPES:
            name, content = str(path.relative_to(_FOLDER)), path.read_bytes()
            files[name] = PageFile(name, content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return {**files, "": files["index.html"]}
