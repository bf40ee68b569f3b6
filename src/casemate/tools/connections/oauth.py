"""Signs in to remote servers (OAuth 2.1 as in MCP's authorization): by the user's browser with PKCE, by a code entered
on another device (RFC 8628), or with the client's credentials. Tokens are renewed and stored in the vault. The SDK does
discovery, registration, PKCE and the checks of issuers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Literal, TypeVar, cast
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, BaseModel

from casemate.errors import CasemateError, ToolUnavailable
from casemate.model.addresses import is_loopback
from casemate.tools.connections.browser import Loopback, show_sign_in
from casemate.tools.connections.context import SecretStore, SignInPrompt, Surroundings
from casemate.tools.connections.definition import Addresses, SignIn, check_url
from casemate.tools.connections.remote import http_client
from casemate.visible import visible

Model = TypeVar("Model", bound=BaseModel)


def secret_name(server: str) -> str:
    """The name in the vault: readable, and unique for each server."""
    digest = hashlib.sha256(server.encode()).hexdigest()[:8]
    return f"OAUTH_{re.sub('[^A-Z0-9]', '_', server.upper())}_{digest.upper()}"


class OAuthTokens:
    """The tokens for ``server`` at ``url``, in the vault, or in memory if the vault cannot store them.

    It is the SDK's ``TokenStorage``. It also stores when a token expires and the authorization server's metadata, so
    that a token can be renewed after a restart.
    """

    def __init__(self, store: SecretStore, server: str, url: str, client: str) -> None:
        """``client``: the id of the client at the authorization server. Tokens of another client are ignored."""
        self._store = store
        self._name = secret_name(server)
        self._owner = {"url": url, "client": client}
        self._held: dict[str, Any] = {}

    async def load(self) -> None:
        """Read the vault. Raises ``CasemateError`` if it cannot be read."""
        text = await asyncio.to_thread(self._store.get, self._name)
        try:
            held = json.loads(text) if text else {}
        except ValueError:
            held = {}
        is_ours = isinstance(held, dict) and held.get("owner") == self._owner
        self._held = held if is_ours else {}

    @property
    def expires_at(self) -> float | None:
        """Unix time; None if unknown."""
        expires = self._held.get("expires_at")
        return float(expires) if isinstance(expires, int | float) else None

    @property
    def redirect_port(self) -> int:
        """The port of the redirect that the client is registered with; 0 for none."""
        port = self._held.get("redirect_port", 0)
        return port if isinstance(port, int) and 0 <= port < 1 << 16 else 0

    async def get_tokens(self) -> OAuthToken | None:
        """The stored tokens."""
        return _read(OAuthToken, self._held.get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store new tokens."""
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self._keep(tokens=tokens.model_dump(mode="json", exclude_none=True), expires_at=expires_at)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The client that casemate is registered as."""
        return _read(OAuthClientInformationFull, self._held.get("registered"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Store the client that casemate is registered as."""
        await self._keep(registered=client_info.model_dump(mode="json", exclude_none=True))

    def metadata(self) -> OAuthMetadata | None:
        """The authorization server's metadata."""
        return _read(OAuthMetadata, self._held.get("metadata"))

    async def keep_context(self, metadata: OAuthMetadata | None, redirect_port: int) -> None:
        """Store what is needed to renew a token."""
        dumped = None if metadata is None else metadata.model_dump(mode="json", exclude_none=True)
        await self._keep(metadata=dumped, redirect_port=redirect_port)

    async def _keep(self, **changes: Any) -> None:
        self._held = {**self._held, "owner": self._owner, **changes}
        with contextlib.suppress(CasemateError):  # the vault is read-only, or the token too long: it is only held here
            await asyncio.to_thread(self._store.set, self._name, json.dumps(self._held))


def _read(model: type[Model], held: Any) -> Model | None:
    from pydantic import ValidationError

    try:
        return model.model_validate(held) if held else None
    except ValidationError:
        return None


DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL, _SHORTEST, _LONGEST, _SLOWER = 5.0, 0.1, 60.0, 5.0  # seconds between two polls (RFC 8628, 3.5)
_OK = 200


class DeviceFlow:
    """The device flow of RFC 8628. One sign-in at a time."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self._interval = _INTERVAL
        self.page = self.user_code = ""  # the page for the user, and the code to enter there
        self.data: dict[str, str] = {}  # the form that requests the token

    async def begin(self, issuer: str, client_id: str, scope: str | None, resource: str) -> None:
        """Get a code from the authorization server. Raises ``OAuthFlowError`` if it gives none."""
        endpoint = await self._endpoint(issuer)
        form = {"client_id": client_id, "resource": resource, **({"scope": scope} if scope else {})}
        response = await self._client.post(endpoint, data=form)
        answer = _json(response)
        if response.status_code != _OK:
            raise OAuthFlowError(f"no device code was given: {visible(str(answer.get('error', ''))[:200])}")
        texts = [answer.get(key) for key in ("device_code", "user_code", "verification_uri")]
        if not all(isinstance(text, str) and text for text in texts):
            raise OAuthFlowError("the answer to the request for a device code lacks fields that RFC 8628 requires")
        device_code, self.user_code, self.page = (str(text) for text in texts)
        interval = answer.get("interval")
        self._interval = (
            min(max(float(interval), _SHORTEST), _LONGEST) if isinstance(interval, int | float) else _INTERVAL
        )
        self.data = {
            "grant_type": DEVICE_GRANT,
            "device_code": device_code,
            "client_id": client_id,
            "resource": resource,
        }

    async def poll(self, response: httpx2.Response) -> httpx2.Response:
        """Poll until the user has signed in. ``response``: to the first request. Raises ``OAuthFlowError``."""
        while True:
            await response.aread()
            if response.status_code == _OK:
                return response
            error = str(_json(response).get("error", f"HTTP {response.status_code}"))
            if error == "slow_down":
                self._interval = min(self._interval + _SLOWER, _LONGEST)
            elif error != "authorization_pending":
                raise OAuthFlowError(f"the sign-in was refused: {visible(error[:200])}")
            await asyncio.sleep(self._interval)
            asked = response.request
            headers = {name: asked.headers[name] for name in ("content-type", "authorization") if name in asked.headers}
            again = self._client.build_request("POST", asked.url, content=asked.content, headers=headers)
            response = await self._client.send(again)

    async def _endpoint(self, issuer: str) -> str:
        """Find the endpoint for device codes, which the SDK's metadata lack."""
        for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, issuer):
            response = await self._client.get(url)
            if response.status_code != _OK:
                continue
            metadata = _json(response)
            endpoint = metadata.get("device_authorization_endpoint")
            is_theirs = str(metadata.get("issuer", "")).rstrip("/") == issuer.rstrip("/")
            if is_theirs and isinstance(endpoint, str) and urlsplit(endpoint).scheme in ("http", "https"):
                return endpoint
        raise OAuthFlowError("its authorization server does not support device codes (RFC 8628)")


def _json(response: httpx2.Response) -> dict[str, Any]:
    try:
        value = json.loads(response.content)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


_CLIENT_NAME = "casemate"
_MOST_PROMPTS = 2  # sign-ins for one connection; the second is for more scopes or an expired token
_PERSON_SECONDS = 300.0  # for a person to sign in
_MOST_URL = 8_000  # characters of a page's address
_CODE = re.compile(r"[!-~]{0,64}")  # to enter on a page; it is shown at a terminal
Came = TypeVar("Came")
Waiting = Callable[[], AbstractContextManager[None]]


@asynccontextmanager
async def signed_in(
    server: str,
    url: str,
    sign_in: SignIn,
    surroundings: Surroundings,
    waiting: Waiting,
    addresses: Addresses,
) -> AsyncGenerator[httpx2.Auth]:
    """Make an auth handler that adds a token to each request and gets one if needed. ``waiting``: a block that waits
    for a person. Raises ``VaultUnavailable`` and ``ToolUnavailable``."""
    tokens = OAuthTokens(surroundings.secrets, server, url, sign_in.client_id)
    await tokens.load()
    show = _Showing(server, surroundings, waiting)
    if sign_in.grant == "client_credentials":
        yield _Credentials(url, tokens, sign_in)
    elif sign_in.grant == "device":
        async with http_client(url, {}, addresses=addresses) as client:
            yield _Device(url, tokens, sign_in, show, client)
    else:
        with contextlib.closing(_port(server, sign_in, tokens)) as loopback:
            yield _Browser(url, tokens, sign_in, show, loopback)


class _Showing:
    def __init__(self, server: str, surroundings: Surroundings, waiting: Waiting) -> None:
        self._server = server
        self._surroundings = surroundings
        self.waiting = waiting
        self._shown = 0

    async def show(self, url: str, code: str = "") -> None:
        """Show the page. Raises ``CasemateError`` if it cannot be shown, and ``OAuthFlowError`` for an unsafe URL."""
        self._shown += 1
        if self._shown > _MOST_PROMPTS:
            why = f"the server {self._server!r} asks for a sign-in too often"
            raise ToolUnavailable(self._server, why, reason="sign-in")
        if len(check_url(url, "url")) > _MOST_URL or not _CODE.fullmatch(code):
            raise OAuthFlowError("the page or the code to sign in with cannot be shown: it is too long or not plain")
        if urlsplit(url).scheme != "https" and not is_loopback(urlsplit(url).hostname or ""):
            raise OAuthFlowError(f"the page to sign in at is not https: {visible(url[:200])}")
        prompt = SignInPrompt(self._server, url, code)
        await asyncio.to_thread(self._surroundings.on_sign_in or show_sign_in, prompt)

    async def wait_for(self, coming: Awaitable[Came]) -> Came:
        """Wait until the person has signed in. Raises ``ToolUnavailable`` after 5 minutes."""
        try:
            async with asyncio.timeout(_PERSON_SECONDS):
                return await coming
        except TimeoutError:
            why = f"the server {self._server!r}: nobody signed in within {_PERSON_SECONDS:g} s"
            raise ToolUnavailable(self._server, why, reason="sign-in") from None


def _port(server: str, sign_in: SignIn, tokens: OAuthTokens) -> Loopback:
    """Reserve the port that the client is registered with, if it is free: some servers accept no other."""
    try:
        return Loopback(sign_in.redirect_port) if sign_in.redirect_port else Loopback(tokens.redirect_port, 0)
    except OSError as error:
        why = f"port {sign_in.redirect_port}, for the redirect of a sign-in, cannot be used: {error.strerror}"
        raise ToolUnavailable(server, f"the server {server!r}: {why}", reason="sign-in") from None


def _asks_for(sign_in: SignIn, grant: str, redirect: str | None) -> OAuthClientMetadata:
    return OAuthClientMetadata(
        client_name=_CLIENT_NAME,
        redirect_uris=None if redirect is None else [AnyUrl(redirect)],
        grant_types=[grant, "refresh_token"],
        response_types=["code"] if redirect is not None else [],
        token_endpoint_auth_method="client_secret_post" if sign_in.client_secret else "none",
        scope=sign_in.scope or None,
    )


class _TokenProvider(OAuthClientProvider):
    """The SDK's provider with the additional data of `OAuthTokens`, so that an expired token is renewed first."""

    tokens: OAuthTokens
    sign_in: SignIn

    async def _initialize(self) -> None:
        await super()._initialize()
        self.context.token_expiry_time = self.tokens.expires_at
        if self.context.oauth_metadata is None:
            self.context.oauth_metadata = self.tokens.metadata()
        if self.sign_in.client_id:
            self.context.client_info = _make_client_information(self.sign_in, self.context.client_metadata)
        self._choose_authentication()

    async def _keep(self, port: int = 0) -> None:
        await self.tokens.keep_context(self.context.oauth_metadata, port)

    def _choose_authentication(self) -> None:
        """Choose how a client from the definition authenticates. For others their registration says it."""
        client = self.context.client_info
        if self.sign_in.client_id and self.sign_in.client_secret and client is not None:
            client.token_endpoint_auth_method = _secret_goes(self.context.oauth_metadata)

    def _check_issuer(self) -> None:
        """Raise ``OAuthFlowError`` unless the authorization server is the one in the definition."""
        self._choose_authentication()
        metadata, wanted = self.context.oauth_metadata, self.sign_in.issuer.rstrip("/")
        if wanted and (metadata is None or str(metadata.issuer).rstrip("/") != wanted):
            raise OAuthFlowError(f"the server leads to another authorization server than {wanted}")


def _secret_goes(metadata: OAuthMetadata | None) -> Literal["client_secret_basic", "client_secret_post"]:
    """How to send a secret to an authorization server. Without metadata it goes in a header (RFC 8414, section 2)."""
    known = metadata.token_endpoint_auth_methods_supported if metadata is not None else None
    return "client_secret_basic" if known is None or "client_secret_basic" in known else "client_secret_post"


def _make_client_information(sign_in: SignIn, metadata: OAuthClientMetadata) -> OAuthClientInformationFull:
    return OAuthClientInformationFull(
        client_id=sign_in.client_id,
        client_secret=sign_in.client_secret or None,
        redirect_uris=metadata.redirect_uris,
        grant_types=metadata.grant_types,
        token_endpoint_auth_method=metadata.token_endpoint_auth_method,
        scope=metadata.scope,
    )


class _Browser(_TokenProvider):
    """Authorization code with PKCE."""

    def __init__(self, url: str, tokens: OAuthTokens, sign_in: SignIn, showing: _Showing, loopback: Loopback) -> None:
        metadata = _asks_for(sign_in, "authorization_code", loopback.url)
        super().__init__(
            url, metadata, cast(Any, tokens), self._begin, self._come_back, sign_in.client_metadata_url or None
        )
        self.tokens, self.sign_in = tokens, sign_in
        self._showing = showing
        self._loopback = loopback
        self._page = ""

    async def _initialize(self) -> None:
        await super()._initialize()
        is_elsewhere = self.tokens.redirect_port != self._loopback.port
        if is_elsewhere and not self.sign_in.client_id and not self.context.can_refresh_token():
            self.context.client_info = None  # the client was registered with another port

    async def _begin(self, page: str) -> None:
        self._check_issuer()
        self._page = page

    async def _come_back(self) -> AuthorizationCodeResult:
        state = parse_qs(urlsplit(self._page).query)["state"][0]
        async with self._loopback.listen(state) as returned:
            with self._showing.waiting():
                await self._showing.show(self._page)
                came = await self._showing.wait_for(returned)
        if not came.get("code"):
            raise OAuthFlowError(f"the sign-in was refused: {visible(came.get('error', '')[:200])}")
        return AuthorizationCodeResult(code=came["code"], state=state, iss=came.get("iss"))

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await super()._handle_token_response(response)
        await self._keep(self._loopback.port)


class _Device(_TokenProvider):
    """A code that the user enters on another device."""

    def __init__(
        self, url: str, tokens: OAuthTokens, sign_in: SignIn, showing: _Showing, client: httpx2.AsyncClient
    ) -> None:
        super().__init__(url, _asks_for(sign_in, DEVICE_GRANT, None), cast(Any, tokens))
        self.tokens, self.sign_in = tokens, sign_in
        self._showing = showing
        self._flow = DeviceFlow(client)

    async def _perform_authorization(self) -> httpx2.Request:
        self._check_issuer()
        metadata, client = self.context.oauth_metadata, self.context.client_info
        if metadata is None or client is None:
            raise OAuthFlowError("the server does not name its authorization server")
        with self._showing.waiting():
            resource = self.context.get_resource_url()
            await self._flow.begin(str(metadata.issuer), client.client_id, self.context.client_metadata.scope, resource)
            await self._showing.show(self._flow.page, self._flow.user_code)
        data, headers = self.context.prepare_token_auth(self._flow.data, {})
        return httpx2.Request("POST", self._get_token_endpoint(), data=data, headers=headers)

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        with self._showing.waiting():
            response = await self._showing.wait_for(self._flow.poll(response))
        await super()._handle_token_response(response)
        await self._keep()


class _Credentials(ClientCredentialsOAuthProvider):
    """The client's credentials, without a person."""

    def __init__(self, url: str, tokens: OAuthTokens, sign_in: SignIn) -> None:
        super().__init__(
            url, cast(Any, tokens), sign_in.client_id, sign_in.client_secret, scope=sign_in.scope or None,
            issuer=sign_in.issuer,
        )  # fmt: skip
        self._tokens = tokens

    async def _initialize(self) -> None:
        await super()._initialize()
        self.context.token_expiry_time = self._tokens.expires_at

    async def _perform_authorization(self) -> httpx2.Request:
        if self.context.client_info is not None:
            self.context.client_info.token_endpoint_auth_method = _secret_goes(self.context.oauth_metadata)
        return await super()._perform_authorization()
