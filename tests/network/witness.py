"""A server that writes down all that it is sent, and says it back: over TLS, in HTTP/1.1."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from pathlib import Path

PORT = 8444


async def serve(folder: Path) -> None:
    """Begin to serve, at every address, with the certificate that lies in the folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    context.set_alpn_protocols(["http/1.1"])

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await _http(folder, reader, writer)
        writer.close()

    await asyncio.start_server(met, "0.0.0.0", PORT, ssl=context)


def _write_down(folder: Path, version: str, target: str, fields: list[list[str]], body: bytes) -> None:
    with (folder / "witnessed").open("a") as file:
        line = {"version": version, "target": target, "fields": fields, "body": body.decode("latin-1")}
        file.write(json.dumps(line) + "\n")


def _answer(target: str, fields: list[list[str]]) -> tuple[str, list[tuple[str, str]], bytes]:
    """Status, fields and body: what was sent, and where else to go."""
    path, _, query = target.partition("?")
    if path == "/redirect":
        return "302", [("location", query)], b""
    said = [("x-echo", value) for name, value in fields if name.lower() in ("x-key", "authorization")]
    return "200", said, b"you sent " + json.dumps(fields).encode() + b" twice " + json.dumps(fields).encode()


async def _http(folder: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = [[name, value.strip()] for name, colon, value in (one.partition(":") for one in lines) if colon]
        named = {name.lower(): value for name, value in fields}
        body = await reader.readexactly(int(named.get("content-length", 0)))
        while named.get("transfer-encoding") == "chunked":
            size = int(await reader.readline(), 16)
            body += (await reader.readexactly(size + 2))[:-2]
            if not size:
                break
        _write_down(folder, "1.1", line.split()[1], fields, body)
        if "upgrade" in named:
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
            frames = await reader.read(1 << 16)
            _write_down(folder, "websocket", "", [], frames)
            writer.write(frames)
            return
        status, more, answer = _answer(line.split()[1], fields)
        in_chunks = line.split()[1].startswith("/chunks")
        framing = "Transfer-Encoding: chunked" if in_chunks else f"Content-Length: {len(answer)}"
        head = "".join(f"{name}: {value}\r\n" for name, value in more)
        writer.write(f"HTTP/1.1 {status} Said\r\n{framing}\r\n{head}\r\n".encode("latin-1"))
        for at in range(0, 0 if in_chunks else len(answer), 7):  # in pieces that cut whatever is in there
            writer.write(answer[at : at + 7])
            await writer.drain()
        size = 7 if line.split()[1].startswith("/chunks/small") else len(answer)
        for at in range(0, len(answer) if in_chunks else 0, size):
            writer.write(b"%x\r\n%s\r\n" % (len(answer[at : at + size]), answer[at : at + size]))
        if in_chunks:
            said = "".join(f"{name}: {value}\r\n" for name, value in more)  # in trailers, too
            writer.write(b"0\r\n%s\r\n" % said.encode("latin-1"))
        await writer.drain()
