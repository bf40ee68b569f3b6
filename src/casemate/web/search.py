"""Which search engines are asked, in which order, and which are skipped for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from casemate.policy.hosts import HTTP, HTTPS, LOCAL_NAME, HostRule, host_rule

SEARXNG = "searxng"
# The hosts of the engines that ddgs has enabled.
_HOSTS = {
    "brave": "search.brave.com",
    "duckduckgo": "html.duckduckgo.com",
    "grokipedia": "grokipedia.com",
    "mojeek": "www.mojeek.com",
    "startpage": "www.startpage.com",
    "wikipedia": "en.wikipedia.org",
    "yahoo": "search.yahoo.com",
}
_FIRST, _LONGEST = 30.0, 1800.0  # seconds to skip a failed engine; doubled at each further failure


class _Failures(NamedTuple):
    times: int
    until: float
    words: str


class Engines:
    """The engines of one sandbox, as its policy lists them. Used in one event loop."""

    def __init__(self, terms: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        """``terms``: the policy's ``web`` section. Raises ``InvalidArgument`` if the host of its SearXNG is invalid."""
        self._place: HostRule | None = None
        self.searxng = ""
        if terms["searxng"]:
            self.searxng, self._place = _place_of(terms["searxng"])
        self._names: Sequence[str] = terms["engines"]
        self._clock = clock
        self._turn = 0
        self._failures: dict[str, _Failures] = {}

    def order(self) -> list[str]:
        """Return the engines to ask now: the SearXNG, then the others in rotation. A SearXNG that failed lately is not
        skipped but comes last: one agent's query must not take the operator's own engine from everyone."""
        first = self._turn % max(1, len(self._names))
        self._turn += 1
        now = self._clock()
        resting = {name for name, one in self._failures.items() if one.until > now}
        names = [name for name in (*self._names[first:], *self._names[:first]) if name not in resting]
        own = [SEARXNG] if self.searxng else []
        return [*names, *own] if SEARXNG in resting else [*own, *names]

    def hosts(self, names: Sequence[str]) -> tuple[HostRule, ...]:
        """Return the rules that let these engines through."""
        own = (self._place,) if self._place and SEARXNG in names else ()
        return (*own, *(HostRule(_HOSTS[name]) for name in names if name in _HOSTS))

    def note(self, failed: Mapping[str, str], answered: Sequence[str]) -> None:
        """Note the outcome of a search: failed engines with their messages, and those that answered."""
        for name in answered:
            self._failures.pop(name, None)
        for name, words in failed.items():
            count = self._failures[name].times + 1 if name in self._failures else 1
            pause = min(_LONGEST, _FIRST * 2.0 ** (count - 1))
            self._failures[name] = _Failures(count, self._clock() + pause, words)

    def reasons(self) -> str:
        """Return the last message of each failed engine, and how long it is skipped."""
        now = self._clock()
        left = {name: f" (skipped for {max(0.0, one.until - now):.0f} s)" for name, one in self._failures.items()}
        left[SEARXNG] = ""
        return "; ".join(f"{name}: {one.words}{left[name]}" for name, one in self._failures.items())


def _place_of(address: str) -> tuple[str, HostRule]:
    """Return a SearXNG's URL as a cell sees it, and the rule that lets it through."""
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or (HTTPS if parts.scheme == "https" else HTTP)
    is_local = host in ("localhost", "127.0.0.1", "::1")
    place = HostRule(LOCAL_NAME, port) if is_local else host_rule(f"{host}:{port}", "web.searxng")
    return f"{parts.scheme}://{place.host}:{port}{parts.path}", place
