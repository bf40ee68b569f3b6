"""A registry of npm's of the tests' own, on loopback: what it says is what a test has told it to."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from tests.packages.index import Handler, Loopback


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


class Registry(Loopback):
    """A registry of Node's packages."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.versions: dict[str, dict[str, dict[str, Any]]] = {}
        self.content: dict[str, bytes] = {}
        self.authorization = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

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

    def page(self, name: str) -> bytes:
        versions = self.versions[name]
        return json.dumps({"name": name, "dist-tags": {"latest": list(versions)[-1]}, "versions": versions}).encode()

    def _answer(self, request: Handler) -> None:
        name = unquote(request.path[1:])
        if self.authorization and request.headers.get("Authorization") != self.authorization:
            request.answer(401, b"who are you?")
        elif name in self.versions:
            request.answer(200, self.page(name))
        elif request.path in self.content:
            request.answer(200, self.content[request.path])
        else:
            request.answer(404, b"{}")
