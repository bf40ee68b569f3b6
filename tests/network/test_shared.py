"""Cells share the egress proxy: what one does there holds up no other."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.network.visits import World

from casemate import sync

GET = """
import urllib.request
print(urllib.request.urlopen("http://other.test/x", timeout=60).read().decode())
"""

TINY_CHUNKS = """
import socket
s = socket.create_connection(("good.test", 80), 10)
s.sendall(b"POST /busy HTTP/1.1\\r\\nHost: good.test\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
while True:
    s.sendall(b"1\\r\\nx\\r\\n" * 20_000)
"""


@pytest.mark.full
def test_a_cell_that_keeps_the_egress_proxy_busy_holds_up_no_other(world: World, audit: Path) -> None:
    before = len(world.visits())
    domains = ["good.test", "other.test"]
    with sync.Sandbox(audit=audit, allowed_domains=domains, concurrency=2) as sandbox:
        assert sandbox.run(GET).stdout == "hello from GET /x\n"
        busy = sandbox.start(TINY_CHUNKS)
        deadline = time.monotonic() + 60
        while not any("/busy" in visit for visit in world.visits()[before:]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        others = [sandbox.run(GET, timeout=60) for _ in range(3)]
        busy.cancel()
        held_up = busy.wait()
    assert [one.stdout for one in others] == ["hello from GET /x\n"] * 3
    assert held_up.status == "cancelled"  # it went on until then
