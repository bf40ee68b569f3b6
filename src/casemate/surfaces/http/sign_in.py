"""Browser sign-in: links that work once, and the sessions that they begin. A service forgets both when it ends.

A session has two secrets: a cookie that no script can read, and a key that the page sends in a header. The cookie alone
is worthless: browsers send it to every port of the same host, and any page may make them send it here. The key alone is
worthless outside of the browser that has the cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from casemate.model.operation import Principal
from casemate.surfaces.http.identity import PrincipalsOf, Refused

_LINK_HOLDS = 60.0  # seconds for a browser to start
_IDLE = 12 * 3600.0  # seconds without a request after which a session ends: a night
_MOST_LINKS, _MOST_SESSIONS = 16, 32  # of one account; the oldest makes way for a new one
_SECRET_BYTES = 32
T = TypeVar("T")
_MARK = "console\0"  # marks a credential made of a cookie and a key; any other is a token


@dataclass(frozen=True, slots=True)
class _Session:
    principal: Principal
    token: str  # the token used to sign in; empty for the user
    key: str
    used: float


class SignIns:
    """``tokens`` maps valid tokens to their principals. ``now``: seconds of some clock."""

    def __init__(self, tokens: PrincipalsOf, now: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._now = now
        self._links: dict[str, tuple[float, Principal, str]] = {}  # by hash of the code: expiry, principal, token
        self._sessions: dict[str, _Session] = {}  # by hash of the cookie

    def make_link(self, principal: Principal, token: str) -> str:
        """A code that starts one session of ``principal``, who came with ``token``, but not with a session."""
        if token.startswith(_MARK):
            raise Refused(403, "a session of the console cannot make links", "casemate console makes one.")
        code = secrets.token_urlsafe(_SECRET_BYTES)
        self._links[_hash(code)] = (self._now() + _LINK_HOLDS, principal, token)
        _keep_newest(self._links, _MOST_LINKS, lambda link: link[2])
        return code

    def begin(self, code: str) -> tuple[str, str, Principal]:
        """The cookie, key and principal of a new session. Raises :class:`Refused` for an unknown, old or used code."""
        until, principal, token = self._links.pop(_hash(code), (0.0, None, ""))
        if principal is None or until < self._now():
            raise Refused(401, "this link was used, or is too old", "casemate console makes another.")
        cookie, key = secrets.token_urlsafe(_SECRET_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        self._sessions[_hash(cookie)] = _Session(principal, token, _hash(key), self._now())
        _keep_newest(self._sessions, _MOST_SESSIONS, lambda session: session.token)
        return cookie, key, principal

    def end(self, credential: str) -> None:
        """End the session of a credential, if it has one."""
        found = self._find(credential)
        for name in [name for name, session in self._sessions.items() if session is found]:
            del self._sessions[name]

    def principals_of(self, credentials: Collection[str]) -> Mapping[str, Principal]:
        """The principals of the valid tokens and sessions among these."""
        sessions = {one: session for one in credentials if (session := self._find(one)) is not None}
        wanted = {one for one in credentials if not one.startswith(_MARK)}
        known = self._tokens(wanted | {one.token for one in sessions.values() if one.token})
        found = {one: principal for one, principal in known.items() if one in wanted}
        for credential, session in sessions.items():
            if not session.token or known.get(session.token) == session.principal:
                found[credential] = session.principal
        return found

    def _find(self, credential: str) -> _Session | None:
        cookies, key = _split(credential)
        now = self._now()
        for name in map(_hash, cookies):
            session = self._sessions.get(name)
            if session is None or not hmac.compare_digest(session.key, _hash(key)):
                continue
            if session.used + _IDLE < now:
                del self._sessions[name]
                continue
            self._sessions[name] = replace(session, used=now)
            return self._sessions[name]
        return None


def credential_in(cookies: str, key: str) -> str:
    """A session's credential, as a token is for other clients; empty if a half is missing. ``cookies``: those of this
    name, separated by spaces, since other ports of the host may set some too."""
    return f"{_MARK}{cookies} {key}" if cookies and key else ""


def _split(credential: str) -> tuple[list[str], str]:
    *cookies, key = credential.removeprefix(_MARK).split(" ") if credential.startswith(_MARK) else [""]
    return cookies, key


def _keep_newest(ones: dict[str, T], most: int, token_of: Callable[[T], str]) -> None:
    """Keep the newest entry, and ``most`` of its account. Other accounts lose nothing."""
    *_, newest = ones.values()
    own = [name for name, one in ones.items() if token_of(one) == token_of(newest)]
    for name in own[:-most]:
        del ones[name]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
