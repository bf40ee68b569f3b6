"""Plan → Finished: runs the cell."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from casemate.approvals.channels import StreamChannel
from casemate.approvals.requester import Origin, Requester
from casemate.execution.capture import Capture
from casemate.execution.guarding import Watch
from casemate.execution.network import CellNetwork

if TYPE_CHECKING:
    from casemate.execution.capture import Emitter
    from casemate.execution.context import ExecutionContext, Planned
    from casemate.execution.network import Offer
    from casemate.model.execution import Crossing
    from casemate.model.plan import Plan, Request
    from casemate.redaction.redaction import Redaction
    from casemate.walls.wall import Cell, CellEnding, Sink

_NOTHING: Mapping[str, str] = {}
_END_TIMEOUT = 10.0  # seconds; a killed cell dies in milliseconds, so after this the supervisor must be gone


class Finished(NamedTuple):
    """A run whose cell is dead. The receiver must close ``ending.tree_fd``."""

    planned: Planned
    ending: CellEnding
    capture: Capture
    before: Mapping[str, str] = _NOTHING  # output files of a direct workspace before the run: digests by name
    crossings: tuple[Crossing, ...] = ()  # the hosts that it reached or tried to reach


class Begun(NamedTuple):
    cell: Cell
    requester: Requester
    network: CellNetwork


async def run(
    planned: Planned,
    start: Callable[[Plan, Sink], Cell],
    requester: Requester,
    offers: Sequence[Offer] = (),
    before: Mapping[str, str] = _NOTHING,
    begun: Callable[[Begun], None] = lambda _: None,
) -> Finished:
    """Make a cell with ``start`` and run it to its end. If the caller is cancelled, the cell is ended first. ``begun``
    is called when the cell is made."""
    plan, context, emitter = planned.plan, planned.context, planned.emitter
    asks = context.may_ask(stream=emitter is not None)
    capture = Capture(plan.limits, emitter, planned.redaction)
    with Watch(plan.workspace) as watch:
        cell = start(plan, capture)
        watch.begin(cell.kill)
        capture.kill = cell.kill
        requester.attach(cell)
        if emitter:
            emitter.on_room = cell.read_on
            emitter.end_cell = partial(_cancel, cell, requester)
        network = CellNetwork(
            context.sandbox_network, planned.admitted, planned.intercepted, cell, planned.note_crossing, offers
        )
        begun(Begun(cell, requester, network))
        network.attend(requester, asks=asks)
        try:
            ending = await cell.wait()
        except asyncio.CancelledError:
            await end_first(cell)
            raise
        finally:
            await network.close()
    capture.finish(cut=not (ending.reason is None and ending.wait_status == 0))
    return Finished(planned, ending, capture, before, network.crossings())


def _cancel(cell: Cell, requester: Requester) -> None:
    """End a cancelled run. Its outcome so far is kept, and its pending approval requests are closed."""
    requester.close("the run was cancelled")
    cell.kill("cancelled")


async def end_first(cell: Cell) -> None:
    """Kill a cell and wait until it is gone. If cancelled again, stop waiting; its tree is closed when it ends."""
    cell.kill("cancelled")
    waiting = asyncio.ensure_future(cell.wait())  # noqa: TID251 - awaited here, or its result closed when it comes
    try:
        ending = await asyncio.wait_for(asyncio.shield(waiting), _END_TIMEOUT)
    except asyncio.CancelledError:
        waiting.add_done_callback(_close_tree)
        raise
    except Exception:  # noqa: BLE001 - the cell was never made, or its supervisor is gone: it has ended either way
        return
    os.close(ending.tree_fd)


def _close_tree(waiting: asyncio.Future[CellEnding]) -> None:
    if not waiting.cancelled() and waiting.exception() is None:
        os.close(waiting.result().tree_fd)


@asynccontextmanager
async def open_requester(
    context: ExecutionContext, request: Request, emitter: Emitter | None, redaction: Redaction | None = None
) -> AsyncIterator[Requester]:
    """Open the approval requester of ``request`` for the block. Afterwards it sends no more approval requests."""
    approvals = context.approvals()
    stream = StreamChannel(emitter.emit, lambda: emitter.is_followed) if emitter else None
    origin = Origin(request.namespace, request.session, request.id)
    requester = approvals.requester(origin, stream, redaction, asks=context.asks)
    if emitter and stream:
        emitter.on_unfollowed = lambda: approvals.drop_channel(stream)
        emitter.has_begun = True
    try:
        yield requester
    finally:
        await requester.end()
        if emitter:
            emitter.on_unfollowed = None


# In the order in which they are needed.
_ALWAYS = (
    "casemate.model.events",
    "casemate.walls.wall",
    "casemate.execution.collect",
    "casemate.execution.seal",
    "casemate.audit.anchors",  # the record's last rows are signed when it is closed
    "casemate.evidence.keys",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "concurrent.futures.thread",  # asyncio's threads, in which a sandbox is closed
)
_WITH_FILES = ("casemate.artifacts.collect", "casemate.workspace.apply", "casemate.execution.gather")
_A_WHILE = 0.05  # seconds; a short program without files ends before this and does not load what collects them


@contextmanager
def loading_the_rest() -> Iterator[None]:
    """Load the modules for the end of a run, one per turn of the loop so that output waits for at most one."""
    loop = asyncio.get_running_loop()
    left = [name for name in _ALWAYS if name not in sys.modules]

    def load(more: tuple[str, ...] = ()) -> None:
        left.extend(more)
        if left:
            import_module(left.pop(0))
            loop.call_soon(load)

    loop.call_soon(load)
    later = loop.call_later(_A_WHILE, load, _WITH_FILES)
    try:
        yield
    finally:
        left.clear()
        later.cancel()
