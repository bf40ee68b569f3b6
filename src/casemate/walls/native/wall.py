"""The native wall: one supervisor, started when first needed and proved before it is used."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from casemate.errors import Fault, SandboxClosed, WallUnavailable
from casemate.model.plan import GUEST, PROXY_ADDRESS, Bind
from casemate.supervisor import wire
from casemate.walls.native import launch, refusal, report, spawn
from casemate.walls.native.descriptors import close_all, closed_on_error, memory_file
from casemate.walls.native.launch import Silent, copies_of
from casemate.walls.native.link import SupervisorLink, SupervisorProcess
from casemate.walls.native.refusal import explain_os_errors
from casemate.walls.native.running import GONE, RunningCell, outcome
from casemate.walls.native.running_session import RunningSession

if TYPE_CHECKING:
    import asyncio

    from casemate.model.diagnosis import Warmth
    from casemate.model.isolation import IsolationReport
    from casemate.model.overview import InUse
    from casemate.model.plan import Entry, Launch, Plan, ReadyStart
    from casemate.walls.native.pool import Pools
    from casemate.walls.native.selftest import LaunchProgram
    from casemate.walls.wall import SessionSink, Sink, Standard

_HELLO_TIMEOUT = 20.0  # seconds for a supervisor to start; enough on a busy machine


class NativeWall:
    """Isolates cells with Linux namespaces, mounts, Landlock, seccomp and limits. See ``docs/explanation/walls.md``."""

    name = "native"
    host_address = PROXY_ADDRESS
    lays_out = False
    refused: Sequence[tuple[str, WallUnavailable]] = ()
    _leaves_own_files = True  # files that a cell leaves on this machine belong to the cell's own user
    _make_report = staticmethod(report.make)
    _without: frozenset[str] = frozenset()  # self-test cases that this wall fails; its report says so

    def __init__(self, launch_probe: LaunchProgram, concurrency: int) -> None:
        """``launch_probe``: returns how to start the self-test's Python programs. ``concurrency``: the most cells at
        once, which also bounds the ready cells."""
        self._launch_probe = launch_probe
        self._concurrency = concurrency
        self._link: SupervisorLink | None = None
        self._roots: dict[tuple[Entry, ...], str] = {}
        self._system: tuple[Entry, ...] | None = None
        self._report: IsolationReport | None = None
        self._lock = threading.Lock()
        self._proving: asyncio.Lock | None = None
        self._closed = False

    def warm_up(self) -> None:
        """Start the supervisor without waiting for it."""
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
        return launch  # cells have it at the host's path

    async def prove(self) -> IsolationReport:
        """Return the self-test's result: this wall's earlier one, or the cached one, or from a new test.

        Raises ``WallUnavailable``, with reason and remedy, if the machine refuses or an escape in the self-test
        succeeded. Raises ``Unavailable`` if this process cannot have cells.
        """
        import asyncio  # here, so that it loads while the supervisor starts

        from casemate.walls.native import selftest

        launch.check_process()
        self._proving = self._proving or asyncio.Lock()
        async with self._proving:
            if self._report is None:
                facts = await self._facts()
                bench = selftest.Bench(self, facts, self._launch_probe, self._leaves_own_files, self._without)
                self._report = self._make_report(facts, *await selftest.prove(bench))
            return self._report

    def start(self, plan: Plan, sink: Sink) -> RunningCell:
        cell = self._begin_cell(plan, sink)
        cell.again = partial(self._relaunch, cell, plan)
        return cell

    def start_piped(self, plan: Plan, standard: Standard) -> RunningCell:
        link, _, root = self._ready(plan)
        with explain_os_errors():
            cell = link.launch(*self._prepare(root, plan, copies_of(standard)), Silent())
        cell.start_reason = "it uses the caller's standard streams"
        return cell

    def open(self, plan: Plan, sink: SessionSink) -> RunningSession:
        cell = self._begin_cell(plan, sink)
        cell.give_back()  # a session's length says nothing about future demand
        assert isinstance(cell, RunningSession)
        return cell

    def _begin_cell(self, plan: Plan, sink: Sink | SessionSink) -> RunningCell:
        """Begin ``plan`` in a ready cell, or launch a cell for it."""
        waiting = self._waiting_for(plan)
        link, pools, root = self._ready(plan, waiting)
        with explain_os_errors():
            files = launch.files_of(plan)
            if pools is None or isinstance(waiting, str):
                cell = link.launch(*self._prepare(root, plan, files), sink)
                cell.start_reason = str(waiting)
                return cell
            with closed_on_error(files.values()):
                ready, why, release = pools.take(plan, waiting, root)
            try:
                if ready and self._begin(link, ready, plan, waiting, files, sink):
                    cell = ready
                else:
                    cell = link.launch(*self._prepare(root, plan, files), sink)
                    cell.start_reason = why or GONE
            except BaseException:
                release()
                raise
            cell.release = release
            return cell

    def _relaunch(self, cell: RunningCell, plan: Plan) -> None:
        """Begin ``plan`` by exec, because ``cell`` was ready and ended before its program began."""
        link, _, root = self._ready(plan)
        with explain_os_errors():
            link.relaunch(cell, *self._prepare(root, plan, launch.files_of(plan)))

    def keep_ready(self, plan: Plan) -> None:
        waiting = self._waiting_for(plan)
        if not isinstance(waiting, str):
            _, pools, root = self._ready(plan, waiting)
            assert pools is not None
            with explain_os_errors():
                pools.start(plan, waiting, root)

    def _waiting_for(self, plan: Plan) -> ReadyStart | str:
        """How ready cells wait for programs like that of ``plan``, or why there are none."""
        return plan.waiting

    def warmth(self) -> Warmth:
        from casemate.model.diagnosis import Warmth

        link = self._link
        return link.pools.states() if link and link.pools else Warmth()

    def in_use(self) -> InUse:
        from casemate.walls.native.in_use import used_by

        with self._lock:
            link = self._link
        return used_by(link)

    def _prepare(self, root: str, plan: Plan, files: dict[str, int]) -> tuple[dict[str, Any], dict[str, int]]:
        """Return the request for a new cell for ``plan``, and its descriptors. Takes ``files`` over."""
        fds = dict(files)
        with closed_on_error(fds.values()):
            if "stdin" not in fds:
                fds["stdin"] = launch.standard_input(plan.stdin)
            fds["payload"] = launch.payload(plan.argv, {**plan.env, **plan.secrets.reveal()}, plan.cwd)
            fds["program"] = memory_file(plan.code)
            return launch.request(plan, root), fds

    def _begin(
        self,
        link: SupervisorLink,
        cell: RunningCell,
        plan: Plan,
        waiting: ReadyStart,
        files: dict[str, int],
        sink: Sink | SessionSink,
    ) -> bool:
        """Give a ready cell its program, and take ``files`` over. Returns False if it has ended meanwhile."""
        fds = dict(files)
        try:
            if not launch.needs_supervisor(plan, waiting) and link.begin_now(cell, plan, waiting.order, sink):
                return True
            message = launch.begin_request(plan, waiting)
            fds["order_file"] = launch.unread(plan, waiting)
            is_begun = link.begin(cell, message, fds, plan.stdin, sink)
        except OSError:
            cell.kill("closed")
            close_all(fds.values())
            raise
        if not is_begun:
            close_all(fd for name, fd in fds.items() if name not in files)
        return is_begun

    async def close(self) -> None:
        import asyncio

        with self._lock:
            self._closed = True
            link, self._link = self._link, None
        if link is not None:
            await asyncio.to_thread(link.close)

    # -- the supervisor

    def _open(self) -> SupervisorLink:
        """Return the link to the running supervisor. Starts one if there is none or it died."""
        if self._closed:
            raise SandboxClosed("the sandbox was closed")
        if self._link is None or not self._link.is_up():
            if impossible := refusal.too_old_or_foreign(refusal.facts()):
                raise impossible
            self._roots.clear()
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
        """Start a supervisor for this wall's cells. Raises ``OSError``."""
        return spawn.take()

    def _explain(self, stage: str, number: int, detail: str) -> WallUnavailable:
        """Explain why the supervisor cannot make cells."""
        return refusal.explain(stage, number, detail, refusal.facts())

    def _ready(self, plan: Plan, waiting: ReadyStart | str = "") -> tuple[SupervisorLink, Pools | None, str]:
        """Return the link, its pools if ``plan`` may begin in a ready cell, and the key of the root tree of the plan's
        entries, which the supervisor has."""
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
            return link, None if isinstance(waiting, str) else link.open_pools(self._concurrency), key
