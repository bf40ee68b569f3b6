"""The only network of an installation cell: an index that the host serves there.

It answers GET and HEAD for pages of projects and for files that those pages link to. Only a project's name goes to the
operator's index; nothing else that the cell says leaves it.

For npm, the host serves what the operator's registry has. It rewrites package pages to what an installer needs, with
its own addresses. Only files named on such a page are served, after a check of ``dist.integrity`` or ``dist.shasum``.
Other npm requests, such as audits, are refused.

Sources: npm's package metadata (npm/registry, package-metadata.md), Subresource Integrity (W3C).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

import h11

from casemate.model.plan import PROXY_ADDRESS
from casemate.packages.indexes import registry_for
from casemate.packages.names import node_name, project
from casemate.packages.pages import HTML_TYPE, JSON_TYPE, PageLink, write
from casemate.packages.upstream import IndexUnreachable, Unfetched, Upstream

_MOST_NAMES = 5000  # per installation; each is a request to the operator's index
_MOST_LINKS = 300_000  # on all pages together, all kept in memory
_MOST_CLIENTS = 64  # at once
_MOST_HEAD = 1 << 14
_IDLE = 120.0  # seconds without a request
_CHUNK = 1 << 18
_METADATA = ".metadata"
_END = b""


@dataclass(frozen=True, slots=True)
class Served:
    """A file that went into the cell whole."""

    filename: str
    url: str
    sha256: str
    size: int
    name: str = ""  # of the package; npm only
    version: str = ""
    bundles: bool = False  # whether it contains other packages; npm only


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    status: int
    media_type: str = "text/plain"
    body: bytes = b""
    sha256: str = ""  # of the file in the store that is the body, if ``body`` is empty
    link: PageLink | None = None


@dataclass(slots=True)
class Gateway:
    """The gateway of one installation."""

    upstream: Upstream
    sources: bool = False  # whether source distributions, which have to be built, are offered
    # SHA-256 of the allowed files by project name. If there are any, no other files are served.
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    refusal: Callable[[str], str] = lambda _: ""  # why a name is not looked up; empty if it may be
    served: dict[str, Served] = field(default_factory=dict)  # files sent into the cell, by name
    problems: list[str] = field(default_factory=list)  # failures, as messages for people
    _asked: dict[str, asyncio.Task[Any]] = field(default_factory=dict)  # the result of each name that was requested
    _files: dict[str, PageLink] = field(default_factory=dict)  # by their path here
    _fetching: dict[str, asyncio.Lock] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)  # the hash of each file name

    @asynccontextmanager
    async def serve_at(
        self, listener: socket.socket, accept: Callable[[socket.socket], socket.socket]
    ) -> AsyncIterator[None]:
        """Serve the connections that ``accept`` takes from ``listener``, a cell's socket. On exit, close both."""
        clients: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()

        def take() -> None:
            try:
                connection = accept(listener)
            except BlockingIOError:
                return
            except (OSError, EOFError):
                loop.remove_reader(listener)  # the cell has ended
                return
            if len(clients) >= _MOST_CLIENTS:
                connection.close()
                return
            task = loop.create_task(self._serve_client(connection))
            clients.add(task)
            task.add_done_callback(clients.discard)

        listener.setblocking(False)
        loop.add_reader(listener, take)
        try:
            yield
        finally:
            loop.remove_reader(listener)
            listener.close()
            tasks = [*clients, *self._asked.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _serve_client(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            with contextlib.suppress(OSError, TimeoutError, h11.ProtocolError):
                await self._serve(reader, writer)
            writer.close()
        except asyncio.CancelledError:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = h11.Connection(h11.SERVER, max_incomplete_event_size=_MOST_HEAD)
        while True:
            async with asyncio.timeout(_IDLE):
                request = await _next_request(talk, reader)
            if request is None:
                return
            answer = await self._answer(request)
            await self._give(talk, writer, request, answer)
            if talk.our_state is not h11.DONE or talk.their_state is not h11.DONE:
                return
            talk.start_next_cycle()

    async def _answer(self, request: h11.Request) -> GatewayAnswer:
        path = request.target.decode("latin-1")
        if request.method not in (b"GET", b"HEAD"):
            return GatewayAnswer(405, body=b"only GET and HEAD\n")
        try:
            return await self._answer_path(path, request)
        except Unfetched as error:
            self._tell(str(error))
            # Installers try a 502 again, waiting longer each time; what is refused stays refused.
            return GatewayAnswer(502 if isinstance(error, IndexUnreachable) else 403, body=f"{error}\n".encode())

    async def _answer_path(self, path: str, request: h11.Request) -> GatewayAnswer:
        if path.startswith("/simple/"):
            as_json = any(name == b"accept" and JSON_TYPE.encode() in value for name, value in request.headers)
            return await self._page(path.removeprefix("/simple/").removesuffix("/"), as_json=as_json)
        return await self._file(path)

    async def _page(self, name: str, *, as_json: bool) -> GatewayAnswer:
        if project(name) is None:
            return GatewayAnswer(404, body=b"no name of a project\n")
        links: list[PageLink] | None = await self._ask_once(name, self.upstream.page, "projects")
        if links is None:
            return GatewayAnswer(404, body=b"the index does not know it\n")
        if len(self._files) + len(links) > _MOST_LINKS:
            raise Unfetched(f"the requested pages list more than {_MOST_LINKS} files, which is the limit")
        offered = []
        for number, link in enumerate(self._choose_files(name, links)):
            if link.is_wheel or (self.sources and link.is_source):
                path = f"/files/{name}/{number}/{link.filename}"
                self._files[path] = link
                offered.append((link, path))
        return GatewayAnswer(200, JSON_TYPE if as_json else HTML_TYPE, write(name, offered, as_json=as_json))

    def _choose_files(self, name: str, links: list[PageLink]) -> list[PageLink]:
        """The files that may be served. If a page states no hash, the file is checked when it is fetched."""
        if not self.hashes:
            return links
        given = self.hashes.get(name, frozenset())
        wanted = [link for link in links if given and (not link.sha256 or link.sha256 in given)]
        if not given:
            self._tell(f"no hash was given for {name}: if some packages have hashes, all need them")
        elif len(wanted) < len(links):
            self._tell(f"{name} is limited to files with the hashes given for it")
        return wanted

    async def _ask_once(self, name: str, ask: Callable[[str], Coroutine[Any, Any, Any]], what: str) -> Any:
        """What ``ask`` returns or raises, requested once for all who want this name."""
        if name not in self._asked:
            if why := self.refusal(name):
                raise Unfetched(f"{name} is not asked for: {why}")
            if len(self._asked) >= _MOST_NAMES:
                raise Unfetched(f"one installation may ask for at most {_MOST_NAMES} {what}")
            self._asked[name] = asyncio.ensure_future(ask(name))  # noqa: TID251 - ended by `serve_at`
        return await asyncio.shield(self._asked[name])

    def _tell(self, problem: str) -> None:
        """Remember a problem, in case the installer fails because of it."""
        if problem not in self.problems:
            self.problems.append(problem)

    async def _file(self, path: str) -> GatewayAnswer:
        link = self._files.get(path)
        if link is not None:
            return await self._answer_with_file(path, link)
        link = self._files.get(path.removesuffix(_METADATA)) if path.endswith(_METADATA) else None
        if link is None or link.metadata is None:
            return GatewayAnswer(404, body=b"no page has linked to it\n")
        return await self._answer_with_file(path, link, _METADATA, link.metadata)

    async def _answer_with_file(self, path: str, link: PageLink, suffix: str = "", sha256: str = "") -> GatewayAnswer:
        async with self._fetching.setdefault(path, asyncio.Lock()):
            digest = await self.upstream.file(link, suffix, sha256)
        if not suffix and self.hashes and digest not in self.hashes[path.split("/")[2]]:
            raise Unfetched(f"{link.filename} has none of the hashes given for it")
        if not suffix and self._known.setdefault(link.filename, digest) != digest:
            raise Unfetched(f"two different files have the name {link.filename}, so it is not clear which is meant")
        return GatewayAnswer(200, "application/octet-stream", sha256=digest, link=None if suffix else link)

    async def _give(
        self, talk: h11.Connection, writer: asyncio.StreamWriter, request: h11.Request, answer: GatewayAnswer
    ) -> None:
        file = await asyncio.to_thread(self.upstream.store.open, answer.sha256) if answer.sha256 else None
        if answer.sha256 and file is None:
            answer = GatewayAnswer(502, body=b"it is gone from the cache\n")
        size = file.seek(0, 2) if file else len(answer.body)
        headers = [("Content-Type", answer.media_type), ("Content-Length", str(size))]
        writer.write(talk.send(h11.Response(status_code=answer.status, headers=headers)) or _END)
        try:
            if request.method == b"GET" and file:
                file.seek(0)
                if answer.link is not None:  # first, because the client may exit, and end this task, at the last byte
                    self._note(answer.link, answer.sha256, size)
                while data := await asyncio.to_thread(file.read, _CHUNK):
                    writer.write(talk.send(h11.Data(data=data)) or _END)
                    await writer.drain()
            elif request.method == b"GET":
                writer.write(talk.send(h11.Data(data=answer.body)) or _END)
            writer.write(talk.send(h11.EndOfMessage()) or _END)
            await writer.drain()
        finally:
            if file:
                file.close()

    def _note(self, link: PageLink, sha256: str, size: int) -> None:
        self.served[link.filename] = Served(link.filename, link.url, sha256, size)


async def _next_request(talk: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The head of the next request; None at the end. A request with a body ends the connection."""
    request: h11.Request | None = None
    while True:
        event = talk.next_event()
        if event is h11.NEED_DATA:
            talk.receive_data(await reader.read(_MOST_HEAD))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.EndOfMessage):
            return request
        else:
            return None


_ACCEPT = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8"
_TYPE = "application/vnd.npm.install-v1+json"
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+-]{0,127}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_MOST_VERSIONS = 50_000
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
# The fields by which an installer decides. It learns of scripts by hasInstallScript, and gets them in the file itself.
_KEPT = (
    *("dependencies", "optionalDependencies", "peerDependencies", "peerDependenciesMeta", "bundleDependencies"),
    *("bundledDependencies", "bin", "directories", "engines", "os", "cpu", "libc", "deprecated"),
)


@dataclass(slots=True)
class Registry(Gateway):
    address: str = PROXY_ADDRESS  # where the cell reaches this registry
    # ``served`` is keyed by name and version, such as ``left-pad@1.3.0``.
    _whose: dict[str, Served] = field(default_factory=dict)  # facts known before it is fetched, by the file's address

    async def _answer_path(self, path: str, request: h11.Request) -> GatewayAnswer:  # noqa: ARG002 - npm takes what it gets
        if path in self._files:
            return await self._answer_with_file(path, self._files[path])
        name = node_name(unquote(path.removeprefix("/")))
        if name is None:
            return GatewayAnswer(404, body=b"not a package name, and not a file that a page links to\n")
        body: bytes = await self._ask_once(name, self._document, "packages")
        return GatewayAnswer(200, _TYPE, body) if body else GatewayAnswer(404, "application/json", b"{}")

    async def _document(self, name: str) -> bytes:
        """The page of a package as served here; empty if the registry has none."""
        index = registry_for(name, self.upstream.indexes)
        found = await self.upstream.document(index, f"{index.url}{quote(name, safe='@')}", _ACCEPT)
        if found is None:
            return b""
        body, _, address = found
        try:
            page = await asyncio.to_thread(json.loads, body)
            return self._rewritten(name, page, address)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
            raise Unfetched(f"the registry's page of {name} cannot be read: {type(error).__name__}") from None

    def _rewritten(self, name: str, page: Mapping[str, Any], address: str) -> bytes:
        versions = {}
        for number, said in list(page["versions"].items())[:_MOST_VERSIONS]:
            link = _link_in(said, address) if _VERSION.fullmatch(number) else None
            if link is None:
                continue
            path = f"/{name}/-/{name.rpartition('/')[2]}-{number}.tgz"
            self._files[path] = link
            bundles = bool(said.get("bundleDependencies") or said.get("bundledDependencies"))
            self._whose[link.url] = Served(link.filename, link.url, "", 0, name, number, bundles)
            hashes = {key: str(said["dist"][key]) for key in ("integrity", "shasum") if said["dist"].get(key)}
            dist = {"tarball": f"http://{self.address}{path}", **hashes}
            kept = {key: said[key] for key in _KEPT if key in said}
            scripts = said.get("scripts")
            has_script = isinstance(scripts, dict) and any(name in scripts for name in _INSTALL_SCRIPTS)
            kept["hasInstallScript"] = has_script or bool(said.get("hasInstallScript"))
            versions[number] = {**kept, "name": name, "version": number, "dist": dist}
        tags = {tag: number for tag, number in page.get("dist-tags", {}).items() if number in versions}
        return json.dumps({"name": name, "dist-tags": tags, "versions": versions}).encode()

    def _note(self, link: PageLink, sha256: str, size: int) -> None:
        served = replace(self._whose[link.url], sha256=sha256, size=size)
        self.served[f"{served.name}@{served.version}"] = served


def _link_in(said: Mapping[str, Any], address: str) -> PageLink | None:
    """The file of a version; None if it has no hash to check."""
    dist = said["dist"]
    url = urljoin(address, str(dist["tarball"]))
    algorithm, digest = _strongest(dist)
    if urlsplit(url).scheme not in ("http", "https") or not digest:
        return None
    return PageLink(
        unquote(urlsplit(url).path.rpartition("/")[2])[:250], url, algorithm=algorithm, digest=digest, page=address
    )


def _strongest(dist: Mapping[str, Any]) -> tuple[str, str]:
    """The hash algorithm and the hash in hexadecimal; both empty if none is stated."""
    said = dict(one.partition("-")[::2] for one in str(dist.get("integrity") or "").split())
    for algorithm in ("sha512", "sha384", "sha256"):
        if algorithm in said:
            try:
                return algorithm, base64.b64decode(said[algorithm].partition("?")[0], validate=True).hex()
            except binascii.Error:
                return "", ""
    shasum = dist.get("shasum")
    return ("sha1", shasum) if isinstance(shasum, str) and _SHA1.fullmatch(shasum) else ("", "")
