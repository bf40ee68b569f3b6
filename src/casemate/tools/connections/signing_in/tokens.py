"""The tokens of one server, in the vault of its sandbox: of one address, so that another is never sent them."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from typing import TYPE_CHECKING, Any, TypeVar

from casemate.errors import CasemateError
from casemate.tools.connections.terms import SecretStore

if TYPE_CHECKING:
    from pydantic import BaseModel

    Model = TypeVar("Model", bound=BaseModel)
    from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken


def secret_name(server: str) -> str:
    """The name in the vault: readable, and another one for each server, however alike their names are."""
    digest = hashlib.sha256(server.encode()).hexdigest()[:8]
    return f"OAUTH_{re.sub('[^A-Z0-9]', '_', server.upper())}_{digest.upper()}"


class Tokens:
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
        from mcp.shared.auth import OAuthToken

        return _read(OAuthToken, self._held.get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep new ones."""
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self._keep(tokens=tokens.model_dump(mode="json", exclude_none=True), expires_at=expires_at)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Which client we were registered as."""
        from mcp.shared.auth import OAuthClientInformationFull

        return _read(OAuthClientInformationFull, self._held.get("registered"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep which client we were registered as."""
        await self._keep(registered=client_info.model_dump(mode="json", exclude_none=True))

    def metadata(self) -> OAuthMetadata | None:
        """What the authorization server said of itself."""
        from mcp.shared.auth import OAuthMetadata

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
