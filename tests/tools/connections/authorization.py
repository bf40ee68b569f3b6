"""An authorization server of the tests' own, before an MCP server: what of RFC 6749, 7591, 7636, 8414, 8628, 9728 is
needed, checked as strictly as a real one does."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import Any
from urllib.parse import parse_qs, urlencode

from tests.tools.connections.web import Rough

DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


class Guarded:
    """``url`` is set once it is known. ``lives``: a token's lifetime in seconds; ``tokens``: valid tokens; ``log``: the
    requested grants."""

    def __init__(self, lives: int = 3600) -> None:
        self.url = ""
        self.issuer = ""
        self.lives = lives
        self.rough = Rough()
        self.clients: dict[str, dict[str, Any]] = {"robot": {"client_secret": "robots-own-secret", "redirect_uris": []}}
        self.codes: dict[str, dict[str, str]] = {}
        self.devices: dict[str, int] = {}
        self.user_code = "WDJB-MJHT"
        self.tokens: set[str] = set()
        self.renewals: set[str] = set()
        self.log: list[str] = []
        self.given: list[str] = []
        self.pages: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/mcp":
            given = dict(scope["headers"]).get(b"authorization", b"").decode()
            self.given.append(given)
            if given.removeprefix("Bearer ") in self.tokens:
                await self.rough(scope, receive, send)
                return
            where = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
            await _send(send, 401, {"error": "invalid_token"}, [(b"www-authenticate", where.encode())])
            return
        body = (await receive()).get("body", b"")
        status, answer, headers = self._answer(scope, body)
        await _send(send, status, answer, headers)

    def _answer(self, scope: Any, body: bytes) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        path = scope["path"]
        form = {name: values[0] for name, values in parse_qs(body.decode() or scope["query_string"].decode()).items()}
        if path == "/.well-known/oauth-protected-resource/mcp":
            return 200, {"resource": f"{self.url}/mcp", "authorization_servers": [self.issuer or self.url]}, []
        if path == "/.well-known/oauth-authorization-server":
            return 200, self._metadata(), []
        if path == "/register":
            client = json.loads(body)
            name = f"client-{len(self.clients)}"
            self.clients[name] = {**client, "client_id": name}
            self.log.append("register")
            return 201, self.clients[name], []
        if path == "/authorize":
            return self._authorize(form)
        if path == "/device":
            code = secrets.token_hex(8)
            self.devices[code] = 2
            uri = {"verification_uri": f"{self.url}/enter", "user_code": self.user_code}
            return 200, {"device_code": code, "interval": 0.1, "expires_in": 60, **uri}, []
        if path == "/token":
            header = dict(scope["headers"]).get(b"authorization", b"").decode()
            return *self._token(form, header), []
        return 404, {}, []

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url, "token_endpoint": f"{self.url}/token",
            "authorization_endpoint": f"{self.url}/authorize", "registration_endpoint": f"{self.url}/register",
            "device_authorization_endpoint": f"{self.url}/device",
            "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
        }  # fmt: skip

    def _authorize(self, form: dict[str, str]) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        self.pages.append(form)
        client = self.clients[form["client_id"]]
        assert form["redirect_uri"] in client["redirect_uris"]
        assert form["code_challenge_method"] == "S256"
        code = secrets.token_hex(8)
        self.codes[code] = form
        back = f"{form['redirect_uri']}?{urlencode({'code': code, 'state': form['state'], 'iss': self.url})}"
        return 302, b"", [(b"location", back.encode())]

    def _token(self, form: dict[str, str], header: str) -> tuple[int, Any]:
        grant = form["grant_type"]
        self.log.append(grant)
        if grant == "authorization_code":
            asked = self.codes.pop(form["code"])
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == asked["code_challenge"]
            assert form["redirect_uri"] == asked["redirect_uri"]
        elif grant == "refresh_token":
            if form["refresh_token"] not in self.renewals:
                return 400, {"error": "invalid_grant"}
        elif grant == "client_credentials":
            if header != "Basic " + base64.b64encode(b"robot:robots-own-secret").decode():
                return 401, {"error": "invalid_client"}
        else:
            assert grant == DEVICE
            self.devices[form["device_code"]] -= 1
            if self.devices[form["device_code"]] >= 0:
                return 400, {"error": "authorization_pending"}
        token, renewal = f"token-{secrets.token_hex(8)}", f"renewal-{secrets.token_hex(8)}"
        self.tokens.add(token)
        self.renewals.add(renewal)
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": self.lives}
        return 200, answer if grant == "client_credentials" else {**answer, "refresh_token": renewal}


async def _send(send: Any, status: int, answer: Any, headers: list[tuple[bytes, bytes]]) -> None:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", b"application/json"), *headers],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
