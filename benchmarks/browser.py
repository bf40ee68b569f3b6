"""The time for a page of 100 kB in a warm browser in a cell, with and without a screenshot; and for the first page.

The page comes from the loopback interface through the egress proxy. Each call uses a new browser context.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.measure import Goal
from casemate import Sandbox
from casemate.web.browser import Browsers

_PAGE = (
    "<title>Article</title><h1>Article</h1>"
    + "".join(f"<p>{n}: {'words of an article, ' * 4}<a href='/{n}'>and a link</a></p>" for n in range(800))
).encode()[: 100 << 10]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(_PAGE)))
        self.end_headers()
        self.wfile.write(_PAGE)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """Measure and print."""
    run = measure.Run("browser", __doc__ or "")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        with asyncio.Runner() as runner:
            sandbox = Sandbox(allow_local=[port], audit=Path(folder, "audit.db"))
            runner.run(sandbox.run("pass"))
            url = f"http://host.casemate.internal:{port}/"

            async def browse(browsers: Browsers, *, screenshot: bool) -> None:
                page = await browsers.browse(
                    url, wait_for_selector=None, wait_until="load", timeout=60.0, screenshot=screenshot
                )
                assert len(page.html) > 90_000
                assert (page.screenshot is not None) == screenshot

            def begin() -> float:
                begun, cold = time.perf_counter(), Browsers(lambda: sandbox._context, "default")
                runner.run(browse(cold, screenshot=False))
                took = time.perf_counter() - begun
                runner.run(cold.close())
                return took

            def several() -> float:
                async def all_of_them() -> None:
                    async with asyncio.TaskGroup() as group:
                        for _ in range(8):
                            group.create_task(browse(warm, screenshot=True))

                begun = time.perf_counter()
                runner.run(all_of_them())
                return time.perf_counter() - begun

            warm = Browsers(lambda: sandbox._context, "default")
            found = measure.in_turn(
                {
                    "a page": lambda: runner.run(browse(warm, screenshot=False)),
                    "with a picture": lambda: runner.run(browse(warm, screenshot=True)),
                },
                run.rounds(40),
                {"a page": Goal(plus=0.2), "with a picture": Goal(plus=0.3)},
            )
            run.compare("A page of 100 kB in a browser that is warm", found)
            found = measure.in_turn({"the first page": begin, "eight at once": several}, run.rounds(10, 2))
            run.compare("The first page, and eight with pictures at once", found)
            runner.run(warm.close())
            runner.run(sandbox.close())
        server.shutdown()
    run.finish()


if __name__ == "__main__":
    main()
