"""The service as an ASGI application. ``casemate serve`` uses the same checks and bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from casemate.errors import CasemateError, Denied, Fault, InvalidArgument, NotFound, Unavailable
from casemate.model.operation import Audience, Principal
from casemate.operations.catalogue import catalogue
from casemate.operations.documents import error_document
from casemate.operations.invoke import local, no_operation
from casemate.operations.stores import MOST_BYTES
from casemate.remote.sse import frame_event
from casemate.surfaces.http.console import Console, credential_of
from casemate.surfaces.http.exchange import TURNS, Exchange, Gone, Receive, Scope, Send, Shares, send_events
from casemate.surfaces.http.identity import (
    CONSOLE,
    PAGES,
    Admitted,
    Headers,
    Listener,
    Refused,
    check_place,
    check_principal,
    read_headers,
    reduce_principal,
    token_of,
    user_of,
)
from casemate.surfaces.http.openapi import describe_service
from casemate.telemetry.rows import within_caller
from casemate.version import INSTALLATION, __version__, how_to_install, installation

if TYPE_CHECKING:
    from casemate.surfaces.http.service import Service

_OF_KIND = {
    "invalid": 400, "denied": 403, "not_found": 404, "failed": 409, "unavailable": 501, "record": 507, "closed": 503,
    "fault": 500, "busy": 429, "refused": 400, "not_proved": 409,
}  # fmt: skip
_RETRY_AFTER = {"closed": "2"}  # seconds; the next command starts a service that has ended


def status_of(error: CasemateError) -> int:
    """The HTTP status of an error, by its kind."""
    return _OF_KIND.get(error.kind, 500)


def retry_after(told: Mapping[str, Any]) -> str | None:
    """The Retry-After header for an error document, in whole seconds; None if a retry would not help."""
    if "retry_after" in told:
        return str(math.ceil(float(told["retry_after"])))
    return _RETRY_AFTER.get(str(told.get("kind")))


Application = Callable[[Scope, Receive, Send], Awaitable[None]]
VERSION = "v1"
_METRICS, _METRICS_TYPE = "/metrics", "text/plain; version=0.0.4; charset=utf-8"
MOST_MOUNTED = 8 * 2**20  # bytes of a request to a mounted application, such as a file that a model writes
_log = logging.getLogger("casemate.service")


async def answer_request(
    scope: Scope, receive: Receive, send: Send, listener: Listener, admit: Callable[[Exchange], Awaitable[None]]
) -> None:
    """Answer one request (ASGI 3) that came in at ``listener``; ``admit`` authenticates and answers it. What it raises
    becomes an error answer, unless the answer has started. Unexpected exceptions are raised again."""
    if scope["type"] != "http":
        return
    await TURNS.take()
    began = time.monotonic()
    exchange = Exchange(scope, receive, send, {})
    try:
        exchange.head = read_headers(scope["headers"])
        check_place(exchange.head, exchange.path, listener)
        await admit(exchange)
    except Gone:
        exchange.status = exchange.status or 499
    except Refused as refused:
        reason = {"kind": "denied" if refused.status in (401, 403, 421) else "invalid", "message": refused.message}
        await _send_error(exchange, refused.status, {**reason, "remediation": refused.remediation}, refused.allow)
    except CasemateError as error:
        await _send_error(exchange, status_of(error), error_document(error))
    except Exception as error:
        if isinstance(error, ImportError) and installation() != INSTALLATION:
            gone = Unavailable(
                "casemate was removed or reinstalled while this service ran, and what this needs is gone",
                remediation="casemate service stop; the next command starts it.",
            )
            await _send_error(exchange, status_of(gone), error_document(gone))
            return
        _log.exception("a request failed", extra={"event": "fault", "path": _known_path(exchange.path)})
        fault = Fault("casemate itself failed; its log has more", remediation="casemate service logs")
        await _send_error(exchange, 500, error_document(fault))
        raise
    finally:
        if exchange.status >= 400:
            _note(exchange, time.monotonic() - began)


async def hand_over(exchange: Exchange, app: Application, scope: Scope) -> None:
    """Have another application answer. A POST body is read first, within the bounds of :meth:`Exchange.body`."""
    receive = exchange.receive
    if exchange.method == "POST":
        receive = exchange.again(await exchange.body(MOST_MOUNTED))
    await app(scope, receive, exchange.send)


async def _send_error(exchange: Exchange, status: int, told: Mapping[str, Any], allow: str = "") -> None:
    """Send the typed error body; ``allow``: its Allow header. Once the answer has started, an event stream gets a
    last ``error`` event; any other answer is cut off, and the connection ends."""
    if exchange.status:
        if exchange.takes_event:
            with contextlib.suppress(Gone):
                await exchange.more(frame_event("error", told))
                await exchange.end()
        return
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    if allow:
        headers["allow"] = allow
    if (after := retry_after(told)) is not None:
        headers["retry-after"] = after
    headers["connection"] = "close"  # the rest of the body is not read
    with contextlib.suppress(Gone):
        await exchange.answer(status, {"error": told}, headers)


def _note(exchange: Exchange, seconds: float) -> None:
    told = {"method": exchange.method, "path": _known_path(exchange.path), "status": exchange.status}
    more = {"seconds": round(seconds, 4), "principal": exchange.caller}
    _log.info("request", extra={"event": "request", **told, **more})


def _known_path(path: str) -> str:
    """A path for the log: in full only for an operation, since any other may hold anything."""
    name = path.removeprefix(f"/{VERSION}/").replace("/", ".")
    return path if name in catalogue() else "/".join(path.split("/")[:3])[:60]


_ANSWERS = frozenset({"approvals.decide", "approvals.deny_all"})
_DECIDES = _ANSWERS | {"tools.call"}  # only for principals that may approve: no approver is asked about such a call
_OF_ALL = frozenset({"audit.prune"})  # concern all namespaces, so only the user may call them


class HttpApplication:
    """The application at one listener. Mounted applications find ``casemate.principal`` and ``casemate.operations``
    (an awaitable) in their scope."""

    def __init__(
        self,
        service: Service,
        listener: Listener,
        admitted: Admitted,
        settings: Mapping[str, str],  # hashes of the settings that the service was started with
        mounts: Mapping[str, Application] | None = None,  # other applications, by the first part of their paths
        console: Console | None = None,
    ) -> None:
        self._service = service
        self._listener = listener
        self._admitted = admitted
        self._settings = settings
        self._mounts = mounts or {}
        self._console = console
        self._shares = Shares()

    @cached_property
    def _router(self) -> Router:
        """Made at the first request: loading the catalogue is slow."""
        register_url_convertor("operation", _NamePattern("|".join(name.replace(".", "/") for name in catalogue())))
        register_url_convertor("archive", _NamePattern("[A-Za-z0-9_-]{32}"))  # anything else is a misspelt operation
        routes: dict[str, tuple[str, Callable[..., Awaitable[None]]]] = {
            "/openapi.json": ("GET", self._send_openapi),
            f"/{VERSION}/health": ("GET", self._send_health),
            _METRICS: ("GET", self._send_metrics),
            f"/{VERSION}/service/stop": ("POST", self._stop),
            f"/{VERSION}/service/console": ("POST", self._open_console),
            f"/{VERSION}/uploads": ("PUT", self._upload),
            f"/{VERSION}/{{path:operation}}": ("POST", self._operation),
            f"/{VERSION}/artifacts/{{run}}/{{name:path}}": ("GET", self._send_file),
            f"/{VERSION}/files/{{session}}/{{name:path}}": ("GET", self._send_file),
            f"/{VERSION}/archives/{{handle:archive}}": ("GET", self._send_archive),
        }
        return Router([_route(path, *route) for path, route in routes.items()], redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer_request(scope, receive, send, self._listener, partial(self._admit, scope))

    async def _admit(self, scope: Scope, exchange: Exchange) -> None:
        """Authenticate the request, and answer it for as long as its token is valid."""
        if exchange.path == f"/{VERSION}/health" and exchange.method == "GET" and self._is_stranger(exchange):
            status = "draining" if self._service.is_draining else "ok"
            closes = {"connection": "close"}  # an unauthenticated client keeps no connection
            await exchange.answer(503 if self._service.is_draining else 200, {"status": status}, closes)
        elif self._listener.kind == "unix":
            await self._answer(scope, exchange, user_of(exchange.head))
        elif self._console is not None and self._console.has_page(exchange.path):
            with self._shares.of("", PAGES):  # all unauthenticated clients share one account
                await self._console.answer(exchange)
        else:
            is_page = exchange.head.get(CONSOLE) is not None
            token = exchange.credential = credential_of(exchange) if is_page else token_of(exchange.head)
            principal = check_principal(exchange.head, self._admitted.principal_of(token))
            async with self._admitted.while_it_holds(token, principal):
                await self._answer(scope, exchange, principal)

    async def _answer(self, scope: Scope, exchange: Exchange, known: Principal) -> None:
        if known.audience is Audience.METRICS and exchange.path != _METRICS:
            raise Denied(f"{known.name!r} may read the metrics, and nothing else")
        principal = reduce_principal(exchange.head, known)
        exchange.caller = principal.name
        mounted = self._mounts.get(exchange.path.removeprefix("/").partition("/")[0])
        is_work = not exchange.path.endswith(("/health", _METRICS))
        self._service.connections += is_work
        try:
            with self._shares.of(principal.namespace, principal.payer) as exchange.share:
                if mounted is not None:
                    scope["casemate.principal"] = principal
                    scope["casemate.operations"] = lambda: self._service.operations(principal.namespace)
                    await hand_over(exchange, mounted, scope)
                else:
                    await self._serve(scope, exchange, principal)
        finally:
            self._service.connections -= is_work

    def _is_stranger(self, exchange: Exchange) -> bool:
        """Whether the request has no credentials: anyone may ask whether the service runs."""
        says_who = (exchange.head.get("authorization"), exchange.head.get(CONSOLE))
        return self._listener.kind == "tcp" and says_who == (None, None)

    async def _serve(self, scope: Scope, exchange: Exchange, principal: Principal) -> None:
        scope.update({"app": self, "casemate.exchange": exchange, "casemate.principal": principal})
        try:
            with within_caller(exchange.head.get):
                await self._router(scope, exchange.receive, exchange.send)
        except HTTPException as error:
            raise _nothing_at(exchange, (error.headers or {}).get("Allow", "")) from None

    async def _send_openapi(self, exchange: Exchange, _principal: Principal) -> None:
        await exchange.answer(200, describe_service())

    async def _send_health(self, exchange: Exchange, _principal: Principal) -> None:
        told = {
            "status": "draining" if self._service.is_draining else "ok",
            "version": __version__,
            "installation": INSTALLATION,
            "is_idle": self._service.is_idle,
            "activity": self._service.activity(),
            "settings": dict(self._settings) if self._listener.kind == "unix" else {},  # for the user only
        }
        await exchange.answer(200, told)

    async def _send_metrics(self, exchange: Exchange, principal: Principal) -> None:
        if principal.audience is Audience.AGENT:
            raise Denied("metrics cover all namespaces", remediation="casemate service token add --metrics")
        from casemate.telemetry.metrics import prometheus

        if (write := prometheus()) is None:
            raise Unavailable("prometheus-client is not installed", remediation=how_to_install("telemetry"))
        text = await asyncio.to_thread(write)
        await exchange.begin(200, {"content-type": _METRICS_TYPE, "content-length": str(len(text))})
        await exchange.more(text)
        await exchange.end()

    async def _operation(self, exchange: Exchange, principal: Principal, *, path: str) -> None:
        name = path.replace("/", ".")
        operation = catalogue()[name]
        if name in _DECIDES and not principal.may_approve:
            raise Denied(
                f"{principal.name!r} may not answer approval requests, nor call tools without one",
                remediation="It needs a token that may approve.",
            )
        if name in _OF_ALL and self._listener.kind != "unix":
            raise Denied(
                f"{name} concerns the record of all namespaces: only the user may call it, on the service's machine",
                remediation=f"casemate {name.replace('.', ' ')}",
            )
        if name in _ANSWERS and principal.audience is Audience.AGENT and exchange.head.get("casemate-as") is None:
            raise Denied(
                "an agent may not answer its own approval requests",
                remediation="An operator answers, or the person at an MCP client that shows questions.",
            )
        arguments = _arguments(await exchange.body())
        if not operation.while_draining:
            self._service.check_takes_work()
        invoke = local(await self._service.operations(principal.namespace), principal)
        if operation.streams:
            cursor = _cursor(exchange.head)
            takes = cursor is not None and "cursor" in operation.params.model_fields
            events = invoke.stream(name, arguments, cursor=cursor if takes else None)
            await exchange.unless_gone(send_events(exchange, events))
            return
        value = await exchange.unless_gone(invoke(name, arguments))
        await exchange.answer(200, value)

    async def _upload(self, exchange: Exchange, principal: Principal) -> None:
        self._service.check_takes_work()
        operations = await self._service.operations(principal.namespace)
        handle = await operations.uploads.store_bytes(exchange.pieces(MOST_BYTES), principal)
        await exchange.answer(200, {"handle": handle})

    async def _send_file(self, exchange: Exchange, principal: Principal, *, name: str, **of: str) -> None:
        """``of``: ``run`` or ``session``."""
        operations = await self._service.operations(principal.namespace)
        await _send_bytes(exchange, operations.files.chunks(name, **of, principal=principal))

    async def _send_archive(self, exchange: Exchange, principal: Principal, *, handle: str) -> None:
        operations = await self._service.operations(principal.namespace)
        await _send_bytes(exchange, operations.archives.chunks(handle, principal))

    async def _open_console(self, exchange: Exchange, principal: Principal) -> None:
        """Answer with a link that opens one console session. ``{"port": 8000}`` picks the port of the user's link."""
        if principal.audience is not Audience.OPERATOR or self._console is None:
            raise Denied("the console is for operators", remediation="casemate service token add --operator")
        wanted = _arguments(await exchange.body())
        await exchange.answer(200, self._console.make_link(principal, exchange.credential, wanted.get("port", 0)))

    async def _stop(self, exchange: Exchange, principal: Principal) -> None:
        """End the service; with ``{"if_idle": true}`` only if nothing but this request is active."""
        if self._listener.kind != "unix" or principal.audience is not Audience.OPERATOR:
            raise Denied("the service is ended by its user, on its machine", remediation="casemate service stop")
        wanted = _arguments(await exchange.body())
        activity = self._service.activity()
        if wanted.get("if_idle") is True and (any(activity.values()) and activity != _ALONE):
            raise InvalidArgument("if_idle", f"it is not idle: {json.dumps(activity)}")
        self._service.stop()
        await exchange.answer(200, {"status": "draining"})


_A_BODY_IS = 'A body is a JSON object (RFC 8259) with the arguments by name, in UTF-8, or empty: {"run": "..."}.'
_ALONE = {"runs": 0, "waiting": 0, "sessions": 0, "requests": 1}


class _Endpoint:
    """A route's ASGI application: calls ``answer`` with the exchange, the principal and the path's parameters."""

    def __init__(self, answer: Callable[..., Awaitable[None]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        await self._answer(scope["casemate.exchange"], scope["casemate.principal"], **scope["path_params"])


def _route(path: str, method: str, answer: Callable[..., Awaitable[None]]) -> Route:
    route = Route(path, _Endpoint(answer), methods=[method])
    route.methods = {method}  # HEAD would come with GET
    return route


class _NamePattern(Convertor[str]):
    def __init__(self, regex: str) -> None:
        self.regex = regex  # type: ignore[misc]  # declared on the class, but Starlette registers instances

    def convert(self, value: str) -> str:
        return value

    to_string = convert


async def _send_bytes(exchange: Exchange, chunks: AsyncGenerator[bytes]) -> None:
    """Send bytes as a download, so that a browser does not render them."""
    try:
        first = await anext(chunks, b"")
        kind_of = {"content-type": "application/octet-stream", "content-disposition": "attachment"}
        await exchange.begin(200, {**kind_of, "content-security-policy": "sandbox"})
        if first:
            await exchange.more(first)
        async for chunk in chunks:
            await exchange.more(chunk)
        await exchange.end()
    finally:
        await chunks.aclose()


def _nothing_at(exchange: Exchange, allow: str) -> Exception:
    """The error for a path without a route, or with none for this method: 405 (RFC 9110, section 15.5.6)."""
    path, method = exchange.path, exchange.method
    if allow:
        what = f"{path[:100]!r} does not accept {method[:20]!r}"
        return Refused(405, what, f"Send it with {allow}: GET /openapi.json describes it.", allow=allow)
    if method == "POST" and path.startswith(f"/{VERSION}/"):
        return no_operation(path.removeprefix(f"/{VERSION}/").replace("/", "."))
    return NotFound(
        "path",
        f"nothing is served at {method[:20]} {path[:100]!r}",
        remediation="GET /openapi.json lists all paths.",
    )


def _arguments(body: bytes) -> dict[str, Any]:
    """The arguments in a body; none if it is empty. Only UTF-8 is decoded, which is what `check_shape` counts."""
    try:
        found = json.loads(body.decode("utf-8-sig") or "{}", parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("body", f"is not JSON: {error}", remediation=_A_BODY_IS) from None
    if not isinstance(found, dict):
        raise InvalidArgument("body", "must be a JSON object of arguments", remediation=_A_BODY_IS)
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _cursor(head: Headers) -> int | None:
    last = head.get("last-event-id")
    if last is None:
        return None
    if not last.isascii() or not last.isdigit() or len(last) > 15:
        raise Refused(
            400, "this service did not send that Last-Event-ID", "Send the id of the last event received, or none."
        )
    return int(last)
