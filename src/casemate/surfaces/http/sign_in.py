"""Who comes with a browser: links that work once, and the sessions that these begin. A service that ends forgets them.

A session has two secrets: a cookie that no script can read, and a key that the page sends as a header of its own. The
cookie alone is nothing: browsers send it to whatever listens at another port of the same host, and may be made to send
it here. The key alone is nothing either: it opens nothing outside of the browser that has the cookie.
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

_LINK_HOLDS = 60.0  # seconds, for a browser to start
_IDLE = 12 * 3600.0  # seconds without a request after which a session ends: a night
_MOST_LINKS, _MOST_SESSIONS = 16, 32  # of one account: its oldest goes for a new one
_SECRET_BYTES = 32
T = TypeVar("T")
_MARK = "console\0"  # of a credential that is a cookie and its key, where others are tokens


@dataclass(frozen=True, slots=True)
class _Session:
    principal: Principal
    token: str  # that it was begun with; empty for the user's own
    key: str
    used: float


class SignIns:
    """``tokens``: who comes with each of some tokens. ``now``: seconds of some clock."""

    def __init__(self, tokens: PrincipalsOf, now: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._now = now
        self._links: dict[str, tuple[float, Principal, str]] = {}  # by hash of the code: until when, for whom
        self._sessions: dict[str, _Session] = {}  # by hash of the cookie

    def make_link(self, principal: Principal, token: str) -> str:
        """A code that begins one session of ``principal``, who has come with ``token`` (empty for the user). Raises
        :class:`Refused` for one who has come with a session."""
        if token.startswith(_MARK):
            raise Refused(403, "a session of the console gives no links", "casemate console gives one.")
        code = secrets.token_urlsafe(_SECRET_BYTES)
        self._links[_hash(code)] = (self._now() + _LINK_HOLDS, principal, token)
        _keep_newest(self._links, _MOST_LINKS, lambda link: link[2])
        return code

    def begin(self, code: str) -> tuple[str, str, Principal]:
        """The cookie and the key of a new session, and whose it is. Raises :class:`Refused` for a code that is unknown,
        too old or used."""
        until, principal, token = self._links.pop(_hash(code), (0.0, None, ""))
        if principal is None or until < self._now():
            raise Refused(401, "this link was used, or is too old", "casemate console gives another.")
        cookie, key = secrets.token_urlsafe(_SECRET_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        self._sessions[_hash(cookie)] = _Session(principal, token, _hash(key), self._now())
        _keep_newest(self._sessions, _MOST_SESSIONS, lambda session: session.token)
        return cookie, key, principal

    def end(self, credential: str) -> None:
        """End the session of a credential. Harmless where there is none."""
        found = self._find(credential)
        for name in [name for name, session in self._sessions.items() if session is found]:
            del self._sessions[name]

    def principals_of(self, credentials: Collection[str]) -> Mapping[str, Principal]:
        """Who comes with each of these tokens and sessions; nobody with one that is unknown, or has ended."""
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
    """What a session is known by, as others are by their tokens; empty where a half of it is missing. ``cookies``: one,
    and those that other ports of the host have put beside it, with spaces between."""
    return f"{_MARK}{cookies} {key}" if cookies and key else ""


def _split(credential: str) -> tuple[list[str], str]:
    *cookies, key = credential.removeprefix(_MARK).split(" ") if credential.startswith(_MARK) else [""]
    return cookies, key


def _keep_newest(ones: dict[str, T], most: int, token_of: Callable[[T], str]) -> None:
    """The newest one stays, and so many of its account: nobody takes the place of another."""
    *_, newest = ones.values()
    own = [name for name, one in ones.items() if token_of(one) == token_of(newest)]
    for name in own[:-most]:
        del ones[name]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
