"""Reads a page and searches, in cells. The site and the search engine are this program's own, on its loopback."""

import asyncio
import http.server
import json
import threading
from urllib.parse import parse_qs, urlsplit

from casemate import Denied, Sandbox

PAGE = """<html><head><title>Bridges</title></head><body><nav><a href="/">Home</a></nav><article>
<h1>Bridges</h1><p>The old bridge is of stone, and wider than the road that leads to it. Nobody knows who built it.</p>
<h2>Lengths</h2><table><tr><th>bridge</th><th>metres</th></tr><tr><td>old</td><td>48</td></tr></table>
<p>Read <a href="https://example.org/more">more about them</a>, as long as the library is open to all of you.</p>
</article></body></html>"""


class Site(http.server.BaseHTTPRequestHandler):
    """One page, and a SearXNG's search."""

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/search":
            words = parse_qs(asked.query)["q"][0]
            hit = {"title": f"All about {words}", "url": "https://example.org/", "content": "Stone", "engine": "own"}
            kind, body = "application/json", json.dumps({"results": [hit]})
        else:
            kind, body = "text/html", PAGE
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Not to the terminal."""


async def main() -> None:
    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    port = site.server_port
    policy = {"allow_local": [port], "web": {"searxng": f"http://127.0.0.1:{port}"}}
    async with Sandbox(policy=policy) as sandbox:
        page = await sandbox.web.fetch(f"http://host.casemate.internal:{port}/bridges")
        print(page.status, page.title)
        print(page.text)
        for hit in await sandbox.web.search("bridges"):
            print(hit.title, hit.url, hit.engine)
        try:
            await sandbox.web.fetch("https://example.com/")
        except Denied as denied:
            print(denied.message)


asyncio.run(main())
