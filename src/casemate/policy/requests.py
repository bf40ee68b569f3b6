"""Which HTTP requests a cell may make of a host, where they are seen in clear.

What TLS covers cannot be seen, so a host that such a rule names is reached in clear only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from casemate.policy.hosts import HostRule

# What servers read as another path than the one that is written: dot segments, plain, encoded or with parameters (RFC
# 3986, section 3.3; servers of servlets drop these first), and encoded slashes.
_AMBIGUOUS = re.compile(
    r"(?:/|\\|%2f|%5c)(?:\.|%2e){0,2}(?:;|%3b)|(?:/|\\|%2f|%5c)(?:\.|%2e){1,2}(?=/|\\|%2f|%5c|\Z)|\\|%2f|%5c|%00|//",
    re.IGNORECASE,
)


class RequestRule(NamedTuple):
    """``methods`` may be used at ``host`` for ``path`` and everything below it; an empty ``methods`` is all of them."""

    host: HostRule
    methods: tuple[str, ...] = ("GET", "HEAD")
    path: str = "/"

    def covers(self, name: str, port: int, method: str, path: str) -> bool:
        """Whether the request is one of these. ``path`` is as written, without its query."""
        if not self.host.covers(name, port) or (self.methods and method not in self.methods):
            return False
        if self.path == "/":
            return True
        below = self.path.removesuffix("/")
        return (path == below or path.startswith(f"{below}/")) and not _AMBIGUOUS.search(path)


class RequestRules(NamedTuple):
    """A host that no rule names may be asked anything; another only what a rule covers."""

    rules: tuple[RequestRule, ...] = ()

    def names(self, name: str, port: int) -> bool:
        """Whether requests to the canonical ``name`` at ``port`` have to be seen."""
        return any(rule.host.covers(name, port) for rule in self.rules)

    def allows(self, name: str, port: int, method: str, target: str) -> bool:
        """Whether the request may be made; ``target`` is the path, perhaps with a query (RFC 9112, section 3.2.1)."""
        path = target.partition("?")[0]
        return not self.names(name, port) or any(rule.covers(name, port, method, path) for rule in self.rules)


NO_REQUEST_RULES = RequestRules()
