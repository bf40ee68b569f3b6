"""What one side of a relay of HTTP/2 keeps for the other is bounded by what it says, however it is cut."""

from __future__ import annotations

import tracemalloc
from typing import cast

import h2.config
import h2.connection
import h2.events

from casemate.egress.side import Kept, Side
from casemate.egress.stream import Stream

HEAD = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a.test"), (b":path", b"/")]
WINDOW = 65_535


def test_a_body_in_single_bytes_is_kept_as_a_body_and_sent_in_order() -> None:
    side = Side(cast(Stream, None), is_client=False)
    side.h2.initiate_connection()
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    peer.initiate_connection()
    stream = side.ask(HEAD, is_whole=False)
    side.keep(stream, Kept(bytes(WINDOW)))
    said = [f"{number:06}".encode() for number in range(10_000)]
    tracemalloc.start()
    for number in b"".join(said):
        side.keep(stream, Kept(bytes([number])))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    side.keep(stream, Kept(b"", is_last=True))
    assert kept < 600_000  # bytes, for 60,000
    got = peer.receive_data(side.to_send())
    peer.increment_flow_control_window(100_000)
    peer.increment_flow_control_window(100_000, stream)
    side.h2.receive_data(peer.data_to_send())
    side.send(None)
    got += peer.receive_data(side.to_send())
    body = b"".join(event.data or b"" for event in got if isinstance(event, h2.events.DataReceived))
    assert body == bytes(WINDOW) + b"".join(said)
    assert any(isinstance(event, h2.events.StreamEnded) for event in got)
    assert not side.keeps_something
