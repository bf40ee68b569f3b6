"""Decides whether a request for a preview may go to its cell, and which headers pass in both directions.

An operator's browser holds data that a hostile page wants. So each server has its own host name, and thereby its own
origin. Unknown names are refused (DNS rebinding), and so are requests from pages of other origins.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from casemate.previews.exposed import TOKEN, ExposedServer
from casemate.visible import visible

if TYPE_CHECKING:
    import h11

Header = tuple[bytes, bytes]
_COOKIE = b"casemate-preview"
_OWN = b"casemate"  # prefix of casemate's tokens and cookies; a cell sees none of them
# Headers of one connection (RFC 9110, section 7.6.1). Those that frame the body stay; h11 checks them.
_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"trailer", b"upgrade"}
)
_NO_LINK = "This is a preview of a program in a sandbox. Open it by its link: casemate expose SESSION PORT prints one."
# A service worker's answers lack our headers, and it outlives the preview in the browser (Service Workers, "update").
_NO_WORKER = "A preview may not install a service worker, which would keep answering after the preview has ended."
_ENDED = "This link is not valid, or it has ended. casemate expose SESSION PORT prints another."


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that casemate gives instead of the cell."""

    status: int
    text: str
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may go to the cell."""

    exposed: ExposedServer
    headers: list[Header]
    end: float  # of time.monotonic
    upgrades: bool  # to a WebSocket
    added: tuple[Header, ...]  # to the cell's response


def admit(request: h11.Request, find: Callable[[str], ExposedServer | None]) -> Admitted | Answer:
    """Judge a request. ``find`` returns the server of a host name."""
    headers = list(request.headers)
    host = _value(headers, b"host").lower()
    name = host.decode("latin-1").rpartition(":")
    exposed = find(name[0] or name[2])
    if exposed is None:
        return Answer(421, "There is no preview under this name.")
    if not request.target.startswith(b"/") or request.method in (b"CONNECT", b"TRACE"):
        return _refuse(exposed, 400, "A preview accepts only paths, and neither CONNECT nor TRACE.")
    if _value(headers, b"transfer-encoding") and _value(headers, b"content-length"):
        return _refuse(exposed, 400, "A request may not have both Transfer-Encoding and Content-Length.")
    if _value(headers, b"service-worker") or _value(headers, b"sec-fetch-dest").lower() == b"serviceworker":
        return _refuse(exposed, 403, _NO_WORKER)
    target, tokens = _split_target(request.target)
    if tokens:
        return _exchange(request, exposed, target, tokens)
    ends = [end for token in _tokens(headers) if (end := exposed.end_of(token)) is not None]
    if not ends:
        return _refuse(exposed, 401, _NO_LINK)
    origin = _value(headers, b"origin").lower()
    if origin and origin not in (b"http://" + host, b"https://" + host):
        return _refuse(exposed, 403, "Pages of another origin may not use this preview.")
    upgrades = _value(headers, b"upgrade").lower() == b"websocket"
    added = () if exposed.preview.third_parties else _contain(host)
    return Admitted(exposed, list(_headers_for_cell(headers, upgrades=upgrades)), max(ends), upgrades, added)


def headers_for_client(headers: Iterable[Header], admitted: Admitted, *, upgrades: bool = False) -> list[Header]:
    """Filter the headers of the cell's response. h11 frames its body again."""
    kept, is_contained = list(_UPGRADE) if upgrades else [], not admitted.exposed.preview.third_parties
    for name, value in headers:
        if name in _OF_CONNECTION or name in (b"transfer-encoding", b"alt-svc"):
            continue
        if name == b"set-cookie" and not _NAMED_COOKIE.match(value):
            continue
        if is_contained and not _KEPT.fullmatch(name):
            continue
        is_policy = name == b"content-security-policy" and is_contained
        kept.append((name, _REPORT_DIRECTIVE.sub(b"no-\\g<0>", value) if is_policy else value))
    return [*kept, *admitted.added]


def answer_for_redirect(status: int, headers: Iterable[Header], admitted: Admitted) -> Answer | None:
    """Return the response that replaces a redirect away from the preview; None for any other response."""
    if admitted.exposed.preview.third_parties or not 300 <= status < 400:
        return None
    given = list(headers)
    leads_to = [value for name, value in given if name == b"location" and not _is_within(value, admitted.headers)]
    if not leads_to:
        return None
    kept = tuple(one for one in headers_for_client(given, admitted) if one[0] == b"set-cookie")
    where = visible(leads_to[0].decode("utf-8", "backslashreplace"))
    text = f"The program in the sandbox redirects you to another site. casemate does not follow it:\n\n{where}"
    return replace(_refuse(admitted.exposed, 403, text), headers=kept)


def _is_within(location: bytes, headers: list[Header]) -> bool:
    """Whether a redirect is certain to stay at the requested origin. Browsers read a backslash as a slash, and drop
    blanks within (URL Standard, 4.4)."""
    own = b"http://" + _value(headers, b"host").lower()
    if location[: len(own)].lower() == own:
        return location[len(own) :][:1] in (b"", b"/", b"?", b"#")
    return _PATH.fullmatch(location) is not None


_PATH = re.compile(rb"((/(?!/)|[?#]|[^:/?#\\\x00-\x20]+(?=[/?#]|\Z))[^\\\x00-\x20]*)?")
# A named cookie that is not ours. Browsers send a nameless cookie as its value alone, which could look like ours.
_NAMED_COOKIE = re.compile(rb"[ \t]*(?!%b)[!#$%%&'*+.^_`|~0-9a-z-]+[ \t]*=" % _OWN, re.IGNORECASE)
# Allowed response headers. Others can make a browser contact another host (preload, redirect, report), and a list of
# those would never be complete. Programs' own begin with x-; browsers, and proxies before us, act on a few of these.
_KEPT = re.compile(
    rb"accept-ranges|age|allow|cache-control|content-(?:disposition|encoding|language|length|range|security-policy|type)"
    rb"|date|etag|expires|last-modified|location|pragma|retry-after|server|server-timing|set-cookie|vary|www-authenticate"
    rb"|(?:access-control|cross-origin|hx|sec-websocket)-.*|x-(?!accel|content-sec|dns|light|lite|repro|send|source|webkit|xss).*"
)
_REPORT_DIRECTIVE = re.compile(rb"report-(uri|to)", re.IGNORECASE)
_UPGRADE = ((b"connection", b"Upgrade"), (b"upgrade", b"websocket"))


def _headers_for_cell(headers: list[Header], *, upgrades: bool) -> Iterable[Header]:
    listed = {one.strip().lower() for one in _value(headers, b"connection").split(b",")}
    for name, value in headers:
        if name == b"cookie":
            kept = [one for one in value.split(b";") if not one.strip().lower().startswith(_OWN)]
            if kept:
                yield name, b";".join(kept).strip()
        elif name == b"authorization" and _bearer(value).startswith(_OWN):
            continue
        elif name not in _OF_CONNECTION and (name not in listed or name in _FRAMES):
            yield name, value
    yield from _UPGRADE if upgrades else ((b"connection", b"close"),)


_FRAMES = (b"host", b"content-length", b"transfer-encoding")  # headers that `Connection` must not remove


def _contain(host: bytes) -> tuple[Header, ...]:
    """Return headers that confine a page to its own server: Content Security Policy level 3 and, if the browser has it,
    the Connection Allowlist (WICG), which also covers navigation, WebRTC and prefetches."""
    own = b"'self' data: blob:"
    policy = (
        b"default-src %b 'unsafe-inline' 'unsafe-eval'; connect-src %b ws://%b; form-action 'self'; base-uri 'self'; "
        b"sandbox allow-scripts allow-same-origin allow-forms allow-modals allow-downloads" % (own, own, host)
    )
    return (
        (b"content-security-policy", policy),
        (b"connection-allowlist", b'(response-origin "ws://%b/*")' % host),
        (b"referrer-policy", b"same-origin"),
        (b"x-dns-prefetch-control", b"off"),
    )


def _exchange(request: h11.Request, exposed: ExposedServer, target: bytes, tokens: list[bytes]) -> Answer:
    """Exchange a link's token for a cookie, so that no page, history or referrer has it."""
    end = exposed.end_of(tokens[0]) if len(tokens) == 1 and request.method in (b"GET", b"HEAD") else None
    if end is None:
        return _refuse(exposed, 403, _ENDED)
    is_framed = _value(list(request.headers), b"sec-fetch-dest") == b"iframe"  # by the console's page, another site
    where = b"Secure; SameSite=None; Partitioned" if is_framed else b"SameSite=Lax"
    seconds = max(1, int(end - time.monotonic()))
    cookie = b"%b=%b; Path=/; HttpOnly; Max-Age=%d; %b" % (_COOKIE, tokens[0], seconds, where)
    return Answer(303, "", ((b"location", target), (b"set-cookie", cookie), (b"referrer-policy", b"no-referrer")))


def _split_target(target: bytes) -> tuple[bytes, list[bytes]]:
    """Return a target without its tokens, as a path that cannot lead to another host; and the tokens."""
    path, _, query = target.partition(b"?")
    begin = TOKEN.encode() + b"="
    parts = query.split(b"&") if query else []
    tokens = [one.removeprefix(begin) for one in parts if one.startswith(begin)]
    rest = b"&".join(one for one in parts if not one.startswith(begin))
    return b"/" + path.lstrip(b"/\\") + (b"?" + rest if rest else b""), tokens


def _tokens(headers: list[Header]) -> Iterable[bytes]:
    """Yield tokens in cookies, and those that programs send as bearer tokens."""
    for name, value in headers:
        if name == b"cookie":
            for one in value.split(b";"):
                key, _, token = one.strip().partition(b"=")
                if key == _COOKIE:
                    yield token
        elif name == b"authorization":
            yield _bearer(value)


def _bearer(value: bytes) -> bytes:
    scheme, _, token = value.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _refuse(exposed: ExposedServer, status: int, text: str) -> Answer:
    exposed.refusals += 1
    return Answer(status, text)


def _value(headers: list[Header], name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")
