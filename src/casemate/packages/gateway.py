"""The only way out of a cell in which packages are installed: an index that the host serves there.

It answers GET and HEAD of pages of projects, and of files that such a page has linked to. What goes to the operator's
index is the name of a project; nothing else that the cell says goes anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import h11

from casemate.packages.names import project
from casemate.packages.pages import HTML_TYPE, JSON_TYPE, Link, write
from casemate.packages.store import Store
from casemate.packages.upstream import Unfetched, Upstream

_MOST_PROJECTS = 5000  # that one installation may ask for: each is a question to the operator's index
_MOST_LINKS = 300_000  # on all pages together; each is kept
_MOST_CLIENTS = 64  # at once
_MOST_HEAD = 1 << 14
_IDLE = 120.0  # seconds without a request
_CHUNK = 1 << 18
_METADATA = ".metadata"
_END = b""


@dataclass(frozen=True, slots=True)
class Served:
    """A file that went into the cell, whole: where it came from, and what it is. Of npm's: whose it is, and whether
    it has other packages in it."""

    filename: str
    url: str
    sha256: str
    size: int
    name: str = ""
    version: str = ""
    bundles: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """``sha256``: of the file in the store that is the body, when there is no ``body``."""

    status: int
    media_type: str = "text/plain"
    body: bytes = b""
    sha256: str = ""
    link: Link | None = None


@dataclass(slots=True)
class Gateway:
    """One installation's. ``sources``: whether files that are built first are offered, too. ``hashes``: for names of
    projects, the SHA-256 of the files that may come; where there are any, nothing else comes.

    ``served``: the files that have gone into the cell, by name; ``problems``: what could not be had, in words.
    """

    upstream: Upstream
    store: Store
    sources: bool = False
    hashes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    served: dict[str, Served] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _pages: dict[str, asyncio.Task[list[Link] | None]] = field(default_factory=dict)
    _files: dict[str, Link] = field(default_factory=dict)  # by their path here
    _fetching: dict[str, asyncio.Lock] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)  # the hash of what has a file's name

    @asynccontextmanager
    async def listening(self, taken: socket.socket) -> AsyncIterator[None]:
        """Serve at a socket that listens in the cell, until this is left; it is closed then, and so is everything."""
        clients: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            clients.add(task)
            try:
                with contextlib.suppress(OSError, TimeoutError, h11.ProtocolError):
                    if len(clients) <= _MOST_CLIENTS:
                        await self._serve(reader, writer)
                writer.close()
            except asyncio.CancelledError:
                writer.transport.abort()
            finally:
                clients.discard(task)

        server = await asyncio.start_server(serve, sock=taken)
        try:
            yield
        finally:
            server.close()
            tasks = [*clients, *self._pages.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

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

    async def _answer(self, request: h11.Request) -> Answer:
        path = request.target.decode("latin-1")
        if request.method not in (b"GET", b"HEAD"):
            return Answer(405, body=b"only GET and HEAD\n")
        try:
            return await self._found(path, request)
        except Unfetched as error:
            self._tell(str(error))
            return Answer(502, body=f"{error}\n".encode())

    async def _found(self, path: str, request: h11.Request) -> Answer:
        """What is at ``path``. Raises :class:`Unfetched`."""
        if path.startswith("/simple/"):
            as_json = any(name == b"accept" and JSON_TYPE.encode() in value for name, value in request.headers)
            return await self._page(path.removeprefix("/simple/").removesuffix("/"), as_json=as_json)
        return await self._file(path)

    async def _page(self, name: str, *, as_json: bool) -> Answer:
        if project(name) is None:
            return Answer(404, body=b"no name of a project\n")
        if name not in self._pages:
            if len(self._pages) >= _MOST_PROJECTS:
                raise Unfetched(f"one installation may ask for {_MOST_PROJECTS} projects, and no more")
            # Awaited by all who ask for this page, and ended by `listening`.
            self._pages[name] = asyncio.ensure_future(self.upstream.page(name))  # noqa: TID251
        links = await asyncio.shield(self._pages[name])
        if links is None:
            return Answer(404, body=b"the index does not know it\n")
        if len(self._files) + len(links) > _MOST_LINKS:
            raise Unfetched(f"the pages that were asked for list more than {_MOST_LINKS} files, which is the most")
        offered = []
        for number, link in enumerate(self._wanted(name, links)):
            if link.is_wheel or (self.sources and link.is_source):
                path = f"/files/{name}/{number}/{link.filename}"
                self._files[path] = link
                offered.append((link, path))
        return Answer(200, JSON_TYPE if as_json else HTML_TYPE, write(name, offered, as_json=as_json))

    def _wanted(self, name: str, links: list[Link]) -> list[Link]:
        """Those that may come; where a page does not say what a file's hash is, that is seen when it is fetched."""
        if not self.hashes:
            return links
        given = self.hashes.get(name, frozenset())
        wanted = [link for link in links if given and (not link.sha256 or link.sha256 in given)]
        if not given:
            self._tell(f"no hash was given for {name}: where some packages have hashes, all that come need them")
        elif len(wanted) < len(links):
            self._tell(f"{name} may come in files with the hashes that were given for it alone, and no others")
        return wanted

    def _tell(self, problem: str) -> None:
        """For when the installer fails: this may be why."""
        if problem not in self.problems:
            self.problems.append(problem)

    async def _file(self, path: str) -> Answer:
        link = self._files.get(path)
        if link is not None:
            return await self._fetched(path, link)
        link = self._files.get(path.removesuffix(_METADATA)) if path.endswith(_METADATA) else None
        if link is None or link.metadata is None:
            return Answer(404, body=b"no page has linked to it\n")
        return await self._fetched(path, link, _METADATA, link.metadata)

    async def _fetched(self, path: str, link: Link, suffix: str = "", sha256: str = "") -> Answer:
        async with self._fetching.setdefault(path, asyncio.Lock()):
            digest = await self.upstream.file(link, suffix, sha256)
        if not suffix and self.hashes and digest not in self.hashes[path.split("/")[2]]:
            raise Unfetched(f"{link.filename} has none of the hashes that were given for it")
        if not suffix and self._known.setdefault(link.filename, digest) != digest:
            raise Unfetched(f"there are two files of the name {link.filename}: which of them is meant cannot be known")
        return Answer(200, "application/octet-stream", sha256=digest, link=None if suffix else link)

    async def _give(
        self, talk: h11.Connection, writer: asyncio.StreamWriter, request: h11.Request, answer: Answer
    ) -> None:
        file = await asyncio.to_thread(self.store.open, answer.sha256) if answer.sha256 else None
        if answer.sha256 and file is None:
            answer = Answer(502, body=b"it is gone from the cache\n")
        size = file.seek(0, 2) if file else len(answer.body)
        headers = [("Content-Type", answer.media_type), ("Content-Length", str(size))]
        writer.write(talk.send(h11.Response(status_code=answer.status, headers=headers)) or _END)
        try:
            if request.method == b"GET" and file:
                file.seek(0)
                while data := await asyncio.to_thread(file.read, _CHUNK):
                    writer.write(talk.send(h11.Data(data=data)) or _END)
                    await writer.drain()
                if answer.link is not None:
                    self._note(answer.link, answer.sha256, size)
            elif request.method == b"GET":
                writer.write(talk.send(h11.Data(data=answer.body)) or _END)
            writer.write(talk.send(h11.EndOfMessage()) or _END)
            await writer.drain()
        finally:
            if file:
                file.close()

    def _note(self, link: Link, sha256: str, size: int) -> None:
        """It went into the cell, whole."""
        self.served[link.filename] = Served(link.filename, link.url, sha256, size)


async def _next_request(talk: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """The head of the next request, whose body, if it has one, ends the connection; None at the end."""
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
