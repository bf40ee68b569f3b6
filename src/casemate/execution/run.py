"""Plan → Finished: the cell itself."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from casemate.approvals.channels import StreamChannel
from casemate.approvals.requester import Origin, Requester
from casemate.execution.capture import Capture
from casemate.execution.guarding import Watch

if TYPE_CHECKING:
    from casemate.execution.capture import Emitter
    from casemate.execution.context import ExecutionContext
    from casemate.execution.network import CellNetwork
    from casemate.model.execution import Crossing
    from casemate.model.plan import Plan, Request
    from casemate.redaction.redaction import Redaction
    from casemate.walls.wall import Cell, CellEnding, Sink

_END_TIMEOUT = 10.0  # seconds; a killed cell is dead in milliseconds, so more means that the supervisor is gone


class Finished(NamedTuple):
    """Everything in the cell is dead; ``ending.tree_fd`` must be closed by whoever takes this.

    ``before``: what a folder that is written through held as output before the run (digests by name);
    ``crossings``: the hosts it reached, or tried to.
    """

    plan: Plan
    ending: CellEnding
    capture: Capture
    before: dict[str, str]
    crossings: tuple[Crossing, ...]


class RunNetwork(NamedTuple):
    """Of one run: what they ask, and the one to the network of its cell. ``asks``: about hosts, too."""

    requester: Requester
    network_of: Callable[[Cell], CellNetwork]
    asks: bool


async def run(
    plan: Plan,
    start: Callable[[Plan, Sink], Cell],
    emitter: Emitter | None,
    before: dict[str, str],
    run_network: RunNetwork,
    redaction: Redaction | None = None,
) -> Finished:
    """Run the cell that ``start`` makes to its end. When the caller is cancelled the cell is ended first."""
    capture = Capture(plan.limits, emitter, redaction)
    with Watch(plan.workspace) as watch:
        cell = start(plan, capture)
        watch.begin(cell.kill)
        capture.kill = cell.kill
        run_network.requester.attach(cell)
        if emitter:
            emitter.on_room = cell.read_on
            emitter.end_cell = partial(_cancel, cell, run_network.requester)
        cell_network = run_network.network_of(cell)
        cell_network.attend(run_network.requester, asks=run_network.asks)
        try:
            ending = await cell.wait()
        except asyncio.CancelledError:
            await end_first(cell)
            raise
        finally:
            await cell_network.close()
    capture.finish(cut=not (ending.reason is None and ending.wait_status == 0))
    return Finished(plan, ending, capture, before, cell_network.crossings())


def _cancel(cell: Cell, requester: Requester) -> None:
    """Somebody wants it to end: what it was until then is its outcome, and nothing of it crosses any more."""
    requester.close("the run was cancelled")
    cell.kill("cancelled")


async def end_first(cell: Cell) -> None:
    """Kill a cell and wait until it is gone, also when cancelled once more."""
    cell.kill("cancelled")
    waiting = asyncio.ensure_future(cell.wait())  # noqa: TID251 - awaited here, or its result closed when it comes
    try:
        ending = await asyncio.wait_for(asyncio.shield(waiting), _END_TIMEOUT)
    except asyncio.CancelledError:
        waiting.add_done_callback(_close_tree)
        raise
    except Exception:  # noqa: BLE001 - the cell never was, or its supervisor is gone: it has ended either way
        return
    os.close(ending.tree_fd)


def _close_tree(waiting: asyncio.Future[CellEnding]) -> None:
    if not waiting.cancelled() and waiting.exception() is None:
        os.close(waiting.result().tree_fd)


@asynccontextmanager
async def open_requester(
    context: ExecutionContext, request: Request, emitter: Emitter | None, redaction: Redaction | None = None
) -> AsyncIterator[Requester]:
    """The requester of ``request``. When this is left, nothing of it crosses any more."""
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
            emitter.on_unfollowed = None  # nothing waits any more for whoever follows it


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
_A_WHILE = 0.05  # seconds that a short program runs: who leaves no file need not wait for what collects them


@contextmanager
def loading_the_rest() -> Iterator[None]:
    """As long as this is entered, load what the end always needs, and later what it may need: one module in each turn
    of the event loop, so that what a cell says waits for one at most."""
    loop = asyncio.get_running_loop()
    is_over = False

    def load(names: list[str]) -> None:
        if names and not is_over:
            import_module(names.pop(0))
            loop.call_soon(load, names)

    loop.call_soon(load, _not_loaded(_ALWAYS))
    later = loop.call_later(_A_WHILE, load, _not_loaded(_WITH_FILES))
    try:
        yield
    finally:
        is_over = True
        later.cancel()


def _not_loaded(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name not in sys.modules]
