"""The host's requests to an index and its file hosts: bounded and verified. The only thing in them that comes from a
cell is the name of a project."""

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
from urllib.parse import unquote, urljoin, urlsplit

from casemate.errors import Unavailable
from casemate.model.addresses import METADATA, place_of
from casemate.packages.indexes import Index, Indexes
from casemate.packages.local import SCHEME, links_in
from casemate.packages.pages import ACCEPT, BadPage, PageLink, read
from casemate.packages.store import IncomingFile, PackageStore

if TYPE_CHECKING:
    import httpx2

_MOST_PAGE = 64 << 20  # bytes of a page of an index, unpacked
_MOST_REDIRECTS = 5
_CHUNK = 1 << 20
_PAGES_AT_ONCE = 8  # each is in memory; parsing, one page at a time, may take twenty times as much
_MOST_BYTES = 8 << 30  # of all files of one installation
_REDIRECTS = (301, 302, 303, 307, 308)
_WITHIN = 30.0  # seconds for each step of a request
_NOT_THERE = (404, 410)
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Unfetched(Exception):
    """Something could not be fetched. The message tells people what and why."""


class IndexUnreachable(Unfetched):
    """The index did not answer, or failed. Another attempt may succeed."""


class Upstream:
    """Requests to ``indexes``. Fetched files go to ``store``. Used and closed in one event loop."""

    def __init__(
        self, indexes: Indexes, store: PackageStore, most_bytes: int, report: Callable[[int], None] | None = None
    ) -> None:
        """``most_bytes``: limit for one file. ``report`` is called from any thread with the bytes fetched so far."""
        self._report = report
        self.indexes = indexes.indexes
        self.store = store
        self._most = most_bytes
        self._fetched = 0
        self._pages = asyncio.Semaphore(_PAGES_AT_ONCE)
        self._reading = asyncio.Lock()
        self._netrc = indexes.netrc
        self._client = _client(indexes)

    @property
    def is_local(self) -> bool:
        """Whether all its indexes are local folders."""
        return all(one.folder for one in self.indexes)

    async def page(self, project: str) -> list[PageLink] | None:
        """The links of the first index that knows ``project``; None if none does. Raises :class:`Unfetched`."""
        async with self._pages:
            for index in self.indexes:
                if index.folder:
                    found = await self._of_folder(index, project)
                else:
                    found = await self._page(index, f"{index.url}{project}/")
                if found is not None:
                    return found
        return None

    async def file(self, link: PageLink, suffix: str = "", sha256: str = "") -> str:
        """Fetch the file of ``link`` into the store, and return its SHA-256, which is the page's if that states one.
        With a ``suffix``, fetch the file beside it (PEP 658), whose hash is ``sha256``.

        Raises :class:`Unfetched`.
        """
        expected = sha256 if suffix else link.sha256
        kept = await asyncio.to_thread(self.store.open, expected) if expected else None
        if kept is not None:
            kept.close()
            return expected
        sha256 = await asyncio.to_thread(self._find_kept, link) if link.digest else ""
        if sha256:
            return sha256
        url = link.url + suffix
        page = link.page or self.indexes[0].url
        await self._vet(url, page)
        incoming = await asyncio.to_thread(self.store.begin, link.algorithm)
        try:
            await self._receive(url, page, incoming)
            digest, other = incoming.sha256.hexdigest(), incoming.other.hexdigest()
            if link.digest and other != link.digest:
                raise Unfetched(
                    f"{link.filename} does not match the registry: its {link.algorithm} is "
                    f"{other}, and the registry says {link.digest}"
                )
            if expected and digest != expected:
                raise Unfetched(
                    f"{link.filename}{suffix} does not match the index: its sha256 is {digest}, "
                    f"and the index says {expected}"
                )
            await asyncio.to_thread(incoming.keep)
            if link.digest:
                await asyncio.to_thread(self.store.note, link.algorithm, link.digest, digest)
            return digest
        finally:
            incoming.drop()

    def _find_kept(self, link: PageLink) -> str:
        """The SHA-256 of the file, if the store has it."""
        sha256 = self.store.find_sha256(link.algorithm, link.digest)
        file = self.store.open(sha256) if _SHA256.fullmatch(sha256) else None
        if file is None:
            return ""
        with file:
            same = hashlib.file_digest(file, link.algorithm).hexdigest() == link.digest
        return sha256 if same else ""

    async def close(self) -> None:
        await self._client.aclose()
        await asyncio.to_thread(self.store.tidy)

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
        """Content, media type and final address of ``url``; None if it does not exist. Raises :class:`Unfetched`."""
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
        if urlsplit(url).scheme == SCHEME and any(one.folder and one.url == page for one in self.indexes):
            await asyncio.to_thread(self._copy, unquote(urlsplit(url).path), incoming)
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
            raise Unfetched(f"{_name(url)} has more than {self._most >> 20} MiB, the limit for one file")
        self._fetched += len(piece)
        if self._fetched > _MOST_BYTES:
            raise Unfetched(f"one installation may fetch at most {_MOST_BYTES >> 30} GiB")
        incoming.write(piece)
        if self._report is not None:
            self._report(self._fetched)

    @asynccontextmanager
    async def _got(self, url: str, accept: str, page: str) -> AsyncIterator[tuple[httpx2.Response, str]]:
        """The answer, and its final address. Follows redirects within the same host. ``page``: the page that names
        ``url``; credentials go only to its host."""
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
                raise IndexUnreachable(f"the answer of {_host(url)} was cut off: {type(error).__name__}") from None
            finally:
                await answer.aclose()
            if _origin(target) != origin:
                raise Unfetched(f"{_host(url)} redirects to another host, {_host(target)}, which is not followed")
            url = target
        raise Unfetched(f"{_host(url)} redirects too often")

    def _check(self, answer: httpx2.Response, url: str) -> None:
        if answer.status_code != 200:
            kind = IndexUnreachable if answer.is_server_error else Unfetched
            raise kind(f"{_host(url)} answers {answer.status_code} for {_name(url)}")

    def _auth(self, url: str, page: str) -> Any:
        """The operator's credentials for this host, but not if another host's page led here."""
        import httpx2

        for index in self.indexes:
            if (index.user or index.token) and _origin(index.url) == _origin(url) == _origin(page):
                return httpx2.BasicAuth(index.user, index.password) if index.user else _bearer(index.token)
        if not self._netrc or _origin(url) not in [_origin(index.url) for index in self.indexes]:
            return None  # a page may name any host for its files
        try:
            return httpx2.NetRCAuth()
        except Exception:  # noqa: BLE001 - whatever is wrong with a file of the operator's that may not be there
            return None

    async def _vet(self, url: str, page: str) -> None:
        """Check the host of a file. A page may name any host except cloud metadata. It may name a host in a private
        network only if it is in one itself, and a plain HTTP address only if it has one itself. Raises
        :class:`Unfetched`."""
        if _origin(url) == _origin(page):
            return
        if urlsplit(url).scheme != "https" and urlsplit(page).scheme == "https":
            raise Unfetched(f"the index links to {_host(url)} without encryption, which is not followed")
        places = await _places(url)
        if METADATA in places or (places and not await _places(page)):
            raise Unfetched(f"the index links to {_host(url)}, which is not a public host; it is not followed")


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
    """The trusted certificate authorities. Loading them takes as long as starting a cell."""
    return ssl.create_default_context(cafile=cert)


async def _places(url: str) -> set[str]:
    """The kinds of the host's non-public addresses."""
    parts = urlsplit(url)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except OSError:
        return set()  # with a proxy, names need not resolve here; an unresolvable host is not one of ours
    return {place_of(str(address[0]).partition("%")[0]) for *_, address in found} - {""}


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


def _host(url: str) -> str:
    return urlsplit(url).hostname or "an unnamed host"


def _name(url: str) -> str:
    return urlsplit(url).path.rpartition("/")[2] or "its page"
