"""A cell's network through the egress proxy, while its program runs."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, Protocol

from casemate.errors import CasemateError, InvalidArgument, Unavailable
from casemate.model.plan import NETWORK_SOCKETS, ListeningSocket
from casemate.policy.hosts import HTTPS, HostRule

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import Path

    from casemate.approvals.requester import Requester
    from casemate.egress.injection import Injection
    from casemate.egress.proxy import CellProxy, EgressProxy
    from casemate.egress.terms import EgressTerms, HostService, Interception
    from casemate.execution.admit import AdmittedRequest
    from casemate.model.approval import ApprovalVerdict
    from casemate.model.execution import Crossing
    from casemate.policy.hosts import HostRules, RequestRules
    from casemate.walls.wall import Cell

_MOST_KEPT = 16  # sets of intercepted hosts whose authorities are cached
_CLOSE_WITHIN = 1.0  # seconds; a busy egress proxy closes a dead cell's connections a little later
Note = Callable[["Crossing"], None]


class Offer(Protocol):
    """A host service that cells may have."""

    def begin(self, whose: Callable[[], Requester | None]) -> HostService:
        """Start it for one cell. ``whose`` returns the requester of the current run or step, on whose behalf the
        service acts; if it returns None, the service does nothing. Callable from any thread."""


class CellInterception(NamedTuple):
    terms: Interception  # for the egress proxy
    folder: str  # on this machine, with the certificates that the cell trusts


class SandboxNetwork:
    """A sandbox's network. Its egress proxy and the authorities for intercepted hosts are made when a cell needs them.
    The authorities' keys are in memory only."""

    def __init__(self, requests: RequestRules, intercept: Iterable[HostRule] = (), trust: str | None = None) -> None:
        """``requests``: rules on HTTP requests. ``intercept``: exact hosts whose TLS ends at the egress proxy, at port
        443 by default. ``trust``: a PEM file of authorities to trust in addition to the system's."""
        self.requests = requests
        self._intercepted = frozenset((rule.host, rule.port or HTTPS) for rule in intercept)
        self._trust = trust
        self._lock = threading.Lock()
        self._proxy: EgressProxy | None = None
        self._interceptions: dict[frozenset[tuple[str, int]], CellInterception] = {}
        self._servers: ssl.SSLContext | None = None
        self._folder: Path | None = None
        self._remove: Callable[[], object] = int  # nothing to remove yet
        self._number = 0

    def rewrite(self, admitted: AdmittedRequest) -> Injection | None:
        """The injection of secrets for the program's placeholders; None without placeholders."""
        placeholders = admitted.request.secrets.placeholders
        if not placeholders:
            return None
        from casemate.egress.injection import Injection

        return Injection(placeholders)

    def interception_for(self, admitted: AdmittedRequest) -> CellInterception | None:
        """The interception for an admitted request, if any. Call it once for a cell's plan and network: the next call
        may return another authority. Raises ``Unavailable``, ``InvalidArgument``."""
        if admitted.through is None:
            return None
        rewrite = self.rewrite(admitted)
        places = self._intercepted if rewrite is None else self._intercepted.union(rewrite.places)
        if not places:
            return None
        with self._lock:
            interception = self._interceptions.pop(places, None)
            if interception is None or interception.terms.authority.is_old:
                interception = self._intercept(places)
            self._interceptions[places] = interception
            if len(self._interceptions) > _MOST_KEPT:
                self._interceptions.pop(next(iter(self._interceptions)))
        return interception

    def proxy(self) -> EgressProxy:
        """The egress proxy, made on first use."""
        from casemate.egress.proxy import EgressProxy  # not at the top: it loads more slowly than a cell starts

        with self._lock:
            self._proxy = self._proxy or EgressProxy()
            return self._proxy

    def close(self) -> None:
        """End every connection and remove the certificates from the disk. Bounded in time; may be repeated."""
        with self._lock:
            proxy = self._proxy
        if proxy is not None:
            proxy.close()
        with self._lock:
            self._remove()
            self._folder, self._interceptions = None, {}

    def _intercept(self, places: frozenset[tuple[str, int]]) -> CellInterception:
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
                f"the certificates for a cell could not be written: {error.strerror}",
                remediation="Make room in the folder for temporary files, or name another with TMPDIR.",
            ) from None
        return CellInterception(Interception(places, authority, self._servers), str(folder))

    def _server_side(self) -> ssl.SSLContext:
        from casemate.egress.authority import server_side

        try:
            return server_side(self._trust)
        except OSError as error:  # ssl.SSLError is one
            problem = f"{self._trust!r} holds no certificates that can be read: {error.strerror or error}"
            raise InvalidArgument("trust", problem, remediation="Give a PEM file of certificates.") from None


class CellNetwork:
    """One cell's side of the network. It opens when the cell's listening sockets exist."""

    def __init__(
        self,
        network: SandboxNetwork,
        admitted: AdmittedRequest,
        intercepted: CellInterception | None,
        cell: Cell,
        note: Note,
        offers: Sequence[Offer],
    ) -> None:
        """``intercepted``: the value that the cell's plan was made with. ``offers``: host services for the cell."""
        self.note = note  # records a new kind of crossing; may be replaced
        self._interception = None if intercepted is None else intercepted.terms
        self._rewrite = network.rewrite(admitted)
        self._requester: Requester | None = None  # of the current run or step
        self._asks = False  # whether it may request hosts
        self._offers: tuple[Offer, ...] = ()
        self._services: tuple[HostService, ...] = ()
        self._offer(offers)
        self._network = network
        self._hosts = admitted.through  # hosts allowed without a request; None without a network
        self._cell = cell
        self._lock = threading.Lock()
        self._is_closed = False
        self._begins_open = admitted.has_network or bool(offers)
        self._is_open = False
        self._terms: EgressTerms | None = None
        self._cell_proxy: CellProxy | None = None
        self._problem = ""

    def attend(self, requester: Requester | None, *, asks: bool = False) -> None:
        """Set the requester of the current run or step. ``asks``: it requests hosts that no rule covers."""
        self._requester, self._asks = requester, asks
        if requester is not None:
            requester.hosts = self._hosts
        if self._is_open:
            self._change()
        elif self._begins_open:
            self._open(self._cell.listeners())

    async def step(self, requester: Requester, offers: Sequence[Offer], *, asks: bool) -> None:
        """The same for a session's step. Opens the network if this is the first step that needs it."""
        import asyncio  # not at the top: it loads while the supervisor starts

        self._offer(offers)
        self.attend(requester, asks=asks)
        if self._is_open or not (offers or (asks and self._hosts is not None)):
            return
        sockets = self._cell.listen(NETWORK_SOCKETS)
        self._open(sockets)
        await asyncio.wait([asyncio.wrap_future(sockets)])

    def _open(self, sockets: Future[list[int]]) -> None:
        self._is_open, self._begins_open = True, False
        self._change()
        proxy = self._network.proxy()
        sockets.add_done_callback(lambda made: self._begin(proxy, made))

    def _offer(self, offers: Sequence[Offer]) -> None:
        if tuple(offers) != self._offers:
            self._offers = tuple(offers)
            self._services = tuple(offer.begin(lambda: self._requester) for offer in offers)

    def _change(self) -> None:
        from casemate.egress.terms import EgressTerms
        from casemate.policy.hosts import HostRules

        hosts = self._hosts or HostRules()
        asked = self._requester if self._asks and self._hosts is not None else None
        approvals = None if asked is None else BrokerApprovals(asked, hosts)
        with self._lock:
            self._terms = EgressTerms(
                hosts,
                approvals=approvals,
                requests=self._network.requests,
                services=self._services,
                interception=self._interception,
                rewrite=self._rewrite,
            )
            if self._cell_proxy is not None:
                self._cell_proxy.change(self._terms)

    def crossings(self) -> tuple[Crossing, ...]:
        """The crossings, allowed and denied. If the network could not be opened, one that says why."""
        from casemate.model.execution import Crossing

        if self._problem:
            return (Crossing("(egress proxy)", 0, "denied", self._problem, 0),)
        return () if self._cell_proxy is None else self._cell_proxy.crossings()

    def end(self) -> Future[None] | None:
        """Start to end every connection. Returns a future for the end. Callable from any thread; may be repeated."""
        with self._lock:
            self._is_closed = True
            return None if self._cell_proxy is None else self._cell_proxy.close()

    async def close(self) -> None:
        """The same, and wait at most a second for the end."""
        import asyncio

        closing = self.end()
        if closing is not None:
            await asyncio.wait([asyncio.wrap_future(closing)], timeout=_CLOSE_WITHIN)

    def _begin(self, proxy: EgressProxy, made: Future[list[int]]) -> None:
        if made.cancelled():
            return  # the cell ended before; `Cell.wait` says why
        try:
            names, proxy_fd = made.result()
            with self._lock:
                if not self._is_closed and self._terms is not None:
                    self._cell_proxy = proxy.open(self._terms, self._listen, names, proxy_fd, self._record)
                    self._problem = ""
                    return
        except (OSError, CasemateError) as error:  # there is no network; `crossings` reports it
            self._problem, self._is_open = f"it could not be opened: {error}", False
            return
        for fd in (names, proxy_fd):
            os.close(fd)

    def _listen(self, addresses: Sequence[tuple[str, int]]) -> Future[list[int]]:
        return self._cell.listen([ListeningSocket("tcp", *place) for place in addresses])

    def _record(self, crossing: Crossing) -> None:
        self.note(crossing)


class BrokerApprovals(NamedTuple):
    """Turns the egress proxy's questions into approval requests."""

    requester: Requester
    hosts: HostRules

    def decide(self, host: str, port: int, how_often: int) -> Future[ApprovalVerdict]:
        """Request approval for a connection. Callable from any thread."""
        from casemate.model.approval import Question

        again = f", for the {_ordinal(how_often)} time" if how_often > 1 else ""
        summary = f"connect to {host}, port {port}{again}"
        question = Question("egress", summary, {"host": host, "port": port}, beyond=self.hosts.beyond(host, port))
        return self.requester.decide(question)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
