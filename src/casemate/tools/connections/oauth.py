"""Signing in to remote servers (OAuth 2.1 as of MCP's authorization): by the user's browser with PKCE, by a code that
is entered on another device (RFC 8628), or with credentials of the client's own. Tokens are renewed, and kept in the
vault. Discovery, registration, PKCE and the checks of issuers are the SDK's."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import time
from collections.abc import AsyncGenerator, Callable
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
from casemate.tools.connections.browser import Loopback
from casemate.tools.connections.context import SecretStore, SignInPrompt, Surroundings
from casemate.tools.connections.definition import SignIn, check_url
from casemate.tools.connections.remote import http_client
from casemate.visible import visible

Model = TypeVar("Model", bound=BaseModel)


def secret_name(server: str) -> str:
    """The name in the vault: readable, and another one for each server, however alike their names are."""
    digest = hashlib.sha256(server.encode()).hexdigest()[:8]
    return f"OAUTH_{re.sub('[^A-Z0-9]', '_', server.upper())}_{digest.upper()}"


class OAuthTokens:
    """What is kept for ``server`` at ``url``; in memory alone where the vault keeps nothing (``is_kept``).

    It is the SDK's ``TokenStorage``, and remembers besides when a token expires and what was found out about who gave
    it, so that it can be renewed after a restart.
    """

    def __init__(self, store: SecretStore, server: str, url: str, client: str) -> None:
        """``client``: which client of the authorization server these are of; another's are forgotten."""
        self._store = store
        self._name = secret_name(server)
        self._owner = {"url": url, "client": client}
        self._held: dict[str, Any] = {}
        self.is_kept = True

    async def load(self) -> None:
        """Read what is kept. Raises ``CasemateError`` where the vault cannot be read."""
        text = await asyncio.to_thread(self._store.get, self._name)
        try:
            held = json.loads(text) if text else {}
        except ValueError:
            held = {}
        is_ours = isinstance(held, dict) and held.get("owner") == self._owner
        self._held = held if is_ours else {}

    @property
    def expires_at(self) -> float | None:
        """Seconds since the epoch; None where that is unknown."""
        expires = self._held.get("expires_at")
        return float(expires) if isinstance(expires, int | float) else None

    @property
    def redirect_port(self) -> int:
        """Where the client was registered to be come back to; 0 for nowhere."""
        port = self._held.get("redirect_port", 0)
        return port if isinstance(port, int) and 0 <= port < 1 << 16 else 0

    async def get_tokens(self) -> OAuthToken | None:
        """The tokens."""
        return _read(OAuthToken, self._held.get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep new ones."""
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self._keep(tokens=tokens.model_dump(mode="json", exclude_none=True), expires_at=expires_at)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Which client we were registered as."""
        return _read(OAuthClientInformationFull, self._held.get("registered"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep which client we were registered as."""
        await self._keep(registered=client_info.model_dump(mode="json", exclude_none=True))

    def metadata(self) -> OAuthMetadata | None:
        """What the authorization server said of itself."""
        return _read(OAuthMetadata, self._held.get("metadata"))

    async def keep_context(self, metadata: OAuthMetadata | None, redirect_port: int) -> None:
        """Keep what is needed to renew a token."""
        dumped = None if metadata is None else metadata.model_dump(mode="json", exclude_none=True)
        await self._keep(metadata=dumped, redirect_port=redirect_port)

    async def _keep(self, **changes: Any) -> None:
        self._held = {**self._held, "owner": self._owner, **changes}
        try:
            await asyncio.to_thread(self._store.set, self._name, json.dumps(self._held))
        except CasemateError:
            self.is_kept = False  # a store that is only read, or a token that is too long: for this process, then


def _read(model: type[Model], held: Any) -> Model | None:
    from pydantic import ValidationError

    try:
        return model.model_validate(held) if held else None
    except ValidationError:
        return None


DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL, _SHORTEST, _LONGEST, _SLOWER = 5.0, 0.1, 60.0, 5.0  # seconds between two questions (RFC 8628, 3.5)
_OK = 200


class DeviceFlow:
    """One sign-in at a time. ``page``: where the user goes; ``user_code``: what is entered there; ``data``: the form
    that asks for the token."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self._interval = _INTERVAL
        self.page = self.user_code = ""
        self.data: dict[str, str] = {}

    async def begin(self, issuer: str, client_id: str, scope: str | None, resource: str) -> None:
        """Have a code made at the authorization server. Raises ``OAuthFlowError`` where it offers none."""
        endpoint = await self._endpoint(issuer)
        form = {"client_id": client_id, "resource": resource, **({"scope": scope} if scope else {})}
        response = await self._client.post(endpoint, data=form)
        answer = _json(response)
        if response.status_code != _OK:
            raise OAuthFlowError(f"no code for a device was given: {visible(str(answer.get('error', ''))[:200])}")
        texts = [answer.get(key) for key in ("device_code", "user_code", "verification_uri")]
        if not all(isinstance(text, str) and text for text in texts):
            raise OAuthFlowError("the answer to a request for a device's code lacks what RFC 8628 asks for")
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
        """Ask again and again, until the user has done it. ``response``: to the first question. Raises
        ``OAuthFlowError`` where it was refused or took too long."""
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
            request = response.request
            again = self._client.build_request("POST", request.url, content=request.content, headers=_form(request))
            response = await self._client.send(again)

    async def _endpoint(self, issuer: str) -> str:
        """Where codes are given; the SDK's metadata leave that out."""
        for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, issuer):
            response = await self._client.get(url)
            if response.status_code != _OK:
                continue
            metadata = _json(response)
            endpoint = metadata.get("device_authorization_endpoint")
            is_theirs = str(metadata.get("issuer", "")).rstrip("/") == issuer.rstrip("/")
            if is_theirs and isinstance(endpoint, str) and urlsplit(endpoint).scheme in ("http", "https"):
                return endpoint
        raise OAuthFlowError("its authorization server offers no sign-in by a device (RFC 8628)")


def _json(response: httpx2.Response) -> dict[str, Any]:
    try:
        value = json.loads(response.content)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


def _form(request: httpx2.Request) -> dict[str, str]:
    kept = ("content-type", "authorization")
    return {name: request.headers[name] for name in kept if name in request.headers}


_CLIENT_NAME = "casemate"
_MOST_PROMPTS = 2  # sign-ins for one connection: a second for more scopes, or a token that ended
_PERSON_SECONDS = 300.0  # for a person to sign in
Waiting = Callable[[], AbstractContextManager[None]]


@asynccontextmanager
async def signed_in(
    server: str,
    url: str,
    sign_in: SignIn,
    surroundings: Surroundings,
    waiting: Waiting,
    addresses: tuple[str, ...] | Literal["public"] | None = None,
) -> AsyncGenerator[httpx2.Auth]:
    """What puts a token of ``server`` into each request to ``url``, and gets one first where there is none.

    ``waiting``: a block in which a person is waited for; ``addresses`` as of ``Remote``. Raises ``VaultUnavailable``,
    and ``ToolUnavailable`` where the port to come back to cannot be had.
    """
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
    """Shows a person where to go, and waits for what comes of it."""

    def __init__(self, server: str, surroundings: Surroundings, waiting: Waiting) -> None:
        self._server = server
        self._surroundings = surroundings
        self.waiting = waiting
        self._shown = 0

    async def show(self, url: str, code: str = "") -> None:
        """Raises ``CasemateError`` where there is nobody, and ``OAuthFlowError`` for a place to go that is none."""
        self._shown += 1
        if self._shown > _MOST_PROMPTS:
            why = f"the server {self._server!r} wants a sign-in again and again"
            raise ToolUnavailable(self._server, why, reason="sign-in")
        check_url(url, "url")
        if urlsplit(url).scheme != "https" and not is_loopback(urlsplit(url).hostname or ""):
            raise OAuthFlowError(f"the page to sign in at is not https: {visible(url[:200])}")
        prompt = SignInPrompt(self._server, url, visible(code[:100]))
        await asyncio.to_thread(self._surroundings.on_sign_in, prompt)

    def nobody_came(self) -> ToolUnavailable:
        """The error for a person that did not sign in."""
        why = f"the server {self._server!r}: nobody signed in within {_PERSON_SECONDS:g} s"
        return ToolUnavailable(self._server, why, reason="sign-in")


def _port(server: str, sign_in: SignIn, tokens: OAuthTokens) -> Loopback:
    """The port that the client was registered with, where it is free: some servers accept no other."""
    try:
        return Loopback(sign_in.redirect_port) if sign_in.redirect_port else Loopback(tokens.redirect_port, 0)
    except OSError as error:
        why = f"port {sign_in.redirect_port}, to come back to from a sign-in, cannot be had: {error.strerror}"
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
    """The SDK's provider, with what `Tokens` remembers besides: so a token that has expired since is renewed first."""

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
        """How a client that was registered before proves who it is; of others their registration says it."""
        client = self.context.client_info
        if self.sign_in.client_id and self.sign_in.client_secret and client is not None:
            client.token_endpoint_auth_method = _secret_goes(self.context.oauth_metadata)

    def _check_issuer(self) -> None:
        """Credentials are sent to nobody but whose they are, and as they are wanted there."""
        self._choose_authentication()
        metadata, wanted = self.context.oauth_metadata, self.sign_in.issuer.rstrip("/")
        if wanted and (metadata is None or str(metadata.issuer).rstrip("/") != wanted):
            raise OAuthFlowError(f"the server leads to another authorization server than {wanted}")


def _secret_goes(metadata: OAuthMetadata | None) -> Literal["client_secret_basic", "client_secret_post"]:
    """How a secret is sent to an authorization server; one that says nothing of it takes it in a header (RFC 8414,
    section 2)."""
    known = metadata.token_endpoint_auth_methods_supported if metadata is not None else None
    return "client_secret_basic" if known is None or "client_secret_basic" in known else "client_secret_post"


def _make_client_information(sign_in: SignIn, metadata: OAuthClientMetadata) -> OAuthClientInformationFull:
    """The client that the definition names."""
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
            self.context.client_info = None  # it was registered to be come back to another port

    async def _begin(self, page: str) -> None:
        self._check_issuer()
        self._page = page

    async def _come_back(self) -> AuthorizationCodeResult:
        state = parse_qs(urlsplit(self._page).query)["state"][0]
        async with self._loopback.listen(state) as returned:
            with self._showing.waiting():
                await self._showing.show(self._page)
                try:
                    async with asyncio.timeout(_PERSON_SECONDS):
                        came = await returned
                except TimeoutError:
                    raise self._showing.nobody_came() from None
        if not came.code:
            raise OAuthFlowError(f"the sign-in was refused: {visible(came.error[:200])}")
        return AuthorizationCodeResult(code=came.code, state=came.state, iss=came.iss)

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await super()._handle_token_response(response)
        await self._keep(self._loopback.port)


class _Device(_TokenProvider):
    """A code that the user enters elsewhere."""

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
            raise OAuthFlowError("the server does not say who signs people in")
        with self._showing.waiting():
            resource = self.context.get_resource_url()
            await self._flow.begin(str(metadata.issuer), client.client_id, self.context.client_metadata.scope, resource)
            await self._showing.show(self._flow.page, self._flow.user_code)
        data, headers = self.context.prepare_token_auth(self._flow.data, {})
        return httpx2.Request("POST", self._get_token_endpoint(), data=data, headers=headers)

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        with self._showing.waiting():
            try:
                async with asyncio.timeout(_PERSON_SECONDS):
                    response = await self._flow.poll(response)
            except TimeoutError:
                raise self._showing.nobody_came() from None
        await super()._handle_token_response(response)
        await self._keep()


class _Credentials(ClientCredentialsOAuthProvider):
    """The client's own credentials, for where nobody is."""

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
