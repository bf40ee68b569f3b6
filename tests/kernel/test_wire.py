"""The messages that a kernel accepts on its sockets."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from tests.kernel.notebook import SECONDS

from casemate.surfaces.kernel.wire import Wire

MOST = 64 << 20
# ZMTP 3.0, sections "Greeting" and "NULL Security Mechanism"
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"


def test_who_announces_more_than_a_session_takes_is_cut_off_before_any_of_it_comes(tmp_path: Path) -> None:
    ports = {f"{name}_port": name for name in ("shell", "iopub", "stdin", "control", "hb")}
    wire = Wire({"transport": "ipc", "ip": str(tmp_path / "k"), "key": "secret", **ports})
    with contextlib.closing(wire), socket.socket(socket.AF_UNIX) as client:
        client.settimeout(SECONDS)
        client.connect(str(tmp_path / "k-shell"))
        client.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
        with client.makefile("rb") as said:
            *_, size = said.read(len(GREETING) + 2)
            assert b"ROUTER" in said.read(size)
            client.sendall(b"\x02" + (MOST + 1).to_bytes(8, "big"))  # a long frame, of which nothing follows
            assert said.read() == b""
