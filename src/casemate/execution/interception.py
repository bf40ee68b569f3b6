"""Whose TLS ends at a sandbox's egress proxy, and what its cells trust for that."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from casemate.errors import InvalidArgument, Unavailable
from casemate.policy.hosts import HTTPS, HostRule

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from casemate.egress.terms import Interception
    from casemate.model.plan import Entry

_MOST_KEPT = 16  # sets of hosts for which there is an authority at once


class CellInterception(NamedTuple):
    """``terms``: for the egress proxy; ``folder``: on this machine, with the certificates that a cell is to trust."""

    terms: Interception
    folder: str

    def entries(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """``entries`` of a cell that trusts them."""
        from casemate.egress.authority import trust_entries

        return trust_entries(entries, self.folder)

    def env(self) -> Mapping[str, str]:
        """Variables that tell clients to."""
        from casemate.egress.authority import VARIABLES

        return VARIABLES


class Interceptions:
    """Of one sandbox. Nothing is made before it is needed; keys of authorities are in memory only."""

    def __init__(self, hosts: Iterable[HostRule] = (), trust: str | None = None) -> None:
        """``hosts``: exact names, at 443 where no port is given; ``trust``: a PEM file of authorities that servers may
        have besides the system's. Raises ``Unavailable`` where a package is missing."""
        self.places = frozenset((rule.host, rule.port or HTTPS) for rule in hosts)
        self._trust = trust
        self._lock = threading.Lock()
        self._made: dict[frozenset[tuple[str, int]], CellInterception] = {}
        self._servers: dict[bool, ssl.SSLContext] | None = None
        self._folder: Path | None = None
        self._remove: Callable[[], object] = int  # nothing to remove yet
        self._number = 0
        if self.places:
            from casemate.egress.authority import check_packages

            check_packages()

    def interception_for(self, more: Iterable[tuple[str, int]] = ()) -> CellInterception | None:
        """For a cell; None where nobody's TLS ends at the egress proxy. ``more``: canonical names and ports, besides
        those of the sandbox. Raises ``Unavailable``, ``InvalidArgument``."""
        places = self.places.union(more)
        if not places:
            return None
        with self._lock:
            interception = self._made.pop(places, None)
            if interception is None or interception.terms.authority.is_old:
                interception = self._make(places)
            self._made[places] = interception
            if len(self._made) > _MOST_KEPT:
                self._made.pop(next(iter(self._made)))
        return interception

    def close(self) -> None:
        """Remove what lies on this machine's disk: certificates, and no key. Harmless when repeated."""
        with self._lock:
            self._remove()
            self._folder, self._made = None, {}

    def _make(self, places: frozenset[tuple[str, int]]) -> CellInterception:
        from casemate.egress.authority import Authority, write_trust
        from casemate.egress.terms import Interception
        from casemate.files.temporary import TemporaryFolder, sweep

        authority = Authority(name for name, _ in places)
        if self._servers is None:
            self._servers = self._server_side()
        try:
            if self._folder is None:
                sweep()
                made = TemporaryFolder("trust")
                self._folder, self._remove = made.path, weakref.finalize(self, made.remove)
            self._number += 1
            folder = self._folder / str(self._number)
            write_trust(folder, authority)
        except OSError as error:
            raise Unavailable(
                f"the certificates that a cell is to trust could not be written: {error.strerror}",
                remediation="Make room in the folder for temporary files, or name another with TMPDIR.",
            ) from None
        return CellInterception(Interception(places, authority, self._servers), str(folder))

    def _server_side(self) -> dict[bool, ssl.SSLContext]:
        from casemate.egress.authority import server_side

        try:
            return server_side(self._trust)
        except OSError as error:  # ssl.SSLError is one
            problem = f"{self._trust!r} holds no certificates that can be read: {error.strerror or error}"
            raise InvalidArgument("trust", problem, remediation="Give a PEM file of certificates.") from None
