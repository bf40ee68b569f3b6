"""The native wall: one supervisor, started when first needed, proved before it is offered."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from casemate.errors import Fault, SandboxClosed, WallUnavailable
from casemate.model.plan import GUEST, PROXY_ADDRESS, Bind
from casemate.supervisor import wire
from casemate.walls.native import launch, refusal, report, spawn
from casemate.walls.native.descriptors import close_all, memory_file
from casemate.walls.native.launch import Silent, copies_of
from casemate.walls.native.link import SupervisorLink, SupervisorProcess
from casemate.walls.native.refusal import Unlaunched, explain_os_errors, why_unlaunched
from casemate.walls.native.running import GONE, MISSED, RunningCell, RunningSession, outcome
from casemate.walls.wall import Reason, SessionSink, Sink, Standard

if TYPE_CHECKING:
    import asyncio

    from casemate.model.diagnosis import Warmth
    from casemate.model.isolation import IsolationReport, Proof
    from casemate.model.overview import InUse
    from casemate.model.plan import Entry, Launch, ListeningSocket, Plan, ReadyStart
    from casemate.walls.native.pool import Lease, Pools
    from casemate.walls.native.selftest import LaunchProgram
    from casemate.walls.wall import CellEnding

S = TypeVar("S", Sink, SessionSink)

_HELLO_TIMEOUT = 20.0  # seconds a supervisor has to start, on a machine under heavy load


class NativeWall:
    """Cells out of Linux namespaces, mounts, Landlock, seccomp and limits. See ``docs/explanation/walls.md``."""

    name = "native"
    host_address = PROXY_ADDRESS
    lays_out = False
    refused: Sequence[tuple[str, WallUnavailable]] = ()
    _leaves_own_files = True  # what a cell leaves on this machine belongs to the cell's own user
    _without: frozenset[str] = frozenset()  # cases of the self-test that this wall does not hold, and says so

    def __init__(self, launch_probe: LaunchProgram, concurrency: int) -> None:
        """``launch_probe`` says how the self-test's programs, which are Python, are started; ``concurrency``: the most
        cells at once, for which others may be kept ready."""
        self._launch_probe = launch_probe
        self._concurrency = concurrency
        self._link: SupervisorLink | None = None
        self._pools: Pools | None = None
        self._roots: dict[tuple[Entry, ...], str] = {}
        self._system: tuple[Entry, ...] | None = None
        self._report: IsolationReport | None = None
        self._lock = threading.Lock()
        self._proving: asyncio.Lock | None = None
        self._closed = False

    def warm_up(self) -> None:
        """Start the supervisor without waiting for it, so that other work can go on meanwhile."""
        with self._lock:
            self._open()

    def system_entries(self) -> tuple[Entry, ...]:
        if self._system is None:
            self._system = tuple(launch.system_entries())
        return self._system

    def shown_paths(self) -> tuple[str, ...]:
        binds = [one for one in self.system_entries() if isinstance(one, Bind) and one.target != GUEST]
        return tuple(path for one in binds for path in (one.source, one.target))

    def place(self, launch: Launch) -> Launch:
        return launch  # it is where it is on the host

    async def prove(self) -> IsolationReport:
        """The self-test's outcome: from this wall's life, else the cache, else by running it now.

        Raises ``WallUnavailable`` with the reason and the remedy where the machine refuses,
        or where an escape of the self-test succeeded; ``Unavailable`` where this process can have no cells.
        """
        import asyncio  # not before: it loads while the supervisor starts

        from casemate.walls.native import selftest

        launch.check_process()
        self._proving = self._proving or asyncio.Lock()
        async with self._proving:
            if self._report is None:
                facts = await self._facts()
                bench = selftest.Bench(
                    self.name, facts, self.start, self.system_entries(), self._launch_probe, self._make_report,
                    self.place, self._leaves_own_files, self._without,
                )  # fmt: skip
                self._report = await selftest.prove(bench)
            return self._report

    def _make_report(self, facts: dict[str, Any], proofs: tuple[Proof, ...], proved_at: float) -> IsolationReport:
        return report.make(facts, proofs, proved_at)

    def start(self, plan: Plan, sink: Sink) -> NativeCell:
        cell, lease, why_exec = self._cell_for(plan, sink, SupervisorLink.launch)
        return NativeCell(self, plan, sink, cell, lease, why_exec)

    def start_piped(self, plan: Plan, standard: Standard) -> NativeCell:
        link, _, root = self._ready(plan)
        with explain_os_errors():
            cell = link.launch(*self._prepare(root, plan, copies_of(standard)), Silent())
        return NativeCell(self, plan, Silent(), cell, None, "its standard streams are its caller's")

    def _cell_for(
        self, plan: Plan, sink: S, make: Callable[[SupervisorLink, dict[str, Any], dict[str, int], S], RunningCell]
    ) -> tuple[RunningCell, Lease | None, str]:
        """A cell that has the program of ``plan``, the lease of its pool, and why it is not one that was ready.

        ``make`` makes one where none is ready.
        """
        link, pools, root = self._ready(plan)
        with explain_os_errors():
            files = launch.files_of(plan)
            if pools is None or isinstance(plan.waiting, str):
                return make(link, *self._prepare(root, plan, files), sink), None, str(plan.waiting)
            try:
                lease = pools.take(plan, plan.waiting, root)
            except BaseException:
                close_all(files.values())
                raise
            try:
                cell = self._begin(link, lease, plan, plan.waiting, files, sink)
                if cell is not None:
                    return cell, lease, ""
                return make(link, *self._prepare(root, plan, files), sink), lease, lease.why or GONE
            except BaseException:
                lease.end()
                raise

    def relaunch(self, plan: Plan, sink: Sink) -> RunningCell:
        """Start a cell for ``plan`` that need not be ready: one that was ended before its program began."""
        link, _, root = self._ready(plan)
        with explain_os_errors():
            return link.launch(*self._prepare(root, plan, launch.files_of(plan)), sink)

    def open(self, plan: Plan, sink: SessionSink) -> RunningSession:
        cell, lease, why_exec = self._cell_for(plan, sink, SupervisorLink.open)
        if lease:
            lease.end()  # it has been given out; how long it lives says nothing of when the next is wanted
        assert isinstance(cell, RunningSession)
        cell.start, cell.start_reason = (lease.how if lease and not why_exec else "exec"), why_exec
        return cell

    def keep_ready(self, plan: Plan) -> None:
        if not isinstance(plan.waiting, str):
            _, pools, root = self._ready(plan)
            assert pools is not None
            with explain_os_errors():
                pools.start(plan, plan.waiting, root)

    def warmth(self) -> Warmth:
        from casemate.model.diagnosis import Warmth

        return self._pools.states() if self._pools else Warmth()

    def in_use(self) -> InUse:
        from casemate.walls.native.in_use import used_by

        with self._lock:
            link = self._link
        return used_by(link)

    def _prepare(self, root: str, plan: Plan, files: dict[str, int]) -> tuple[dict[str, Any], dict[str, int]]:
        """The request for a cell of its own for ``plan``, and its descriptors; ``files`` are given away."""
        fds = dict(files)
        try:
            if "stdin" not in fds:
                fds["stdin"] = launch.standard_input(plan.stdin)
            fds["payload"] = launch.payload(plan.argv, {**plan.env, **plan.secrets.reveal()}, plan.cwd)
            fds["program"] = memory_file(plan.code)
            request = launch.request(plan, root)
        except OSError:
            close_all(fds.values())
            raise
        return request, fds

    def _begin(
        self,
        link: SupervisorLink,
        lease: Lease,
        plan: Plan,
        waiting: ReadyStart,
        files: dict[str, int],
        sink: Sink | SessionSink,
    ) -> RunningCell | None:
        """The cell that is ready, with the program in it and ``files`` taken over; None when there is none any more."""
        if lease.cell is None:
            return None
        fds = dict(files)
        try:
            if not launch.needs_supervisor(plan, waiting) and link.begin_now(lease.cell, plan, waiting.order, sink):
                return lease.cell
            message = launch.begin_request(plan, waiting)
            fds["order_file"] = launch.unread(plan, waiting)
            begun = link.begin(lease.cell, message, fds, plan.stdin, sink)
        except OSError:
            lease.cell.discard()
            close_all(fds.values())
            raise
        if begun:
            return lease.cell
        close_all(fd for name, fd in fds.items() if name not in files)
        return None

    async def close(self) -> None:
        import asyncio

        with self._lock:
            self._closed = True
            link, self._link = self._link, None
        if link is not None:
            await asyncio.to_thread(link.close)

    # -- the supervisor

    def _open(self) -> SupervisorLink:
        """The running supervisor's link; a new one when there is none or it died."""
        if self._closed:
            raise SandboxClosed("the sandbox was closed")
        if self._link is None or not self._link.is_up():
            if impossible := refusal.too_old_or_foreign(refusal.facts()):
                raise impossible
            self._roots.clear()
            self._pools = None
            try:
                self._link = SupervisorLink(self._start_supervisor())
            except OSError as error:
                raise self._explain("supervisor", error.errno or 0, f"starting the supervisor: {error}") from None
        return self._link

    async def _facts(self) -> dict[str, Any]:
        import asyncio

        with self._lock:
            link = self._open()
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT):  # wait_for would lose a cancellation that comes with the hello
                hello = await outcome(link.hello)
        except TimeoutError:
            raise Fault(f"the supervisor did not start within {_HELLO_TIMEOUT:g} s") from None
        if hello["op"] == "refused":
            raise self._explain(hello["stage"], hello["errno"], hello["detail"])
        return hello

    def _start_supervisor(self) -> SupervisorProcess:
        """A supervisor that makes cells of this wall. Raises ``OSError``."""
        return spawn.take()

    def _explain(self, stage: str, number: int, detail: str) -> WallUnavailable:
        """Why the supervisor has refused to make cells."""
        return refusal.explain(stage, number, detail, refusal.facts())

    def _ready(self, plan: Plan) -> tuple[SupervisorLink, Pools | None, str]:
        """The link, what it keeps ready where ``plan`` may be begun in such a cell, and the key of the root tree of its
        entries, which the supervisor knows."""
        entries = plan.entries
        launch.check_process()
        with self._lock:
            link = self._open()
            key = self._roots.get(entries)
            if key is None:
                described = launch.describe_entries(entries, own=False)
                key = hashlib.sha256(wire.encode(described)).hexdigest()[:24]
                link.send({"op": "root", "key": key, "entries": described})
                self._roots[entries] = key
            return link, None if isinstance(plan.waiting, str) else self._pools_of(link), key

    def _pools_of(self, link: SupervisorLink) -> Pools:
        """What ``link`` keeps ready, which is there from the first program on that may have it. Under the lock."""
        from casemate.walls.native.pool import Pools

        if self._pools is None:
            self._pools = link.pools = Pools(link, self._concurrency)
        return self._pools


class NativeCell:
    """A running cell of the native wall."""

    def __init__(
        self, wall: NativeWall, plan: Plan, sink: Sink, cell: RunningCell, lease: Lease | None, why_exec: str
    ) -> None:
        self._wall = wall
        self._plan = plan
        self._sink = sink
        self._cell = cell
        self._lease = lease
        self.signal = cell.signal
        self._how = lease.how if lease and not why_exec else "exec"
        self._why = why_exec
        self._killed: Reason | None = None
        self._listening: Future[list[int]] = Future()
        self._hand_on_listeners()

    def kill(self, reason: Reason) -> None:
        self._killed = reason
        self._cell.kill(reason)

    def read_on(self) -> None:
        self._cell.read_on()

    def read_now(self, then: Callable[[], object]) -> None:
        self._cell.read_now(then)

    def pause(self) -> None:
        self._cell.pause()

    def resume(self) -> None:
        self._cell.resume()

    def listeners(self) -> Future[list[int]]:
        return self._listening

    def listen(self, sockets: Sequence[ListeningSocket]) -> Future[list[int]]:
        return self._cell.listen(sockets)

    def _hand_on_listeners(self) -> None:
        """Of whichever cell the program runs in: where one was missed, the next one's."""

        def hand_on(made: Future[list[int]]) -> None:
            if made.cancelled():
                return
            is_wanted, error = self._listening.set_running_or_notify_cancel(), made.exception()
            if is_wanted and error is not None:
                self._listening.set_exception(error)
            elif is_wanted:
                self._listening.set_result(made.result())
            elif error is None:
                close_all(made.result())

        self._cell.listening.add_done_callback(hand_on)

    async def wait(self) -> CellEnding:
        import asyncio

        try:
            ending = await self._wait()
        except asyncio.CancelledError:
            raise  # only the waiting is over
        except BaseException as error:
            self._end_lease()
            if isinstance(error, Unlaunched):
                raise why_unlaunched(error) from None
            raise
        self._end_lease()
        return replace(ending, start=self._how, start_reason=self._why)

    def _end_lease(self) -> None:
        self._listening.cancel()  # where nobody has them yet, there is nothing to listen to
        if self._lease:
            self._lease.end()

    async def _wait(self) -> CellEnding:
        """The end, of a second cell where the first ended before its program began: nobody is to notice."""
        try:
            return await self._cell.wait()
        except Unlaunched as error:
            if self._how == "exec" or error.stage not in MISSED or self._listening.done():
                raise  # and not once more where its listeners have been handed out
            self._why = f"{GONE}: {error.detail}"
        self._how = "exec"
        self._cell = self._wall.relaunch(self._plan, self._sink)
        self._hand_on_listeners()
        if self._killed:
            self._cell.kill(self._killed)
        return await self._cell.wait()
