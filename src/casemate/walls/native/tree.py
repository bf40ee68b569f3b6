"""What of the host's system a cell can read: an explicit list."""

from __future__ import annotations

import os
from collections.abc import Iterator

from casemate.model.plan import DOOR, GUEST, HOME, Bind, Entry, Link, Text

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Settings that programs read and that say nothing about this machine's people or secrets.
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "pki/ca-trust",
        "ca-certificates", "alternatives", "mime.types", "magic", "services", "protocols", "fonts", "terminfo",
        "debian_version", "os-release", "bash.bashrc", "inputrc", "python3", "python3.11", "python3.12", "python3.13",
        "python3.14", "matplotlibrc", "localtime", *(f"java-{n}-openjdk" for n in range(8, 31)))  # fmt: skip
_SYNTHESISED = {
    "/etc/passwd": f"user:x:1000:1000:user:{HOME}:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "/etc/group": "user:x:1000:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost casemate\n::1 localhost casemate\n",
    "/etc/hostname": "casemate\n",
    "/etc/resolv.conf": f"nameserver {DOOR}\noptions ndots:1\n",  # unreachable at once where there is no door
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "/etc/host.conf": "multi on\n",
    "/etc/machine-id": "00000000000000000000000000000000\n",
    "/etc/shells": "/bin/sh\n/bin/bash\n",
}
_GUEST_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "guest")


def system_entries() -> tuple[Entry, ...]:
    """The system folders, devices and settings that every cell sees, as they are on this host."""
    return tuple(_entries())


def _entries() -> Iterator[Entry]:
    for folder in _SYSTEM:
        if os.path.islink(folder):
            yield Link(folder, os.readlink(folder))
        elif os.path.isdir(folder):
            yield Bind(folder, folder)
    for device in _DEVICES:
        yield Bind(f"/dev/{device}", f"/dev/{device}", device=True)
    for name, content in _SYNTHESISED.items():
        yield Text(name, content)
    for name in _ETC:
        source = os.path.realpath(f"/etc/{name}")
        if f"/etc/{name}" not in _SYNTHESISED and os.path.exists(source):
            yield Bind(source, f"/etc/{name}")
    yield Bind(_GUEST_FOLDER, GUEST)
