"""Servers on the loopback for the egress proxy to reach: each in threads of its own, ended with its ``with`` block."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Serve = Callable[[socket.socket], None]


@contextlib.contextmanager
def listening(serve: Serve) -> Iterator[int]:
    """A server that gives each connection to ``serve``, in a thread; its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            one.settimeout(90)
            connections.append(one)
            threads.append(threading.Thread(target=attend, args=(one,), daemon=True))
            threads[-1].start()

    def attend(one: socket.socket) -> None:
        with contextlib.suppress(OSError), one:
            serve(one)

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        for one in (listener, *connections):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (accepting, *threads):
            thread.join(60)


def echo(one: socket.socket) -> None:
    while data := one.recv(1 << 16):
        one.sendall(data)


class Web(http.server.BaseHTTPRequestHandler):
    """Says what it was asked: method, Host, path and body. ``/big`` is 1 MiB, ``/chunked`` comes in chunks."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def _answer(self, body: bytes) -> None:
        text = f"{self.command} {self.headers['Host']} {self.path} ".encode() + body
        data = b"x" * (1 << 20) if self.path == "/big" else text
        self.send_response(200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (data[:3], data[3:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def web(context: ssl.SSLContext | None = None, handler: type[Web] = Web) -> Iterator[int]:
    """An HTTP server, with TLS if there is a ``context``; its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def certificate(folder: Path, *names: str) -> Path:
    """A file with a self-signed certificate for ``names`` and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{names[0]}.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return path


def serving_tls(certified: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified)
    return context
