"""The host's own requests to an index and to the hosts of its files: bounded, verified, and with nothing of a cell in
them but the name of a project."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from casemate.errors import Unavailable
from casemate.model.addresses import METADATA, place_of
from casemate.packages.indexes import Index, Indexes
from casemate.packages.local import SCHEME, links_in, path_of
from casemate.packages.pages import ACCEPT, BadPage, PageLink, read
from casemate.packages.store import IncomingFile, PackageStore

if TYPE_CHECKING:
    import httpx2

_MOST_PAGE = 64 << 20  # bytes of a page of an index, unpacked
_MOST_REDIRECTS = 5
_CHUNK = 1 << 20
_PAGES_AT_ONCE = 8  # each is in memory, and what is read of it, one at a time, may be twenty times as much
_MOST_BYTES = 8 << 30  # of all files that one installation fetches
_REDIRECTS = (301, 302, 303, 307, 308)
_WITHIN = 30.0  # seconds for each step of a request
_NOT_THERE = (404, 410)
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Unfetched(Exception):
    """Something could not be had from the index: what, and why, in words for people."""


class IndexUnreachable(Unfetched):
    """The index did not answer, or failed: another try may succeed."""


class Upstream:
    """Requests to ``indexes``; what is fetched is kept in ``store``. Used in one event loop, and closed there."""

    def __init__(
        self, indexes: Indexes, store: PackageStore, most_bytes: int, report: Callable[[int], None] | None = None
    ) -> None:
        """``most_bytes``: of one file; ``report`` gets how many bytes of files have come, from any thread."""
        self._report = report
        self._indexes = indexes.indexes
        self._store = store
        self._most = most_bytes
        self._fetched = 0
        self._pages = asyncio.Semaphore(_PAGES_AT_ONCE)
        self._reading = asyncio.Lock()
        self._netrc = indexes.netrc
        self._client = _client(indexes)

    @property
    def indexes(self) -> tuple[Index, ...]:
        """Where it asks."""
        return self._indexes

    @property
    def is_local(self) -> bool:
        """Whether all that it asks are folders of this machine."""
        return all(one.folder for one in self._indexes)

    async def page(self, project: str) -> list[PageLink] | None:
        """The links of the first index that knows ``project``; None where none does. Raises :class:`Unfetched`."""
        async with self._pages:
            for index in self._indexes:
                if index.folder:
                    found = await self._of_folder(index, project)
                else:
                    found = await self._page(index, f"{index.url}{project}/")
                if found is not None:
                    return found
        return None

    async def file(self, link: PageLink, suffix: str = "", sha256: str = "") -> str:
        """Have the file that ``link`` leads to in the store: its SHA-256, which is the one that the page says, where it
        says one. With a ``suffix``, what is beside it (PEP 658), whose hash is ``sha256``.

        Raises :class:`Unfetched`."""
        expected = sha256 if suffix else link.sha256
        kept = await asyncio.to_thread(self._store.open, expected) if expected else None
        if kept is not None:
            kept.close()
            return expected
        sha256 = await asyncio.to_thread(self._find_kept, link) if link.digest else ""
        if sha256:
            return sha256
        url = link.url + suffix
        page = link.page or self._indexes[0].url
        await self._vet(url, page)
        incoming = await asyncio.to_thread(self._store.begin, link.algorithm)
        try:
            await self._receive(url, page, incoming)
            digest = incoming.digest()
            if link.digest and incoming.other() != link.digest:
                raise Unfetched(
                    f"{link.filename} is not the file that the registry means: its {link.algorithm} is "
                    f"{incoming.other()}, and the registry says {link.digest}"
                )
            if expected and digest != expected:
                raise Unfetched(
                    f"{link.filename}{suffix} is not the file that the index means: its sha256 is {digest}, "
                    f"and the index says {expected}"
                )
            kept_now = await asyncio.to_thread(incoming.keep)
            if link.digest:
                await asyncio.to_thread(self._store.note, link.algorithm, link.digest, kept_now)
            return kept_now
        finally:
            incoming.drop()

    def _find_kept(self, link: PageLink) -> str:
        """The SHA-256 of the file, where it has come before."""
        sha256 = self._store.find_sha256(link.algorithm, link.digest)
        file = self._store.open(sha256) if _SHA256.fullmatch(sha256) else None
        if file is None:
            return ""
        with file:
            same = hashlib.file_digest(file, link.algorithm).hexdigest() == link.digest
        return sha256 if same else ""

    async def close(self) -> None:
        """End all connections."""
        await self._client.aclose()
        await asyncio.to_thread(self._store.tidy)

    async def _of_folder(self, index: Index, project: str) -> list[PageLink] | None:
        try:
            return await asyncio.to_thread(links_in, index.folder, project, is_flat=index.is_flat)
        except OSError as error:
            raise Unfetched(f"{index.folder} cannot be read: {error.strerror}") from None

    async def _page(self, index: Index, url: str) -> list[PageLink] | None:
        found = await self.document(index, url, ACCEPT)
        if found is None:
            return None
        try:
            async with self._reading:
                return await asyncio.to_thread(read, *found)
        except BadPage as error:
            raise Unfetched(str(error)) from None

    async def document(self, index: Index, url: str, accept: str) -> tuple[bytes, str, str] | None:
        """What ``index`` has at ``url``: its content, media type and final address; None where there is nothing. Raises
        :class:`Unfetched`."""
        async with self._got(url, accept, url) as (answer, address):
            if answer.status_code in _NOT_THERE:
                return None
            self._check(answer, address)
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > _MOST_PAGE:
                    raise Unfetched(f"a page of {_host(index.url)} has more than {_MOST_PAGE >> 20} MiB")
            return bytes(body), answer.headers.get("content-type", ""), address

    async def _receive(self, url: str, page: str, incoming: IncomingFile) -> None:
        if urlsplit(url).scheme == SCHEME and any(one.folder and one.url == page for one in self._indexes):
            await asyncio.to_thread(self._copy, path_of(url), incoming)
            return
        async with self._got(url, "*/*", page) as (answer, address):
            self._check(answer, address)
            async for piece in answer.aiter_raw():
                self._take(piece, url, incoming)

    def _copy(self, path: str, incoming: IncomingFile) -> None:
        try:
            with open(path, "rb") as file:
                while piece := file.read(_CHUNK):
                    self._take(piece, path, incoming)
        except OSError as error:
            raise Unfetched(f"{path} cannot be read: {error.strerror}") from None

    def _take(self, piece: bytes, url: str, incoming: IncomingFile) -> None:
        if incoming.size + len(piece) > self._most:
            raise Unfetched(f"{_name(url)} has more than {self._most >> 20} MiB, which is the most of one file")
        self._fetched += len(piece)
        if self._fetched > _MOST_BYTES:
            raise Unfetched(f"one installation may fetch {_MOST_BYTES >> 30} GiB, and no more")
        incoming.write(piece)
        if self._report is not None:
            self._report(self._fetched)

    @asynccontextmanager
    async def _got(self, url: str, accept: str, page: str) -> AsyncIterator[tuple[httpx2.Response, str]]:
        """The answer, and the address that it came from in the end. Redirects are followed within the same host.
        ``page``: the one that says so; credentials go to its host alone."""
        import httpx2

        origin = _origin(url)
        encoding = "identity" if accept == "*/*" else "gzip, identity"
        for _ in range(_MOST_REDIRECTS + 1):
            request = self._client.build_request("GET", url, headers={"accept": accept, "accept-encoding": encoding})
            try:
                answer = await self._client.send(request, stream=True, auth=self._auth(url, page))
            except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
                raise IndexUnreachable(
                    f"{_host(url)} cannot be reached: {type(error).__name__}: {error}"[:500]
                ) from None
            try:
                if answer.status_code not in _REDIRECTS:
                    yield answer, url
                    return
                target = urljoin(url, answer.headers.get("location", ""))
            except (httpx2.HTTPError, httpx2.StreamError) as error:
                raise IndexUnreachable(f"what {_host(url)} sends ends in the middle: {type(error).__name__}") from None
            finally:
                await answer.aclose()
            if _origin(target) != origin:
                raise Unfetched(f"{_host(url)} redirects to another host, {_host(target)}: not followed")
            url = target
        raise Unfetched(f"{_host(url)} redirects too often")

    def _check(self, answer: httpx2.Response, url: str) -> None:
        if answer.status_code != 200:
            kind = IndexUnreachable if answer.is_server_error else Unfetched
            raise kind(f"{_host(url)} answers {answer.status_code} for {_name(url)}")

    def _auth(self, url: str, page: str) -> Any:
        """The operator's credentials, for the host that they are for: not where another host's page led there."""
        import httpx2

        for index in self._indexes:
            if index.user and _origin(index.url) == _origin(url) == _origin(page):
                return httpx2.BasicAuth(index.user, index.password)
            if index.token and _origin(index.url) == _origin(url) == _origin(page):
                return _bearer(index.token)
        if not self._netrc or _origin(url) not in [_origin(index.url) for index in self._indexes]:
            return None  # a page names any host for its files
        try:
            return httpx2.NetRCAuth()
        except Exception:  # noqa: BLE001 - whatever is wrong with a file of the operator's that may not be there
            return None

    async def _vet(self, url: str, page: str) -> None:
        """A page may name any host for its files but a cloud's metadata; one of this machine's or this network's own
        only if it is there itself, and without encryption only if it is without, too. Raises :class:`Unfetched`."""
        if _origin(url) == _origin(page):
            return
        if urlsplit(url).scheme != "https" and urlsplit(page).scheme == "https":
            raise Unfetched(f"the index links to {_host(url)} without encryption: not followed")
        places = await _places(url)
        if METADATA in places or (places and not await _places(page)):
            raise Unfetched(f"the index links to {_host(url)}, which is no public host: not followed")


def _bearer(token: str) -> Callable[[httpx2.Request], httpx2.Request]:
    def sign(request: httpx2.Request) -> httpx2.Request:
        request.headers["Authorization"] = f"Bearer {token}"
        return request

    return sign


def _client(indexes: Indexes) -> httpx2.AsyncClient:
    import httpx2

    try:
        return httpx2.AsyncClient(
            verify=_authorities(indexes.cert), proxy=indexes.proxy, timeout=_WITHIN, follow_redirects=False
        )
    except (OSError, ValueError) as error:
        raise Unavailable(
            f"the index cannot be asked: {error}", remediation="Look at cert and proxy in 'pip config list'."
        ) from None


@functools.lru_cache(maxsize=4)
def _authorities(cert: str | None) -> ssl.SSLContext:
    """Who says which host is which. Reading them takes as long as a cell does to start."""
    return ssl.create_default_context(cafile=cert)


async def _places(url: str) -> set[str]:
    """What the host's addresses are that are not public."""
    parts = urlsplit(url)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except OSError:
        return set()  # behind a proxy names need not resolve here; and a host that is not there is none of ours
    return {place_of(str(address[0]).partition("%")[0]) for *_, address in found} - {""}


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


def _host(url: str) -> str:
    return urlsplit(url).hostname or "nobody"


def _name(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2] or "its page"
