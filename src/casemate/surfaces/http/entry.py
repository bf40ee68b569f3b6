"""The checks that every request passes before anything answers it, and errors as answers.

The service and ``casemate serve`` have it in common, and so the bounds of what they read.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from casemate.errors import CasemateError, Fault
from casemate.operations.catalogue import catalogue
from casemate.operations.documents import error_document
from casemate.remote.sse import frame_event
from casemate.surfaces.http.exchange import TURNS, Exchange, Gone, Receive, Scope, Send
from casemate.surfaces.http.identity import Headers, Listener, Refused, check_place, read_headers

_OF_KIND = {
    "invalid": 400, "denied": 403, "not_found": 404, "failed": 409, "unavailable": 501, "record": 507, "closed": 503,
    "fault": 500, "busy": 429, "refused": 400,
}  # fmt: skip
_RETRY_AFTER = {"closed": "2"}  # seconds; a service that ends is started anew by whoever needs it


def status_of(error: CasemateError) -> int:
    """The HTTP status of an error by its kind."""
    return _OF_KIND.get(error.kind, 500)


def retry_after(told: Mapping[str, Any]) -> str | None:
    """The header of an error by its document: whole seconds, where trying again may help."""
    if "retry_after" in told:
        return str(math.ceil(float(told["retry_after"])))
    return _RETRY_AFTER.get(str(told.get("kind")))


Application = Callable[[Scope, Receive, Send], Awaitable[None]]
VERSION = "v1"
_MOST_MOUNTED = 8 * 2**20  # bytes of a request to another application, such as a file that a model writes
_log = logging.getLogger("casemate.service")


async def answer_request(
    scope: Scope, receive: Receive, send: Send, listener: Listener, admit: Callable[[Exchange], Awaitable[None]]
) -> None:
    """One request (ASGI 3) of somebody at ``listener``; ``admit`` says who that is, and answers. What it raises is
    answered with an error, unless the answer has begun. Raises what is no error of casemate's."""
    if scope["type"] != "http":
        return
    await TURNS.take()
    began = time.monotonic()
    exchange = Exchange(scope, receive, send, Headers({}))
    try:
        exchange.head = read_headers(scope["headers"])
        check_place(exchange.head, listener)
        await admit(exchange)
    except Gone:
        exchange.status = exchange.status or 499
    except Refused as refused:
        reason = {"kind": "denied" if refused.status in (401, 403, 421) else "invalid", "message": refused.message}
        await _send_error(exchange, refused.status, {**reason, "remediation": refused.remediation}, refused.allow)
    except CasemateError as error:
        await _send_error(exchange, status_of(error), error_document(error))
    except Exception:
        _log.exception("a request failed", extra={"event": "fault", "path": _known_path(exchange.path)})
        fault = Fault("casemate itself failed; its log has more", remediation="casemate service logs")
        await _send_error(exchange, 500, error_document(fault))
        raise
    finally:
        if exchange.status >= 400:
            _note(exchange, time.monotonic() - began)


async def hand_over(exchange: Exchange, app: Application, scope: Scope) -> None:
    """Have another application answer. What it parses is read before, and bounded like all bodies.

    Raises :class:`Refused` for a body that is too large or holds too much, :class:`Gone`, and what ``app`` raises.
    """
    receive = exchange.receive
    if exchange.method == "POST":
        receive = exchange.again(await exchange.body(_MOST_MOUNTED))
    await app(scope, receive, exchange.send)


async def _send_error(exchange: Exchange, status: int, told: Mapping[str, Any], allow: str = "") -> None:
    """The typed error body, unless the answer has begun: then the last event of one that is a stream of events, else
    nothing, and the connection ends. ``allow``: the header of that name."""
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
    if status >= 400:
        headers["connection"] = "close"  # what is left of the body is not read
    with contextlib.suppress(Gone):
        await exchange.answer(status, {"error": told}, headers)


def _note(exchange: Exchange, seconds: float) -> None:
    told = {"method": exchange.method, "path": _known_path(exchange.path), "status": exchange.status}
    more = {"seconds": round(seconds, 4), "principal": exchange.caller}
    _log.info("request", extra={"event": "request", **told, **more})


def _known_path(path: str) -> str:
    """A path for the log: names of operations only, for others may hold anything."""
    name = path.removeprefix(f"/{VERSION}/").replace("/", ".")
    return path if name in catalogue() else "/".join(path.split("/")[:3])[:60]
