"""Sockets of the host that count who comes; all of them on the loopback or of the unix kind."""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

STREAM, DGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM


@dataclass
class Listeners:
    """``addresses``: name to what a payload must know to come; ``sockets``: the listening ends."""

    addresses: dict[str, str] = field(default_factory=dict)
    sockets: dict[str, socket.socket] = field(default_factory=dict)
    visits: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, family: int, kind: int, address: object) -> socket.socket:
        one = socket.socket(family, kind)
        self.sockets[name] = one
        self.visits[name] = 0
        one.bind(address)  # type: ignore[arg-type]
        if kind == STREAM:
            one.listen(64)
        one.setblocking(False)
        return one

    def visitors(self) -> set[str]:
        """The names of those that somebody has come to, since the last time this was asked."""
        came = set()
        ready = select.select(list(self.sockets.values()), [], [], 0)[0]
        while ready:
            for name, one in self.sockets.items():
                if one in ready:
                    came.add(name)
                    self.visits[name] += 1
                    if one.type == STREAM:
                        one.accept()[0].close()
                    else:
                        one.recv(4096)
            ready = select.select(list(self.sockets.values()), [], [], 0)[0]
        return came

    def as_env(self) -> dict[str, str]:
        """For a payload: NAME=address; ``PATH`` has another meaning in an environment."""
        return {{"path": "PATH_HOME"}.get(name, name.upper()): address for name, address in self.addresses.items()}


@contextlib.contextmanager
def listening(folder: Path, hosts: dict[str, str] | None = None) -> Iterator[Listeners]:
    """Listeners at ``hosts`` (name to address; the loopback when not given), abstract ones, and one in ``folder``."""
    made = Listeners()
    with contextlib.ExitStack() as stack:
        for name, host in (hosts or {"v4": "127.0.0.1", "v6": "::1"}).items():
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            for kind, label in ((STREAM, "tcp"), (DGRAM, "udp")):
                one = stack.enter_context(made.add(f"{label}_{name}", family, kind, (host, 0)))
                made.addresses[f"{label}_{name}"] = f"{host} {one.getsockname()[1]}"
        for kind, label in ((STREAM, "abstract"), (DGRAM, "abstract_dgram")):
            name = f"escapes-{secrets.token_hex(6)}"
            stack.enter_context(made.add(label, socket.AF_UNIX, kind, f"\0{name}"))
            made.addresses[label] = name
        path = folder / f"s{secrets.token_hex(3)}.sock"
        stack.enter_context(made.add("path", socket.AF_UNIX, STREAM, str(path)))
        path.chmod(0o777)
        made.addresses["path"] = str(path)
        yield made
