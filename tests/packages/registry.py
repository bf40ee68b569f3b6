"""A registry of npm's of the tests' own, on loopback: what it says is what a test has told it to."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


def tarball(files: Mapping[str, str], links: Mapping[str, str] | None = None) -> bytes:
    """A package's file; ``links``: symbolic links in it, by their names."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
        for path, target in (links or {}).items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return body.getvalue()


class Registry:
    """``asked``: the requests that came, each as its method, path and headers."""

    def __init__(self) -> None:
        self.versions: dict[str, dict[str, dict[str, Any]]] = {}
        self.content: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.authorization = ""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.asked]

    def add(
        self,
        name: str,
        version: str = "1.0.0",
        *,
        files: Mapping[str, str] | None = None,
        links: Mapping[str, str] | None = None,
        dist: Mapping[str, Any] | None = None,
        says: Mapping[str, Any] | None = None,
        **package: Any,
    ) -> bytes:
        """A package whose module is ``{VERSION}``. ``says``: what its page alone says of it; ``package``: what its own
        package.json and the page say."""
        said = {"name": name, "version": version, **package}
        content = tarball(
            {
                "package/package.json": json.dumps(said),
                "package/index.js": f"exports.VERSION = {version!r};\n",
                **(files or {}),
            },
            links,
        )
        path = f"/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
        self.content[path] = content
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
        usual = {"tarball": f"http://127.0.0.1:{self.port}{path}", "integrity": integrity}
        usual |= {"shasum": hashlib.sha1(content, usedforsecurity=False).hexdigest()}
        all_of_it = {key: value for key, value in {**usual, **(dist or {})}.items() if value is not None}
        self.versions.setdefault(name, {})[version] = {**said, **(says or {}), "dist": all_of_it}
        return content

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def page(self, name: str) -> bytes:
        versions = self.versions[name]
        return json.dumps({"name": name, "dist-tags": {"latest": list(versions)[-1]}, "versions": versions}).encode()


def _handler(registry: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            registry.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            name = unquote(self.path[1:])
            if registry.authorization and self.headers.get("Authorization") != registry.authorization:
                self.answer(401, b"who are you?")
            elif name in registry.versions:
                self.answer(200, registry.page(name))
            elif self.path in registry.content:
                self.answer(200, registry.content[self.path])
            else:
                self.answer(404, b"{}")

        do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler
