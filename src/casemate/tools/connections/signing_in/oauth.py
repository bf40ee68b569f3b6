"""Signing in to remote servers (OAuth 2.1 as of MCP's authorization): by the user's browser with PKCE, by a code that
is entered on another device (RFC 8628), or with credentials of the client's own. Tokens are renewed, and kept in the
vault. Discovery, registration, PKCE and the checks of issuers are the SDK's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any, Literal, cast
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthMetadata
from pydantic import AnyUrl

from casemate.errors import ToolUnavailable
from casemate.tools.connections.definition import SignIn, check_url
from casemate.tools.connections.remote import http_client, is_loopback
from casemate.tools.connections.signing_in.device import DEVICE_GRANT, DeviceFlow
from casemate.tools.connections.signing_in.loopback import Loopback
from casemate.tools.connections.signing_in.tokens import Tokens
from casemate.tools.connections.terms import SignInPrompt, Surroundings
from casemate.visible import visible

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
    tokens = Tokens(surroundings.secrets, server, url, sign_in.client_id)
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


def _port(server: str, sign_in: SignIn, tokens: Tokens) -> Loopback:
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


class _Kept(OAuthClientProvider):
    """The SDK's provider, with what `Tokens` remembers besides: so a token that has expired since is renewed first."""

    tokens: Tokens
    sign_in: SignIn

    async def _initialize(self) -> None:
        await super()._initialize()
        self.context.token_expiry_time = self.tokens.expires_at
        if self.context.oauth_metadata is None:
            self.context.oauth_metadata = self.tokens.metadata()
        if self.sign_in.client_id:
            self.context.client_info = _registered(self.sign_in, self.context.client_metadata)
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


def _registered(sign_in: SignIn, metadata: OAuthClientMetadata) -> OAuthClientInformationFull:
    """The client that the definition names."""
    return OAuthClientInformationFull(
        client_id=sign_in.client_id,
        client_secret=sign_in.client_secret or None,
        redirect_uris=metadata.redirect_uris,
        grant_types=metadata.grant_types,
        token_endpoint_auth_method=metadata.token_endpoint_auth_method,
        scope=metadata.scope,
    )


class _Browser(_Kept):
    """Authorization code with PKCE."""

    def __init__(self, url: str, tokens: Tokens, sign_in: SignIn, showing: _Showing, loopback: Loopback) -> None:
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
        async with self._loopback.listening(state) as returned:
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


class _Device(_Kept):
    """A code that the user enters elsewhere."""

    def __init__(
        self, url: str, tokens: Tokens, sign_in: SignIn, showing: _Showing, client: httpx2.AsyncClient
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
                    response = await self._flow.granted(response)
            except TimeoutError:
                raise self._showing.nobody_came() from None
        await super()._handle_token_response(response)
        await self._keep()


class _Credentials(ClientCredentialsOAuthProvider):
    """The client's own credentials, for where nobody is."""

    def __init__(self, url: str, tokens: Tokens, sign_in: SignIn) -> None:
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
