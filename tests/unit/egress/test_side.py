"""What one side of a relay of HTTP/2 keeps for the other is bounded by what it says, however it is cut."""

from __future__ import annotations

import tracemalloc
from typing import cast

import h2.config
import h2.connection
import h2.events
import hyperframe.frame
import pytest

from casemate.egress.http2_relay import Http2Side, PendingPart
from casemate.egress.stream import TcpStream

HEAD = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a.test"), (b":path", b"/")]
WINDOW = 65_535
NAMES_HAVE_CHANGED = (
    "h2 describes frames again: find what the names in casemate.egress.http2_relay._Unlogged are called now"
)


def test_a_body_in_single_bytes_is_kept_as_a_body_and_sent_in_order() -> None:
    side = Http2Side(cast(TcpStream, None), is_client=False)
    side.h2.initiate_connection()
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    peer.initiate_connection()
    stream = side.ask(HEAD, is_whole=False)
    side.keep(stream, PendingPart(bytes(WINDOW)))
    said = [f"{number:06}".encode() for number in range(10_000)]
    tracemalloc.start()
    for number in b"".join(said):
        side.keep(stream, PendingPart(bytes([number])))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    side.keep(stream, PendingPart(b"", is_last=True))
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


def test_no_frame_is_described_for_a_log_that_nobody_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """h2 would make text of all that comes, which is a fifth of what a byte costs."""
    side = Http2Side(cast(TcpStream, None), is_client=False)
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    for one in (side.h2, peer):
        one.initiate_connection()
    stream = side.ask(HEAD, is_whole=True)
    peer.receive_data(side.to_send())
    peer.send_headers(stream, [(b":status", b"200")])
    peer.send_data(stream, b"body")
    described: list[str] = []
    body_of = hyperframe.frame.Frame._body_repr

    def described_as(one: hyperframe.frame.Frame) -> str:
        described.append(body_of(one))
        return described[-1]

    monkeypatch.setattr(hyperframe.frame.Frame, "_body_repr", described_as)
    (*_, said) = side.h2.receive_data(peer.data_to_send())
    assert isinstance(said, h2.events.DataReceived)
    assert said.data == b"body"
    assert described == [], NAMES_HAVE_CHANGED
    assert repr(hyperframe.frame.DataFrame(1, b"x"))
    assert len(described) == 1, NAMES_HAVE_CHANGED  # or frames are described in another way
