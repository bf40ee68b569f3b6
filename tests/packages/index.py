"""An index of the tests' own, on loopback: what it says is what a test has told it to."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JSON = "application/vnd.pypi.simple.v1+json"


def wheel(name: str, version: str = "1.0", *, files: Mapping[str, str] | None = None, requires: tuple[str, ...] = (),
          scripts: Mapping[str, str] | None = None) -> tuple[str, bytes]:  # fmt: skip
    """A wheel's file name and content: a module of that name with its ``VERSION``, and other ``files``."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}.dist-info"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *(f"Requires-Dist: {one}" for one in requires)]
    content = {
        f"{module}.py": f"VERSION = {version!r}\ndef main():\n    print('I am', VERSION)\n",
        **(files or {}),
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if scripts:
        content[f"{info}/entry_points.txt"] = "[console_scripts]\n" + "".join(
            f"{k} = {v}\n" for k, v in scripts.items()
        )
    record = "".join(f"{path},{_record_hash(text)},{len(text.encode())}\n" for path, text in content.items())
    content[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return f"{module}-{version}-py3-none-any.whl", body.getvalue()


_PROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "{name}"
version = "{version}"
"""
_BACKEND = """
import os, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "{name}-{version}-py3-none-any.whl"
    info = "{name}-{version}.dist-info"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        archive.writestr("{name}.py", "")
        archive.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        archive.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "/RECORD", "{name}.py,,\\n" + info + "/RECORD,,\\n")
    return name
"""


def sdist(name: str, version: str, when_built: str) -> tuple[str, bytes]:
    """A source distribution's file name and content: ``when_built`` runs when it is built."""
    texts = {
        "pyproject.toml": _PROJECT.format(name=name, version=version),
        "backend.py": when_built + "\n" + _BACKEND.format(name=name, version=version),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w:gz") as archive:
        for path, text in texts.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return f"{name}-{version}.tar.gz", body.getvalue()


def _record_hash(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@dataclass
class File:
    """``url``: where the page says that it is; ``says``: fields of its entry in the page, instead of what is true."""

    name: str
    content: bytes
    url: str = ""
    says: dict[str, Any] = field(default_factory=dict)


class Loopback:
    """A server on the loopback. ``asked``: the requests that came, each as its method, path and headers."""

    def __init__(self, answer: Callable[[Handler], None]) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []

        class Answering(Handler):
            def do_GET(self) -> None:
                server.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
                answer(self)

            do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

        server = self
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def paths(self) -> list[str]:
        return [path for _, path, _ in self.asked]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Index(Loopback):
    """An index of Python packages."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.projects: dict[str, list[File]] = {}
        self.as_json = True
        self.password = ""
        self.metadata = True
        self.answers: dict[str, Callable[[Handler], None]] = {}  # by path, instead of the usual

    @property
    def url(self) -> str:
        """Where it is; with its credentials, if it wants any."""
        return f"http://{f'operator:{self.password}@' if self.password else ''}127.0.0.1:{self.port}/simple/"

    def add(self, file: tuple[str, bytes], **says: Any) -> File:
        name, content = file
        project = name.partition("-")[0].replace("_", "-").lower()
        one = File(name, content, says.pop("url", ""), says)
        self.projects.setdefault(project, []).append(one)
        return one

    def page(self, project: str) -> tuple[str, bytes]:
        files = []
        for one in self.projects[project]:
            url = one.url or f"../../files/{one.name}"
            entry = {"filename": one.name, "url": url, "hashes": {"sha256": hashlib.sha256(one.content).hexdigest()}}
            if self.metadata and one.name.endswith(".whl"):
                entry["core-metadata"] = {"sha256": hashlib.sha256(_metadata(one)).hexdigest()}
            files.append({**entry, **one.says})
        if self.as_json:
            return JSON, json.dumps({"meta": {"api-version": "1.0"}, "name": project, "files": files}).encode()
        links = [f'<a href="{file["url"]}#sha256={file["hashes"]["sha256"]}">{file["filename"]}</a>' for file in files]
        return "text/html", "<html><body>{}</body></html>".format("\n".join(links)).encode()

    def _answer(self, request: Handler) -> None:
        path, login = request.path, base64.b64encode(f"operator:{self.password}".encode()).decode()
        if path in self.answers:
            self.answers[path](request)
        elif self.password and request.headers.get("Authorization") != f"Basic {login}":
            request.answer(401, b"who are you?")
        elif path.startswith("/simple/") and path.split("/")[2] in self.projects:
            media_type, body = self.page(path.split("/")[2])
            request.answer(200, gzip.compress(body, mtime=0), Content_Type=media_type, Content_Encoding="gzip")
        elif path.startswith("/files/") and (content := self.content(path)) is not None:
            request.answer(200, content, Content_Type="application/octet-stream")
        else:
            request.answer(404, b"nothing")

    def content(self, path: str) -> bytes | None:
        name = path.rpartition("/")[2]
        for files in self.projects.values():
            for one in files:
                if one.name == name:
                    return one.content
                if f"{one.name}.metadata" == name and self.metadata:
                    return _metadata(one)
        return None


def _metadata(one: File) -> bytes:
    with zipfile.ZipFile(io.BytesIO(one.content)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("METADATA")))
