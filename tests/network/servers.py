"""The servers of the tests' internet, and the host's resolver. Each writes down who came, in the world's folder.

Run by `tests.network.world`: ``python -m tests.network.servers FOLDER internet|resolver``.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tests.network import site, web_site, witness, world

HTTP, HTTPS, TELNET, ECHO, SSH, POSTGRES, REDIRECT = 80, 443, 23, 7777, 22, 5432, 8080
BOTH, UNTRUSTED = (
    8443,
    9443,
)  # prefers HTTP/2, which it then does not speak; a certificate of an authority that nobody knows
BIG = 1 << 20  # bytes of /big
PATTERN = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(100_003))  # 3 MiB, no two parts of which are alike
_NAMES = ("good.test", "*.good.test", "other.test", "evil.test", "two.test", "html.duckduckgo.com")


class Visits:
    """Who came: one line each, ``address port what``, in a file that tests read."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "visits").open("a", buffering=1)

    def note(self, writer: asyncio.StreamWriter, what: str) -> None:
        address, port = writer.get_extra_info("sockname")[:2]
        self._file.write(f"{address} {port} {what!r}\n")


async def internet(folder: Path) -> None:
    """Serve until killed."""
    visits = Visits(folder)
    context = certified(folder)
    repository(folder)
    site.packages(folder)

    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _http(reader, writer, visits, folder)

    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2":
            visits.note(writer, "HTTP/2")
            writer.close()
        else:
            await http(reader, writer)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.note(writer, "echo")
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    await asyncio.start_server(http, "0.0.0.0", HTTP)
    await asyncio.start_server(http, "0.0.0.0", REDIRECT)
    await asyncio.start_server(http, "0.0.0.0", HTTPS, ssl=context)
    await asyncio.start_server(both, "0.0.0.0", BOTH, ssl=certified(folder, protocols=["h2", "http/1.1"]))
    await asyncio.start_server(http, "0.0.0.0", UNTRUSTED, ssl=certified(folder, "unknown-"))
    await witness.serve(folder)
    await web_site.serve(visits.note)
    for port in (ECHO, TELNET):
        await asyncio.start_server(echo, "0.0.0.0", port)
    await _ssh(folder, visits)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        await asyncio.to_thread(_postgres, folder)
    (folder / "up").touch()
    await asyncio.Event().wait()


async def _http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visits: Visits, folder: Path) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *lines = head.split("\r\n")
            headers = {key.lower(): value.strip() for key, _, value in (one.partition(":") for one in lines)}
            visits.note(writer, f"{line} host={headers.get('host', '')} x={headers.get('x-key', '')}")
            if line.startswith("GET /events"):
                await _events(reader, writer)
            if headers.get("transfer-encoding"):
                while await reader.read(1 << 16):
                    pass  # it is not understood here, and not answered
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target = line.split()[:2]
            if headers.get("upgrade"):
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
                while data := await reader.read(1 << 16):
                    writer.write(data)
            status, more, answer = _answer(method, target, body, folder)
            length = f"Content-Length: {len(answer)}\r\n"
            writer.write(f"HTTP/1.1 {status}\r\n{length}{more}\r\n".encode() + (b"" if method == "HEAD" else answer))
            await writer.drain()
    writer.close()


async def _events(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An event, and then another when the client has said that it got the first, elsewhere."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for word in (b"one", b"two"):
        event = b"data: " + word + b"\n\n"
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
        if word == b"one":
            await _GOT.wait()
    writer.write(b"0\r\n\r\n")


_GOT = asyncio.Event()


def _answer(method: str, target: str, body: bytes, folder: Path) -> tuple[str, str, bytes]:
    path, _, query = target.partition("?")
    if path.startswith("/redirect"):
        return "302 Found", f"Location: {query}\r\n", b""
    if path == "/html/":  # of the engine that duckduckgo is
        return (
            "200 OK",
            "Content-Type: text/html\r\n",
            web_site.RESULTS.format(dict(parse_qsl(body.decode()))["q"]).encode(),
        )
    if path == "/got":
        _GOT.set()
    if path.startswith("/site/"):
        place = folder / "site" / path.strip("/").removeprefix("site/")
        kind = "application/json" if place.name == "small" else "text/html" if place.suffix == "" else "x/y"
        return "200 OK", f"Content-Type: {kind}\r\n", place.read_bytes()
    if path == "/big":
        return "200 OK", "", b"x" * BIG
    if path in ("/pattern", "/cut"):
        return "200 OK", "", PATTERN
    if path == "/digest":
        return "200 OK", "", hashlib.sha256(body).hexdigest().encode()
    file = folder / "repository" / path.removeprefix("/repository/")
    if path.startswith("/repository/"):
        return ("200 OK", "", file.read_bytes()) if file.is_file() else ("404 Not Found", "", b"")
    return "200 OK", "Content-Type: text/plain\r\n", f"hello from {method} {path}".encode()


async def _ssh(folder: Path, visits: Visits) -> None:
    import asyncssh

    class Server(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            address, port = conn.get_extra_info("sockname")[:2]
            visits._file.write(f"{address} {port} 'ssh'\n")

        def begin_auth(self, username: str) -> bool:
            return False

    def handle(process: asyncssh.SSHServerProcess[str]) -> None:
        process.stdout.write(f"you said {process.command}\n")
        process.exit(0)

    key = asyncssh.generate_private_key("ssh-ed25519")
    (folder / "known_hosts").write_text(f"good.test {key.export_public_key().decode()}")
    await asyncssh.create_server(Server, "0.0.0.0", SSH, server_host_keys=[key], process_factory=handle)


def _postgres(folder: Path) -> None:
    """A database server, which refuses to be root; where it could be started there is a file ``postgres``."""
    binaries = Path(sys.prefix, "lib", f"python3.{sys.version_info.minor}", "site-packages/pgserver/pginstall/bin")
    data = Path("/mnt/postgres")
    data.mkdir()
    nobody = 65534
    os.chown(data, *((nobody, nobody) if world.is_root() else (-1, -1)))

    def ordinary() -> None:
        if world.is_root():
            os.setgroups([])
            os.setgid(nobody)
            os.setuid(nobody)
        else:
            world.be_ordinary(nobody, nobody)
        world.end_with_parent()

    quiet: dict[str, Any] = {"preexec_fn": ordinary, "cwd": "/", "stdout": subprocess.DEVNULL}
    quiet |= {"stderr": (folder / "postgres.log").open("w"), "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}}
    made: list[str | Path] = [binaries / "initdb", "-D", data, "-U", "somebody", "-A", "trust", "--no-sync"]
    subprocess.run(made, check=True, timeout=150, **quiet)
    with (data / "pg_hba.conf").open("a") as access:
        access.write("host all all 0.0.0.0/0 trust\n")
    options = ["-c", "listen_addresses=*", "-c", f"unix_socket_directories={data}", "-c", "fsync=off"]
    process = subprocess.Popen([binaries / "postgres", "-D", data, *options], **quiet)
    for _ in range(3000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", POSTGRES)) == 0:
                (folder / "postgres").touch()
                return
        if process.poll() is not None:
            return
        time.sleep(0.05)


def certified(
    folder: Path, prefix: str = "", protocols: list[str] | None = None, names: Sequence[str] = _NAMES
) -> ssl.SSLContext:
    """A server's context, for ``names``; the authority's certificate lies in ``ca.pem``, with ``prefix`` before its
    name. With ``protocols`` the certificate is the one that was made before."""
    if protocols is not None:
        again = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        again.set_alpn_protocols(protocols)
        again.load_cert_chain(folder / f"{prefix}server.pem")
        return again
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the tests' authority")])
    now = dt.datetime.now(dt.UTC)

    def certificate(key: ec.EllipticCurvePrivateKey, subject: x509.Name, *, is_authority: bool) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )
        if is_authority:
            usage = x509.KeyUsage(
                digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
                key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                decipher_only=False,
            )  # fmt: skip
            builder = builder.add_extension(usage, critical=True)
        else:
            alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
            builder = builder.add_extension(alternative, critical=False)
        return builder.sign(authority, hashes.SHA256())

    pem = serialization.Encoding.PEM
    (folder / f"{prefix}ca.pem").write_bytes(certificate(authority, issuer, is_authority=True).public_bytes(pem))
    private = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "good.test")])
    (folder / f"{prefix}server.pem").write_bytes(
        private + certificate(server, subject, is_authority=False).public_bytes(pem)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{prefix}server.pem")
    return context


def repository(folder: Path) -> None:
    """A git repository that any web server can serve."""
    if shutil.which("git") is None:
        return
    work, bare = folder / "work", folder / "repository"
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(folder)}
    for name in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{name}_NAME": "somebody", f"GIT_{name}_EMAIL": "somebody@good.test"}
    work.mkdir()
    (work / "file").write_text("from git\n")
    for arguments in (["init", "-q", "-b", "main"], ["add", "file"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=work, env=env, check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(bare)], env=env, check=True)
    subprocess.run(["git", "update-server-info"], cwd=bare, env=env, check=True)


def resolver(folder: Path) -> None:
    """The host's name server: it knows nothing, and writes down what it is asked."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, (folder / "queries").open("a", buffering=1) as log:
        server.bind(("127.0.0.54", 53))
        (folder / "resolver").touch()
        while True:
            query, client = server.recvfrom(4096)
            log.write(f"{_name_in(query)}\n")
            server.sendto(query[:2] + b"\x81\x83" + query[4:6] + bytes(6) + query[12:], client)


def _name_in(query: bytes) -> str:
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("latin-1"))
        at += 1 + query[at]
    return ".".join(labels)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if sys.argv[2] == "resolver":
        resolver(place)
    else:
        asyncio.run(internet(place))
