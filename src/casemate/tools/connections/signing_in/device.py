"""A sign-in on another device: the user enters a code there, and we ask until that was done (RFC 8628)."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls

from casemate.visible import visible

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

    async def granted(self, response: httpx2.Response) -> httpx2.Response:
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
