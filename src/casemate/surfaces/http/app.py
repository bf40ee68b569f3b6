"""The service as an ASGI application: who asks, what for, and the answer."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from casemate.errors import Denied, InvalidArgument, NotFound
from casemate.model.operation import Audience, Principal
from casemate.operations.catalogue import catalogue
from casemate.operations.invoke import local, no_operation
from casemate.operations.stores import MOST_BYTES
from casemate.surfaces.http.entry import VERSION, Application, answer_request, hand_over
from casemate.surfaces.http.exchange import Exchange, Receive, Scope, Send, Shares, send_events
from casemate.surfaces.http.identity import (
    Admitted,
    Headers,
    Listener,
    Refused,
    check_principal,
    reduce_principal,
    token_of,
    user_of,
)
from casemate.surfaces.http.openapi import document_of
from casemate.surfaces.http.service import describe

if TYPE_CHECKING:
    from casemate.surfaces.http.service import Service

_FIXED = {"openapi.json": "GET", "v1/health": "GET", "v1/service/stop": "POST", "v1/uploads": "PUT"}
_FILES = ("artifacts", "files")  # of one run or session: its handle follows, and a name in which there may be slashes


def method_of(path: str, operations: Container[str]) -> str:
    """The one method that ``path`` is for, which begins with a slash; empty where there is nothing. ``operations``: the
    names of all. A path right below ``/v1/archives`` may be an archive, or an operation that is misspelt."""
    plain = path.removeprefix("/")
    if plain in _FIXED:
        return _FIXED[plain]
    version, *parts = plain.split("/")
    if version != "v1":
        return ""
    if ".".join(parts) in operations:
        return "POST"
    return "GET" if len(parts) > 2 and parts[0] in _FILES else ""


_ANSWERS = frozenset({"approvals.decide", "approvals.deny_all"})  # what only those may do who may approve


class HttpApplication:
    """What listens at one place. ``admitted`` knows tokens; ``settings``: hashes of what the service was set by;
    ``mounts``: other applications by the first part of their paths, which find ``casemate.principal`` and
    ``casemate.operations`` (an awaitable) in their scope."""

    def __init__(
        self,
        service: Service,
        listener: Listener,
        admitted: Admitted,
        settings: Mapping[str, str],
        mounts: Mapping[str, Application] | None = None,
    ) -> None:
        self._service = service
        self._listener = listener
        self._admitted = admitted
        self._settings = settings
        self._mounts = mounts or {}
        self._shares = Shares()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request (ASGI 3)."""
        await answer_request(scope, receive, send, self._listener, partial(self._admit, scope))

    async def _admit(self, scope: Scope, exchange: Exchange) -> None:
        """Who asks; the rest is for those who may, as long as they may."""
        if exchange.path == f"/{VERSION}/health" and exchange.method == "GET" and self._is_stranger(exchange):
            status = "draining" if self._service.is_draining else "ok"
            closes = {"connection": "close"}  # who has not said who it is keeps nothing
            await exchange.answer(503 if self._service.is_draining else 200, {"status": status}, closes)
        elif self._listener.kind == "unix":
            await self._answer(scope, exchange, user_of(exchange.head))
        else:
            token = token_of(exchange.head)
            principal = check_principal(exchange.head, self._admitted.principal_of(token))
            async with self._admitted.while_it_holds(token, principal):
                await self._answer(scope, exchange, principal)

    async def _answer(self, scope: Scope, exchange: Exchange, whoever: Principal) -> None:
        principal = reduce_principal(exchange.head, whoever)
        exchange.caller = principal.name
        mounted = self._mounts.get(exchange.path.removeprefix("/").partition("/")[0])
        self._service.connections += not exchange.path.endswith("/health")
        try:
            with self._shares.of(principal.namespace, principal.payer) as exchange.share:
                if mounted is not None:
                    scope["casemate.principal"] = principal
                    scope["casemate.operations"] = lambda: self._service.operations(principal.namespace)
                    await hand_over(exchange, mounted, scope)
                else:
                    await self._serve(exchange, principal)
        finally:
            self._service.connections -= not exchange.path.endswith("/health")

    def _is_stranger(self, exchange: Exchange) -> bool:
        """Whether somebody asks who has not said who it is: whether the service is there may be known to all."""
        return self._listener.kind == "tcp" and exchange.head.get("authorization") is None

    async def _serve(self, exchange: Exchange, principal: Principal) -> None:
        version, _, path = exchange.path.removeprefix("/").partition("/")
        name = path.replace("/", ".")
        match exchange.method, version, path:
            case "GET", "openapi.json", "":
                await exchange.answer(200, document_of(catalogue()))
            case "GET", "v1", "health":
                await exchange.answer(200, describe(self._service, self._settings_told()))
            case "POST", "v1", "service/stop":
                await self._stop(exchange, principal)
            case "PUT", "v1", "uploads":
                await self._upload(exchange, principal)
            case "GET", "v1", _ if path.startswith(("artifacts/", "files/", "archives/")) and name not in catalogue():
                await self._file(exchange, principal, path)
            case "POST", "v1", _ if name in catalogue():
                await self._operation(exchange, principal, name)
            case _:
                raise _nothing_at(exchange)

    def _settings_told(self) -> Mapping[str, str]:
        """Of how it was set, to its own user alone."""
        return self._settings if self._listener.kind == "unix" else {}

    async def _operation(self, exchange: Exchange, principal: Principal, name: str) -> None:
        operation = catalogue()[name]
        if name in _ANSWERS and not principal.may_approve:
            raise Denied(
                f"{principal.name!r} may not answer requests", remediation="It needs a token that may approve."
            )
        arguments = _arguments(await exchange.body())
        self._service.check_takes(name)
        invoke = local(await self._service.operations(principal.namespace), principal)
        if operation.streams:
            cursor = _cursor(exchange.head)
            takes = cursor is not None and "cursor" in operation.params.model_fields
            await send_events(exchange, invoke.stream(name, arguments, cursor=cursor if takes else None))
            return
        value = await exchange.unless_gone(invoke(name, arguments))
        await exchange.answer(200, value)

    async def _upload(self, exchange: Exchange, principal: Principal) -> None:
        self._service.check_takes("uploads")
        operations = await self._service.operations(principal.namespace)
        handle = await operations.uploads.store_bytes(exchange.pieces(MOST_BYTES), principal)
        await exchange.answer(200, {"handle": handle})

    async def _file(self, exchange: Exchange, principal: Principal, path: str) -> None:
        """Bytes of what a run left, of a session's workspace, or of an archive, as no page would show them."""
        kind, _, rest = path.partition("/")
        of, _, name = rest.partition("/")
        operations = await self._service.operations(principal.namespace)
        if kind == "archives":
            chunks = operations.archives.chunks(of, principal)
        else:
            whose = {"run": of} if kind == "artifacts" else {"session": of}
            chunks = operations.files.chunks(name, **whose, principal=principal)
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

    async def _stop(self, exchange: Exchange, principal: Principal) -> None:
        """End the service: ``{"if_idle": true}`` only where nothing lives in it but this request."""
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


def _nothing_at(exchange: Exchange) -> Exception:
    """What is said of a path that there is not, or not with this method (405; RFC 9110, section 15.5.6)."""
    path, method = exchange.path, exchange.method
    if allowed := method_of(path, catalogue()):
        what = f"{path[:100]!r} is not for {method[:20]!r}"
        return Refused(405, what, f"Send it with {allowed}: GET /openapi.json describes it.", allow=allowed)
    if method == "POST" and path.startswith(f"/{VERSION}/"):
        return no_operation(path.removeprefix(f"/{VERSION}/").replace("/", "."))
    return NotFound(
        "path",
        f"there is nothing at {method[:20]} {path[:100]!r}",
        remediation="GET /openapi.json describes all that there is.",
    )


def _arguments(body: bytes) -> dict[str, Any]:
    """The arguments in a body; none in an empty one. It is read as what `check_shape` has counted: UTF-8 alone."""
    try:
        found = json.loads(body.decode("utf-8-sig") or "{}", parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("body", f"is not JSON: {error}", remediation=_A_BODY_IS) from None
    if not isinstance(found, dict):
        raise InvalidArgument("body", "is no JSON object of arguments", remediation=_A_BODY_IS)
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _cursor(head: Headers) -> int | None:
    last = head.get("last-event-id")
    if last is None:
        return None
    if not last.isascii() or not last.isdigit() or len(last) > 15:
        raise Refused(
            400, "Last-Event-ID is none that this service has sent", "Send the id of the last event that came, or none."
        )
    return int(last)
