"""Remote servers: their permitted addresses, a bounded HTTP client, and the transports over it.

The SDK's transports follow redirects only within the definition's origin, so headers and tokens go nowhere else. Only a
sign-in sends requests to other origins, and a public server cannot direct them into the private network.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from casemate.errors import InvalidArgument
from casemate.model.addresses import is_loopback, is_metadata, place_of
from casemate.tools.connections.answers import Outcome, ServerAnswer
from casemate.tools.connections.definition import Addresses, RemoteServer
from casemate.tools.connections.reports import OutputTail
from casemate.tools.connections.stdio import MOST_MESSAGE
from casemate.tools.connections.streams import Streams

_MOST_ADDRESSES = 16  # of one name


def addresses_of(host: str) -> tuple[str, ...]:
    """Resolve a URL's host by the system's resolver. Blocks. Raises ``OSError``."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))[:_MOST_ADDRESSES]


def check_addresses(host: str, addresses: Iterable[str]) -> dict[str, str]:
    """The networks of ``addresses`` that are not public. Raises ``InvalidArgument`` for a cloud's metadata service."""
    found = tuple(addresses)
    if not found:
        raise InvalidArgument("url", f"{host} has no address")
    if any(is_metadata(address) for address in found):
        raise InvalidArgument("url", f"{host} is a cloud's metadata service, which has credentials, and no MCP server")
    return {address: place for address in found if (place := place_of(address))}


_SECONDS = 30.0  # to connect and to send; callers set the deadlines for answers
_MOST_CONNECTIONS = 50
_FIRST_ERROR, _NOT_FOUND, _UNAVAILABLE = 400, 404, 503
_LONGEST_WORDS = 500  # characters of an error's body
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_OF_BODY = {"content-length", "content-type", "transfer-encoding"}
_HEARD = 1.0  # seconds to wait for the headers of a stream; some servers send them only with the first event


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Receives answers of at most 64 MiB, not compressed, only from permitted addresses."""

    def __init__(self, url: str, words: OutputTail | None = None, addresses: Addresses = None) -> None:
        """``url``: the server's address. ``words`` gets a line for each failed request."""
        limits = httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=5)
        self._inner = httpx2.AsyncHTTPTransport(limits=limits, trust_env=False)
        self._home = httpx2.URL(url)
        self._addresses = addresses
        self._words = words

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. An error becomes a 503 answer, because an exception would end all other calls too."""
        place = f"{request.method} {request.url.copy_with(query=None, fragment=None)}"
        try:
            response = await self._send(request)
        except httpx2.TransportError as error:
            why = str(error) or type(error).__name__
            self._note(f"{place}: {why}")
            lost = httpx2.Response(_UNAVAILABLE, request=request, headers={"content-type": "text/plain"}, text=why)
            return await _as_json_rpc(request, lost, "not sent" if isinstance(error, _NOT_SENT) else "broken off")
        if response.status_code >= _FIRST_ERROR:
            self._note(f"{place}: HTTP {response.status_code}")
            return await _as_json_rpc(request, response)
        return response

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        await self._check_place(request.url)
        request.headers["accept-encoding"] = "identity"  # a small compressed answer may be huge when unpacked
        response = await self._answer(request)
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError("the answer is compressed, which was not asked for", request=request)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Limited(response.stream)  # of a stream, each event is bounded instead
        return response

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        """Connect to a permitted address. The name is not resolved again after the check."""
        if self._addresses == "public":
            *others, last = await _public_addresses(request.url.host)
        elif self._addresses is None or request.url.host != self._home.host:
            return await self._inner.handle_async_request(request)
        else:
            *others, last = self._addresses
        for address in others:
            with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await self._inner.handle_async_request(_at(address, request))
        return await self._inner.handle_async_request(_at(last, request))

    def _note(self, line: str) -> None:
        if self._words is not None:
            self._words.note(line)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    async def _check_place(self, url: httpx2.URL) -> None:
        """Refuse another origin without https (except on this machine), and a private one if the server is public."""
        if (url.scheme, url.host, url.port) == (self._home.scheme, self._home.host, self._home.port):
            return
        if url.scheme != "https" and not is_loopback(url.host):
            raise httpx2.UnsupportedProtocol(f"{url.scheme}://{url.host} cannot be used to sign in: it is not https")
        if await _is_public(self._home.host) and not await _is_public(url.host):
            raise httpx2.UnsupportedProtocol(f"{url.host} is not public, but the server that refers to it is")


async def _as_json_rpc(
    request: httpx2.Request, response: httpx2.Response, outcome: Outcome = "answered"
) -> httpx2.Response:
    """Turn an HTTP error into a JSON-RPC error. A server's code is kept: the SDK needs it to negotiate a revision."""
    from mcp_types import INTERNAL_ERROR, METHOD_NOT_FOUND

    if request.method != "POST" or "text/event-stream" not in request.headers.get("accept", ""):
        return response
    code, words, data = await _words_of(response)
    headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _OF_BODY]
    had_session = "mcp-session-id" in request.headers
    is_unknown = response.status_code == _NOT_FOUND and not had_session
    about = ServerAnswer(response.status_code, outcome, had_session, response.headers.get("retry-after", ""))
    error = {
        "code": code or (METHOD_NOT_FOUND if is_unknown else INTERNAL_ERROR),
        "message": words,
        "data": {**data, **about.as_data()},
    }
    content = {"jsonrpc": "2.0", "id": None, "error": error}
    return httpx2.Response(response.status_code, headers=headers, json=content, request=request)


async def _words_of(response: httpx2.Response) -> tuple[int, str, dict[str, Any]]:
    """The code, message and data of a JSON-RPC error. The beginning of other text becomes the message."""
    from mcp_types import JSONRPCError, jsonrpc_message_adapter

    text = ""
    try:
        if response.headers.get("content-type", "").lower().startswith(("application/json", "text/plain")):
            with contextlib.suppress(httpx2.StreamError):
                await response.aread()
                text = response.text
    finally:
        await response.aclose()
    with contextlib.suppress(ValueError):
        message = jsonrpc_message_adapter.validate_json(text, by_name=False)
        if isinstance(message, JSONRPCError):
            error = message.error
            return error.code, error.message, error.data if isinstance(error.data, dict) else {}
    return 0, text.strip()[:_LONGEST_WORDS], {}


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the chunks. Errors become ``StreamError``, which the SDK treats as a failure of this answer alone."""
        size = 0
        try:
            async for chunk in self._inner:
                size += len(chunk)
                if size > MOST_MESSAGE:
                    raise httpx2.StreamError(f"the answer has more than {MOST_MESSAGE >> 20} MiB")
                yield chunk
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"the answer broke off: {str(error) or type(error).__name__}") from None

    async def aclose(self) -> None:
        await self._inner.aclose()


def _at(address: str, request: httpx2.Request) -> httpx2.Request:
    """The same request with ``address`` in place of the host. Its headers and the name in its certificate stay."""
    extensions = {**request.extensions, "sni_hostname": request.url.host}
    url = request.url.copy_with(host=address)
    return httpx2.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=extensions)


async def _public_addresses(host: str) -> tuple[str, ...]:
    try:
        found = await asyncio.to_thread(addresses_of, host)
    except OSError as error:
        raise httpx2.ConnectError(f"{host}: {error.strerror}") from None
    for address in found:
        if place_of(address):
            raise httpx2.ConnectError(f"{host} is at {address}, and only public addresses are allowed")
    return found


async def _is_public(host: str) -> bool:
    """Whether all addresses of ``host`` are public. A name that does not resolve counts as public."""
    with contextlib.suppress(ValueError):
        return not place_of(host)
    try:
        return not any(map(place_of, await asyncio.to_thread(addresses_of, host)))
    except OSError:
        return True


class Listening(httpx2.AsyncClient):
    """A client that opens its event stream before it sends more. Requests wait until the first stream is open, but at
    most a second after the stream's request was sent.

    A server sends its own messages (changed tools, elicitations) only over that stream, so they would be lost before
    (MCP 2025-11-25, Transports: "Listening for Messages from the Server").
    """

    _is_first = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._asked, self._answered = asyncio.Event(), asyncio.Event()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request, after the first stream is open."""
        opens = request.method == "GET" and "text/event-stream" in request.headers.get("accept", "")
        if opens and self._is_first:
            return await self._open_stream(request, **options)
        if not self._is_first and not self._answered.is_set():
            await self._asked.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEARD):
                    await self._answered.wait()
            self._answered.set()
        return await super().send(request, **options)

    async def _open_stream(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        self._is_first = False

        async def on_trace(event: str, _about: object) -> None:
            if event.endswith("receive_response_headers.started"):
                self._asked.set()

        request.extensions["trace"] = on_trace
        try:
            return await super().send(request, **options)
        finally:
            self._asked.set()
            self._answered.set()


def http_client(
    url: str,
    headers: Mapping[str, str],
    auth: httpx2.Auth | None = None,
    words: OutputTail | None = None,
    addresses: Addresses = None,
) -> httpx2.AsyncClient:
    """A client for one server. The environment does not configure it: no proxies, no netrc."""
    timeout = httpx2.Timeout(_SECONDS, read=None)
    return Listening(
        headers=dict(headers), auth=auth, timeout=timeout, trust_env=False,
        transport=BoundedTransport(url, words, addresses),
        follow_redirects=False,
    )  # fmt: skip


@asynccontextmanager
async def remote(
    server: RemoteServer, url: str, headers: Mapping[str, str], auth: httpx2.Auth | None, words: OutputTail
) -> AsyncGenerator[Streams]:
    """Connect the server as a transport of the MCP SDK. ``url`` and ``headers`` come from the definition."""
    if server.transport == "sse":
        from mcp.client.sse import sse_client

        def client_of(
            headers: dict[str, str] | None = None,
            timeout: object = None,  # noqa: ARG001 - the SDK's; ours is `http_client`'s
            auth: httpx2.Auth | None = None,
        ) -> httpx2.AsyncClient:
            return http_client(url, headers or {}, auth, words, server.addresses)

        async with sse_client(url, dict(headers), auth=auth, httpx_client_factory=client_of) as streams:
            yield streams
        return
    from mcp.client.streamable_http import streamable_http_client

    async with (
        http_client(url, headers, auth, words, server.addresses) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MOST_MESSAGE) as streams,
    ):
        yield streams
