"""Runs in a separate network like a cell's, which has only `local 198.18.0.0/15 dev lo`. Makes sockets there and passes
them to its parent. Its argument is the descriptor of the socket to the parent."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFFLAGS = 0x8916, 0x891C, 0x8914


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    leave(Path(sys.argv[2]))
    control.send(b"ready")
    while request := control.recv(1 << 16):
        try:
            fds = [one.detach() for one in made(*json.loads(request))]
            socket.send_fds(control, [b"ok"], fds)
            for fd in fds:
                os.close(fd)
        except OSError as error:
            control.send(str(error.errno).encode())


def leave(resolv_conf: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET | CLONE_NEWNS | (CLONE_NEWUSER if uid else 0)) != 0:
        raise SystemExit(os.strerror(ctypes.get_errno()))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    target = os.path.realpath("/etc/resolv.conf").encode()
    if libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) or libc.mount(
        os.fsencode(resolv_conf), target, None, MS_BIND, None
    ):
        raise SystemExit(os.strerror(ctypes.get_errno()))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", 1))
        for request, value in ((SIOCSIFADDR, "198.18.0.1"), (SIOCSIFNETMASK, "255.254.0.0")):
            packed = struct.pack("16sH2x4s8x", b"lo:1", socket.AF_INET, socket.inet_aton(value))
            fcntl.ioctl(one, request, packed)


def made(what: str, addresses: list[tuple[str, int]]) -> list[socket.socket]:
    kind = socket.SOCK_DGRAM if what == "datagrams" else socket.SOCK_STREAM
    sockets = [socket.socket(socket.AF_INET, kind) for _ in addresses]
    for one, (address, port) in zip(sockets, addresses, strict=True):
        if what == "connect":
            one.settimeout(60)
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # after connecting, the reader sees it
                one.connect((address, port))
            one.settimeout(None)
        else:
            one.bind((address, port))
        if what == "listen":
            one.listen(128)
    return sockets


main()
