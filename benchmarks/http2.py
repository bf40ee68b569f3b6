"""What interception costs in HTTP/2: 128 MiB down and up on one stream, where TLS ends at the proxy, against a proxy
that only carries it.

Like `interception.py`, without a cell. Client and server know just enough of HTTP/2 to keep up: frames of 16 KiB, which
is what a peer takes that says nothing else, and either windows of 1 MiB, or of 64 KiB, as connections begin with.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when this file is run by its path

from benchmarks import measure
from benchmarks.interception import things, with_door
from benchmarks.measure import Goal

_BIG = 128 << 20
_LEAST_RATE = 80 << 20  # bytes a second, the goal

_PEER = """
import json, os, socket, ssl, struct, sys, threading, time
FRAME, FIRST, ONE = 16384, 65535, 1
def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
BODY = frame(0, 0, ONE, b"x" * FRAME) * 8
class Peer:
    def __init__(self, one, window):
        self.one, self.buffer, self.skip, self.window = one, bytearray(), 0, window
        self.room = {0: FIRST, ONE: FIRST}  # that the other side gives
        self.initial = FIRST
        self.used = self.got = 0
        self.has_asked = self.has_ended = False
    def begin(self, preface=b""):
        more = frame(8, 0, 0, struct.pack("!L", self.window - FIRST)) if self.window > FIRST else b""
        self.one.sendall(preface + frame(4, 0, 0, struct.pack("!HL", 4, self.window)) + more)
    def read(self):
        data = self.one.recv(FRAME)
        if not data: raise EOFError
        if self.skip:
            used = min(self.skip, len(data))
            self.skip -= used
            data = data[used:]
        self.buffer += data
        at = 0
        while len(self.buffer) - at >= 9:
            length = int.from_bytes(self.buffer[at:at + 3], "big")
            kind, flags = self.buffer[at + 3], self.buffer[at + 4]
            stream = int.from_bytes(self.buffer[at + 5:at + 9], "big")
            end = at + 9 + length
            if kind == 0:
                self.took(length)
                self.has_ended = self.has_ended or bool(flags & 1)
                self.skip = max(0, end - len(self.buffer))
            elif end > len(self.buffer):
                break
            else:
                self.received(kind, flags, stream, bytes(self.buffer[at + 9:end]))
            at = min(end, len(self.buffer))
        del self.buffer[:at]
    def took(self, length):
        self.got += length
        self.used += length
        if 2 * self.used >= self.window:
            grown = struct.pack("!L", self.used)
            self.one.sendall(frame(8, 0, 0, grown) + frame(8, 0, ONE, grown))
            self.used = 0
    def received(self, kind, flags, stream, payload):
        if kind == 4 and not flags & 1:
            for at in range(0, len(payload), 6):
                key, value = struct.unpack_from("!HL", payload, at)
                if key == 4:
                    self.room[ONE] += value - self.initial
                    self.initial = value
            self.one.sendall(frame(4, 1, 0))
        elif kind == 8:
            self.room[stream] += int.from_bytes(payload, "big")
        elif kind == 1:
            self.has_asked = True
            self.has_ended = self.has_ended or bool(flags & 1)
        elif kind in (3, 7):
            raise SystemExit(f"ended: {payload!r}")
    def body(self, size):
        while size:
            room = min(self.room.values())
            if room < min(size, FRAME):
                self.read()
                continue
            if (most := min(size, room, 8 * FRAME)) >= FRAME:
                count = most // FRAME * FRAME
                self.one.sendall(memoryview(BODY)[:count // FRAME * (9 + FRAME)])
            else:
                count = most
                self.one.sendall(frame(0, 0, ONE, b"x" * count))
            size -= count
            for stream in self.room: self.room[stream] -= count
        self.one.sendall(frame(0, 1, ONE))
"""

_SERVER = (
    f"BIG = {_BIG}\n"
    + _PEER
    + """
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.stdin.readline().strip())
context.set_alpn_protocols(["h2"])
def serve(raw):
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        with context.wrap_socket(raw, server_side=True) as one:
            preface = b""
            while len(preface) < 24: preface += one.recv(24 - len(preface))
            peer = Peer(one, 1 << 20)
            peer.begin()
            while not peer.has_ended: peer.read()
            one.sendall(frame(1, 4, ONE, b"\\x88"))
            peer.body(0 if peer.got else BIG)
            while True: peer.read()
    except (OSError, EOFError):
        pass
listener = socket.create_server(("127.0.0.1", 0), backlog=128)
print(listener.getsockname()[1], flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
)

_CLIENT = (
    _PEER
    + """
context = ssl.create_default_context()
for file in json.loads(sys.stdin.readline()): context.load_verify_locations(file)
context.set_alpn_protocols(["h2"])
def opened(at):
    labels = b"".join(bytes([len(p)]) + p.encode() for p in at["name"].split("."))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(struct.pack("!6H", 1, 256, 1, 0, 0, 0) + labels + b"\\0\\0\\1\\0\\1", tuple(at["dns"]))
        address = one.recv(600)[-4:]
    raw = socket.create_connection((socket.inet_ntoa(bytes([127]) + address[1:]), at["port"]))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(raw, server_hostname=at["name"])
for line in sys.stdin:
    at = json.loads(line)
    with opened(at) as one:
        peer = Peer(one, at["window"])
        peer.begin(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
        host = f"{at['name']}:{at['port']}".encode()
        head = (b"\\x83" if at["up"] else b"\\x82") + b"\\x87\\x84\\1" + bytes([len(host)]) + host
        start = time.perf_counter()
        one.sendall(frame(1, 4 if at["up"] else 5, ONE, head))
        if at["up"]: peer.body(at["up"])
        while not peer.has_ended: peer.read()
        took = time.perf_counter() - start
        assert peer.got == at["down"], peer.got
    print(took, flush=True)
"""
)


def _measured(run: measure.Run, client: subprocess.Popen[str], at: dict[str, object]) -> None:
    for title, up, window in (
        ("128 MiB down, windows of 1 MiB", 0, 1 << 20),
        ("128 MiB down, windows of 64 KiB", 0, (1 << 16) - 1),
        ("128 MiB up", _BIG, 1 << 20),
    ):
        both = things(client, {**at, "up": up, "down": 0 if up else _BIG, "window": window})
        goals = {"intercepted": Goal(plus=_BIG / _LEAST_RATE)}
        run.compare(title, measure.in_turn(both, run.rounds(9, 3), goals))


def main() -> None:
    run = measure.Run("http2", __doc__ or "")
    with_door(run, _SERVER, _CLIENT, _measured)
    run.finish()


if __name__ == "__main__":
    main()
