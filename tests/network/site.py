"""What the tests' internet offers besides greetings: packages for pip and npm, and HTTP/2."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions

Answer = Callable[[str, str, bytes], tuple[str, str, bytes]]


def packages(folder: Path) -> None:
    """``tiny`` as a wheel, in an index, and as a package of npm."""
    (folder / "site").mkdir()
    wheel = io.BytesIO()
    parts = {"tiny.py": b"SAYS = 'tiny'\n"}
    info = "tiny-1.0.dist-info"
    parts[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    parts[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    parts[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in (*parts, f"{info}/RECORD")).encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    (folder / "site" / "tiny-1.0-py3-none-any.whl").write_bytes(wheel.getvalue())
    (folder / "site" / "tiny").write_text('<a href="/site/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>')
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in (
            ("package.json", b'{"name": "small", "version": "1.0.0"}'),
            ("index.js", b"module.exports = 'small'\n"),
        ):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (folder / "site" / "small-1.0.0.tgz").write_bytes(made.getvalue())
    digest = "sha512-" + base64.b64encode(hashlib.sha512(made.getvalue()).digest()).decode()
    dist = {"tarball": "https://good.test/site/small-1.0.0.tgz", "integrity": digest}
    version = {"name": "small", "version": "1.0.0", "dist": dist}
    packument = {"name": "small", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (folder / "site" / "small").write_text(json.dumps(packument))


async def speak_h2(  # noqa: C901 - one loop over what may happen
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Callable[[str], None], answer: Answer
) -> None:
    """Serve HTTP/2 until the other side ends. What is asked is noted; ``/trailers`` has some, ``/reset`` is reset,
    ``/cut`` in the midst, ``/bye`` is the last that is answered."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    connection.initiate_connection()
    heads: dict[int, dict[str, str]] = {}
    bodies: dict[int, bytearray] = {}
    left: dict[int, bytes] = {}

    def go_on(stream: int) -> None:
        while left[stream]:
            room = min(connection.local_flow_control_window(stream), connection.max_outbound_frame_size)
            if room <= 0:
                return
            part, left[stream] = left[stream][:room], left[stream][room:]
            connection.send_data(stream, part)
            if heads[stream][":path"] == "/cut" and len(left[stream]) < 1 << 20:
                connection.reset_stream(stream, 11)
                break
        rest = left.pop(stream)
        if rest:
            return
        if heads[stream][":path"] == "/trailers":
            connection.send_headers(stream, [("x-trailer", "last")], end_stream=True)
        else:
            connection.end_stream(stream)

    def begin(stream: int) -> None:
        head = heads[stream]
        note(f"{head[':method']} {head[':path']} HTTP/2 host={head[':authority']} x={head.get('x-key', '')}")
        if head[":path"] == "/reset":
            connection.reset_stream(stream, 11)
            return
        status, _, body = answer(head[":method"], head[":path"], bytes(bodies[stream]))
        connection.send_headers(stream, [(":status", status.split()[0]), ("content-length", str(len(body)))])
        left[stream] = body
        go_on(stream)

    with contextlib.suppress(ConnectionError, h2.exceptions.ProtocolError):
        while data := await reader.read(1 << 16):
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    heads[event.stream_id] = {str(name): str(value) for name, value in event.headers}
                    bodies[event.stream_id] = bytearray()
                elif isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] += event.data
                    connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    with contextlib.suppress(h2.exceptions.ProtocolError):  # it was reset at once
                        begin(event.stream_id)
                elif isinstance(event, h2.events.WindowUpdated):
                    for stream in list(left):
                        with contextlib.suppress(h2.exceptions.StreamClosedError):  # its reset is yet to be read
                            go_on(stream)
                elif isinstance(event, h2.events.StreamReset):
                    note(f"reset {event.stream_id}")
                    left.pop(event.stream_id, None)
            writer.write(connection.data_to_send())
            if any(head[":path"] == "/bye" for head in heads.values()) and not left:
                connection.close_connection()
                writer.write(connection.data_to_send())
            await writer.drain()
    writer.close()
