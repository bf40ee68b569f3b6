"""A server that is somewhere else: which addresses it may have, its bounded HTTP client, and the transports over it.

Redirects are followed within the origin of the definition only (the SDK's transports see to that), so headers and
tokens go nowhere else. Requests to other origins are those of a sign-in alone; a server out there cannot send them into
the network in here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2

from casemate.errors import InvalidArgument
from casemate.model.addresses import is_loopback, is_metadata, place_of
from casemate.tools.connections.answers import Outcome, ServerAnswer
from casemate.tools.connections.definition import RemoteServer
from casemate.tools.connections.reports import OutputTail
from casemate.tools.connections.stdio import MOST_MESSAGE
from casemate.tools.connections.streams import Streams

_MOST_ADDRESSES = 16  # of one name


def addresses_of(host: str) -> tuple[str, ...]:
    """The addresses of a host of a URL, as the system's resolver gives them. Blocks. Raises ``OSError``."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))[:_MOST_ADDRESSES]


def check_addresses(host: str, addresses: Iterable[str]) -> dict[str, str]:
    """The places of those of ``addresses`` that are not public. Raises ``InvalidArgument`` for none, and for a cloud's
    metadata."""
    found = tuple(addresses)
    if not found:
        raise InvalidArgument("url", f"{host} has no address")
    if any(is_metadata(address) for address in found):
        raise InvalidArgument("url", f"{host} is where a cloud tells a machine its credentials, which is no MCP server")
    return {address: place for address in found if (place := place_of(address))}


_SECONDS = 30.0  # to connect, and to send; answers have the deadlines of whoever waits for them
_MOST_CONNECTIONS = 50
_FIRST_ERROR, _NOT_FOUND, _UNAVAILABLE = 400, 404, 503
_LONGEST_WORDS = 500  # characters of what a server says beside a status
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_OF_BODY = {"content-length", "content-type", "transfer-encoding"}
_HEARD = 1.0  # seconds for a server to say that it streams; some say so only with the first event, perhaps hours later


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Answers of at most 64 MiB each, not compressed, from where this server may lead. ``url``: the server's own;
    ``words`` hears which requests were refused; ``addresses``: where the server alone may be (``RemoteServer``)."""

    def __init__(
        self, url: str, words: OutputTail | None = None, addresses: tuple[str, ...] | Literal["public"] | None = None
    ) -> None:
        limits = httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=5)
        self._inner = httpx2.AsyncHTTPTransport(limits=limits, trust_env=False)
        self._home = httpx2.URL(url)
        self._addresses = addresses
        self._words = words

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send it. What goes wrong is an answer of 503, for what is raised here would end every other call, too."""
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
        request.headers["accept-encoding"] = "identity"  # what is small on the way may be huge when it is unpacked
        response = await self._answer(request)
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            await response.aclose()
            raise httpx2.RemoteProtocolError("the answer is compressed, which was not asked for", request=request)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Limited(response.stream)  # events are bounded one by one
        return response

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        """From where the server may be: it is connected at the address that was looked at, not by its name again."""
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
        """End its connections."""
        await self._inner.aclose()

    async def _check_place(self, url: httpx2.URL) -> None:
        """Another origin is asked by https, or on this machine; and not in here for a server that is out there."""
        if (url.scheme, url.host, url.port) == (self._home.scheme, self._home.host, self._home.port):
            return
        if url.scheme != "https" and not is_loopback(url.host):
            raise httpx2.UnsupportedProtocol(f"{url.scheme}://{url.host} is no place for a sign-in: it is not https")
        if await _is_public(self._home.host) and not await _is_public(url.host):
            raise httpx2.UnsupportedProtocol(f"{url.host} is not in the public network, as the server is that names it")


async def _as_json_rpc(
    request: httpx2.Request, response: httpx2.Response, outcome: Outcome = "answered"
) -> httpx2.Response:
    """An HTTP error as a JSON-RPC error, which holds what is known of it, with the server's words.

    The code is the server's own where it gave one, which the SDK needs to agree on a revision, else the one that the
    SDK uses for such answers.
    """
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
    """The code, the message and the data of a JSON-RPC error; of other text the beginning."""
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
        """Its chunks. What goes wrong is a ``StreamError``, which the SDK takes for a failure of this answer alone."""
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
    """The request, to be sent to ``address``; what it says, and the certificate that is asked for, is as before."""
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
    """Whether all of its addresses are public; a name that nobody knows has none that are not."""
    with contextlib.suppress(ValueError):
        return not place_of(host)
    try:
        return not any(map(place_of, await asyncio.to_thread(addresses_of, host)))
    except OSError:
        return True


class Listening(httpx2.AsyncClient):
    """A client that listens before it goes on: what is posted while the first stream of events is being opened waits
    until that is there, or for a second where the server was sent the request and does not say so.

    A server's own messages (that its tools have changed, what it asks the user during a call) are for whoever listens,
    and are lost while nobody does (MCP 2025-11-25, Transports: "Listening for Messages from the Server").
    """

    _is_first = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._asked, self._answered = asyncio.Event(), asyncio.Event()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send it, in its turn."""
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
    addresses: tuple[str, ...] | Literal["public"] | None = None,
) -> httpx2.AsyncClient:
    """A client for one server, which nothing in the environment configures: no proxies, no netrc."""
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
    """The server as a transport of the MCP SDK. ``url`` and ``headers`` are the definition's, filled in."""
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
