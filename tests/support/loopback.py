"""A web server on the loopback interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], object]) -> Iterator[int]:
    """Run a server; yields its port. It calls ``answer`` for each request, in a separate thread."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_POST = do_DELETE = do_GET  # noqa: N815 - as the class wants them

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def answer(request: BaseHTTPRequestHandler, data: bytes = b"", **headers: str) -> None:
    """Respond with ``data``. Names in ``headers`` have underscores for dashes."""
    request.send_response(200)
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    request.wfile.write(data)
