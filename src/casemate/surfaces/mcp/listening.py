"""The server at an address of its own, for clients that know its token."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse

from casemate.errors import Unavailable
from casemate.surfaces.mcp.doors import PRINCIPAL
from casemate.surfaces.mcp.web import Mounted, sse, streamable

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

    from casemate.surfaces.mcp.callers import Callers

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ENDS_WITHIN = 5  # seconds that open requests have when it ends


async def serve_http(
    server: Server[Callers], transport: str, host: str, port: int, token: str, say: Callable[[str], None]
) -> None:
    """Serve until a signal ends it. ``transport``: "http" or "sse"; ``say`` is told the address. Raises ``Unavailable``
    where it cannot listen there."""
    names = _LOOPBACK if host in _LOOPBACK else (host,)
    hosts = [f"[{name}]:*" if ":" in name else f"{name}:*" for name in names]
    mounted = streamable(server, hosts) if transport == "http" else sse(server, hosts)
    app = Authenticated(_application(mounted), token)
    web = uvicorn.Server(
        uvicorn.Config(
            app, host=host, port=port, log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=_ENDS_WITHIN,
        )
    )  # fmt: skip
    try:
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(web.serve())
            while not web.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
            if web.started:
                bound = web.servers[0].sockets[0].getsockname()[1]
                shown = f"[{host}]" if ":" in host else host
                say(f"listens at http://{shown}:{bound}/{'mcp' if transport == 'http' else 'sse'}")
    except* (OSError, SystemExit) as error:
        raise Unavailable(f"cannot listen at {host}:{port}: {error.exceptions[0]}") from None


class Authenticated:
    """An application for those who send the token as ``Authorization: Bearer``; 401 for everybody else."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._digest = hashlib.sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if not self._is_known(scope):
                refusal = JSONResponse({"error": "a token is needed"}, 401, {"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
            scope = {**scope, PRINCIPAL: "token"}
        await self._app(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        sent = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        scheme, _, token = (sent[0] if len(sent) == 1 else b"").partition(b" ")
        given = hashlib.sha256(token.strip()).digest()
        return scheme.lower() == b"bearer" and hmac.compare_digest(given, self._digest)


def _application(mounted: Mounted) -> Starlette:
    @contextlib.asynccontextmanager
    async def living(_app: Starlette) -> AsyncGenerator[None]:
        async with mounted.living:
            yield

    return Starlette(routes=list(mounted.routes), lifespan=living)
