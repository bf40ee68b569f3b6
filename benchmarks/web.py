"""Pages of 100 kB to Markdown, warm: the processor time of the whole cell, and the time until the page arrives.

    python -m benchmarks.web [TIMES]

The site is on the loopback interface (``allow_local``). The page is an article with headings, tables, code, links and
comments.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from tests.network.web_site import WORDS

from casemate import Sandbox

_GOAL = 60.0  # milliseconds of processor time
_WARMING = 40  # fetches until cells are forked from a zygote and some are ready


def article(size: int = 100_000) -> bytes:
    """An article of about ``size`` bytes."""
    text = (
        f'<h2>Part {{0}}</h2><p>{WORDS} <a href="/more/{{0}}">more of it</a> {WORDS}</p><p>{WORDS}</p>'
        "<ul><li>one<ul><li>within</li></ul></li></ul>"
    )
    exact = (
        "<table><tr><th>river</th><th>length</th></tr><tr><td>Elbe</td><td>1094</td></tr></table><pre><code>"
        "def flow(rate):\n    return rate * {0}\n</code></pre>"
    )
    part = text + exact
    comments = '<section class="comments"><h2>Comments</h2>' + "<p>What a river!</p>" * 200 + "</section>"
    count = (size - len(comments)) // len(part)
    parts = "".join(part.format(number) for number in range(count))
    return f"<html><head><title>Rivers</title></head><body><article>{parts}</article>{comments}</body></html>".encode()


class _Site(http.server.BaseHTTPRequestHandler):
    page = article()
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(self.page)))
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


async def measure(times: int) -> tuple[list[float], list[float]]:
    """The processor time and the elapsed time of each fetch, in milliseconds."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://host.casemate.internal:{server.server_port}/page"
    took: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with Sandbox(audit=Path(folder, "audit.db"), allow_local=[server.server_port]) as sandbox:
            for number in range(times + _WARMING):
                began = time.perf_counter()
                page = await sandbox.web.fetch(url)
                took.append((time.perf_counter() - began) * 1000)
                assert "return rate * 3" in page.text, page.text[:300]
                if number < _WARMING:
                    await asyncio.sleep(0.1)  # lets cells become ready
            rows = await sandbox.audit.tail(times, kind="outcome")
    server.shutdown()
    return [row.detail["cpu_seconds"] * 1000 for row in rows], took[_WARMING:]


def main() -> None:
    """Measure, and print the medians."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    processor, took = asyncio.run(measure(times))
    result = {
        "bytes": len(_Site.page),
        "processor_ms": round(statistics.median(processor), 1),
        "page_ms": round(statistics.median(took), 1),
        "goal_processor_ms": _GOAL,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
