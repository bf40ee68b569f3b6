"""Come to every listener of the host: as ourselves, as a child with an empty environment, over MPTCP, by a raw packet.

The addresses are in the environment, by the names of listeners.py; each is of the loopback or of a namespace
of the tests' own.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

from tests.escapes.payloads.attempts import attempt, finish

TIMEOUT = 2.0


def tcp(address: str, protocol: int = 0) -> None:
    host, port = address.split()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, protocol) as client:
        client.settimeout(TIMEOUT)
        client.connect((host, int(port)))


def udp(address: str) -> None:
    host, port = address.split()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.sendto(b"escaped", (host, int(port)))


def unix(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT)
        client.connect(path)


def unix_dgram(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.sendto(b"escaped", path)


def raw_udp(address: str) -> None:
    """The same packet without the kernel's help, where it may be made at all."""
    host, port = address.split()
    header = (40000).to_bytes(2, "big") + int(port).to_bytes(2, "big") + (15).to_bytes(2, "big") + b"\0\0"
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as client:
        client.sendto(header + b"escaped", (host, 0))


def by_child(address: str) -> None:
    host, port = address.split()
    code = f"import socket; socket.create_connection(({host!r}, {port}), 2)"
    subprocess.run([sys.executable, "-I", "-c", code], env={}, check=True, stderr=subprocess.DEVNULL)


def named(prefix: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


for name, value in named("TCP_").items():
    attempt(name, lambda value=value: tcp(value))  # type: ignore[misc]
    attempt(f"{name} mptcp", lambda value=value: tcp(value, 262))  # type: ignore[misc]
    attempt(f"{name} child", lambda value=value: by_child(value))  # type: ignore[misc]
for name, value in named("UDP_").items():
    attempt(name, lambda value=value: udp(value))  # type: ignore[misc]
    if ":" not in value:
        attempt(f"{name} raw", lambda value=value: raw_udp(value))  # type: ignore[misc]
for name, value in named("PATH_").items():
    attempt(name, lambda value=value: unix(value))  # type: ignore[misc]
    attempt(f"{name} by /proc", lambda value=value: unix(f"/proc/1/root{value}"))  # type: ignore[misc]
if "ABSTRACT" in os.environ:
    attempt("abstract", lambda: unix("\0" + os.environ["ABSTRACT"]))
    attempt("abstract datagram", lambda: unix_dgram("\0" + os.environ["ABSTRACT_DGRAM"]))
if "STATIC" in os.environ:
    shutil.copy("connect", "connect-copy")
    os.chmod("connect-copy", 0o755)
    for name, value in named("TCP_V4").items():
        attempt(f"{name} static", lambda value=value: subprocess.run(["./connect-copy", *value.split()], check=True))  # type: ignore[misc]
finish()
