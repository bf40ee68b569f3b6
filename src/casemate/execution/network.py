"""The network of one cell, through the egress proxy, while its program runs."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple, Protocol

from casemate.errors import CasemateError, InvalidArgument, Unavailable
from casemate.model.plan import NETWORK_SOCKETS, ListeningSocket
from casemate.policy.hosts import HTTPS, HostRule

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import Path

    from casemate.approvals.requester import Requester
    from casemate.audit.log import AuditLog
    from casemate.egress.injection import Injection
    from casemate.egress.proxy import CellProxy, EgressProxy
    from casemate.egress.terms import EgressTerms, HostService, Interception
    from casemate.execution.admit import AdmittedRequest
    from casemate.model.approval import ApprovalVerdict
    from casemate.model.execution import Crossing
    from casemate.model.plan import Entry, Request
    from casemate.policy.hosts import HostRules, RequestRules
    from casemate.redaction.redaction import Redaction
    from casemate.walls.wall import LivingCell

_CLOSE_WITHIN = 1.0  # seconds; an egress proxy that is busy closes a dead cell's connections a little later
Note = Callable[["Crossing"], None]


def make_recorder(log: AuditLog, request: Request, redaction: Redaction | None) -> Note:
    """Puts crossings of ``request``'s run on record; its outcome has them in any case."""

    def note(crossing: Crossing) -> None:
        from casemate.execution.request import redacted_crossings

        (redacted,) = redacted_crossings([crossing], redaction)
        with contextlib.suppress(CasemateError):
            log.append("crossing", request.id, request.namespace, asdict(redacted))

    return note


class Offer(Protocol):
    """A service of the host's own that cells may have."""

    def begin(self, whose: Callable[[], Requester | None]) -> HostService:
        """It, in one cell. ``whose``: what runs there now, in whose name everything is asked and done; None where
        nothing does: then nothing is done. From any thread."""


class SandboxNetwork:
    """A sandbox's network. Its egress proxy starts with the first cell that may use it."""

    def __init__(self, requests: RequestRules, interceptions: Interceptions | None = None) -> None:
        """``requests``: what may be asked of hosts; ``interceptions``: whose TLS ends at the egress proxy."""
        self.requests = requests
        self._interceptions = interceptions or Interceptions()
        self._lock = threading.Lock()
        self._proxy: EgressProxy | None = None

    def rewrite(self, admitted: AdmittedRequest) -> Injection | None:
        """What puts in the secrets that the program has not; None where it has all of its own."""
        placeholders = admitted.request.secrets.placeholders
        if not placeholders:
            return None
        from casemate.egress.injection import Injection

        return Injection(placeholders)

    def interception_for(self, admitted: AdmittedRequest) -> CellInterception | None:
        """Whose TLS is intercepted for what was admitted. Call it once for each cell, for its plan and its network: the
        next answer may have another authority. Raises ``Unavailable``, ``InvalidArgument``."""
        if admitted.through is None:
            return None
        rewrite = self.rewrite(admitted)
        return self._interceptions.interception_for(() if rewrite is None else rewrite.places)

    def proxy(self) -> EgressProxy:
        """The egress proxy itself."""
        from casemate.egress.proxy import EgressProxy  # not before: it takes longer to load than a cell to start

        with self._lock:
            self._proxy = self._proxy or EgressProxy()
            return self._proxy

    def close(self) -> None:
        """End every connection. Bounded; harmless when repeated."""
        with self._lock:
            proxy = self._proxy
        if proxy is not None:
            proxy.close()
        self._interceptions.close()


class CellNetwork:
    """One cell's side of the network; nothing until its sockets are there. A cell that may reach something from the
    start has them from the start."""

    def __init__(
        self,
        network: SandboxNetwork,
        admitted: AdmittedRequest,
        intercepted: CellInterception | None,
        cell: LivingCell,
        note: Note,
        offers: Sequence[Offer],
    ) -> None:
        """For what was ``admitted``. ``intercepted``: what the cell's plan was made with; ``note`` puts a new kind of
        crossing on record, and may be set anew; ``offers``: what the host has there."""
        self.note = note
        self._interception = None if intercepted is None else intercepted.terms
        self._rewrite = network.rewrite(admitted)
        self._requester: Requester | None = None  # what runs now
        self._asks = False  # about hosts
        self._offers: tuple[Offer, ...] = ()
        self._services: tuple[HostService, ...] = ()
        self._offer(offers)
        self._network = network
        self._hosts = admitted.through  # what crosses without asking; None where nothing ever may
        self._cell = cell
        self._lock = threading.Lock()
        self._is_closed = False
        self._begins_open = admitted.has_network or bool(offers)
        self._is_open = False
        self._terms: EgressTerms | None = None
        self._cell_proxy: CellProxy | None = None
        self._problem = ""

    def attend(self, requester: Requester | None, *, asks: bool = False) -> None:
        """From now on ``requester``'s run or step is what runs in the cell, or nothing. ``asks``: what no rule covers
        is asked of it."""
        self._requester, self._asks = requester, asks
        if requester is not None:
            requester.hosts = self._hosts
        if self._is_open:
            self._change()
        elif self._begins_open:
            self._open(self._cell.listeners())

    async def step(self, requester: Requester, offers: Sequence[Offer], *, asks: bool) -> None:
        """The same for a step of a session, which may be offered more than those before. Where the network was not
        needed so far, it opens for that."""
        import asyncio  # it loads while the supervisor starts, so not before

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
        asks = self._requester is not None and self._asks and self._hosts is not None
        approvals = BrokerApprovals(self._requester, hosts) if self._requester is not None and asks else None
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
        """What has crossed, or tried to; and once, why nothing could."""
        from casemate.model.execution import Crossing

        if self._problem:
            return (Crossing("(egress proxy)", 0, "denied", self._problem, 0),)
        return () if self._cell_proxy is None else self._cell_proxy.crossings()

    def end(self) -> Future[None] | None:
        """End every connection, from any thread; what is done when that has happened. Harmless when repeated."""
        with self._lock:
            self._is_closed = True
            return None if self._cell_proxy is None else self._cell_proxy.close()

    async def close(self) -> None:
        """The same, and wait for it, bounded, unless cancelled."""
        import asyncio

        closing = self.end()
        if closing is not None:
            await asyncio.wait([asyncio.wrap_future(closing)], timeout=_CLOSE_WITHIN)

    def _begin(self, proxy: EgressProxy, made: Future[list[int]]) -> None:
        if made.cancelled():
            return  # the cell ended before; whoever waits for it hears why
        try:
            names, proxy_fd = made.result()
            with self._lock:
                if not self._is_closed and self._terms is not None:
                    self._cell_proxy = proxy.open(self._terms, self._listen, names, proxy_fd, self._record)
                    self._problem = ""
                    return
        except (OSError, CasemateError) as error:  # then there is no network, and the result says so
            self._problem, self._is_open = f"it could not be opened: {error}", False
            return
        for fd in (names, proxy_fd):
            os.close(fd)

    def _listen(self, addresses: Sequence[tuple[str, int]]) -> Future[list[int]]:
        return self._cell.listen([ListeningSocket("tcp", *place) for place in addresses])

    def _record(self, crossing: Crossing) -> None:
        self.note(crossing)


class BrokerApprovals(NamedTuple):
    """The egress proxy's questions, as the approval broker takes them."""

    requester: Requester
    hosts: HostRules

    def decide(self, host: str, port: int, how_often: int) -> Future[ApprovalVerdict]:
        """Whether the connection may be made. From any thread."""
        from casemate.model.approval import Question

        again = f", for the {_ordinal(how_often)} time" if how_often > 1 else ""
        summary = f"connect to {host}, port {port}{again}"
        question = Question("egress", summary, {"host": host, "port": port}, beyond=self.hosts.beyond(host, port))
        answer: Future[ApprovalVerdict] = Future()
        answer.set_running_or_notify_cancel()

        def pass_on(deciding: Future[ApprovalVerdict]) -> None:
            answer.set_result(deciding.result())

        self.requester.decide(question).add_done_callback(pass_on)
        return answer


def _ordinal(number: int) -> str:
    """``number`` as in English: 1st, 2nd, 11th, 22nd."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


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
        have besides the system's."""
        self.places = frozenset((rule.host, rule.port or HTTPS) for rule in hosts)
        self._trust = trust
        self._lock = threading.Lock()
        self._made: dict[frozenset[tuple[str, int]], CellInterception] = {}
        self._servers: ssl.SSLContext | None = None
        self._folder: Path | None = None
        self._remove: Callable[[], object] = int  # nothing to remove yet
        self._number = 0

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

    def _server_side(self) -> ssl.SSLContext:
        from casemate.egress.authority import server_side

        try:
            return server_side(self._trust)
        except OSError as error:  # ssl.SSLError is one
            problem = f"{self._trust!r} holds no certificates that can be read: {error.strerror or error}"
            raise InvalidArgument("trust", problem, remediation="Give a PEM file of certificates.") from None
