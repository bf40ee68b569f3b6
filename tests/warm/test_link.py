"""The way to the supervisor, when it is full."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from tests.contract import witness
from tests.support.waiting import MAX_WAIT, until

from casemate import sync


def test_a_supervisor_that_does_not_read_holds_up_nothing_but_itself(sandbox: sync.Sandbox) -> None:
    assert sandbox.run("print(1)").stdout == "1\n"
    wall: Any = sandbox.asynchronous._wall
    link = wall._link
    assert link is not None
    (supervisor,) = witness.children(link._supervisor.pid)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        until(lambda: witness.state(supervisor) == "T")
        for _ in range(3000):
            link.send({"op": "forget", "id": "nobody" * 20})
        assert link._outbox.waits, "its socket is not full"
        for _ in range(5):  # its pump goes round, though there is nothing to read
            turned = threading.Event()
            link.call(turned.set)
            assert turned.wait(MAX_WAIT)
    finally:
        os.kill(supervisor, signal.SIGCONT)
    until(lambda: not link._outbox.waits, "what waited was never sent")
    assert sandbox.run("print(2)").stdout == "2\n"
