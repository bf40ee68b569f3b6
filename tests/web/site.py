"""A site on this machine's loopback that does what sites do in a browser. It writes down who came."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

HTML = "text/html; charset=utf-8"
PAGES = {
    "/plain": "<title>Plain</title><p>plain words</p>",
    "/built": "<title>Built</title><script>document.write('<i>six times seven is ' + 6 * 7 + '</i>');"
    "setTimeout(() => document.body.insertAdjacentHTML('beforeend', '<b class=late>built late</b>'), 300)</script>",
    "/asks-later": "<p id=a></p><script>onload = () => setTimeout(() => fetch('/plain').then(r => r.text())"
    ".then(t => a.textContent = t.length + ' characters came'), 200)</script>",
    "/endless": "<title>Endless</title><p>words</p><img src=/held>",
    "/red": "<body style='background: #ff0000; margin: 0; height: 4000px'></body>",
    "/goes-on": "<title>First</title><script>onload = () => { location = '/plain' }</script>",
    "/dialogs": "<p id=a></p><script>alert(1); a.textContent = `${confirm(2)} ${prompt(3)}`</script>",
    "/pops-up": "<a id=a href=/popped target=_blank></a><script>a.click(); window.open('/popped');"
    "document.title = 'over'</script>",
    "/spins": "<script>for (;;);</script>",
    "/eats": "<script>const kept = []; for (;;) try { kept.push(new Uint8Array(1 << 22).fill(7)) } catch {}</script>",
    "/downloads": "<p>words</p><a id=a href=/report download></a><script>a.click();"
    "setTimeout(() => document.body.append(document.createElement('b')), 2000)</script>",
    "/keeps": "<p id=a></p><script>a.textContent = `cookie ${document.cookie} kept ${localStorage.x}`;"
    "document.cookie = 'c=1; max-age=1000'; localStorage.x = 1</script>",
    "/says-much": "<p id=a></p><script>a.textContent = 'x'.repeat(70 << 20)</script>",
}


@dataclass
class Site:
    """Where it is, and what was asked of it: path and cookies."""

    port: int
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)  # ends what is held

    @property
    def address(self) -> str:
        return f"http://host.casemate.internal:{self.port}"

    def paths(self) -> list[str]:
        """The paths that were asked for."""
        return [path for path, _ in self.requests]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, site: Site, *arguments: object) -> None:
        self._site = site
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self._site.requests.append((path, self.headers["Cookie"]))
        if path == "/held":
            self._site.release.wait(60)
        if path == "/redirect":
            self._answer(302, HTML, "", Location=unquote(query))
        elif path == "/script":
            self._answer(200, HTML, f"<script>location = {unquote(query)!r}</script>")
        elif path == "/report":
            self._answer(200, "text/csv", "a,b\n1,2\n", **{"Content-Disposition": "attachment; filename=../report.csv"})
        elif path == "/half":
            self._answer(200, "text/csv", "a,b\n", **{"Content-Length": "1000", "Content-Disposition": "attachment"})
            self._site.release.wait(60)
        elif path == "/sets":
            self._answer(200, HTML, "<p>set</p>", **{"Set-Cookie": "s=1; Max-Age=1000"})
        elif path == "/article":
            lines = "".join(f"<p>{n}: {'words of an article, ' * 4}</p>" for n in range(1100))
            self._answer(200, HTML, f"<title>Article</title>{lines}")
        else:
            page = PAGES.get(path)
            self._answer(200 if page else 404, HTML, page or "<p>there is nothing</p>")

    def _answer(self, status: int, kind: str, text: str, **more: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A browser that was ended: nothing."""


@contextmanager
def serving() -> Iterator[Site]:
    """The site, for the length of a block."""
    site = Site(0)
    with _Server(("127.0.0.1", 0), partial(_Handler, site)) as server:
        site.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield site
        finally:
            site.release.set()
            server.shutdown()
