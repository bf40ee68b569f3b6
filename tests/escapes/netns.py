"""A host application in a network namespace of its own, with addresses of every kind; run as a program by test_network.

Nothing can leave this namespace: it has no interface but its own loopback, and the program makes sure of that
before it lets anybody connect. It prints who was visited, from a cell and bare, as JSON.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
import tempfile
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFFLAGS = 0x8916, 0x891C, 0x8914
IFF_UP = 1
# Private, link-local as the metadata service, shared, benchmarking, documentation (as any public address), a resolver.
ADDRESSES = {
    "ten": "10.77.0.1",
    "private16": "192.168.77.1",
    "private12": "172.31.77.1",
    "link": "169.254.77.1",
    "shared": "100.64.77.1",
    "benchmark": "198.18.77.1",
    "public": "203.0.113.77",
    "loopback2": "127.0.0.77",
    "v6": "::1",
    "mapped": "::ffff:10.77.0.1",
}
RESOLVER = "10.77.0.53"


def own_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET | (0 if uid == 0 else CLONE_NEWUSER)) != 0:
        raise SystemExit(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def give_addresses() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
        plain = [one for one in (*ADDRESSES.values(), RESOLVER) if ":" not in one]
        for nth, address in enumerate(plain, start=1):
            name = f"lo:{nth}".encode()
            for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.255")):
                packed = struct.pack("16sH2x4s8x8x", name, socket.AF_INET, socket.inet_aton(value))
                fcntl.ioctl(control, request, packed)


def is_alone() -> bool:
    """Only the loopback, and no route that is not through it."""
    interfaces = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    return set(interfaces) <= {
        "lo",
        "tunl0",
        "sit0",
        "ip6tnl0",
        "gre0",
        "erspan0",
        "gretap0",
        "ip_vti0",
        "ip6_vti0",
    } and all(line.startswith("lo") for line in routes)


def main() -> None:
    own_namespace()
    give_addresses()
    if not is_alone():
        raise SystemExit("this namespace has a way out; nothing was tried")
    from tests.escapes.cells import Attack, attack, bare
    from tests.escapes.listeners import listening

    from casemate import sync

    folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
    visited = {}
    with listening(folder, ADDRESSES) as listeners:
        dns = listeners.add("resolver", socket.AF_INET, socket.SOCK_DGRAM, (RESOLVER, 53)) if _may_bind_53() else None
        env = {**listeners.as_env(), **({"UDP_RESOLVER": f"{RESOLVER} 53"} if dns else {})}
        with sync.Sandbox(audit=folder / "audit.db", isolation=os.environ["CASEMATE_ISOLATION"]) as sandbox:
            for language in sys.argv[2:]:
                attack(sandbox, Attack("network", language), env)
                visited[f"cell {language}"] = sorted(listeners.visitors())
                bare(Attack("network", language), env, folder / "bare")
                visited[f"bare {language}"] = sorted(listeners.visitors())
            sandbox.run("import socket\nsocket.getaddrinfo('name.invalid', 80)")
            visited["cell resolving"] = sorted(listeners.visitors())
    print(json.dumps({"all": sorted(listeners.sockets), "visited": visited}))


def _may_bind_53() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.bind((RESOLVER, 53))
        except OSError:
            return False
    return True


if __name__ == "__main__":
    main()
